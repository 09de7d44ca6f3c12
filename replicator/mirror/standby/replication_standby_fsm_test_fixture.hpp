// SPDX-License-Identifier: GPL-2.0-or-later
// The standby's state machine in a test: events go in, actions come out as one line of text.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mirror/protocol/fsm_test_helpers.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"
#include "mirror/standby/standby_text.hpp"

namespace kagemusha::mirror::testing {

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

    std::string actions() { return drain<replication_standby_fsm, standby_action>(*fsm); }
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

} // namespace kagemusha::mirror::testing
