// SPDX-License-Identifier: GPL-2.0-or-later
// primary_host: the process of a primary: device thread (model_device), op log, and the thin layer that does
// what replication_primary_fsm says.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "mirror/primary/replication_primary_fsm.hpp"
#include "sim/model_device.hpp"
#include "sim/world.hpp"

namespace kagemusha::sim {

class primary_host {
public:
    primary_host(world& w, std::uint64_t salt);

    // Steps; each says whether it did anything.
    bool guest_step();
    bool device_step(); // a command from the replication's thread, or work of its own
    bool command_step();
    bool work();
    bool reported_step(); // what the device told reaches the replication's thread
    bool take_checkpoint(bool wanted);
    void switch_epochs();
    void settle() { device.settle(); }

    void on_connected();
    void on_closed(const std::string& why);
    void on_frame(const frame& f);
    void on_sent(std::uint64_t queued);
    void on_time();
    std::uint64_t next_tick() const { return fsm_.next_tick_ms(); }

    bool at_rest() const;
    mirror::log_sequence appended() const { return fsm_.status(w_.now).appended; }
    std::string leftover() const; // what should not be there at rest
    std::string text() const;

    bool connecting = false;
    model_device device;

private:
    struct command {
        enum class kind { start_sync, stop, congestion, digest_result } what;
        bool on = false;
        mirror::digest_result result{};
    };
    struct late {
        std::array<std::uint64_t, max_words> words;
        std::uint32_t told = 0, sent = 0, total = 0;
    };

    void drain();
    void act(const mirror::act_connect&) { connecting = true; }
    void act(mirror::act_close_link&);
    void act(mirror::act_send&);
    void act(const mirror::act_send_entries&);
    void act(const mirror::act_send_content&);
    void act(const mirror::act_drop_log&);
    void act(const mirror::act_drop_content&);
    void act(const mirror::act_start_sync&) { commands_.push_back({.what = command::kind::start_sync}); }
    void act(const mirror::act_stop_mirror&) { commands_.push_back({.what = command::kind::stop}); }
    void act(const mirror::act_epoch_wanted&) { epoch_wanted_ = true; }
    void act(const mirror::act_congestion& a);
    void act(mirror::act_digest_result& a) {
        commands_.push_back({.what = command::kind::digest_result, .result = std::move(a.what)});
    }
    void act(const mirror::act_built& a) {
        if (a.send) {
            frame f;
            f.what = a.what;
            send(std::move(f));
        }
    }
    void act(const mirror::act_lagging&) {}
    void act(const mirror::act_state&) {}
    void send(frame f);
    void erase(std::map<mirror::log_sequence, body>::iterator e);
    void check_log();

    world& w_;
    mirror::replication_primary_fsm fsm_;
    std::deque<command> commands_;
    std::uint32_t steps_behind_ = 0; // of the guest, while commands wait
    bool epoch_wanted_ = false;
    bool checkpoints_ = false; // instead of time
    mirror::log_sequence checkpoint_at_ = 0;
    std::map<mirror::log_sequence, body> log_;
    std::uint64_t log_bytes_ = 0;
    std::map<mirror::log_sequence, late> late_;
};

} // namespace kagemusha::sim
