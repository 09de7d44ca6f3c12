// SPDX-License-Identifier: GPL-2.0-or-later
// The primary's state machine in a test: events go in, actions come out as one line of text.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "mirror/primary/primary_text.hpp"
#include "mirror/primary/replication_primary_fsm.hpp"
#include "mirror/protocol/fsm_test_helpers.hpp"

namespace kagemusha::mirror::testing {

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

    std::string actions() { return drain<replication_primary_fsm, primary_action>(*fsm); }
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

} // namespace kagemusha::mirror::testing
