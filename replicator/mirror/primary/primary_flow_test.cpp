// SPDX-License-Identifier: GPL-2.0-or-later
// How much the primary sends, when the guest is held back, and whether a standby whose GPU is behind protects.
#include "mirror/primary/replication_primary_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::replication_primary_fsm_test;
using testing::standby_hello;

// ---- flow control

TEST_F(replication_primary_fsm_test, never_sends_more_than_the_standby_holds) {
    attach(standby_hello(1000, 100));
    write(400);
    EXPECT_EQ(actions(), "send_entries 3..3");
    write(400);
    EXPECT_EQ(actions(), "send_entries 4..4; send marker epoch=1 up to 4")
        << "closed early: more than half is used";
    write(400);
    write(300);
    EXPECT_EQ(actions(), "") << "they wait for room";
    EXPECT_EQ(acks(4, 3, 1, 400, 3), "drop_log 4; send_entries 5..5; send marker epoch=2 up to 5")
        << "the next does not fit again";
    EXPECT_EQ(acks(5, 4, 1, 800, 4), "drop_log 5; send_entries 6..6");
}

TEST_F(replication_primary_fsm_test, room_is_counted_in_entries_too) {
    attach(standby_hello(1000, 4)); // two of them used
    write(8);
    write(8);
    write(8);
    EXPECT_EQ(actions(), "send_entries 3..4; send marker epoch=1 up to 4");
    EXPECT_EQ(acks(4, 0, 1, 8, 1), "drop_log 4; send_entries 5..5");
}

TEST_F(replication_primary_fsm_test, the_epoch_is_closed_before_the_standby_is_full) {
    attach(standby_hello(1000, 100));
    write(501);
    EXPECT_EQ(actions(), "send_entries 3..3; send marker epoch=1 up to 3");
}

TEST_F(replication_primary_fsm_test, what_can_never_fit_ends_the_mirror_with_a_sentence) {
    attach(standby_hello(1000, 100));
    write(500, 0, 504);
    write(8); // came before anybody could know
    const std::string why =
        "one request of the guest needs 1004 bytes, and the standby can hold 1000: give it a larger hold";
    EXPECT_EQ(actions(), "send goodbye other \"" + why + "\"; close_link \"" + why +
                             "\"; stop_mirror; drop_log all; state disconnected \"" + why + "\"");
}

TEST_F(replication_primary_fsm_test, a_standby_that_is_full_and_frees_nothing_is_given_up) {
    config.stall_budget_ms = 400;
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach(standby_hello(1000, 100));
    write(600);
    write(600);
    EXPECT_EQ(actions(), "send_entries 3..3; send marker epoch=1 up to 3");
    at(1200);
    EXPECT_EQ(acks(3, 2, 1, 0, 2), "drop_log 3") << "it freed something";
    EXPECT_EQ(at(1599).find("close_link"), std::string::npos);
    EXPECT_EQ(fsm->next_tick_ms(), 1600u);
    EXPECT_NE(at(1600).find("state disconnected \"the standby is full and has freed nothing for 400 ms"),
              std::string::npos);
}

TEST_F(replication_primary_fsm_test, a_standby_that_is_full_may_ask_for_the_end_of_the_epoch) {
    attach();
    write(8);
    EXPECT_EQ(says(close_epoch{}), "send_entries 3..3; send marker epoch=1 up to 3");
    EXPECT_EQ(says(close_epoch{}), "");
}

TEST_F(replication_primary_fsm_test, the_links_window_is_kept_and_one_entry_may_be_larger) {
    config.log_bytes = UINT64_MAX / 2;
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach(standby_hello(std::uint64_t{1} << 40, 1000));
    write(link_window_bytes * 2);
    write(8);
    EXPECT_EQ(actions(), "send_entries 3..3");
    fsm->on_sent(link_window_bytes);
    EXPECT_EQ(actions(), "");
    fsm->on_sent(link_window_bytes - 8);
    EXPECT_EQ(actions(), "send_entries 4..4");
}

TEST_F(replication_primary_fsm_test, congestion_has_hysteresis) {
    attach(standby_hello(100000, 1000));
    for (int i = 0; i < 19; ++i)
        write(100);
    EXPECT_EQ(actions(), "send_entries 3..21");
    write(100);
    EXPECT_EQ(actions(), "congestion on; send_entries 22..22") << "2000 bytes";
    write(100);
    EXPECT_EQ(actions(), "send_entries 23..23");
    EXPECT_EQ(acks(12, 0, 0), "drop_log 12") << "1100 bytes are left";
    EXPECT_EQ(acks(13, 0, 0), "drop_log 13; congestion off");
    EXPECT_EQ(fsm->status(now).log_bytes, 1000u);
    EXPECT_EQ(fsm->status(now).log_entries, 10u);
}

TEST_F(replication_primary_fsm_test, congestion_counts_entries_and_ends_with_the_connection) {
    attach(standby_hello(100000, 1000));
    for (int i = 0; i < 48; ++i)
        write(8);
    EXPECT_EQ(actions(), "congestion on; send_entries 3..50");
    fsm->on_closed("cut", now);
    EXPECT_EQ(actions(), "congestion off; stop_mirror; drop_log all; state disconnected \"cut\"");
    EXPECT_EQ(fsm->status(now).log_bytes, 0u);
    EXPECT_EQ(fsm->status(now).log_entries, 0u);
}

// ---- a standby whose GPU is behind

struct primary_behind_test : replication_primary_fsm_test {
    primary_behind_test() {
        config.max_behind_ms = 400;
        make();
        attach(standby_hello(1000, 100));
    }
    // A comparison that this side's GPU has done now.
    log_sequence compared() {
        write(8, entry_compare);
        fsm->on_digests(last, {1}, now);
        actions();
        return last;
    }
    // Time passes, and the standby is heard.
    std::string later(std::uint64_t ms) {
        std::string all;
        for (const std::uint64_t end = now + ms; now < end;) {
            now = std::min(end, fsm->next_tick_ms());
            fsm->on_message(heartbeat{.time_ms = now, .answer_to_ms = 0}, now);
            fsm->on_tick(now);
            const std::string some = without_heartbeats(actions());
            all += (all.empty() || some.empty() ? "" : "; ") + some;
        }
        return all;
    }
    static std::string without_heartbeats(std::string all) {
        std::string out;
        for (std::size_t at = 0; at < all.size();) {
            const std::size_t end = std::min(all.find("; ", at), all.size());
            const std::string one = all.substr(at, end - at);
            if (one.starts_with("congestion") || one.starts_with("lagging"))
                out += (out.empty() ? "" : "; ") + one;
            at = end + 2;
        }
        return out;
    }
};

TEST_F(primary_behind_test, the_guest_waits_when_it_is_too_far) {
    const log_sequence first_one = compared();
    EXPECT_EQ(later(399), "");
    EXPECT_EQ(fsm->status(now).behind_ms, 399u);
    EXPECT_EQ(later(1), "congestion on");
    EXPECT_EQ(later(100), "") << "once";
    EXPECT_EQ(fsm->status(now).behind_ms, 500u);
    EXPECT_EQ(without_heartbeats(says(digest_result{first_one, {}})), "congestion off");
    EXPECT_EQ(fsm->status(now).behind_ms, 0u);
}

TEST_F(primary_behind_test, it_waits_until_the_standby_is_near) {
    const log_sequence a = compared();
    later(150);
    const log_sequence b = compared();
    later(150);
    const log_sequence c = compared();
    EXPECT_EQ(later(200), "congestion on");
    EXPECT_EQ(without_heartbeats(says(digest_result{a, {}})), "") << "350 ms are more than half";
    EXPECT_EQ(fsm->status(now).behind_ms, 350u);
    EXPECT_EQ(without_heartbeats(says(digest_result{b, {}})), "") << "200 ms, too";
    later(10);
    EXPECT_EQ(without_heartbeats(says(digest_result{c, {}})), "congestion off");
}

TEST_F(primary_behind_test, people_hear_of_a_guest_that_waits_for_long) {
    const log_sequence a = compared();
    EXPECT_EQ(later(400), "congestion on");
    EXPECT_EQ(later(lag_note_ms - 1), "");
    EXPECT_EQ(later(1), "lagging guest_waits 5400ms");
    EXPECT_EQ(later(600), "") << "once";
    EXPECT_EQ(without_heartbeats(says(digest_result{a, {}})), "congestion off; lagging over 5600ms");
    const log_sequence b = compared();
    EXPECT_EQ(later(500), "congestion on");
    EXPECT_EQ(without_heartbeats(says(digest_result{b, {}})), "congestion off") << "a short wait is none";
}

TEST_F(primary_behind_test, what_nobody_will_answer_does_not_count) {
    compared();
    later(100);
    entry(meta(0, entry_kind::close_file, 1));
    EXPECT_EQ(fsm->status(now).behind_ms, 0u);
    EXPECT_EQ(later(1000), "");
    entry(meta(0, entry_kind::open_file, 1));
    compared();
    EXPECT_EQ(later(400), "congestion on");
    entry(meta(0, entry_kind::reset));
    EXPECT_EQ(later(100), "congestion off") << "the guest's device has begun anew";
}

TEST_F(primary_behind_test, the_end_of_the_link_lets_the_guest_go_on) {
    compared();
    later(400);
    fsm->on_closed("cut", now);
    EXPECT_EQ(without_heartbeats(actions()), "congestion off");
    EXPECT_EQ(fsm->status(now).behind_ms, 0u);
}

TEST_F(primary_behind_test, without_a_bound_it_is_only_said) {
    config.max_behind_ms = 0;
    make();
    attach(standby_hello(1000, 100));
    compared();
    EXPECT_EQ(later(10'000), "");
    EXPECT_EQ(fsm->status(now).behind_ms, 10'000u);
}

// ---- the standby keeps up

TEST_F(replication_primary_fsm_test, it_protects_when_the_standbys_gpu_keeps_up) {
    config.heartbeat_budget_ms = 100'000;
    make();
    attach();
    fsm->on_synced(2);
    fsm->on_sent(0);
    write(64); // 3: a program that its compiler needs long for
    actions();
    fsm->close_epoch(now);
    actions();
    now += 1500;
    write(64); // 4
    fsm->close_epoch(now);
    actions();
    now += config.max_behind_ms - 1499;
    const std::uint64_t epoch = fsm->status(now).epoch;
    const std::string waits = acks(4, 2, epoch, 0, 2);
    EXPECT_NE(waits.find("state syncing \"the standby has everything, and its GPU has still to do"),
              std::string::npos)
        << waits;
    EXPECT_EQ(fsm->status(now).unexecuted_ms, config.max_behind_ms + 1u);
    EXPECT_EQ(acks(4, 3, epoch, 64, 3), "") << "4 came during the state transfer";
    write(64); // 5
    actions();
    EXPECT_EQ(acks(5, 4, epoch, 128, 4), "drop_log 5; state protecting") << "5 is younger than the bound";
}

// A launch may write all CUDA memory: its last round is everything, and takes as long as that takes to send. What the
// guest does meanwhile waits on the standby behind it, and could not have been executed any earlier.
TEST_F(replication_primary_fsm_test, what_came_during_a_state_transfer_is_done_before_it_protects) {
    config.heartbeat_budget_ms = 100'000;
    make();
    attach();
    write(64, entry_late_content, 8); // 3: the last round
    fsm->on_synced(3);
    fsm->on_sent(0);
    for (int i = 0; i < 10; ++i, now += 1500)
        write(64); // 4 to 13
    at(now);
    fsm->on_late_content(3, 0, 8);
    fsm->close_epoch(now);
    actions();
    const std::uint64_t epoch = fsm->status(now).epoch;
    const std::string waits = acks(13, 3, epoch, 72, 3);
    EXPECT_NE(waits.find("its GPU has still to do"), std::string::npos) << waits;
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 0u);
    EXPECT_EQ(acks(13, 12, epoch, 648, 12), "");
    EXPECT_EQ(acks(13, 13, epoch, 712, 13), "state protecting");
}

TEST_F(replication_primary_fsm_test, what_this_side_has_not_done_is_not_the_standbys_speed) {
    config.heartbeat_budget_ms = 100'000;
    make();
    attach();
    fsm->on_synced(2);
    write(64, entry_awaits_outcome | entry_may_fail); // 3: a program that this side's compiler needs long for
    write(64, entry_late_content, 8);                 // 4
    write(64, entry_compare);                         // 5
    actions();
    fsm->close_epoch(now);
    actions();
    now += 10 * config.max_behind_ms;
    const std::uint64_t epoch = fsm->status(now).epoch;
    EXPECT_EQ(acks(5, 2, epoch, 0, 2), "drop_log 5; state protecting");
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 0u);
    at(now); // outcomes have the time of the event before
    fsm->on_outcome(3, false, 0);
    actions();
    now += 7;
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 7u) << "now it is";
    acks(5, 3, epoch, 64, 3);
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 0u) << "4 lacks its content";
    at(now);
    fsm->on_late_content(4, 0, 8);
    actions();
    now += 5;
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 5u);
    acks(5, 4, epoch, 136, 4);
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 0u) << "5 lacks this side's digests";
    fsm->on_digests(5, {1}, now);
    actions();
    now += 3;
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 3u);
    write(64); // 6
    acks(5, 5, epoch, 200, 5);
    EXPECT_EQ(fsm->status(now + 2).unexecuted_ms, 2u);
}

// What lies behind a build in its file can't run before the build has ended here.
TEST_F(replication_primary_fsm_test, what_is_behind_a_build_counts_from_its_end) {
    attach();
    fsm->on_synced(2);
    write(64, entry_awaits_outcome | entry_may_fail); // 3
    now += 50;
    write(64); // 4
    actions();
    now += 50;
    at(now);
    fsm->on_outcome(3, false, 0);
    actions();
    fsm->close_epoch(now);
    actions();
    now += 10;
    acks(4, 3, fsm->status(now).epoch, 64, 3);
    EXPECT_EQ(fsm->status(now).unexecuted_ms, 10u);
}

TEST_F(replication_primary_fsm_test, a_standby_that_never_keeps_up_protects_a_bit_later) {
    config.heartbeat_budget_ms = 100'000;
    make();
    attach();
    fsm->on_synced(2);
    fsm->on_sent(0);
    fsm->close_epoch(now);
    actions();
    // One entry a second, each of which is executed four seconds later.
    std::string said;
    for (std::uint64_t second = 0; second <= 13; ++second, now += 1000) {
        write(64);
        fsm->close_epoch(now);
        actions();
        if (second >= 3) {
            ASSERT_NE(fsm->status(now).state, primary_state::protecting) << second;
            const primary_status s = fsm->status(now);
            said = acks(s.sent, second - 1, s.epoch, 64 * (second - 3), second - 1);
        }
    }
    EXPECT_NE(said.find("state protecting; lagging at_protection 3000ms"), std::string::npos) << said;
}

} // namespace
} // namespace kagemusha::mirror
