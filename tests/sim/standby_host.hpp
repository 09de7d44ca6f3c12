// SPDX-License-Identifier: GPL-2.0-or-later
// standby_host: the process of a standby: the thin layer that does what replication_standby_fsm says, its
// device's thread and its GPU.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "mirror/standby/replication_standby_fsm.hpp"
#include "sim/world.hpp"

namespace kagemusha::sim {

class standby_host {
public:
    standby_host(world& w, std::uint64_t salt);

    // Steps; each says whether it did anything.
    bool device_step();     // the device's thread takes the next command
    bool completion_step(); // something that runs has ended
    bool reported_step();   // what the device told reaches the replication's thread
    bool apply_checkpoint();
    bool lose_worker();

    void on_connected();
    void on_frame(const frame& f);
    void on_time();
    std::uint64_t next_tick() const { return fsm_.next_tick_ms(); }
    void takeover();

    mirror::standby_state state() const { return fsm_.status(w_.now).state; }
    mirror::log_sequence executed() const { return fsm_.status(w_.now).executed; }
    bool at_rest() const;
    std::string leftover() const;
    std::string leftover_after_takeover() const; // only what waits for the guest may be left
    std::string text() const;

    model_gpu gpu;
    bool has_open_requests() const { return open_before_; }

    bool faulty = false;
    bool live = false;

private:
    struct command {
        bool forget = false;
        bool secret = false; // nobody waits for its end (the guest's own, or a broken rule)
        std::uint64_t copy = 0;
        body entry;
    };
    struct running {
        mirror::log_sequence entry;
        std::uint32_t file;
        std::uint64_t cost, copy;
        std::int32_t result;
        bool compares;
        std::vector<std::uint64_t> hashes;
    };
    struct reported_executed {
        mirror::log_sequence entry;
        std::uint64_t cost, copy;
        std::int32_t result;
    };
    struct reported_digests {
        mirror::log_sequence entry;
        std::vector<std::uint64_t> hashes;
    };
    struct reported_lost {
        std::uint32_t file;
    };
    struct reported_forgotten {};
    struct reported_stored {
        std::uint64_t bytes, copy;
    };
    using told =
        std::variant<reported_executed, reported_digests, reported_lost, reported_forgotten, reported_stored>;

    void drain();
    void act(mirror::act_send& a);
    void act(mirror::act_close_link&);
    void act(const mirror::act_run& a);
    void act(const mirror::act_skip& a);
    void act(const mirror::act_resume& a);
    void act(const mirror::act_live&) { live = true; }
    void act(const mirror::act_forget_all&);
    void act(const mirror::act_store_built& a) { reported_.push_back(reported_stored{a.what.bytes, copy_}); }
    void act(const mirror::act_standby_state& a);
    void send(frame f);
    void execute(const body& b);
    std::vector<mirror::open_request> open_requests();
    bool accepted() const;

    world& w_;
    mirror::replication_standby_fsm fsm_;
    std::uint64_t copy_ = 0; // how often everything was forgotten
    std::map<mirror::log_sequence, body> held_;
    std::uint64_t held_bytes_ = 0, held_entries_ = 0; // until the device gave them back
    mirror::log_sequence last_commit_ = 0;
    std::set<mirror::log_sequence> open_entries_; // of in-flight requests, at the last checkpoint
    bool open_before_ = false;                    // there were in-flight requests at the last checkpoint
    std::deque<command> commands_;
    std::vector<running> running_;
    std::deque<told> reported_;
};

} // namespace kagemusha::sim
