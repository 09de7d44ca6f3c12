// SPDX-License-Identifier: GPL-2.0-or-later
// Requests that the guest waits for at a checkpoint: the standby does not answer them before a takeover, which
// resumes them. And copies of a checkpoint that are kept.
#include "mirror/standby/replication_standby_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::primary_hello;
using testing::replication_standby_fsm_test;
using testing::submit;

// ---- requests that the guest waits for at a checkpoint

struct standby_open_request_test : replication_standby_fsm_test {
    std::string checkpoint(std::uint64_t epoch, log_sequence up_to, std::vector<open_request> open = {}) {
        says(marker{epoch, up_to, true});
        fsm->commit(epoch, now, open);
        return runs(actions());
    }
    std::string take_over(std::uint64_t epoch) {
        fsm->on_closed("the primary's host is dead", now);
        actions();
        fsm->takeover(now, epoch);
        return actions();
    }
    // Only what runs.
    static std::string runs(const std::string& all) { return all.substr(0, all.find("send ack")); }
};

TEST_F(standby_open_request_test, nothing_behind_one_runs_in_its_file_before_it_is_answered) {
    become_ready();
    write(4, 1);
    write(5, 1);
    write(6, 2);
    write(7, 1);
    EXPECT_EQ(checkpoint(2, 7, {{70, 1, 4, 5}}), "run 4; run 6; ");
    done(4);
    done(6);
    write(8, 1);
    EXPECT_EQ(checkpoint(3, 8, {{70, 1, 4, 5}}), "") << "it still waits";
    EXPECT_EQ(checkpoint(4, 8), "run 5; run 7; run 8; ");
}

TEST_F(standby_open_request_test, a_takeover_resumes_it_in_the_place_of_its_entries) {
    become_ready();
    for (log_sequence s = 4; s < 9; ++s)
        write(s, 1);
    EXPECT_EQ(checkpoint(2, 8, {{70, 1, 4, 6}, {71, 1, 7, 7}}), "run 4; ");
    write(9, 1);
    EXPECT_EQ(take_over(2), "state taken_over; skip 9; resume 70; run 7; resume 71; run 8; live");
    done(4);
    done(7);
    done(8);
    EXPECT_EQ(fsm->status(now).held_entries, 0u);
    EXPECT_EQ(fsm->status(now).held_bytes, 0u);
}

// The guest saw results of neither; those of this side count.
TEST_F(standby_open_request_test, what_the_primary_shipped_behind_an_open_request_is_skipped_at_a_takeover) {
    become_ready();
    const auto ship = [&](log_sequence s) {
        entry(submit(s, 1, 8, entry_agent | entry_late_content, 8), {{8, false}});
        says(content{s, 0, 0, 8, 0});
    };
    write(4, 1);
    ship(5); // of what the guest knows
    write(6, 1);
    ship(7);
    write(8, 1, 8, entry_agent); // the agent's order is kept
    EXPECT_EQ(checkpoint(2, 8, {{70, 1, 5, 6}}), "run 4; run 5; ");
    EXPECT_EQ(take_over(2), "state taken_over; resume 70; skip 7; run 8; live");
}

TEST_F(standby_open_request_test, queries_are_resumed_where_they_were_asked) {
    become_ready();
    write(4, 1);
    write(5, 1);
    EXPECT_EQ(checkpoint(2, 5, {{70, 1, 4, 4}, {71, 1, 5, 5}}), "run 4; ");
    EXPECT_EQ(take_over(2), "state taken_over; resume 70; run 5; resume 71; live");
}

TEST_F(standby_open_request_test, a_call_without_an_outcome_is_resumed_not_run) {
    become_ready();
    write(4, 1, 8, entry_awaits_outcome);
    EXPECT_EQ(checkpoint(2, 4, {{70, 1, 3, 4}}), "");
    EXPECT_EQ(take_over(2), "state taken_over; resume 70; live");
}

TEST_F(standby_open_request_test, a_takeover_needs_the_gpu_where_the_vm_is) {
    become_ready();
    write(4, 1);
    checkpoint(2, 4);
    EXPECT_NE(take_over(1).find("can't take over: the GPU's state is of epoch 2, the VM's of checkpoint 1"),
              std::string::npos);
    make();
    become_ready();
    EXPECT_NE(take_over(1).find("state ended"), std::string::npos) << "no checkpoint was ever committed";
}

// ---- a copy that is kept

TEST_F(standby_open_request_test, a_copy_of_a_checkpoint_is_kept_on_demand) {
    fsm->keep_copy(true);
    become_ready();
    write(4, 1);
    checkpoint(2, 4);
    done(4);
    fsm->on_closed("the peer closed the connection", now);
    actions();
    const std::string why = "this standby keeps its copy of the GPU, which belongs to the VM's checkpoint of "
                            "epoch 2: begin it anew for another one";
    connect();
    EXPECT_EQ(says(primary_hello()), refused(why));
    EXPECT_EQ(take_over(2), "state taken_over; live") << "nothing was lost";
}

TEST_F(standby_open_request_test, a_copy_without_a_checkpoint_is_not_kept) {
    fsm->keep_copy(true);
    become_ready();
    fsm->on_closed("the peer closed the connection", now);
    actions();
    connect();
    EXPECT_EQ(says(primary_hello()), "forget_all");
}

TEST_F(standby_open_request_test, what_is_no_copy_any_more_is_said_until_the_end) {
    fsm->keep_copy(true);
    become_ready();
    write(4, 1);
    checkpoint(2, 4);
    fsm->on_file_lost(1, "its worker died", now);
    fsm->on_closed("the peer closed the connection", now);
    actions();
    EXPECT_EQ(fsm->status(now).fault, "its worker died");
    connect();
    EXPECT_EQ(says(primary_hello()), refused("this standby's GPU has no copy any more: its worker died"));
    EXPECT_NE(take_over(2).find("can't take over: its worker died"), std::string::npos);
}

} // namespace
} // namespace kagemusha::mirror
