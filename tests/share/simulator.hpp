// SPDX-License-Identifier: GPL-2.0-or-later
// simulator: the real scheduler and the real window with models of everything else: VMs, their workers'
// messages, a GPU that runs what is in its queue in order. One thread, a clock of its own, chance from a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "share/core/scheduler.hpp"
#include "share/options.hpp"
#include "share/record.hpp"
#include "sim/rng.hpp"

namespace kagemusha::share::sim {

class simulator {
public:
    simulator(const options& o, bool trace);
    record run();

private:
    enum class what : std::uint8_t { joins, turns, thought, unit_ends, wants, released, acted, advance };
    struct event {
        std::uint64_t at_ns, number;
        what kind;
        vm_id vm;
        action act; // acted
        bool flag;  // released: wants more
        bool operator>(const event& other) const {
            return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
        }
    };
    // A VM's worker: what share/client does with real messages.
    struct worker {
        bool alive = false, granted = false, shared = false, take_back = false, asked = false;
        bool has_task = false, hangs = false;
        std::uint32_t units = 0; // in flight
        std::uint64_t units_ns = 0;
        std::uint64_t asked_ns = 0;
        std::uint64_t to_arbiter_ns = 0, from_arbiter_ns = 0; // when the last message arrives
    };
    struct unit {
        vm_id vm;
        std::uint64_t ns;
    };

    void post(std::uint64_t at_ns, what kind, vm_id vm, action act = {}, bool flag = false);
    void say(vm_id vm, what kind, bool flag = false); // to the arbiter
    void hear(const action& a);                       // from it
    void handle(const event& e);
    void carry_out();
    void acted(const action& a);
    void pump(vm_id vm);
    void ask(vm_id vm);
    void give_back_if_due(vm_id vm);
    void submit(vm_id vm, std::uint64_t ns);
    void begin_unit();
    void end_unit(vm_id vm);
    void dies(vm_id vm);
    void look_at_idle();
    std::uint64_t latency();

    const options& o_;
    const bool trace_;
    kagemusha::sim::rng chance_;
    scheduler scheduler_;
    std::priority_queue<event, std::vector<event>, std::greater<>> events_;
    std::vector<worker> workers_;
    std::deque<unit> gpu_; // the first one runs
    std::uint64_t unit_began_ns_ = 0, unit_number_ = 0;
    std::uint64_t now_ns_ = 0, number_ = 0, advance_at_ns_ = UINT64_MAX;
    std::uint64_t idle_since_ns_ = UINT64_MAX;
    bool limited_ = false;
    record record_;
};

} // namespace kagemusha::share::sim
