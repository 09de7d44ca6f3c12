// SPDX-License-Identifier: GPL-2.0-or-later
// The primary's end: scripts of events and the actions that they must cause.
#include "mirror/primary/replication_primary_fsm.hpp"

#include <gtest/gtest.h>

#include "mirror/primary/primary_text.hpp"
#include "mirror/protocol/agreement.hpp"
#include "mirror/protocol/fsm_test_helpers.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::standby_hello;
using testing::submit;

struct replication_primary_fsm_test : ::testing::Test {
    explicit replication_primary_fsm_test(std::uint32_t epoch_ms = 50) {
        config.vm = "vm";
        config.epoch_ms = epoch_ms;
        config.log_bytes = 2000;
        config.log_entries = 50;
        make();
    }
    void make() {
        fsm = std::make_unique<replication_primary_fsm>(config, now);
        last = 0;
    }

    primary_config config;
    std::uint64_t now = 1000;
    std::unique_ptr<replication_primary_fsm> fsm;
    log_sequence last = 0;

    std::string actions() { return testing::drain<replication_primary_fsm, primary_action>(*fsm); }
    std::string says(const message& m) {
        fsm->on_message(m, now);
        return actions();
    }
    std::string at(std::uint64_t time) {
        now = time;
        fsm->on_tick(now);
        return actions();
    }
    void entry(entry_meta m) {
        m.sequence = ++last;
        fsm->on_entry(m, now);
    }
    void write(std::uint64_t bytes, std::uint32_t flags = 0, std::uint64_t content = 0) {
        entry(submit(0, 1, bytes, flags, content));
    }
    void connect() {
        fsm->on_tick(now);
        fsm->on_connected(now);
        actions();
    }
    // Connected, greeted, reset and one open file sent: entries 1 and 2.
    void attach(const hello& h = standby_hello()) {
        connect();
        says(h);
        begin();
    }
    void begin() {
        entry(meta(0, entry_kind::reset));
        entry(meta(0, entry_kind::open_file, 1));
        actions();
    }
    std::string acks(log_sequence received, log_sequence executed, std::uint64_t epoch,
                     std::uint64_t bytes = 0, std::uint64_t entries = 0) {
        return says(ack{.received = received,
                        .executed = executed,
                        .committed_epoch = epoch,
                        .freed_bytes = bytes,
                        .freed_entries = entries});
    }
    // Everything so far was executed.
    void settle(std::uint64_t bytes) {
        fsm->on_sent(0);
        fsm->close_epoch(now);
        actions();
        const primary_status s = fsm->status(now);
        acks(s.sent, s.sent, s.epoch, bytes, s.sent - first + 1);
    }
    log_sequence first = 1;
};

// ---- connecting

TEST_F(replication_primary_fsm_test, connects_greets_and_begins_a_state_transfer) {
    EXPECT_EQ(fsm->next_tick_ms(), now);
    EXPECT_EQ(at(now), "connect");
    fsm->on_connected(now);
    EXPECT_EQ(actions(), "state greeting \"no standby has been reached yet\"; "
                         "send hello primary vm=\"vm\" version=1..2 abi=" +
                             std::to_string(VGPU_STREAM_VERSION) + " budget=500ms");
    EXPECT_EQ(says(standby_hello()), "start_sync; state syncing; send heartbeat at 1000");
    EXPECT_EQ(fsm->status(now).standby_gpu, "its gpu");
    entry(meta(0, entry_kind::reset));
    entry(meta(0, entry_kind::open_file, 1));
    write(64);
    EXPECT_EQ(actions(), "send_entries 1..3") << "in one batch";
    fsm->on_synced(3);
    EXPECT_EQ(actions(), "send synced 3; send marker epoch=1 up to 3");
    EXPECT_EQ(at(1050), "send heartbeat at 1050");
    EXPECT_EQ(acks(3, 2, 1, 0, 2), "drop_log 3");
    EXPECT_EQ(acks(3, 3, 1, 64, 3), "state protecting");
    EXPECT_EQ(fsm->status(now).degraded, "");
}

TEST_F(replication_primary_fsm_test, tries_again_after_a_growing_delay) {
    std::uint32_t delay = min_reconnect_ms;
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(at(now), "connect");
        EXPECT_EQ(fsm->next_tick_ms(), UINT64_MAX) << "the link says what becomes of it";
        fsm->on_closed("nobody listens at 10.0.0.2:7070", now);
        EXPECT_EQ(actions(), i == 0 ? "state disconnected \"nobody listens at 10.0.0.2:7070\"" : "");
        EXPECT_EQ(fsm->next_tick_ms(), now + delay);
        EXPECT_EQ(at(now + delay - 1), "");
        now += 1;
        delay = std::min(delay * 2, max_reconnect_ms);
    }
    EXPECT_EQ(delay, max_reconnect_ms);
}

TEST_F(replication_primary_fsm_test, the_delay_is_short_again_after_protection) {
    connect();
    fsm->on_closed("x", now);
    actions();
    at(now + 100);
    fsm->on_connected(now);
    says(standby_hello());
    begin();
    fsm->on_synced(2);
    settle(0);
    ASSERT_EQ(fsm->status(now).state, primary_state::protecting);
    fsm->on_closed("the cable was cut", now);
    EXPECT_EQ(actions(), "stop_mirror; drop_log all; state disconnected \"the cable was cut\"");
    fsm->on_mirror_stopped(now);
    EXPECT_EQ(actions(), "drop_log all");
    EXPECT_EQ(fsm->next_tick_ms(), now + min_reconnect_ms);
}

TEST_F(replication_primary_fsm_test, does_not_connect_before_the_device_has_stopped) {
    attach();
    fsm->on_closed("cut", now);
    EXPECT_EQ(actions(), "stop_mirror; drop_log all; state disconnected \"cut\"");
    write(64);
    fsm->on_outcome(last, false, 0);
    fsm->on_digests(last, {1}, now);
    fsm->on_synced(last);
    EXPECT_EQ(actions(), "") << "of the run that has ended";
    fsm->on_late_content(last, 0, 8);
    EXPECT_EQ(actions(), "drop_content 3");
    EXPECT_EQ(at(now + 10000), "");
    fsm->on_mirror_stopped(now);
    EXPECT_EQ(actions(), "drop_log all; connect");
    fsm->on_connected(now);
    says(standby_hello());
    first = last + 1;
    begin();
    EXPECT_EQ(fsm->status(now).sent, 5u) << "numbered on";
    EXPECT_EQ(fsm->status(now).connections, 2u);
}

TEST_F(replication_primary_fsm_test, gives_up_a_standby_that_does_not_greet) {
    connect();
    EXPECT_EQ(fsm->next_tick_ms(), now + hello_timeout_ms);
    EXPECT_EQ(at(now + hello_timeout_ms), "send goodbye other \"the standby did not greet within 5000 ms\"; "
                                          "close_link \"the standby did not greet within 5000 ms\"; "
                                          "state disconnected \"the standby did not greet within 5000 ms\"");
}

TEST_F(replication_primary_fsm_test, refuses_what_does_not_fit_with_a_sentence) {
    struct {
        std::function<void(hello&)> change;
        std::string sentence;
    } const cases[] = {
        {[](hello& h) { h.version = h.oldest_version = 3; },
         "protocol version 3 there, 1 to 2 here: upgrade this host"},
        {[](hello& h) { h.version = h.oldest_version = 0; },
         "protocol version 0 there, 1 to 2 here: upgrade the other host"},
        {[](hello& h) { h.version = 9, h.oldest_version = 7; },
         "protocol version 7 to 9 there, 1 to 2 here: upgrade this host"},
        {[](hello& h) { h.role = role::primary; },
         "both ends are a primary: give one of them the other role"},
        {[](hello& h) { h.vm = "other"; },
         "the peer is of VM \"other\", this is VM \"vm\": check the addresses"},
        {[](hello& h) { h.abi_version = VGPU_STREAM_VERSION - 1, h.oldest_abi_version = 0; },
         "the primary's guest speaks version " + std::to_string(VGPU_STREAM_VERSION) +
             " of the device's interface, the standby's device " + std::to_string(VGPU_STREAM_VERSION - 1) +
             ": upgrade the standby's host"},
        {[](hello& h) { h.abi_version = 1009, h.oldest_abi_version = 1000; },
         "the primary's guest speaks version " + std::to_string(VGPU_STREAM_VERSION) +
             " of the device's interface, the standby's device 1000 to 1009: upgrade the primary's host, and "
             "start the VM again"},
        {[](hello& h) { h.capabilities = {cuda_capability, cuda_only_capability}; },
         "the standby's GPU speaks CUDA, and the primary's does not: give both the same backend"},
        {[](hello& h) { h.checkpoint_version = h.oldest_checkpoint_version = 7; },
         "version of QEMU's checkpoints 7 there, 1 here: upgrade this host"},
        {[](hello& h) { h.hold_bytes = 0; },
         "the standby says that it can hold nothing: raise its hold_bytes and hold_entries"},
        {[](hello& h) { h.heartbeat_budget_ms = 0; }, "the peer gives no heartbeat budget"},
    };
    for (const auto& c : cases) {
        fsm = std::make_unique<replication_primary_fsm>(config, now);
        connect();
        hello h = standby_hello();
        c.change(h);
        EXPECT_EQ(says(h), "send goodbye refused \"" + c.sentence + "\"; close_link \"" + c.sentence +
                               "\"; state disconnected \"" + c.sentence + "\"");
    }
}

TEST_F(replication_primary_fsm_test, a_later_standby_that_knows_this_version_is_welcome) {
    connect();
    hello h = standby_hello();
    h.version = 5;
    h.capabilities = {"time travel"};
    EXPECT_EQ(says(h), "start_sync; state syncing; send heartbeat at 1000");
}

TEST_F(replication_primary_fsm_test, compression_needs_both) {
    config.compression = true;
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    connect();
    hello h = standby_hello();
    h.capabilities = {"zstd"};
    says(h);
    EXPECT_TRUE(fsm->status(now).compression);
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach();
    EXPECT_FALSE(fsm->status(now).compression);
}

TEST_F(replication_primary_fsm_test, a_vm_with_cuda_needs_a_standby_with_cuda) {
    config.gpu_capabilities = {cuda_capability, cuda_only_capability};
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    connect();
    const std::string sentence =
        "the primary's GPU speaks CUDA, and the standby's does not: give the standby the "
        "backend cuda, of a release that can be a standby with it";
    EXPECT_EQ(says(standby_hello()), "send goodbye refused \"" + sentence + "\"; close_link \"" + sentence +
                                         "\"; state disconnected \"" + sentence + "\"");
    for (const std::vector<std::string>& theirs :
         {std::vector<std::string>{cuda_capability}, {cuda_capability, cuda_only_capability}}) {
        fsm = std::make_unique<replication_primary_fsm>(config, now);
        connect();
        hello h = standby_hello();
        h.capabilities = theirs;
        EXPECT_EQ(says(h), "start_sync; state syncing; send heartbeat at 1000");
    }
}

TEST_F(replication_primary_fsm_test, tells_why_the_standby_left) {
    attach();
    EXPECT_EQ(says(goodbye{goodbye_reason::shutdown, "maintenance"}),
              "close_link \"the standby was shut down: maintenance\"; stop_mirror; drop_log all; "
              "state disconnected \"the standby was shut down: maintenance\"");
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    connect();
    EXPECT_EQ(
        says(goodbye{goodbye_reason::refused, "wrong VM"}),
        "close_link \"the standby refused: wrong VM\"; state disconnected \"the standby refused: wrong VM\"");
}

TEST_F(replication_primary_fsm_test, says_goodbye_at_shutdown_in_every_state) {
    EXPECT_EQ((fsm->on_shutdown(now), actions()), "state ended \"the primary was shut down\"");
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    fsm->on_tick(now);
    fsm->on_shutdown(now);
    EXPECT_EQ(actions(),
              "connect; close_link \"the primary was shut down\"; state ended \"the primary was shut down\"");
    fsm->on_connected(now);
    EXPECT_EQ(actions(), "");
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach();
    fsm->on_shutdown(now);
    EXPECT_EQ(actions(), "send goodbye shutdown \"the primary was shut down\"; "
                         "close_link \"the primary was shut down\"; stop_mirror; drop_log all; "
                         "state ended \"the primary was shut down\"");
    fsm->on_mirror_stopped(now);
    fsm->on_shutdown(now);
    EXPECT_EQ(actions(), "drop_log all");
    EXPECT_EQ(at(now + 100000), "");
    EXPECT_EQ(fsm->next_tick_ms(), UINT64_MAX);
}

TEST_F(replication_primary_fsm_test, a_mirror_that_failed_is_tried_again_with_its_reason_shown) {
    attach();
    fsm->on_mirror_failed("an image of 3 dimensions can't be mirrored", now);
    EXPECT_EQ(actions(), "send goodbye other \"an image of 3 dimensions can't be mirrored\"; "
                         "close_link \"an image of 3 dimensions can't be mirrored\"; "
                         "stop_mirror; drop_log all; "
                         "state disconnected \"an image of 3 dimensions can't be mirrored\"");
    fsm->on_mirror_failed("again", now);
    EXPECT_EQ(actions(), "");
    fsm->on_mirror_stopped(now);
    actions();
    at(now + 100);
    fsm->on_connected(now);
    EXPECT_EQ(fsm->status(now).degraded, "an image of 3 dimensions can't be mirrored") << "until it works";
}

TEST_F(replication_primary_fsm_test, protection_begins_when_the_end_of_the_state_transfer_has_arrived) {
    attach();
    fsm->close_epoch(now);
    actions();
    EXPECT_EQ(acks(2, 2, 1, 0, 2), "drop_log 2");
    fsm->on_synced(2);
    EXPECT_EQ(actions(), "send synced 2; send marker epoch=2 up to 2");
    EXPECT_EQ(acks(2, 2, 1, 0, 2), "") << "may have been under way already";
    EXPECT_EQ(acks(2, 2, 2, 0, 2), "state protecting");
}

// ---- silence

TEST_F(replication_primary_fsm_test, asks_for_life_and_measures_the_way) {
    attach();
    EXPECT_EQ(at(1049), "");
    EXPECT_EQ(at(1050), "send heartbeat at 1050; send marker epoch=1 up to 2");
    now = 1057;
    EXPECT_EQ(says(heartbeat{5, 1050}), "");
    EXPECT_EQ(fsm->status(now).round_trip_ms, 7u);
    EXPECT_EQ(says(heartbeat{5, 0}), "") << "an answer is not answered";
}

TEST_F(replication_primary_fsm_test, silence_beyond_the_budget_ends_the_connection) {
    attach();
    for (std::uint64_t t = 1050; t < 1500; t += 50)
        EXPECT_NE(at(t), "");
    EXPECT_EQ(at(1499), "");
    EXPECT_EQ(at(1500), "send goodbye other \"nothing was heard of the standby for 500 ms\"; "
                        "close_link \"nothing was heard of the standby for 500 ms\"; "
                        "stop_mirror; drop_log all; "
                        "state disconnected \"nothing was heard of the standby for 500 ms\"");
}

TEST_F(replication_primary_fsm_test, any_message_is_a_sign_of_life) {
    attach();
    at(1400);
    says(unknown_message{});
    EXPECT_EQ(at(1899).find("close_link"), std::string::npos);
    EXPECT_NE(at(1900).find("close_link"), std::string::npos);
}

TEST_F(replication_primary_fsm_test, heartbeats_keep_the_peers_budget_too) {
    hello h = standby_hello();
    h.heartbeat_budget_ms = 30;
    attach(h);
    EXPECT_EQ(fsm->next_tick_ms(), 1010u);
    EXPECT_EQ(at(1010), "send heartbeat at 1010");
}

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

// ---- a standby that lies

struct lie {
    const char* name;
    message what;
    std::string sentence;
};

// After attach(): 1 reset, 2 open, 3 of 100 bytes with digests of 2, 4 of 100 bytes; epoch 1 ends at 3; all
// of it acknowledged as received, up to 2 as executed.
struct primary_lie_test : replication_primary_fsm_test, ::testing::WithParamInterface<lie> {};

TEST_P(primary_lie_test, costs_it_the_connection) {
    attach(standby_hello(1000, 100));
    write(100, entry_compare);
    fsm->on_digests(3, {1, 2}, now);
    fsm->close_epoch(now);
    actions();
    write(100);
    actions();
    ASSERT_EQ(acks(3, 2, 1, 0, 2), "drop_log 3");
    const std::string why = "the standby broke the protocol: " + GetParam().sentence;
    EXPECT_EQ(says(GetParam().what), "send goodbye protocol_error \"" + why + "\"; close_link \"" + why +
                                         "\"; stop_mirror; drop_log all; state disconnected \"" + why + "\"");
    EXPECT_EQ(says(GetParam().what), "") << "nobody listens to it any more";
}

INSTANTIATE_TEST_SUITE_P(
    , primary_lie_test,
    ::testing::Values(
        lie{"received_beyond_sent",
            ack{.received = 5, .executed = 2, .committed_epoch = 1, .freed_entries = 2},
            "it acknowledged entry 5 as received, the last one sent is 4"},
        lie{"executed_beyond_received",
            ack{.received = 3, .executed = 4, .committed_epoch = 1, .freed_entries = 2},
            "it acknowledged entry 4 as executed and only 3 as received"},
        lie{"executed_beyond_committed",
            ack{.received = 4, .executed = 4, .committed_epoch = 1, .freed_entries = 2},
            "it executed entry 4 before its epoch was committed"},
        lie{"received_backwards", ack{.received = 2, .executed = 2, .committed_epoch = 1, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"executed_backwards", ack{.received = 3, .executed = 1, .committed_epoch = 1, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"committed_backwards", ack{.received = 3, .executed = 2, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"freed_backwards", ack{.received = 3, .executed = 2, .committed_epoch = 1, .freed_entries = 1},
            "an acknowledgement went backwards"},
        lie{"committed_beyond_closed",
            ack{.received = 3, .executed = 2, .committed_epoch = 2, .freed_entries = 2},
            "it committed epoch 2, the last one that was closed is 1"},
        lie{"freed_beyond_sent",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 201, .freed_entries = 3},
            "it freed more than was sent"},
        lie{"freed_entries_beyond_sent",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 100, .freed_entries = 5},
            "it freed more than was sent"},
        lie{"freed_beyond_committed",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 200, .freed_entries = 3},
            "it freed entries before their epoch was committed"},
        lie{"freed_entries_beyond_committed",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 100, .freed_entries = 4},
            "it freed entries before their epoch was committed"},
        lie{"digests_of_what_was_not_sent", digest_result{5, {}},
            "it compared digests of entry 5, which was not sent"},
        lie{"digests_of_nothing", digest_result{0, {}}, "it compared digests of entry 0, which was not sent"},
        lie{"difference_beyond_the_end", digest_result{3, {2}}, "it found a difference in hash 2 of 2"},
        lie{"difference_twice", digest_result{3, {1, 1}}, "it found a difference in hash 1 of 2"},
        lie{"heartbeat_of_the_future", heartbeat{1, 99999}, "it answered a heartbeat of the future"},
        lie{"hello_twice", standby_hello(), "it greeted twice"},
        lie{"entries", entries{}, "it sent a message that only a primary sends"},
        lie{"marker", marker{}, "it sent a message that only a primary sends"},
        lie{"outcome", outcome{}, "it sent a message that only a primary sends"},
        lie{"content", content{}, "it sent a message that only a primary sends"},
        lie{"synced", synced{}, "it sent a message that only a primary sends"},
        lie{"digests", digests{}, "it sent a message that only a primary sends"}),
    [](const auto& info) { return info.param.name; });

TEST_F(replication_primary_fsm_test, the_first_message_must_be_a_hello) {
    connect();
    const std::string why = "the standby broke the protocol: its first message is no hello";
    EXPECT_EQ(says(ack{}), "send goodbye protocol_error \"" + why + "\"; close_link \"" + why +
                               "\"; state disconnected \"" + why + "\"");
}

TEST_F(replication_primary_fsm_test, messages_without_a_link_are_ignored) {
    EXPECT_EQ(says(standby_hello()), "");
    EXPECT_EQ(
        says(ack{.received = 1, .executed = 1, .committed_epoch = 1, .freed_bytes = 1, .freed_entries = 1}),
        "");
    fsm->on_closed("x", now);
    EXPECT_EQ(actions(), "");
}

// ---- the caller's errors

using replication_primary_fsm_death_test = replication_primary_fsm_test;

TEST_F(replication_primary_fsm_death_test, broken_contracts_crash) {
    EXPECT_DEATH(fsm->on_entry(meta(1, entry_kind::reset), now), "before a state transfer");
    EXPECT_DEATH(fsm->on_mirror_stopped(now), "nobody asked");
    connect();
    says(standby_hello());
    EXPECT_DEATH(fsm->on_entry(submit(1, 1), now), "begins with a reset");
    begin();
    EXPECT_DEATH(fsm->on_entry(submit(4, 1), now), "no gaps");
    EXPECT_DEATH(fsm->on_synced(3), "once");
    write(8, entry_awaits_outcome | entry_compare);
    fsm->on_outcome(3, false, 0);
    EXPECT_DEATH(fsm->on_outcome(3, false, 0), "once");
    fsm->on_digests(3, {}, now);
    EXPECT_DEATH(fsm->on_digests(3, {}, now), "once");
}

// ---- memory and cost

TEST_F(replication_primary_fsm_test, memory_returns_to_its_baseline) {
    config.log_bytes = UINT64_MAX / 2;
    config.log_entries = UINT64_MAX / 2;
    fsm = std::make_unique<replication_primary_fsm>(config, now);
    attach(standby_hello(std::uint64_t{1} << 30, 1u << 20));
    for (int i = 0; i < 100000; ++i) {
        write(8, i % 100 == 0 ? std::uint32_t{entry_awaits_outcome} : 0);
        if (i % 100 == 0)
            fsm->on_outcome(last, false, 0);
    }
    actions();
    EXPECT_EQ(fsm->status(now).log_bytes, 800000u);
    acks(last, 0, 0);
    const primary_status s = fsm->status(now);
    EXPECT_EQ(s.log_bytes, 0u);
    EXPECT_EQ(s.log_entries, 0u);
    EXPECT_EQ(s.open_entries, 0u);
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
    EXPECT_EQ(acks(4, 3, epoch, 64, 3), "state protecting") << "4 is younger than the bound";
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
