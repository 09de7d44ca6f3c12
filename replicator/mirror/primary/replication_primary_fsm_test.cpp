// SPDX-License-Identifier: GPL-2.0-or-later
// The primary's end of a link: it connects, greets, protects, keeps silence apart and says goodbye. Scripts of
// events and the actions that they must cause.
#include "mirror/primary/replication_primary_fsm_test_fixture.hpp"
#include "mirror/protocol/agreement.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::replication_primary_fsm_test;
using testing::standby_hello;
using testing::submit;

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

} // namespace
} // namespace kagemusha::mirror
