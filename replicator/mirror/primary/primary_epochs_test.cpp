// SPDX-License-Identifier: GPL-2.0-or-later
// What the primary sends in which order: epochs and their markers, and what follows entries.
#include "mirror/primary/replication_primary_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::replication_primary_fsm_test;
using testing::standby_hello;
using testing::submit;

// ---- epochs

TEST_F(replication_primary_fsm_test, the_timer_closes_an_epoch_only_when_there_is_something_in_it) {
    attach();
    EXPECT_EQ(at(1050), "send heartbeat at 1050; send marker epoch=1 up to 2");
    EXPECT_EQ(at(1100), "send heartbeat at 1100");
    now = 1120;
    write(8);
    EXPECT_EQ(actions(), "send_entries 3..3");
    EXPECT_EQ(at(1150), "send heartbeat at 1150");
    EXPECT_EQ(at(1170), "send marker epoch=2 up to 3");
}

TEST_F(replication_primary_fsm_test, an_epoch_can_be_closed_at_once) {
    attach();
    write(8);
    EXPECT_EQ(fsm->close_epoch(now), 1u);
    EXPECT_EQ(actions(), "send_entries 3..3; send marker epoch=1 up to 3");
    EXPECT_EQ(fsm->close_epoch(now), 2u);
    EXPECT_EQ(actions(), "send marker epoch=2 up to 3");
}

TEST_F(replication_primary_fsm_test, without_a_standby_epochs_are_only_counted) {
    EXPECT_EQ(fsm->close_epoch(now), 1u);
    EXPECT_EQ(actions(), "");
    attach();
    EXPECT_EQ(fsm->close_epoch(now), 2u);
    EXPECT_EQ(actions(), "send marker epoch=2 up to 2");
}

// Numbers go on over runs: what was sent last may be of the one before.
TEST_F(replication_primary_fsm_test, an_epoch_that_ends_before_anything_of_the_run_was_sent_has_no_marker) {
    for (const log_sequence reset : {1u, 2u}) {
        fsm->on_tick(now);
        fsm->on_connected(now);
        says(standby_hello());
        fsm->on_sent(link_window_bytes); // the link takes nothing
        entry(meta(0, entry_kind::reset));
        EXPECT_EQ(fsm->close_epoch(now), reset * 2 - 1);
        EXPECT_EQ(actions(), "");
        const std::string number = std::to_string(reset), epoch = std::to_string(reset * 2);
        fsm->on_sent(0);
        EXPECT_EQ(actions(), "send_entries " + number + ".." + number);
        EXPECT_EQ(fsm->close_epoch(now), reset * 2);
        EXPECT_EQ(actions(), "send marker epoch=" + epoch + " up to " + number);
        fsm->on_closed("cut", now);
        fsm->on_mirror_stopped(now);
        actions();
        now += max_reconnect_ms;
    }
}

struct primary_checkpoint_test : replication_primary_fsm_test {
    primary_checkpoint_test() : replication_primary_fsm_test(0) {}
};

TEST_F(primary_checkpoint_test, wants_an_epoch_and_holds_the_guest_back_before_it_could_not_fit) {
    attach(standby_hello(1000, 100));
    write(200);
    EXPECT_EQ(actions(), "send_entries 3..3");
    write(100);
    EXPECT_EQ(actions(), "epoch_wanted; send_entries 4..4");
    write(200);
    EXPECT_EQ(actions(), "send_entries 5..5");
    write(8);
    EXPECT_EQ(actions(), "congestion on; send_entries 6..6");
    EXPECT_EQ(fsm->close_epoch(now), 1u);
    EXPECT_EQ(actions(), "send marker epoch=1 up to 6 checkpoint");
    EXPECT_EQ(acks(6, 2, 1, 0, 2), "drop_log 6; congestion off");
}

TEST_F(primary_checkpoint_test, the_marker_waits_for_its_entries_and_an_epoch_that_can_not_fit_fails) {
    attach(standby_hello(1000, 100));
    write(900);
    write(200);
    EXPECT_EQ(actions(), "congestion on; epoch_wanted; send_entries 3..3");
    EXPECT_EQ(fsm->close_epoch(now), 1u);
    const std::string why = "epoch 1 needs 1100 bytes, and the standby can hold 1000: give it a larger hold";
    EXPECT_EQ(actions(), "send goodbye other \"" + why + "\"; close_link \"" + why +
                             "\"; congestion off; stop_mirror; drop_log all; state disconnected \"" + why +
                             "\"");
}

TEST_F(primary_checkpoint_test, the_marker_is_sent_behind_its_last_entry) {
    attach(standby_hello(1000, 100));
    write(600);
    fsm->close_epoch(now);
    actions();
    write(600);
    EXPECT_EQ(actions(), "epoch_wanted") << "and nothing is committed yet";
    EXPECT_EQ(fsm->close_epoch(now), 2u);
    EXPECT_EQ(actions(), "");
    EXPECT_EQ(acks(3, 3, 1, 600, 3), "drop_log 3; send_entries 4..4; send marker epoch=2 up to 4 checkpoint");
}

TEST_F(replication_primary_fsm_test, an_epoch_that_was_not_told_is_none_when_time_closes_them_again) {
    attach(standby_hello(1000, 100));
    fsm->on_synced(2);
    settle(0);
    EXPECT_EQ(fsm->status(now).state, primary_state::protecting);
    fsm->use_checkpoints(true, now);
    EXPECT_EQ(fsm->status(now).epoch, 2u);
    write(600);
    fsm->close_epoch(now);
    write(600);
    EXPECT_EQ(fsm->close_epoch(now), 4u) << "its last entry has to wait";
    actions();
    fsm->use_checkpoints(false, now);
    EXPECT_EQ(actions(), "send marker epoch=5 up to 3");
    EXPECT_EQ(acks(3, 3, 5, 600, 3),
              "drop_log 3; congestion off; send_entries 4..4; send marker epoch=6 up to 4")
        << "and not epoch 4 behind 5";
}

// ---- what follows entries

TEST_F(replication_primary_fsm_test, an_outcome_follows_its_entry) {
    attach(standby_hello(1000, 100));
    write(64, entry_awaits_outcome);
    fsm->on_outcome(3, false, -5);
    EXPECT_EQ(actions(), "send_entries 3..3; send outcome 3 -5");
    write(900, entry_awaits_outcome);
    EXPECT_EQ(actions(), "send_entries 4..4; send marker epoch=1 up to 4");
    write(100, entry_awaits_outcome);
    fsm->on_outcome(5, false, 0);
    fsm->on_outcome(4, false, 0);
    EXPECT_EQ(actions(), "send outcome 4 0") << "5 was not sent";
    EXPECT_EQ(acks(4, 3, 1, 64, 3), "drop_log 4; send_entries 5..5; send outcome 5 0");
    EXPECT_EQ(fsm->status(now).open_entries, 0u);
}

TEST_F(replication_primary_fsm_test, late_content_goes_in_pieces_with_its_place) {
    attach(standby_hello(1000, 100));
    write(64, entry_late_content, 48 + 24);
    fsm->on_late_content(3, 0, 32);
    fsm->on_late_content(3, 2, 21);
    fsm->on_late_content(3, 0, 16);
    EXPECT_EQ(actions(), "send_entries 3..3; send_content 3/0 at 0 32B; send_content 3/2 at 0 21B; "
                         "send_content 3/0 at 32 16B");
    EXPECT_EQ(fsm->status(now).open_entries, 0u);
    fsm->on_late_content(3, 0, 8);
    EXPECT_EQ(actions(), "drop_content 3") << "more than there is";
}

TEST_F(replication_primary_fsm_test, content_of_an_entry_that_waits_stands_in_nobodys_way) {
    attach(standby_hello(1000, 100));
    write(64, entry_late_content, 800);
    write(64, entry_late_content, 800);
    EXPECT_EQ(actions(), "send_entries 3..3; send marker epoch=1 up to 3");
    fsm->on_late_content(4, 0, 800);
    fsm->on_late_content(3, 0, 800);
    EXPECT_EQ(actions(), "send_content 3/0 at 0 800B");
    EXPECT_EQ(fsm->status(now).late_bytes, 800u);
    EXPECT_EQ(acks(3, 3, 1, 864, 3), "drop_log 3; send_entries 4..4; send_content 4/0 at 0 800B; "
                                     "send marker epoch=2 up to 4");
    EXPECT_EQ(fsm->status(now).late_bytes, 0u);
}

TEST_F(replication_primary_fsm_test, content_keeps_the_links_window_and_entries_get_their_turn) {
    config.log_bytes = UINT64_MAX / 2;
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach(standby_hello(std::uint64_t{1} << 40, 1000));
    constexpr std::uint64_t piece = content_piece_bytes;
    write(64, entry_late_content, 4 * piece + 8);
    actions();
    for (int i = 0; i < 4; ++i)
        fsm->on_late_content(3, 0, piece);
    const std::string bytes = std::to_string(piece) + "B";
    EXPECT_EQ(actions(), "send_content 3/0 at 0 " + bytes + "; send_content 3/0 at " + std::to_string(piece) +
                             " " + bytes);
    write(64);
    EXPECT_EQ(actions(), "");
    fsm->on_sent(piece);
    EXPECT_EQ(actions(), "send_entries 4..4; send_content 3/0 at " + std::to_string(2 * piece) + " " + bytes);
    write(64);
    fsm->on_sent(piece);
    fsm->on_late_content(3, 1, 8);
    EXPECT_EQ(actions().substr(0, 18), "send_entries 5..5;") << "content had its turn";
}

TEST_F(replication_primary_fsm_test, content_that_waits_counts_as_log) {
    attach(standby_hello(8000, 100));
    write(64, entry_late_content, 3000);
    EXPECT_EQ(actions(), "send_entries 3..3");
    EXPECT_EQ(fsm->status(now).log_bytes, 64u);
    acks(3, 0, 0);
    fsm->on_sent(link_window_bytes);
    fsm->on_late_content(3, 0, 3000);
    EXPECT_EQ(actions(), "congestion on");
    fsm->on_sent(0);
    EXPECT_EQ(actions(), "send_content 3/0 at 0 3000B");
    EXPECT_EQ(acks(3, 0, 0), "congestion off");
}

TEST_F(replication_primary_fsm_test, a_canceled_entry_loses_what_was_not_sent_of_it) {
    attach(standby_hello(1000, 100));
    write(64, entry_late_content, 64);
    actions();
    fsm->on_sent(link_window_bytes);
    fsm->on_late_content(3, 0, 32);
    EXPECT_EQ(actions(), "");
    fsm->on_outcome(3, true, 0);
    EXPECT_EQ(actions(), "drop_content 3; send outcome 3 canceled");
    fsm->on_late_content(3, 0, 32);
    fsm->on_sent(0);
    EXPECT_EQ(actions(), "drop_content 3");
    fsm->on_outcome(3, true, 0);
    EXPECT_EQ(actions(), "");
    EXPECT_EQ(fsm->status(now).open_entries, 0u);
    EXPECT_EQ(fsm->status(now).late_bytes, 0u);
}

TEST_F(replication_primary_fsm_test, what_was_told_completely_is_not_canceled) {
    attach(standby_hello(1000, 100));
    write(944);
    write(64, entry_awaits_outcome);
    actions();
    fsm->on_outcome(4, false, -6);
    fsm->on_outcome(4, true, 0);
    EXPECT_EQ(actions(), "");
    EXPECT_EQ(acks(3, 3, 1, 944, 3), "drop_log 3; send_entries 4..4; send outcome 4 -6");
}

TEST_F(replication_primary_fsm_test, the_end_of_a_file_calls_off_what_is_open_of_it) {
    attach(standby_hello(1000, 100));
    entry(meta(0, entry_kind::open_file, 2));
    write(8, entry_awaits_outcome);
    write(8, entry_late_content, 16);
    write(8, entry_compare);
    write(8, entry_compare);
    entry(submit(0, 2, 8, entry_awaits_outcome));
    actions();
    fsm->on_digests(7, {1, 2}, now);
    EXPECT_EQ(actions(), "send digests 7: 1 2");
    entry(meta(0, entry_kind::close_file, 1));
    EXPECT_EQ(actions(), "send outcome 4 canceled; drop_content 5; send outcome 5 canceled; "
                         "send outcome 6 canceled; send_entries 9..9");
    EXPECT_EQ(fsm->status(now).open_entries, 1u) << "of the other file";
    EXPECT_EQ(says(digest_result{7, {1}}), "") << "nobody is there who would want to know";
    fsm->on_outcome(4, false, 0);
    EXPECT_EQ(actions(), "");
    entry(meta(0, entry_kind::reset));
    EXPECT_EQ(actions(), "send outcome 8 canceled; send_entries 10..10");
    EXPECT_EQ(fsm->status(now).open_entries, 0u);
}

TEST_F(replication_primary_fsm_test, digests_and_their_result) {
    attach(standby_hello(1000, 100));
    write(64, entry_compare);
    fsm->on_digests(3, {10, 11, 12}, now);
    EXPECT_EQ(actions(), "send_entries 3..3; send digests 3: 10 11 12");
    EXPECT_EQ(says(digest_result{3, {0, 2}}), "digest_result 3: different 0 2");
    EXPECT_EQ(fsm->status(now).digests_compared, 3u);
    EXPECT_EQ(fsm->status(now).digests_different, 2u);
    EXPECT_EQ(says(digest_result{3, {0, 2}}), "") << "once";
}

TEST_F(replication_primary_fsm_test, a_fault_of_the_standby_ends_the_run) {
    attach();
    EXPECT_EQ(says(fault{2, "its worker died"}),
              "send goodbye other \"the standby is no copy any more: its worker died\"; "
              "close_link \"the standby is no copy any more: its worker died\"; stop_mirror; drop_log all; "
              "state disconnected \"the standby is no copy any more: its worker died\"");
}

TEST_F(replication_primary_fsm_test, the_age_of_what_was_not_acknowledged_is_the_lag) {
    attach();
    acks(2, 0, 0);
    EXPECT_EQ(fsm->status(now).lag_ms, 0u);
    write(8);
    now += 10;
    write(8);
    write(8);
    actions();
    EXPECT_EQ(fsm->status(now + 5).lag_ms, 15u);
    acks(3, 0, 0);
    EXPECT_EQ(fsm->status(now + 5).lag_ms, 5u);
    acks(4, 0, 0);
    EXPECT_EQ(fsm->status(now + 5).lag_ms, 5u);
    acks(5, 0, 0);
    EXPECT_EQ(fsm->status(now + 5).lag_ms, 0u);
}

// ---- what compilers made

TEST_F(replication_primary_fsm_test, built_programs_go_to_a_gpu_of_the_same_name_only) {
    config.built_capability = "built-programs-1 a GPU";
    for (const bool same : {true, false}) {
        make();
        hello h = standby_hello();
        h.capabilities.push_back(same ? "built-programs-1 a GPU" : "built-programs-1 another GPU");
        attach(h);
        write(64, entry_awaits_outcome | entry_may_fail);
        fsm->on_built(1, 4096);
        fsm->on_outcome(3, false, 0);
        EXPECT_EQ(actions(), same ? "send_entries 3..3; send built file=1 4096B; send outcome 3 0"
                                  : "send_entries 3..3; drop built file=1 4096B; send outcome 3 0");
        EXPECT_EQ(fsm->status(now).built_sent, same ? 1u : 0u);
        EXPECT_EQ(fsm->status(now).built_bytes, same ? 4096u : 0u);
        now += 10'000;
    }
}

TEST_F(replication_primary_fsm_test, built_programs_wait_for_no_room) {
    config.built_capability = "built-programs-1 a GPU";
    make();
    hello h = standby_hello();
    h.capabilities.push_back(config.built_capability);
    attach(h);
    std::uint64_t sent = 0;
    for (int i = 0; i < 20; ++i) {
        fsm->on_built(1, max_built_pack_bytes);
        sent += actions().starts_with("send") ? max_built_pack_bytes : 0;
    }
    EXPECT_LE(sent, max_built_queue_bytes);
    EXPECT_GE(sent + max_built_pack_bytes, max_built_queue_bytes - 1000);
    EXPECT_EQ(fsm->status(now).built_dropped, 20 - sent / max_built_pack_bytes);
    fsm->on_sent(0);
    fsm->on_built(1, 4096);
    EXPECT_EQ(actions(), "send built file=1 4096B");
    fsm->on_closed("the cable was cut", now);
    actions();
    fsm->on_built(1, 4096);
    EXPECT_EQ(actions(), "drop built file=1 4096B") << "what the device had under way";
}

} // namespace
} // namespace kagemusha::mirror
