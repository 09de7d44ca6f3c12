// SPDX-License-Identifier: GPL-2.0-or-later
// When the standby runs an entry, what commits an epoch, and what is compared.
#include "mirror/standby/replication_standby_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::primary_hello;
using testing::replication_standby_fsm_test;
using testing::submit;

// ---- when an entry runs

TEST_F(replication_standby_fsm_test, nothing_runs_before_its_epoch_is_committed) {
    attach();
    write(4);
    write(5);
    EXPECT_EQ(mark(2, 4), "run 4; send ack received=5 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(mark(3, 5), "run 5; send ack received=5 executed=3 committed=3 freed=0B/3");
    EXPECT_EQ(fsm->status(now).committed, 5u);
}

TEST_F(replication_standby_fsm_test, a_file_has_several_running_and_answers_come_in_any_order) {
    attach();
    for (log_sequence s = 4; s <= 8; ++s)
        write(s);
    EXPECT_EQ(mark(2, 8), "run 4; run 5; run 6; send ack received=8 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(done(6), "run 7");
    EXPECT_EQ(done(5), "run 8");
    EXPECT_EQ(fsm->status(now).executed, 3u) << "up to the first that has not";
    EXPECT_EQ(fsm->status(now).held_entries, 3u);
    EXPECT_EQ(done(4), "");
    EXPECT_EQ(fsm->status(now).executed, 6u);
    done(8);
    EXPECT_EQ(done(7), "send ack received=8 executed=8 committed=2 freed=40B/8") << "much was freed: at once";
}

TEST_F(replication_standby_fsm_test, files_do_not_wait_for_each_other) {
    attach();
    write(4, 1, 8, entry_awaits_outcome);
    write(5, 2);
    write(6, 1);
    EXPECT_EQ(mark(2, 6), "run 5; send ack received=6 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(done(5), "");
    EXPECT_EQ(at(now + 2), "send ack received=6 executed=3 committed=2 freed=8B/4");
    EXPECT_EQ(says(outcome{4, false, 0}), "run 4; run 6");
}

TEST_F(replication_standby_fsm_test, a_failed_call_is_skipped_and_what_may_fail_runs) {
    attach();
    write(4, 1, 8, entry_awaits_outcome);
    write(5, 1, 8, entry_awaits_outcome | entry_may_fail);
    write(6, 2, 8, entry_may_fail);
    EXPECT_EQ(mark(2, 6), "run 6; send ack received=6 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(says(outcome{4, false, -6}), "skip 4");
    EXPECT_EQ(says(outcome{5, false, -11}), "run 5");
    EXPECT_EQ(done(5, -11), "") << "it failed there too";
    EXPECT_EQ(done(6, -11), "") << "nobody says how it went there";
    EXPECT_EQ(fsm->status(now).faults, 0u);
}

TEST_F(replication_standby_fsm_test, a_failure_that_the_primary_did_not_have_is_a_fault) {
    attach();
    write(4, 1, 8, entry_awaits_outcome | entry_may_fail);
    write(5, 2);
    mark(2, 5);
    EXPECT_EQ(says(outcome{4, false, 0}), "run 4");
    const std::string why =
        "entry 4 of file 1 failed on the standby with OpenCL's error -4, and had not on the primary";
    EXPECT_EQ(done(4, -4), "send fault 4 \"" + why + "\"; state following \"" + why + "\"");
    EXPECT_EQ(done(5, -4), "") << "once";
    write(6);
    EXPECT_EQ(mark(3, 6).find("run"), std::string::npos) << "it is no copy any more";
    EXPECT_EQ(fsm->status(now).faults, 2u);
}

TEST_F(replication_standby_fsm_test, a_binary_that_only_the_primary_takes_is_a_fault_with_advice) {
    attach();
    write(4, 1, 8, entry_awaits_outcome);
    mark(2, 4);
    EXPECT_EQ(says(outcome{4, false, 0}), "run 4");
    EXPECT_NE(done(4, -42).find("made from a binary, which is for one kind of GPU"), std::string::npos);
    EXPECT_EQ(fsm->status(now).faults, 1u);
}

TEST_F(replication_standby_fsm_test, a_lost_worker_is_a_fault_unless_its_file_has_ended) {
    attach();
    entry(meta(4, entry_kind::close_file, 2));
    mark(2, 4);
    fsm->on_file_lost(2, "its worker died", now);
    EXPECT_EQ(actions(), "") << "its end was given already";
    fsm->on_file_lost(1, "its worker died", now);
    EXPECT_EQ(actions(), "send fault 0 \"its worker died\"; state following \"its worker died\"");
}

TEST_F(replication_standby_fsm_test, late_content_is_waited_for_by_the_commit) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 24), {{16, false}, {100, true}, {5, false}});
    write(5, 2);
    EXPECT_EQ(mark(2, 5), "") << "what is committed must be able to run without the primary";
    EXPECT_EQ(says(content{4, 0, 0, 8, 0}), "");
    EXPECT_EQ(says(content{4, 2, 0, 5, 0}), "");
    EXPECT_EQ(fsm->status(now).complete_epoch, 1u);
    EXPECT_EQ(says(content{4, 0, 8, 8, 0}),
              "run 4; run 5; send ack received=5 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(fsm->status(now).complete_epoch, 2u);
}

TEST_F(replication_standby_fsm_test, late_content_may_come_before_what_is_in_front_of_it) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 48), {{40, false}, {8, false}});
    mark(2, 4);
    for (const content& piece :
         {content{4, 0, 24, 8}, {4, 1, 0, 8}, {4, 0, 8, 8}, {4, 0, 32, 8}, {4, 0, 16, 8}})
        EXPECT_EQ(says(piece), "");
    EXPECT_EQ(says(content{4, 0, 0, 8}), "run 4; send ack received=4 executed=3 committed=2 freed=0B/3");
}

TEST_F(replication_standby_fsm_test, early_content_comes_once) {
    for (const content& again :
         {content{4, 0, 24, 8}, {4, 0, 16, 9}, {4, 0, 31, 1}, {4, 0, 8, 32}, {4, 0, 40, 1}}) {
        make();
        attach();
        entry(submit(4, 1, 8, entry_late_content, 40), {{40, false}});
        EXPECT_EQ(says(content{4, 0, 24, 8}), "");
        EXPECT_EQ(says(again), broken("content of entry 4 came out of order, twice or beyond its length"));
    }
}

TEST_F(replication_standby_fsm_test, gaps_in_content_have_a_bound) {
    config.hold_bytes = 8 * max_lane_pieces;
    make();
    attach();
    entry(submit(4, 1, 8, entry_late_content, 4 * max_lane_pieces), {{4 * max_lane_pieces, false}});
    for (std::uint64_t i = 0; i < max_lane_pieces; ++i)
        ASSERT_EQ(says(content{4, 0, 2 * i + 1, 1}), "");
    EXPECT_EQ(says(content{4, 0, 2 * max_lane_pieces + 1, 1}),
              broken("content of entry 4 came out of order, twice or beyond its length"));
}

TEST_F(replication_standby_fsm_test, late_content_of_no_bytes_is_complete) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 0), {{0, false}});
    EXPECT_EQ(mark(2, 4), "run 4; send ack received=4 executed=3 committed=2 freed=0B/3");
}

TEST_F(replication_standby_fsm_test, a_canceled_entry_is_skipped_and_lets_others_go) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 16), {{16, false}});
    write(5, 1, 8, entry_awaits_outcome);
    write(6, 1);
    mark(2, 6);
    EXPECT_EQ(says(outcome{5, true, 0}), "");
    EXPECT_EQ(says(outcome{4, true, 0}),
              "skip 4; skip 5; run 6; send ack received=6 executed=5 committed=2 freed=32B/5");
}

TEST_F(replication_standby_fsm_test, the_end_of_a_file_needs_no_answer_of_what_runs_in_it) {
    attach();
    write(4);
    write(5);
    entry(meta(6, entry_kind::close_file, 1));
    entry(meta(7, entry_kind::open_file, 1));
    write(8);
    EXPECT_EQ(mark(2, 8), "run 4; run 5; run 6; send ack received=8 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(done(4, -9999), "run 7") << "it ended with its file: no fault";
    EXPECT_EQ(done(6), "run 8");
    EXPECT_EQ(done(5, -5), "");
    EXPECT_EQ(fsm->status(now).faults, 0u);
    done(7);
    EXPECT_NE(done(8, -5).find("fault 8"), std::string::npos) << "of the file that is open now";
}

TEST_F(replication_standby_fsm_test, a_lost_file_can_only_be_closed) {
    attach();
    entry(meta(4, entry_kind::lose_session, 1));
    entry(meta(5, entry_kind::close_file, 1));
    entry(meta(6, entry_kind::open_file, 1));
    EXPECT_EQ(mark(2, 6), "run 4; run 5; run 6; send ack received=6 executed=3 committed=2 freed=0B/3");
    entry(meta(7, entry_kind::lose_session, 2));
    EXPECT_EQ(write(8, 2), broken("entry 8 is of file 2, which was lost"));
}

TEST_F(replication_standby_fsm_test, a_reset_waits_for_all_and_all_wait_for_it) {
    attach();
    write(4, 1);
    write(5, 2, 8, entry_awaits_outcome);
    entry(meta(6, entry_kind::reset));
    entry(meta(7, entry_kind::open_file, 1));
    write(8, 1);
    entry(meta(9, entry_kind::reset));
    EXPECT_EQ(mark(2, 9), "run 4; send ack received=9 executed=3 committed=2 freed=0B/3");
    EXPECT_EQ(says(outcome{5, false, 0}), "run 5; run 6") << "what runs need not have ended";
    EXPECT_EQ(done(5, -5), "") << "ended by the reset";
    EXPECT_EQ(done(6), "run 7; run 8; run 9");
    EXPECT_EQ(done(4), "");
    done(7);
    done(8);
    done(9);
    EXPECT_EQ(fsm->status(now).executed, 9u);
    EXPECT_EQ(fsm->status(now).held_entries, 0u);
    EXPECT_EQ(write(10, 1), broken("entry 10 is of file 1, which is not open"));
}

TEST_F(replication_standby_fsm_test, entries_in_one_message_are_like_several) {
    attach();
    EXPECT_EQ(says(entries{{{submit(4, 1), {}}, {submit(5, 2), {}}, {submit(6, 1), {}}}}), "");
    EXPECT_EQ(mark(2, 6), "run 4; run 5; run 6; send ack received=6 executed=3 committed=2 freed=0B/3");
}

// ---- commit by checkpoints

struct standby_checkpoint_test : replication_standby_fsm_test {
    standby_checkpoint_test() {
        config.commit_at_marker = false;
        make();
    }
};

TEST_F(standby_checkpoint_test, an_epoch_is_committed_when_its_checkpoint_was_applied) {
    connect();
    says(primary_hello());
    entry(meta(1, entry_kind::reset));
    EXPECT_EQ(mark(1, 1), "");
    entry(meta(2, entry_kind::open_file, 1));
    entry(submit(3, 1, 8, entry_late_content, 8), {{8, false}});
    EXPECT_EQ(mark(2, 3), "");
    EXPECT_EQ(fsm->status(now).epoch, 2u);
    EXPECT_EQ(fsm->status(now).complete_epoch, 1u);
    fsm->commit(1, now);
    EXPECT_EQ(actions(), "run 1; send ack received=3 executed=0 committed=1 freed=0B/0");
    done(1);
    EXPECT_DEATH(fsm->commit(2, now), "not complete");
    says(content{3, 0, 0, 8, 0});
    fsm->commit(2, now);
    EXPECT_EQ(actions(), "run 2; run 3; send ack received=3 executed=1 committed=2 freed=0B/1");
}

TEST_F(replication_standby_fsm_test, a_marker_says_whether_a_checkpoint_commits_its_epoch) {
    attach();
    write(4);
    EXPECT_EQ(says(marker{2, 4, true}), "send ack received=4 executed=3 committed=1 freed=0B/3 checkpoint=2");
    EXPECT_EQ(fsm->status(now).complete_checkpoint, 2u);
    fsm->commit(2, now);
    EXPECT_EQ(actions(), "run 4; send ack received=4 executed=3 committed=2 freed=0B/3 checkpoint=2");
    EXPECT_EQ(fsm->status(now).committed_checkpoint, 2u);
    done(4);
    write(5);
    says(marker{3, 5, true});
    write(6);
    EXPECT_NE(mark(4, 6).find("run 5; run 6"), std::string::npos) << "time closes epochs again";
    EXPECT_EQ(fsm->status(now).committed_checkpoint, 0u) << "the GPU is ahead of any checkpoint";
}

// ---- digests

TEST_F(replication_standby_fsm_test, digests_of_both_sides_come_in_any_order) {
    attach();
    write(4, 1, 8, entry_compare);
    write(5, 1, 8, entry_compare);
    mark(2, 5);
    fsm->on_digests(4, {1, 2, 3}, now);
    EXPECT_EQ(actions(), "");
    EXPECT_EQ(says(digests{4, {1, 9, 9}}), "send digest_result 4: different 1 2");
    EXPECT_EQ(says(digests{5, {7}}), "");
    fsm->on_digests(5, {7}, now);
    EXPECT_EQ(actions(), "send digest_result 5: equal");
    done(4);
    done(5);
    EXPECT_EQ(fsm->status(now).digests_compared, 4u);
    EXPECT_EQ(fsm->status(now).digests_different, 2u);
}

TEST_F(replication_standby_fsm_test, a_comparison_may_be_called_off_at_any_time) {
    attach();
    const std::uint64_t baseline = fsm->status(now).bookkeeping;
    write(4, 1, 8, entry_compare);
    EXPECT_EQ(says(outcome{4, true, 0}), "") << "before it ran";
    write(5, 1, 8, entry_compare);
    EXPECT_EQ(mark(2, 5), "skip 4; run 5; send ack received=5 executed=4 committed=2 freed=8B/4");
    EXPECT_EQ(says(outcome{5, true, 0}), "") << "while it runs";
    fsm->on_digests(5, {1}, now);
    done(5);
    write(6, 1, 8, entry_compare);
    mark(3, 6);
    fsm->on_digests(6, {1}, now);
    done(6);
    EXPECT_EQ(says(outcome{6, true, 0}), "") << "after it ran";
    write(7, 1, 8, entry_compare);
    mark(4, 7);
    done(7); // its file ended before the digests were read
    EXPECT_EQ(says(digests{7, {1}}), "");
    EXPECT_EQ(fsm->status(now).bookkeeping, baseline);
    EXPECT_EQ(fsm->status(now).digests_compared, 0u);
}

// ---- what compilers made

TEST_F(replication_standby_fsm_test, built_programs_are_stored_for_files_that_are_open) {
    config.built_capability = "built-programs-1 a GPU";
    make();
    hello h = primary_hello();
    h.capabilities.push_back(config.built_capability);
    connect();
    says(h);
    entry(meta(1, entry_kind::reset));
    entry(meta(2, entry_kind::open_file, 1));
    EXPECT_EQ(says(built{1, 4096}), "store built file=1 4096B") << "before its epoch is committed";
    EXPECT_EQ(says(built{2, 4096}), "") << "nobody would use it";
    entry(meta(3, entry_kind::lose_session, 1));
    EXPECT_EQ(says(built{1, 4096}), "");
    EXPECT_EQ(fsm->status(now).built_stored, 1u);
    EXPECT_EQ(fsm->status(now).built_bytes, 4096u);
    EXPECT_EQ(fsm->status(now).built_dropped, 2u);
}

TEST_F(replication_standby_fsm_test, built_programs_that_were_not_agreed_on_break_a_rule) {
    attach();
    EXPECT_EQ(says(built{1, 4096}), broken("it sent built programs, which was not agreed on"));
    config.built_capability = "built-programs-1 a GPU";
    make();
    attach(); // the primary does not say it
    EXPECT_EQ(says(built{1, 4096}), broken("it sent built programs, which was not agreed on"));
}

TEST_F(replication_standby_fsm_test, built_programs_are_bounded) {
    config.built_capability = "built-programs-1 a GPU";
    const auto begin = [&] {
        make();
        hello h = primary_hello();
        h.capabilities.push_back(config.built_capability);
        connect();
        says(h);
        entry(meta(1, entry_kind::reset));
        entry(meta(2, entry_kind::open_file, 1));
    };
    begin();
    std::uint64_t held = 0;
    for (int i = 0; i < 40; ++i)
        held += says(built{1, max_built_pack_bytes}).empty() ? 0 : max_built_pack_bytes;
    EXPECT_EQ(held, max_held_built_bytes);
    fsm->on_built_stored(max_built_pack_bytes);
    EXPECT_NE(says(built{1, max_built_pack_bytes}), "") << "there is room again";
    begin();
    std::uint64_t packs = 0;
    for (std::uint64_t i = 0; i < max_held_built + 10; ++i)
        packs += says(built{1, 24}).empty() ? 0 : 1;
    EXPECT_EQ(packs, max_held_built);
}

} // namespace
} // namespace kagemusha::mirror
