// SPDX-License-Identifier: GPL-2.0-or-later
//
// supervisor_loop: the thread that decides for a supervised VM. It runs the state machines of control/ha, and nothing
// else but what they need at once: the connection to the other supervisor with its heartbeats, the arbiter,
// and the gate that QEMU's output passes. It never waits: what takes time (QEMU, its monitor, files) is
// ordered from the main thread.
#pragma once

#include "control/arbiter/arbiter.hpp"
#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"
#include "control/supervise/gate.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::control {

struct supervisor_loop_options {
    ha::primary_config primary; // also for the time after a takeover
    ha::standby_config standby;
    std::string standby_address; // of a standby: where it listens
    std::string tls;             // directory
    described_arbiter arbiter;
    arbiter_identity identity;
    std::string name;              // under which this supervisor runs
    std::string runtime_directory; // where the standbys of this host know of each other
    std::uint32_t takeover_priority = 0;
};

// Orders for the main thread, given on the supervisor_loop's thread; they only queue.
struct supervisor_loop_orders {
    std::function<void()> start_primary, start_standby, go_on_alone, report_gpu_failure, take_over;
    // What is reported of it says this number. `replica`: what the standby said of its images.
    std::function<void(std::uint64_t replication, std::string replica, bool page_changes)> replicate;
    // The images, durably; `flush`: what was written to them before that. Then marked(), in their order.
    std::function<void(const ha::disk_mark& mark, bool flush)> mark;
    std::function<void(std::string why, std::uint64_t qemu)> restart_standby; // the new one's number
    // Its later starts are from the guest's files that these name. Then files_ready().
    std::function<void(ha::description_parts parts)> use_files;
    std::function<void(std::string why)> kill;
    std::function<void(bool in_order, std::string why)> ended; // the last one
    std::function<void(std::string name, std::string text)>
        event; // for the log: something a person wants to know
};

// As `kage status` shows it.
struct supervisor_loop_status {
    std::string role, state, degraded, waiting_for, peer;
    std::string peer_differences;       // between both hosts' software, as far as it may differ
    std::uint32_t protocol_version = 0; // that both speak; 0: nobody is there
    std::string standby_problem;        // a primary's: why a takeover would have to wait
    std::uint64_t term = 0, takeovers = 0;
    std::int64_t gate_open_ms = 0; // how long output may still leave; negative: since when it may not
    std::string last_takeover;     // why
    // Of the last takeover, ns of CLOCK_BOOTTIME; 0: not yet. When it was decided, and since when output left
    // again.
    std::uint64_t decided_ns = 0, gate_opened_ns = 0;
    // Since when nobody would go on with a VM that is to be protected and runs here; 0: somebody would.
    std::uint64_t unprotected_ms = 0;
};

class supervisor_loop {
public:
    supervisor_loop(supervisor_loop_options options, supervisor_loop_orders orders, gate& output);
    ~supervisor_loop();

    // Nothing, or a sentence: it does not run.
    std::string start_primary();
    std::string start_standby();

    // Any thread.
    void qemu_ready(std::uint64_t qemu, const std::string& replica);
    void files_ready(const std::string& problem); // empty: QEMU will have them
    void qemu_running();
    void takeover_failed(const std::string& why);
    void qemu_protecting(std::uint64_t replication);
    void marked(const std::string& problem); // empty: it is durable
    void qemu_handed_over(std::uint64_t replication);
    void cancel_switchover(); // one that has been told the standby
    void replication_lost(std::uint64_t replication, const std::string& why);
    void qemu_stuck(const std::string& why); // again and again
    void gpu_failed(const std::string& why); // a primary's
    void gpu_lost(const std::string& why);   // a standby's
    void qemu_died(const std::string& how, bool in_order, std::uint64_t qemu);
    void drill(); // QEMU is killed if a standby that can be told now goes on
    void stop();
    void protect(const std::string& standby_address); // "": the one that is known
    supervisor_loop_status status() const;

private:
    struct work; // everything that lives on the thread
    std::string start(bool as_standby);

    supervisor_loop_options options_;
    supervisor_loop_orders orders_;
    gate& gate_;
    std::unique_ptr<work> work_;
    std::thread thread_;
    mutable std::mutex mutex_;
    supervisor_loop_status status_;          // under mutex_
    std::uint64_t gate_until_ = 0;           // under mutex_
    std::uint64_t unprotected_since_ms_ = 0; // under mutex_; 0: it is not
};

} // namespace kagemusha::control
