// SPDX-License-Identifier: GPL-2.0-or-later
// One world: every part of a protected VM's cluster in one thread, from one seed.
//
// What is real. control/ha's primary_fsm and standby_fsm, unchanged: one of them in each supervisor process,
// driven as control/supervise drives them (supervisor.cpp is the counterpart of supervisor_loop, supervisor and
// pilot). Everything else is a model:
//
//   host.cpp               a machine: boots, is switched off, freezes; its clock; a service that starts
//                          `kage run` or `kage standby` at boot and again when it fails
//   supervisor.cpp         the process: carries out what a state machine decided; dies with its host
//   qemu.cpp               QEMU: runs the guest, holds its output, passes it through the gate
//   checkpoint_stream.cpp  the dialogue of checkpoints between two QEMUs (patches 14 to 17), the GPU's log
//                          and the disk's writes in it
//   guest.cpp              a program that answers a client: each request changes memory, a disk and the GPU
//   disk.cpp               an image with a volatile cache, and the mark beside it
//   network.cpp            connections with ports of their own that are cut, reset, slow or silent
//   arbiter_models.cpp     lock, etcd (leases, members, round trips, lost answers), fence
//   person.cpp             an operator who follows the runbook, before and after everything is mended
//   client.cpp             the outside: asks the VM, repeats, remembers what it was told
//   faults.cpp             what goes wrong, and its end
//
// Time is in microseconds of the world. A host has a clock of its own (an offset and a drift), and gives its
// state machines milliseconds of that. Nothing reads a real clock.
//
// A schedule. All faults are drawn before it begins (options.hpp), so that dropping one of them leaves the
// others as they are (shrink.cpp). At heal_ms everything is mended: links and disks work, hosts boot. The
// schedule ends as soon as the VM is protected again and has answered a request from after that.
//
// Chance has two sources: the options' own, and one for delays and ties. Both come from the seed only.
//
// Checkers (checkers/): one speaker, output commit, exactly once, newest disk, liveness, ends. They look at
// what leaves, starts and ends, and know nothing of the state machines but liveness, which asks for
// `protecting`.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/rng.hpp"
#include "world/arbiter_models.hpp"
#include "world/checkers/ends.hpp"
#include "world/checkers/liveness.hpp"
#include "world/checkers/newest_disk.hpp"
#include "world/checkers/output.hpp"
#include "world/client.hpp"
#include "world/events.hpp"
#include "world/faults.hpp"
#include "world/host.hpp"
#include "world/network.hpp"
#include "world/options.hpp"
#include "world/person.hpp"

namespace kagemusha::world {

// What schedules reached: so that a test can tell that they are not empty.
struct statistics {
    std::uint64_t schedules = 0, events = 0, simulated_ms = 0;
    std::uint64_t was_protected = 0, takeovers = 0, switchovers = 0, boots = 0, replies = 0, checkpoints = 0;
    std::uint64_t void_schedules = 0; // arbiter_models.hpp
    std::uint64_t faults[fault_kinds] = {};
    std::uint64_t slowest_heal_ms = 0, slowest_seed = 0;
    void add(const statistics& other);
    std::string text() const;
};

class world {
public:
    world(const options& options, bool trace);
    ~world();
    world(const world&) = delete;
    world& operator=(const world&) = delete;

    void run();

    // ---- for the models

    time_us now() const { return now_; }
    void put(time_us at, event_kind kind, std::uint8_t host = 0, std::uint32_t generation = 0,
             std::uint64_t arg = 0) {
        queue_.put({at, 0, kind, host, generation, arg});
    }
    void put(const event& e) { queue_.put(e); }
    std::uint32_t below(std::uint32_t n) { return n == 0 ? 0 : random_.below(n); }
    bool chance(std::uint32_t per_10000) { return random_.chance(per_10000); }
    bool broken(mutation m) const { return o.broken == m; }
    bool healed() const { return now_ >= time_us{o.heal_ms} * ms; }

    // One line of the trace.
    template <class... A>
    void say(const char* who, fmt::format_string<A...> text, A&&... a) {
        if (trace_)
            print(who, fmt::format(text, std::forward<A>(a)...));
    }
    template <class... A>
    void say(std::size_t host, fmt::format_string<A...> text, A&&... a) {
        if (trace_)
            print(hosts[host]->name(), fmt::format(text, std::forward<A>(a)...));
    }

    bool traces() const { return trace_; }

    // A checker found something. The first one counts.
    void fail(std::string what);
    bool ok() const { return failure_.empty(); }
    const std::string& failure() const { return failure_; }
    void succeed() { over_ = true; }

    options o;
    statistics stats;
    std::vector<std::unique_ptr<host>> hosts;
    network net;
    std::unique_ptr<arbiter_model> arbiter;
    client outside;
    person operating;
    fault_injector faults;
    output_checker output;
    newest_disk_checker disks;
    liveness_checker liveness;
    ends_checker ends;

private:
    void happen(const event& e);
    void print(const char* who, const std::string& text) const;

    event_queue queue_;
    time_us now_ = 0;
    sim::rng random_;
    bool trace_, over_ = false;
    std::string failure_;
};

} // namespace kagemusha::world
