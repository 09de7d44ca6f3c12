// SPDX-License-Identifier: GPL-2.0-or-later
// The arbiters of control/arbiter, as models: the same record and the same steps, each step of its own time.
//
//   lock   one word of shared memory: asked and answered in one step
//   etcd   a thread in each supervisor makes round trips: read, grant a lease, compare and put; keep alive. A
//          round trip may fail before or after it was done. Leases run out by the cluster's clock
//   fence  the real state machine of each host, its record, and a command that switches the other host off
#ifndef KAGEMUSHA_TESTS_WORLD_ARBITER_MODELS_HPP
#define KAGEMUSHA_TESTS_WORLD_ARBITER_MODELS_HPP

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "control/ha/arbiter_request.hpp"
#include "world/events.hpp"
#include "world/network.hpp"
#include "world/options.hpp"

namespace kagemusha::world {

class world;

class arbiter_model {
public:
    explicit arbiter_model(world& w) : w_(w) {}
    virtual ~arbiter_model() = default;

    virtual void ask(std::uint8_t host, const ha::arbiter_request& request) = 0;
    virtual void happen(const event&) {}
    virtual void client_ended(std::uint8_t) {} // its host has no power
    virtual void rebooted() {}                 // lock: the machine was

    void answer(std::uint8_t host, std::uint32_t generation, time_us at, ha::arbiter_answer a);
    void deliver(const event& e);

    std::uint64_t identities = 0; // given to processes

    // ---- faults
    time_us away_until = 0, parted_until[most_hosts] = {}, forgets_until = 0, slow_until = 0,
            member_dead_until = 0;
    void heal();

protected:
    world& w_;

private:
    struct pending {
        ha::arbiter_answer what;
        bool used = false;
    };
    std::vector<pending> pending_;
};

std::unique_ptr<arbiter_model> make_arbiter(world& w);

} // namespace kagemusha::world

#endif
