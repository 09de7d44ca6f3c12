// SPDX-License-Identifier: GPL-2.0-or-later
#include "share/core/scheduler.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "share/core/window.hpp"

namespace kagemusha::share {
namespace {

using kind = action::kind;

std::vector<action> actions_of(scheduler& s) {
    std::vector<action> out;
    while (const auto next = s.next_action())
        out.push_back(*next);
    return out;
}

vm_terms share_of(std::uint32_t permille) {
    vm_terms terms;
    terms.share_permille = permille;
    return terms;
}

std::uint64_t held(const scheduler& s, vm_id id) {
    return s.find(id)->held_ns;
}

// Both have endless tasks of a length and give the GPU back at the end of one: how long each had it.
void run_busy(scheduler& s, const std::vector<std::uint64_t>& task_ns, std::uint64_t until_ns) {
    std::uint64_t now = 0;
    for (vm_id id = 0; id < task_ns.size(); ++id)
        s.wants(id, now);
    constexpr vm_id nobody = UINT32_MAX;
    vm_id holder = nobody;
    bool leaving = false;
    std::uint64_t task_ends = UINT64_MAX;
    while (now < until_ns) {
        while (const auto a = s.next_action()) {
            if (a->what == kind::grant) {
                ASSERT_EQ(holder, nobody) << "two at a time";
                holder = a->vm;
                leaving = false;
                task_ends = now + task_ns[a->vm];
            } else if (a->what == kind::take_back) {
                leaving = true;
            }
        }
        now = std::min({task_ends, s.next_ns(), until_ns});
        if (now != task_ends) {
            s.advance(now);
        } else if (leaving) {
            const vm_id id = holder;
            holder = nobody;
            task_ends = UINT64_MAX;
            s.released(id, true, now);
        } else {
            task_ends = now + task_ns[holder];
            s.advance(now);
        }
    }
}

// Two VMs with tasks of 500 us, and a gap before each next one: how long each had the GPU within 10 s.
std::vector<std::uint64_t> run_steps(scheduler& s, std::uint64_t gap_ns) {
    constexpr std::uint64_t task_ns = 500 * us, until_ns = 10 * second, never = UINT64_MAX;
    struct {
        std::uint64_t task_ends_ns = never, gap_ends_ns = 0;
    } vms[2];
    std::uint64_t now = 0;
    while (now < until_ns) {
        while (const auto a = s.next_action())
            if (a->what == kind::grant)
                vms[a->vm].task_ends_ns = now + task_ns;
        now = std::min(s.next_ns(), until_ns);
        for (const auto& vm : vms)
            now = std::min({now, vm.task_ends_ns, vm.gap_ends_ns});
        s.advance(now);
        for (vm_id id = 0; id < 2; ++id) {
            if (vms[id].task_ends_ns == now) {
                vms[id] = {never, now + gap_ns};
                s.released(id, false, now);
            } else if (vms[id].gap_ends_ns == now) {
                vms[id].gap_ends_ns = never;
                s.wants(id, now);
            }
        }
    }
    return {held(s, 0), held(s, 1)};
}

TEST(scheduler, a_lone_vm_is_granted_the_gpu_once) {
    scheduler s(policy_kind::fair);
    s.add(1, {}, 0);
    s.wants(1, 10);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 1, false}}));
    s.advance(10 * second);
    EXPECT_TRUE(actions_of(s).empty());
    EXPECT_EQ(s.next_ns(), UINT64_MAX);
}

TEST(scheduler, a_second_vm_makes_the_first_share) {
    scheduler s(policy_kind::round_robin);
    s.add(1, {}, 0);
    s.add(2, {}, 0);
    s.wants(1, 0);
    actions_of(s);
    s.wants(2, 1 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::share, 1}}));
    s.advance(1 * ms + max_slice_ns);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::take_back, 1}}));
    s.released(1, true, 12 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 2, true}}));
}

TEST(scheduler, what_one_leaves_the_other_gets_at_once) {
    scheduler s(policy_kind::fair);
    s.add(1, share_of(900), 0);
    s.add(2, share_of(100), 0);
    s.wants(1, 0);
    s.wants(2, 0);
    actions_of(s);
    s.released(1, false, 2 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 2, false}}));
}

TEST(scheduler, fair_follows_the_weights_whatever_the_kernels) {
    scheduler s(policy_kind::fair);
    s.add(0, share_of(750), 0);
    s.add(1, share_of(250), 0);
    run_busy(s, {100 * us, 10 * ms}, 10 * second);
    EXPECT_NEAR(static_cast<double>(held(s, 0)) / (10.0 * second), 0.75, 0.0075);
}

// A program that waits for the one task to begin the other has nothing to do in between.
TEST(scheduler, fair_follows_the_weights_of_those_with_short_gaps) {
    for (const std::uint64_t gap_ns : {1 * us, 20 * us, 100 * us}) {
        scheduler s(policy_kind::fair);
        s.add(0, share_of(750), 0);
        s.add(1, share_of(250), 0);
        const auto had = run_steps(s, gap_ns);
        EXPECT_NEAR(static_cast<double>(had[0]) / static_cast<double>(had[0] + had[1]), 0.75, 0.02) << gap_ns;
    }
}

TEST(scheduler, no_gpu_stands_still_for_long_gaps) {
    scheduler s(policy_kind::fair);
    s.add(0, share_of(750), 0);
    s.add(1, share_of(250), 0);
    const auto had = run_steps(s, 2 * ms);
    EXPECT_NEAR(static_cast<double>(had[0]) / static_cast<double>(had[0] + had[1]), 0.5, 0.02);
}

// One that announced short gaps and then stays away costs the others one of them.
TEST(scheduler, a_gap_that_does_not_end_loses_the_gpu) {
    scheduler s(policy_kind::fair);
    s.add(0, share_of(750), 0);
    s.add(1, share_of(250), 0);
    run_steps(s, 1 * us);
    std::uint64_t now = 10 * second;
    if (s.find(0)->phase != vm_phase::running) {
        s.released(1, true, now);
        actions_of(s);
    }
    ASSERT_EQ(s.find(0)->phase, vm_phase::running);
    s.wants(1, now);
    s.released(0, false, now + 500 * us);
    s.released(0, false, now + 500 * us + 1);
    now += 500 * us + max_gap_ns;
    s.advance(now);
    EXPECT_EQ(s.find(0)->phase, vm_phase::idle);
    EXPECT_EQ(s.find(1)->phase, vm_phase::running);
}

TEST(scheduler, round_robin_is_equal_in_time) {
    scheduler s(policy_kind::round_robin);
    s.add(0, share_of(900), 0);
    s.add(1, {}, 0);
    run_busy(s, {1 * ms, 50 * ms}, 10 * second);
    EXPECT_NEAR(static_cast<double>(held(s, 0)) / (10.0 * second), 0.5, 0.01);
}

TEST(scheduler, fixed_leaves_unused_what_is_not_asked_for) {
    scheduler s(policy_kind::fixed);
    s.add(0, share_of(250), 0);
    run_busy(s, {1 * ms}, 10 * second);
    EXPECT_NEAR(static_cast<double>(held(s, 0)) / (10.0 * second), 0.25, 0.01);
}

TEST(scheduler, a_cap_holds_though_nobody_else_is_there) {
    scheduler s(policy_kind::fair);
    vm_terms terms;
    terms.cap_permille = 500;
    s.add(0, terms, 0);
    run_busy(s, {1 * ms}, 10 * second);
    EXPECT_NEAR(static_cast<double>(held(s, 0)) / (10.0 * second), 0.5, 0.01);
}

TEST(scheduler, who_joins_is_not_ahead_of_those_that_others_caps_left_alone) {
    scheduler s(policy_kind::fair);
    vm_terms capped;
    capped.cap_permille = 200;
    s.add(0, {}, 0);
    s.add(1, capped, 0);
    run_busy(s, {1 * ms, 1 * ms}, 1 * second);
    const std::uint64_t busy = s.find(0)->virtual_ns;
    s.add(2, {}, 1 * second);
    EXPECT_GE(s.find(2)->virtual_ns + virtual_time(2 * max_slice_ns, least_permille * 30), busy);
}

TEST(scheduler, a_long_kernel_is_a_debt) {
    scheduler s(policy_kind::fixed);
    s.add(0, share_of(100), 0);
    s.wants(0, 0);
    s.advance(100 * ms); // the credit of the beginning
    actions_of(s);
    s.released(0, true, 600 * ms);
    actions_of(s);
    s.advance(4 * second);
    EXPECT_TRUE(actions_of(s).empty());
    s.advance(7 * second);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 0, true}}));
}

TEST(scheduler, the_highest_priority_is_next) {
    scheduler s(policy_kind::priority);
    vm_terms low, high;
    high.priority = 5;
    s.add(0, low, 0);
    s.add(1, low, 0);
    s.add(2, high, 0);
    s.wants(0, 0);
    s.wants(1, 0);
    actions_of(s);
    s.wants(2, 1 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::take_back, 0}}));
    s.released(0, true, 2 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 2, true}}));
}

TEST(scheduler, who_waits_rises) {
    scheduler s(policy_kind::priority);
    vm_terms low, high;
    high.priority = max_priority;
    s.add(0, high, 0);
    s.add(1, low, 0);
    run_busy(s, {1 * ms, 1 * ms}, 10 * second);
    EXPECT_GT(s.find(1)->turns, 9u);
    EXPECT_GT(held(s, 0), 95 * second / 10);
}

TEST(scheduler, who_never_ends_does_not_keep_the_others) {
    scheduler s(policy_kind::fair);
    s.add(0, {}, 0);
    s.add(1, {}, 0);
    s.wants(0, 0);
    s.wants(1, 0);
    s.advance(max_slice_ns);
    actions_of(s);
    s.advance(max_slice_ns + patience_ns);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 1, false}}));
    EXPECT_EQ(s.find(0)->phase, vm_phase::stuck);
    EXPECT_EQ(s.find(0)->times_stuck, 1u);
    s.released(0, true, 3 * second);
    EXPECT_EQ(s.find(0)->phase, vm_phase::waiting);
}

TEST(scheduler, commands_that_wait_for_their_guest_are_not_waited_for) {
    scheduler s(policy_kind::fair);
    s.add(0, {}, 0);
    s.add(1, {}, 0);
    s.wants(0, 0);
    s.wants(1, 0);
    s.advance(max_slice_ns);
    actions_of(s);
    s.hurry(0, max_slice_ns);
    s.advance(max_slice_ns + stall_ns);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 1, false}}));
    s.released(0, true, 1 * second);
    EXPECT_FALSE(s.find(0)->impatient);
}

TEST(scheduler, a_vm_that_dies_leaves_the_gpu) {
    scheduler s(policy_kind::fair);
    s.add(0, {}, 0);
    s.add(1, {}, 0);
    s.wants(0, 0);
    s.wants(1, 0);
    actions_of(s);
    s.remove(0, 1 * ms);
    EXPECT_EQ(actions_of(s), (std::vector<action>{{kind::grant, 1, false}}));
}

TEST(scheduler, events_of_vms_that_left_are_ignored) {
    scheduler s(policy_kind::fair);
    s.wants(7, 0);
    s.released(7, true, 0);
    s.charge(7, 1, 0);
    s.remove(7, 0);
    EXPECT_TRUE(actions_of(s).empty());
}

// Tasks of a length, one after the other, each of which waited so long for its worker.
std::uint64_t run_tasks(window& w, int count, std::uint64_t task_ns, std::uint64_t reaction_ns) {
    std::uint64_t now = 0;
    for (int i = 0; i < count; ++i) {
        w.began(1, now);
        now += task_ns;
        w.ended(now);
        now += reaction_ns;
        w.refilled(now);
    }
    return now;
}

TEST(window, holds_as_much_as_its_worker_needs) {
    window w;
    EXPECT_EQ(w.tasks(), 1u);
    std::uint64_t now = run_tasks(w, 200, 100 * us, 20 * us);
    EXPECT_GE(w.tasks(), 8u);
    EXPECT_LE(w.tasks(), min_window_target_ns / (100 * us));
    w.began(1, now);
    w.ended(now + 10 * ms);
    EXPECT_EQ(w.tasks(), 1u);

    window of_busy_host;
    run_tasks(of_busy_host, 200, 100 * us, 2 * ms);
    EXPECT_GE(of_busy_host.tasks(), 36u);
    EXPECT_LE(of_busy_host.tasks(), window_target_ns / (100 * us));
}

TEST(window, a_single_task_is_followed_shortly_before_its_end) {
    window w;
    const std::uint64_t now = run_tasks(w, 200, 2 * ms, 20 * us);
    w.began(1, now);
    EXPECT_EQ(w.tasks(), 1u);
    const std::uint64_t opens = w.opens_ns(1, now);
    EXPECT_NEAR(static_cast<double>(opens - now), static_cast<double>(2 * ms - window_lead_ns), 10.0 * us);
    EXPECT_EQ(w.opens_ns(1, opens), opens);
    EXPECT_EQ(w.opens_ns(1, now + 3 * ms), UINT64_MAX); // nobody knows when that one ends
    EXPECT_EQ(w.opens_ns(2, opens), UINT64_MAX);        // the next one is there already
    w.ended(now + 2 * ms + 300 * us);                   // it began with the GPU's change to this process
    w.began(1, now + 3 * ms);
    EXPECT_LT(w.opens_ns(1, now + 3 * ms), now + 5 * ms);

    window unlike;
    run_tasks(unlike, 50, 2 * ms, 20 * us);
    run_tasks(unlike, 1, 20 * ms, 20 * us);
    unlike.began(1, 30 * ms);
    EXPECT_EQ(unlike.opens_ns(1, 30 * ms), UINT64_MAX);

    window short_tasks;
    run_tasks(short_tasks, 200, 100 * us, 20 * us);
    EXPECT_EQ(short_tasks.opens_ns(1, 0), UINT64_MAX); // others wait in the queue
}

TEST(terms, profiles_are_parts) {
    EXPECT_EQ(parts_of_profile("1/4"), 4u);
    for (const char* wrong : {"", "1/", "1/0", "1/33", "2/4", "1/4 ", "1/04", "1/-1", "quarter"})
        EXPECT_FALSE(parts_of_profile(wrong)) << wrong;
}

TEST(terms, what_does_not_fit_is_refused_with_what_is_free) {
    gpu_ledger ledger{8ull << 30, 6ull << 30, 700, 3};
    vm_terms terms = share_of(300);
    terms.memory_bytes = 2ull << 30;
    EXPECT_EQ(why_not_admitted(terms, ledger), "");
    terms.share_permille = 305;
    EXPECT_EQ(why_not_admitted(terms, ledger),
              "the share of 30.5 % does not fit: 30 % of this GPU is free. Ask for less, stop another VM, or "
              "choose another GPU");
    terms.share_permille = 0;
    terms.memory_bytes = 3ull << 30;
    EXPECT_EQ(why_not_admitted(terms, ledger),
              "3.0 GiB of memory do not fit: 2.0 GiB of this GPU's 8.0 GiB are free. Ask for less, stop "
              "another VM, or choose another GPU");
    ledger.memory_bytes = 0;
    EXPECT_EQ(why_not_admitted(terms, ledger), "");
    ledger.vms = max_vms;
    EXPECT_NE(why_not_admitted({}, ledger), "");
}

} // namespace
} // namespace kagemusha::share
