// SPDX-License-Identifier: GPL-2.0-or-later
// The standby's end: scripts of events and the actions that they must cause.
#include "mirror/standby/replication_standby_fsm.hpp"

#include <gtest/gtest.h>

#include "mirror/protocol/fsm_test_helpers.hpp"
#include "mirror/standby/standby_text.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::primary_hello;
using testing::submit;

struct replication_standby_fsm_test : ::testing::Test {
    replication_standby_fsm_test() {
        config.vm = "vm";
        config.hold_bytes = 1000;
        config.hold_entries = 40;
        config.running_per_file = 3;
        make();
    }
    void make() { fsm = std::make_unique<replication_standby_fsm>(config, now); }

    standby_config config;
    std::uint64_t now = 1000;
    std::unique_ptr<replication_standby_fsm> fsm;

    std::string actions() { return testing::drain<replication_standby_fsm, standby_action>(*fsm); }
    std::string says(const message& m) {
        fsm->on_message(m, now);
        return actions();
    }
    std::string entry(const entry_meta& m, std::vector<entry_payload> payloads = {}) {
        return says(entries{{{m, std::move(payloads)}}});
    }
    std::string write(log_sequence s, std::uint32_t file = 1, std::uint64_t bytes = 8,
                      std::uint32_t flags = 0) {
        return entry(submit(s, file, bytes, flags));
    }
    std::string mark(std::uint64_t epoch, log_sequence up_to) { return says(marker{epoch, up_to}); }
    std::string done(log_sequence s, std::int32_t result = 0) {
        fsm->on_executed(s, result, now);
        return actions();
    }
    std::string at(std::uint64_t time) {
        now = time;
        fsm->on_tick(now);
        return actions();
    }
    std::string connect() {
        fsm->on_connected(now);
        return actions();
    }
    // Following; 1 reset, 2 and 3 open files 1 and 2; all executed, epoch 1.
    void attach(log_sequence first = 1, std::uint64_t epoch = 1) {
        connect();
        says(primary_hello());
        entry(meta(first, entry_kind::reset));
        entry(meta(first + 1, entry_kind::open_file, 1));
        entry(meta(first + 2, entry_kind::open_file, 2));
        mark(epoch, first + 2);
        done(first);
        done(first + 1);
        done(first + 2);
        at(now + ack_delay_ms);
    }
    void become_ready() {
        attach();
        says(synced{3});
        ASSERT_EQ(fsm->status(now).state, standby_state::ready);
    }
    std::string refused(const std::string& why) {
        return "send goodbye refused \"" + why + "\"; close_link \"" + why + "\"; state listening \"" + why +
               "\"";
    }
    std::string broken(const std::string& rule) {
        const std::string why = "the primary broke the protocol: " + rule;
        return "send goodbye protocol_error \"" + why + "\"; close_link \"" + why + "\"; state listening \"" +
               why + "\"";
    }
};

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

// ---- a primary that lies

struct lie {
    const char* name;
    message what;
    std::string rule;
};

entries one(const entry_meta& m, std::vector<entry_payload> payloads = {}) {
    return {{{m, std::move(payloads)}}};
}

// After: 4 of file 1, committed and running; 5 late (payload 0: 16 bytes, 1: written), 8 of them there;
// 6 awaits its outcome; 7 compares.
struct standby_lie_test : replication_standby_fsm_test, ::testing::WithParamInterface<lie> {};

TEST_P(standby_lie_test, costs_it_the_connection) {
    attach();
    write(4);
    mark(2, 4);
    entry(submit(5, 1, 8, entry_late_content, 16), {{16, false}, {8, true}});
    says(content{5, 0, 0, 8, 0});
    write(6, 1, 8, entry_awaits_outcome);
    write(7, 1, 8, entry_compare);
    says(digests{7, {1, 2}});
    EXPECT_EQ(says(GetParam().what), broken(GetParam().rule));
    EXPECT_EQ(says(GetParam().what), "") << "nobody listens to it any more";
    EXPECT_EQ(fsm->status(now).received, 7u);
    EXPECT_EQ(fsm->status(now).held_entries, 4u);
}

INSTANTIATE_TEST_SUITE_P(
    , standby_lie_test,
    ::testing::Values(
        lie{"a_gap", one(submit(9, 1)), "entry 9 came, 8 was next"},
        lie{"a_duplicate", one(submit(7, 1)), "entry 7 came, 8 was next"},
        lie{"a_number_of_the_past", one(submit(1, 1)), "entry 1 came, 8 was next"},
        lie{"more_than_is_held", one(submit(8, 1, 960)),
            "entry 8 of 960 bytes came, there was room for 952 bytes and 36 entries"},
        lie{"more_content_than_is_held", one(submit(8, 1, 8, entry_late_content, 1u << 30)),
            "entry 8 of 1073741832 bytes came, there was room for 952 bytes and 36 entries"},
        lie{"a_file_opened_twice", one(meta(8, entry_kind::open_file, 1)),
            "entry 8 opens file 1, which is open"},
        lie{"a_file_that_is_not_open", one(submit(8, 9)), "entry 8 is of file 9, which is not open"},
        lie{"an_end_of_a_file_that_is_not_open", one(meta(8, entry_kind::close_file, 9)),
            "entry 8 is of file 9, which is not open"},
        lie{"content_twice", content{5, 0, 0, 8, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_with_a_gap", content{5, 0, 9, 7, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_beyond_its_payload", content{5, 0, 8, 9, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_that_overflows", content{5, 0, 8, UINT64_MAX, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_of_no_bytes", content{5, 0, 8, 0, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_of_no_payload", content{5, 2, 0, 8, 0},
            "content came for payload 2 of entry 5, which has no such one"},
        lie{"content_of_what_the_gpu_writes", content{5, 1, 0, 8, 0},
            "content came for payload 1 of entry 5, which has no such one"},
        lie{"content_of_an_entry_without", content{6, 0, 0, 8, 0},
            "content came for entry 6, which lacks none"},
        lie{"content_of_an_entry_that_will_come", content{8, 0, 0, 8, 0},
            "content came for entry 8, which lacks none"},
        lie{"outcome_of_what_awaits_none", outcome{5, false, 0},
            "an outcome came for entry 5, which awaits none"},
        lie{"outcome_of_what_runs", outcome{4, false, 0}, "an outcome came for entry 4, which awaits none"},
        lie{"outcome_of_what_has_ended", outcome{3, false, 0},
            "an outcome came for entry 3, which awaits none"},
        lie{"outcome_of_what_will_come", outcome{8, false, 0},
            "an outcome came for entry 8, which awaits none"},
        lie{"cancel_of_what_runs", outcome{4, true, 0}, "an outcome came for entry 4, which awaits none"},
        lie{"marker_beyond_what_was_sent", marker{3, 8}, "it closed an epoch at entry 8, which was not sent"},
        lie{"marker_of_an_old_epoch", marker{2, 7}, "epoch 2 was closed at entry 7 after epoch 2 at entry 4"},
        lie{"marker_backwards", marker{3, 3}, "epoch 3 was closed at entry 3 after epoch 2 at entry 4"},
        lie{"synced_beyond_what_was_sent", synced{8},
            "it ended the state transfer twice, or before its last entry"},
        lie{"digests_of_what_compares_none", digests{6, {1}},
            "digests came for entry 6, which compares none"},
        lie{"digests_twice", digests{7, {1, 2}}, "digests came for entry 7, which compares none"},
        lie{"hello_twice", primary_hello(), "it greeted twice"},
        lie{"ack", ack{}, "it sent a message that only a standby sends"},
        lie{"digest_result", digest_result{}, "it sent a message that only a standby sends"},
        lie{"close_epoch", close_epoch{}, "it sent a message that only a standby sends"},
        lie{"fault", fault{}, "it sent a message that only a standby sends"}),
    [](const auto& info) { return info.param.name; });

TEST_F(replication_standby_fsm_test, a_log_begins_with_a_reset) {
    connect();
    says(primary_hello());
    EXPECT_EQ(entry(meta(1, entry_kind::open_file, 1)), broken("its log does not begin with a reset"));
}

TEST_F(replication_standby_fsm_test, a_cancel_after_the_last_piece_comes_too_late) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 8), {{8, false}});
    says(content{4, 0, 0, 8, 0});
    EXPECT_EQ(says(outcome{4, true, 0}), broken("entry 4 was canceled after it could run"));
}

TEST_F(replication_standby_fsm_test, an_outcome_comes_once) {
    attach();
    write(4, 1, 8, entry_awaits_outcome);
    says(outcome{4, false, 0});
    EXPECT_EQ(says(outcome{4, false, 0}), broken("an outcome came for entry 4, which awaits none"));
}

// A primary lets the standby compare and never says what it has itself.
TEST_F(replication_standby_fsm_test, digests_of_this_side_are_bounded) {
    config.hold_entries = 1000;
    config.hold_bytes = 1 << 20;
    config.running_per_file = 1000;
    make();
    attach();
    const std::vector<std::uint64_t> many(max_hashes_per_message);
    const log_sequence last = 4 + max_pending_hashes / max_hashes_per_message;
    for (log_sequence s = 4; s <= last; ++s)
        ASSERT_EQ(write(s, 1, 8, entry_compare), "");
    mark(2, last);
    for (log_sequence s = 4; s < last; ++s) {
        fsm->on_digests(s, many, now);
        ASSERT_EQ(actions(), "");
    }
    fsm->on_digests(last, {1}, now);
    EXPECT_EQ(actions(), broken("too many digests are open"));
}

TEST_F(replication_standby_fsm_test, payloads_without_bytes_are_bounded) {
    config.hold_entries = max_held_payloads;
    make();
    attach();
    const std::vector<entry_payload> many(VGPU_MAX_PAYLOADS);
    log_sequence s = 4;
    for (std::uint64_t payloads = 0; payloads < max_held_payloads; payloads += many.size()) {
        fsm->on_message(entries{{{submit(s++, 1, 0), many}}}, now);
        ASSERT_EQ(fsm->status(now).received, s - 1);
    }
    actions();
    EXPECT_EQ(write(s), "") << "one without payloads";
    EXPECT_EQ(entry(submit(s + 1, 1, 8), {{0, false}}),
              broken("entry " + std::to_string(s + 1) + " has 1 payloads, there was room for 0"));
}

TEST_F(replication_standby_fsm_test, comparisons_are_bounded) {
    config.hold_entries = 2 * max_pending_comparisons;
    config.hold_bytes = 8 * config.hold_entries;
    make();
    attach();
    log_sequence s = 4;
    for (std::uint32_t i = 0; i < max_pending_comparisons; ++i)
        ASSERT_EQ(write(s++, 1, 8, entry_compare), "");
    EXPECT_EQ(write(s, 1, 8, entry_compare), broken("too many comparisons are open"));
}

TEST_F(replication_standby_fsm_test, payloads_whose_content_is_missing_are_bounded) {
    config.hold_bytes = std::uint64_t{1} << 30;
    config.hold_entries = 1000;
    make();
    attach();
    const std::vector<entry_payload> many(VGPU_MAX_PAYLOADS, {1, false});
    log_sequence s = 4;
    for (std::uint64_t payloads = 0; payloads < max_late_payloads; payloads += many.size())
        ASSERT_EQ(entry(submit(s++, 1, 8, entry_late_content, many.size() * 8), many), "") << payloads;
    EXPECT_EQ(entry(submit(s, 1, 8, entry_late_content, 8), {{1, false}}),
              broken("content of too many payloads is missing"));
}

TEST_F(replication_standby_fsm_test, files_epochs_and_digests_are_bounded) {
    config.hold_entries = 100000;
    make();
    attach();
    std::string last;
    for (std::uint32_t i = 0; i < max_mirrored_files - 1; ++i) {
        ASSERT_EQ(last, "") << i;
        last = entry(meta(4 + i, entry_kind::open_file, 10 + i));
    }
    EXPECT_EQ(last,
              broken("entry 4098 opens more than 4096 files at once, which is what a guest may have here"));
    config.limits.max_files = 3;
    make();
    attach();
    EXPECT_EQ(entry(meta(4, entry_kind::open_file, 10)), "");
    EXPECT_EQ(entry(meta(5, entry_kind::close_file, 10)), "");
    EXPECT_EQ(entry(meta(6, entry_kind::open_file, 11)), "") << "one at a time";
    EXPECT_EQ(entry(meta(7, entry_kind::open_file, 12)),
              broken("entry 7 opens more than 3 files at once, which is what a guest may have here"));
    config.limits = {};
    make();
    attach();
    entry(submit(4, 1, 8, entry_late_content, 8), {{8, false}});
    last.clear();
    for (std::uint64_t i = 0; i <= max_pending_markers; ++i) {
        ASSERT_EQ(last, "") << i;
        last = mark(2 + i, 4);
    }
    EXPECT_EQ(last, broken("too many epochs are open"));
    make();
    attach();
    last.clear();
    const std::vector<std::uint64_t> many(max_hashes_per_message);
    for (log_sequence s = 4; s < 4 + max_pending_hashes / max_hashes_per_message + 1; ++s) {
        ASSERT_EQ(last, "") << s;
        write(s, 1, 8, entry_compare);
        last = says(digests{s, many});
    }
    EXPECT_EQ(last, broken("too many digests are open"));
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
