// SPDX-License-Identifier: GPL-2.0-or-later
// QEMU, as a model: runs the guest (guest.cpp), holds what it says until a checkpoint covers it and lets it
// through the gate (qemu.cpp), and takes or loads checkpoints (checkpoint_stream.cpp).
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "world/disk.hpp"
#include "world/events.hpp"
#include "world/guest.hpp"

namespace kagemusha::world {

class world;
class host;

// What a checkpoint brings. Memory and disk: what changed since the one before.
struct checkpoint {
    std::uint32_t number = 0; // 1: the first of a stream
    guest vm;
    std::uint8_t dirty_read = 0, dirty_own = 0, dirty_blocks = 0; // bit i: slot i
    block_values blocks{};
    std::uint32_t gpu_value = 0;
    std::size_t covers = 0; // packets held
    bool last = false;      // of a switchover: the VM stands still
    bool disk_complete = false;
};

class qemu {
public:
    enum class phase : std::uint8_t { none, copying_gpu, sending_state, checkpointing };

    qemu(world& w, host& h) : w_(w), host_(h) {}

    // ---- what the supervisor orders (qemu.cpp)
    void start_primary();
    void start_standby();
    void kill(const std::string& why);
    void replicate(std::uint8_t to);
    void go_on_alone();
    void report_gpu_failure();
    void take_over();
    bool hand_over(); // false: no checkpoints reach a standby
    bool handed_over() const;

    bool alive() const { return alive_; }
    bool standby() const { return standby_; }
    bool runs() const { return alive_ && runs_; } // its VM does
    bool takes_requests() const { return runs() && !stopped_ && !frozen(); }
    bool listens() const { return alive_ && standby_ && listening_; }
    std::uint32_t generation() const { return generation_; }
    std::uint32_t run() const { return run_; } // number of this life of the VM
    bool frozen() const;
    time_us frozen_until = 0;

    // ---- events (all of this generation)
    void happen(const event& e);

    // ---- guest.cpp
    void request(std::uint32_t number); // from the client
    const guest& program() const { return vm_; }

    // ---- faults
    void fail_gpu();
    void lose_copy();
    void break_stream(const std::string& why); // this end hears of it
    void break_gpu_link();
    bool fail_next_load = false;

    // What pilots look at.
    std::uint32_t committed() const { return committed_; }
    bool gpu_failed() const { return gpu_failed_; }
    bool copy_lost() const { return copy_lost_; }
    bool gpu_link_lost() const { return gpu_link_lost_; }
    bool checkpointing() const { return phase_ == phase::checkpointing; }
    bool replicating() const { return phase_ != phase::none; }
    bool replicates_to(std::uint8_t h) const { return alive_ && phase_ != phase::none && to_ == h; }
    bool stream_is_broken() const { return phase_ != phase::none && broken_; }
    bool disk_complete() const { return disk_complete_; }
    bool has_checkpoint() const { return alive_ && standby_ && (loaded_count_ != 0 || received_waits_); }
    std::uint32_t node_of_copy() const { return received_waits_ ? received_.vm.node : loaded_.node; }
    time_us progress_at() const { return progress_at_; }

private:
    void reset();
    void put(time_us in, event_kind kind, std::uint64_t arg = 0);

    // guest.cpp
    void boot_guest();
    void resume_guest();
    void step(); // a new node of the history
    void gpu_done();
    void gpu_answered();
    void flushed();
    void speak();
    void reply();
    void lose_gpu_state();

    // qemu.cpp
    void say(const packet& p);
    void leave(const packet& p);
    void release(std::size_t count);

    // checkpoint_stream.cpp
    qemu* peer();
    void gpu_copied();
    void state_sent();
    void begin_epoch(time_us in);
    void take_checkpoint();
    void wait_for_gpu();
    void send_log();
    void checkpoint_arrived();
    void received();
    void loaded();
    void load_received();
    void load_done();
    void apply();
    void finish_take_over();
    void stop_replicating();

    world& w_;
    host& host_;
    std::uint32_t generation_ = 0, run_ = 0;
    bool alive_ = false, standby_ = false, runs_ = false, stopped_ = false, listening_ = false;

    guest vm_;
    std::uint32_t gpu_value_ = 0;
    bool gpu_failed_ = false;
    std::uint8_t dirty_read_ = 0, dirty_own_ = 0, dirty_blocks_ = 0; // since the last checkpoint
    std::uint32_t work_ = 0; // counts up when what was scheduled for the guest is no more

    bool holding_ = false;
    std::deque<packet> held_;

    // a primary's stream
    phase phase_ = phase::none;
    std::uint8_t to_ = 0;
    std::uint32_t to_generation_ = 0, stream_ = 0;
    checkpoint sent_;
    bool under_way_ = false, peer_loads_ = false, loaded_early_ = false, broken_ = false;
    std::uint32_t taken_ = 0, committed_ = 0, hand_over_at_ = 0, disk_missing_ = 0;
    bool disk_complete_ = false, gpu_link_lost_ = false, handing_over_ = false;
    std::uint32_t log_there_ = 0; // entries that the standby's GPU has
    time_us progress_at_ = 0;

    // a standby's
    std::uint8_t from_ = 0;
    guest loaded_;
    std::uint32_t loaded_gpu_ = 0, loaded_count_ = 0, log_received_ = 0;
    checkpoint received_;
    bool received_waits_ = false, loading_ = false, taking_over_ = false, copy_lost_ = false,
         partial_ = false;
};

} // namespace kagemusha::world
