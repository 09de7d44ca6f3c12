// SPDX-License-Identifier: GPL-2.0-or-later
// The standby's end of a link: it greets, follows, becomes ready and takes over. Scripts of events and the
// actions that they must cause.
#include "mirror/standby/replication_standby_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::primary_hello;
using testing::replication_standby_fsm_test;
using testing::submit;

// ---- greeting

TEST_F(replication_standby_fsm_test, greets_and_follows) {
    EXPECT_EQ(connect(), "state greeting");
    EXPECT_EQ(says(primary_hello()),
              "send hello standby vm=\"vm\" version=1..2 abi=" + std::to_string(VGPU_STREAM_VERSION) +
                  " budget=500ms hold=1000B/40; state following");
    EXPECT_EQ(entry(meta(7, entry_kind::reset)), "") << "numbers may begin anywhere";
    EXPECT_EQ(entry(meta(8, entry_kind::open_file, 1)), "");
    EXPECT_EQ(mark(4, 8), "run 7; send ack received=8 executed=6 committed=4 freed=0B/0");
    EXPECT_EQ(done(7), "run 8");
    EXPECT_EQ(done(8), "");
    EXPECT_EQ(fsm->next_tick_ms(), now + ack_delay_ms);
    EXPECT_EQ(at(now + ack_delay_ms), "send ack received=8 executed=8 committed=4 freed=0B/2");
    EXPECT_EQ(says(synced{8}), "state ready");
}

TEST_F(replication_standby_fsm_test, refuses_what_does_not_fit_with_a_sentence) {
    struct {
        std::function<void(hello&)> change;
        std::string sentence;
    } const cases[] = {
        {[](hello& h) { h.version = h.oldest_version = 3; },
         "protocol version 3 there, 1 to 2 here: upgrade this host"},
        {[](hello& h) { h.role = role::standby; },
         "both ends are a standby: give one of them the other role"},
        {[](hello& h) { h.vm = "other"; },
         "the peer is of VM \"other\", this is VM \"vm\": check the addresses"},
        {[](hello& h) { h.abi_version = 999, h.oldest_abi_version = 1; },
         "the primary's guest speaks version 999 of the device's interface, the standby's device " +
             std::to_string(VGPU_STREAM_VERSION) + ": upgrade the standby's host"},
    };
    for (const auto& c : cases) {
        make();
        connect();
        hello h = primary_hello();
        c.change(h);
        EXPECT_EQ(says(h), refused(c.sentence));
        EXPECT_EQ(says(h), "") << "of a link that is being closed";
    }
}

TEST_F(replication_standby_fsm_test, gives_up_a_primary_that_does_not_greet) {
    connect();
    EXPECT_EQ(fsm->next_tick_ms(), now + hello_timeout_ms);
    EXPECT_NE(at(now + hello_timeout_ms).find("the primary did not greet within 5000 ms"), std::string::npos);
    EXPECT_EQ(fsm->next_tick_ms(), UINT64_MAX);
}

TEST_F(replication_standby_fsm_test, the_first_message_must_be_a_hello) {
    connect();
    EXPECT_EQ(says(heartbeat{}), broken("its first message is no hello"));
}

TEST_F(replication_standby_fsm_test, a_new_connection_forgets_the_last_copy_before_it_is_greeted) {
    become_ready();
    write(4);
    mark(2, 4);
    fsm->on_closed("cut", now);
    EXPECT_EQ(actions(), "state listening \"cut\"");
    EXPECT_EQ(connect(), "state greeting");
    hello wrong = primary_hello();
    wrong.vm = "other";
    EXPECT_EQ(says(wrong).find("forget_all"), std::string::npos) << "not for just anybody";
    EXPECT_EQ(fsm->status(now).held_entries, 1u);
    connect();
    EXPECT_EQ(says(primary_hello()), "forget_all");
    EXPECT_EQ(fsm->status(now).held_entries, 0u);
    EXPECT_EQ(done(4), "") << "of what was forgotten";
    fsm->on_digests(4, {1}, now);
    fsm->on_file_lost(1, "x", now);
    EXPECT_EQ(actions(), "");
    EXPECT_EQ(fsm->next_tick_ms(), UINT64_MAX) << "it takes as long as it takes";
    fsm->on_forgotten(now);
    EXPECT_EQ(actions().substr(0, 23), "send hello standby vm=\"");
    EXPECT_EQ(entry(meta(1, entry_kind::reset)), "");
}

TEST_F(replication_standby_fsm_test, a_primary_that_does_not_wait_for_the_hello_is_refused) {
    become_ready();
    fsm->on_closed("cut", now);
    actions();
    connect();
    says(primary_hello());
    EXPECT_EQ(entry(meta(1, entry_kind::reset)), broken("it did not wait for the standby's hello"));
    connect();
    EXPECT_EQ(says(primary_hello()), "") << "still forgetting";
    fsm->on_forgotten(now);
    EXPECT_EQ(fsm->status(now).state, standby_state::following);
}

// ---- silence, goodbyes

TEST_F(replication_standby_fsm_test, answers_heartbeats_and_ends_after_silence) {
    attach();
    now += 100;
    const std::uint64_t heard = now;
    EXPECT_EQ(says(heartbeat{77, 0}), "send heartbeat at " + std::to_string(now) + " answers 77");
    EXPECT_EQ(says(heartbeat{78, 5}), "") << "an answer";
    write(4);
    EXPECT_EQ(says(heartbeat{79, 0}),
              "send heartbeat at " + std::to_string(now) +
                  " answers 79; send ack received=4 executed=3 committed=1 freed=0B/3");
    EXPECT_EQ(at(heard + 499), "");
    const std::string why = "nothing was heard of the primary for 500 ms";
    EXPECT_EQ(at(heard + 500), "send goodbye other \"" + why + "\"; close_link \"" + why +
                                   "\"; state listening \"" + why + "\"");
    EXPECT_EQ(fsm->status(now).held_entries, 1u) << "a takeover would need it";
}

TEST_F(replication_standby_fsm_test, tells_why_the_primary_left) {
    attach();
    EXPECT_EQ(says(goodbye{goodbye_reason::shutdown, "maintenance"}),
              "close_link \"maintenance\"; state listening \"the primary was shut down: maintenance\"");
}

TEST_F(replication_standby_fsm_test, says_goodbye_at_shutdown) {
    attach();
    fsm->on_shutdown(now);
    EXPECT_EQ(actions(),
              "send goodbye shutdown \"the standby was shut down\"; "
              "close_link \"the standby was shut down\"; state ended \"the standby was shut down\"");
    fsm->on_connected(now);
    EXPECT_EQ(actions(),
              "send goodbye refused \"this standby has ended\"; close_link \"this standby has ended\"");
    fsm->on_shutdown(now);
    EXPECT_EQ(actions(), "");
}

// ---- takeover

TEST_F(replication_standby_fsm_test, takeover_runs_what_was_committed_and_drops_the_rest) {
    become_ready();
    write(4, 1, 8, entry_awaits_outcome);
    write(5, 1);
    write(6, 2);
    mark(2, 6);
    write(7, 1);
    entry(meta(8, entry_kind::reset));
    entry(meta(9, entry_kind::open_file, 1));
    fsm->on_closed("the primary's host is dead", now);
    actions();
    fsm->takeover(now);
    EXPECT_EQ(actions(), "state taken_over; skip 7; skip 8; skip 9; run 4; run 5; live")
        << "what was in flight runs: nobody will say how it went";
    EXPECT_EQ(done(6), "");
    EXPECT_EQ(done(4, -6), "") << "it may have failed there too";
    EXPECT_EQ(fsm->status(now).held_entries, 1u);
    done(5);
    EXPECT_EQ(fsm->status(now).held_entries, 0u);
    EXPECT_EQ(fsm->status(now).faults, 0u);
    EXPECT_EQ(fsm->next_tick_ms(), UINT64_MAX) << "nothing is waited for";
    fsm->on_connected(now);
    EXPECT_EQ(
        actions(),
        "send goodbye refused \"this standby has taken over\"; close_link \"this standby has taken over\"");
}

TEST_F(replication_standby_fsm_test, takeover_with_a_living_link_ends_it) {
    become_ready();
    fsm->takeover(now);
    EXPECT_EQ(actions(),
              "send goodbye other \"this standby takes over\"; close_link \"this standby takes over\"; "
              "state taken_over; live");
    EXPECT_EQ(write(4), "");
    fsm->takeover(now);
    EXPECT_EQ(actions(), "") << "once";
}

TEST_F(replication_standby_fsm_test, a_reset_that_was_committed_is_finished_by_a_takeover) {
    become_ready();
    write(4, 1, 8, entry_awaits_outcome);
    entry(meta(5, entry_kind::reset));
    entry(meta(6, entry_kind::open_file, 7));
    mark(2, 6);
    fsm->takeover(now);
    EXPECT_NE(actions().find("state taken_over; run 4; run 5"), std::string::npos);
    EXPECT_EQ(done(5), "run 6; live");
    done(4, -5);
    done(6);
    EXPECT_EQ(fsm->status(now).held_entries, 0u);
}

TEST_F(replication_standby_fsm_test, takeover_needs_a_complete_copy) {
    attach();
    fsm->on_closed("x", now);
    actions();
    fsm->takeover(now);
    EXPECT_EQ(actions(), "state ended \"can't take over: no state transfer was completed\"");
    make();
    become_ready();
    fsm->on_file_lost(1, "its worker died", now);
    actions();
    fsm->takeover(now);
    EXPECT_NE(actions().find("state ended \"can't take over: its worker died\""), std::string::npos);
    make();
    become_ready();
    fsm->on_closed("cut", now);
    connect();
    says(primary_hello());
    fsm->takeover(now);
    EXPECT_NE(actions().find("state ended \"can't take over: no state transfer was completed\""),
              std::string::npos)
        << "it was forgotten";
}

TEST_F(replication_standby_fsm_test, a_failure_after_a_takeover_does_not_stop_the_rest) {
    become_ready();
    write(4);
    for (log_sequence s = 5; s < 10; ++s)
        write(s);
    mark(2, 9);
    fsm->takeover(now);
    actions();
    EXPECT_NE(done(4, -5).find("run 7"), std::string::npos);
    EXPECT_EQ(fsm->status(now).faults, 1u);
}

// ---- the caller's errors

using replication_standby_fsm_death_test = replication_standby_fsm_test;

TEST_F(replication_standby_fsm_death_test, broken_contracts_crash) {
    attach();
    EXPECT_DEATH(fsm->on_connected(now), "second connection");
    EXPECT_DEATH(fsm->on_forgotten(now), "nobody asked");
    EXPECT_DEATH(fsm->on_executed(3, 0, now), "once");
    write(4);
    EXPECT_DEATH(fsm->on_executed(4, 0, now), "only what was given");
}

// ---- memory

TEST_F(replication_standby_fsm_test, one_entry_that_takes_for_ever_makes_nothing_grow) {
    attach();
    write(4, 1);
    log_sequence s = 5;
    std::uint64_t epoch = 2;
    mark(epoch, 4);
    std::uint64_t most = 0;
    for (int i = 0; i < 100000; ++i, ++s) {
        write(s, 2);
        mark(++epoch, s);
        done(s);
        most = std::max(most, fsm->status(now).bookkeeping);
    }
    EXPECT_LE(most, 4 * config.hold_entries);
    EXPECT_EQ(fsm->status(now).executed, 3u);
    EXPECT_EQ(fsm->status(now).held_entries, 1u);
    EXPECT_EQ(done(4), "");
    EXPECT_EQ(fsm->status(now).executed, s - 1);
    EXPECT_EQ(fsm->status(now).held_bytes, 0u);
}

TEST_F(replication_standby_fsm_test, memory_returns_to_its_baseline) {
    config.hold_bytes = 1u << 30;
    config.hold_entries = 1u << 18;
    make();
    attach();
    const std::uint64_t baseline = fsm->status(now).bookkeeping;
    log_sequence s = 4;
    for (; s < 50000; ++s)
        write(s, 1 + s % 2);
    EXPECT_GT(fsm->status(now).bookkeeping, 49000u);
    mark(2, s - 1);
    for (log_sequence e = 4; e < s; ++e)
        fsm->on_executed(e, 0, now);
    actions();
    EXPECT_EQ(fsm->status(now).executed, s - 1);
    EXPECT_EQ(fsm->status(now).bookkeeping, baseline);
}

} // namespace
} // namespace kagemusha::mirror
