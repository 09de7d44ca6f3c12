// SPDX-License-Identifier: GPL-2.0-or-later
// The arbiter with pages in this process: what a session does to its page, and what the arbiter makes of it.
#include "share/arbiter/arbiter.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace kagemusha::share {
namespace {

struct host {
    arbiter the{[this](connection_id id) { woken.insert(id); }};
    std::set<connection_id> woken;
    std::map<connection_id, std::unique_ptr<share_page>> pages;

    std::string join(connection_id id, const std::string& vm, share_role role, vm_terms terms = {},
                     std::optional<policy_kind> policy = {}) {
        hello h;
        h.role = role;
        h.vm = vm;
        h.terms = terms;
        h.has_policy = policy.has_value();
        h.policy = policy.value_or(policy_kind::fair);
        h.gpu_memory_bytes = 8ull << 30;
        if (role == SHARE_SESSION)
            pages[id] = std::make_unique<share_page>();
        return the.join(id, h, role == SHARE_SESSION ? pages[id].get() : nullptr, 0);
    }
    std::uint64_t word(connection_id id) { return pages[id]->word.load(); }
    void wants(connection_id id, std::uint64_t now_ns) {
        pages[id]->word.fetch_or(SHARE_WAITING);
        the.message(id, now_ns);
    }
    // The session begins a task, as gate::take() does.
    bool begins(connection_id id) {
        const std::uint64_t w = word(id);
        if ((w & SHARE_GRANTED) == 0 || (w & SHARE_TAKE_BACK) != 0)
            return false;
        pages[id]->word.store(w + 1);
        pages[id]->tasks.fetch_add(1);
        return true;
    }
    void gives_back(connection_id id, std::uint64_t now_ns) {
        pages[id]->word.store(0);
        the.message(id, now_ns);
    }
};

vm_terms share_of(std::uint32_t permille) {
    vm_terms terms;
    terms.share_permille = permille;
    return terms;
}

TEST(arbiter, programs_have_accounts_of_their_own) {
    host h;
    EXPECT_EQ(h.join(1, "a", SHARE_VM), "");
    EXPECT_EQ(h.join(2, "a", SHARE_SESSION), "");
    EXPECT_EQ(h.join(3, "a", SHARE_SESSION), "");
    h.pages[2]->busy_ns = 300;
    h.pages[3]->busy_ns = 500;
    h.pages[3]->tasks = 7;
    h.pages[3]->waited_ns = 200;
    h.pages[2]->waited_ns = UINT64_MAX; // of one that lies: no more than it was there
    auto programs = h.the.programs(1000);
    ASSERT_EQ(programs.size(), 2u); // the VM's own connection is none
    EXPECT_STREQ(programs[0].vm, "a");
    EXPECT_EQ(programs[0].gpu_ns, 500u);
    EXPECT_EQ(programs[0].tasks, 7u);
    EXPECT_EQ(programs[0].waited_ns, 200u);
    EXPECT_EQ(programs[1].waited_ns, 1000u);
    h.the.gone(3, 1000);
    EXPECT_EQ(h.the.programs(1000).size(), 1u);
    for (connection_id id = 10; id < 10 + SHARE_MAX_PROGRAM_ROWS; ++id)
        h.join(id, id % 2 != 0 ? "a" : "b", SHARE_SESSION);
    EXPECT_EQ(h.the.programs(1000).size(), SHARE_MAX_PROGRAM_ROWS);
}

TEST(arbiter, a_lone_session_keeps_its_grant) {
    host h;
    EXPECT_EQ(h.join(1, "a", SHARE_SESSION), "");
    h.wants(1, 10);
    EXPECT_TRUE(h.woken.contains(1));
    EXPECT_EQ(h.word(1), SHARE_GRANTED);
    EXPECT_EQ(h.pages[1]->bounded.load(), 0u);
    h.the.advance(10 * second);
    EXPECT_EQ(h.word(1), SHARE_GRANTED);
}

TEST(arbiter, an_idle_holder_is_not_asked) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    EXPECT_EQ(h.pages[1]->bounded.load(), 1u);
    h.wants(1, 10);
    ASSERT_TRUE(h.begins(1));
    h.pages[1]->word.store(SHARE_GRANTED); // its task has ended
    h.wants(2, 20);
    EXPECT_EQ(h.word(1) & SHARE_GRANTED, 0u);
    EXPECT_NE(h.word(2) & SHARE_GRANTED, 0u);
}

// The thread that was told "go" takes some time to get there; two VMs of long kernels had shares of 2 to 1
// instead of 3 to 1 when the first one to ask meanwhile got the turn.
TEST(arbiter, a_grant_on_its_way_is_not_lost_to_the_next_who_asks) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(1, 10);
    h.wants(2, 20);
    EXPECT_EQ(h.word(2), SHARE_WAITING);
    ASSERT_TRUE(h.begins(1));
    h.gives_back(1, 1 * ms);
    EXPECT_TRUE(h.begins(2));
}

TEST(arbiter, a_grant_that_nobody_uses_costs_one_turn) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(1, 10);
    h.wants(2, 20);
    h.the.advance(max_slice_ns + 1 * ms);
    EXPECT_FALSE(h.begins(1));
    EXPECT_TRUE(h.begins(2));
}

TEST(arbiter, a_busy_holder_ends_its_tasks_first) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(1, 10);
    ASSERT_TRUE(h.begins(1));
    h.wants(2, 20);
    EXPECT_EQ(h.word(2), SHARE_WAITING);
    EXPECT_NE(h.word(1) & SHARE_SHARED, 0u);
    h.the.advance(20 * ms);
    EXPECT_NE(h.word(1) & SHARE_TAKE_BACK, 0u);
    EXPECT_FALSE(h.begins(1));
    h.gives_back(1, 21 * ms);
    EXPECT_TRUE(h.woken.contains(2));
    EXPECT_TRUE(h.begins(2));
}

TEST(arbiter, programs_of_one_vm_run_side_by_side) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "a", SHARE_SESSION);
    h.join(3, "b", SHARE_SESSION);
    h.wants(1, 10);
    ASSERT_TRUE(h.begins(1));
    h.wants(2, 20);
    EXPECT_TRUE(h.begins(2));
    h.wants(3, 30);
    h.the.advance(20 * ms);
    h.gives_back(1, 21 * ms);
    EXPECT_FALSE(h.begins(3)) << "the other program of the first VM still has tasks in flight";
    h.gives_back(2, 22 * ms);
    EXPECT_TRUE(h.begins(3));
}

TEST(arbiter, a_session_that_dies_leaves_the_gpu) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(1, 10);
    ASSERT_TRUE(h.begins(1));
    h.wants(2, 20);
    h.the.gone(1, 30);
    EXPECT_TRUE(h.begins(2));
    EXPECT_EQ(h.the.rows(40).size(), 1u);
    EXPECT_EQ(h.pages[2]->bounded.load(), 0u);
}

TEST(arbiter, one_that_never_gives_back_costs_the_patience) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(1, 0);
    ASSERT_TRUE(h.begins(1));
    h.wants(2, 0);
    h.the.advance(max_slice_ns);
    h.the.advance(max_slice_ns + patience_ns);
    EXPECT_TRUE(h.begins(2));
    EXPECT_EQ(h.the.rows(2 * second)[0].times_stuck, 1u);
}

TEST(arbiter, a_wish_that_is_taken_back_costs_nothing) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.wants(2, 0);
    ASSERT_TRUE(h.begins(2));
    h.wants(1, 1);
    h.pages[1]->word.store(0);
    h.gives_back(2, 2);
    h.wants(2, 3);
    EXPECT_TRUE(h.begins(2));
}

TEST(arbiter, nonsense_in_a_page_is_its_vms_own_loss) {
    host h;
    h.join(1, "a", SHARE_SESSION);
    h.join(2, "b", SHARE_SESSION);
    h.pages[1]->word.store(UINT64_MAX);
    h.pages[1]->busy_ns.store(UINT64_MAX);
    h.pages[1]->busy_since_ns.store(UINT64_MAX);
    h.pages[1]->loose_ns.store(UINT64_MAX);
    h.the.message(1, 1 * ms);
    h.wants(2, 2 * ms);
    h.the.advance(1 * second);
    h.the.advance(3 * second);
    EXPECT_TRUE(h.begins(2));
    for (const share_row& row : h.the.rows(3 * second))
        EXPECT_LE(row.gpu_ns, 3 * second);
}

TEST(arbiter, what_does_not_fit_is_refused) {
    host h;
    EXPECT_EQ(h.join(1, "a", SHARE_VM, share_of(700)), "");
    EXPECT_NE(h.join(2, "b", SHARE_VM, share_of(400)), "");
    EXPECT_EQ(h.join(3, "b", SHARE_VM, share_of(300)), "");
    h.the.gone(1, 0);
    EXPECT_EQ(h.join(4, "c", SHARE_VM, share_of(700)), "");
    vm_terms much;
    much.memory_bytes = 9ull << 30;
    EXPECT_NE(h.join(5, "d", SHARE_VM, much).find("of this GPU's 8.0 GiB are free"), std::string::npos);
}

TEST(arbiter, a_gpu_has_one_policy) {
    host h;
    EXPECT_EQ(h.join(1, "a", SHARE_VM, {}, policy_kind::fixed), "");
    EXPECT_EQ(h.the.policy(), policy_kind::fixed);
    EXPECT_EQ(
        h.join(2, "b", SHARE_VM, {}, policy_kind::fair),
        "the VMs of this GPU share it by the policy \"fixed\", and this one wants \"fair\": give all of "
        "them the same, or choose another GPU");
    EXPECT_EQ(h.join(3, "b", SHARE_VM), "");
    h.the.gone(1, 0);
    h.the.gone(3, 0);
    EXPECT_EQ(h.join(4, "c", SHARE_VM, {}, policy_kind::fair), "");
}

TEST(arbiter, a_standby_counts) {
    host h;
    vm_terms terms = share_of(600);
    terms.standby = true;
    EXPECT_EQ(h.join(1, "a", SHARE_VM, terms), "");
    EXPECT_NE(h.join(2, "b", SHARE_VM, share_of(500)), "");
}

} // namespace
} // namespace kagemusha::share
