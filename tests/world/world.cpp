// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/world.hpp"

#include <cstdio>

namespace kagemusha::world {

world::world(const options& options, bool trace)
    : o(options)
    , net(*this)
    , outside(*this)
    , operating(*this)
    , faults(*this)
    , output(*this)
    , disks(*this)
    , liveness(*this)
    , ends(*this)
    , random_(sim::mixed(options.seed, 2))
    , trace_(trace) {
    for (std::uint8_t i = 0; i < o.hosts; ++i)
        hosts.push_back(std::make_unique<host>(*this, i));
    arbiter = make_arbiter(*this);
}

world::~world() = default;

void world::print(const char* who, const std::string& text) const {
    fmt::print("{:5}.{:03} {:6} {}\n", now_ / ms, now_ % ms, who, text);
}

void world::fail(std::string what) {
    if (!failure_.empty())
        return;
    failure_ = std::move(what);
    if (trace_)
        print("FAILED", failure_);
}

void world::run() {
    faults.plan();
    operating.begin();
    put(0, event_kind::client_asks, 0, 1);
    event e;
    while (ok() && !over_ && queue_.take(e)) {
        now_ = e.at;
        ++stats.events;
        happen(e);
    }
    ++stats.schedules;
    stats.simulated_ms = now_ / ms;
    stats.was_protected = liveness.protections() != 0;
}

void world::happen(const event& e) {
    switch (e.kind) {
    case event_kind::boot:
    case event_kind::unit_start:
        return hosts[e.host]->happen(e);
    case event_kind::tick:
    case event_kind::order:
    case event_kind::look:
    case event_kind::qemu_ended:
    case event_kind::connect_failed:
        return hosts[e.host]->process.happen(e);
    case event_kind::answer:
        return arbiter->deliver(e);
    case event_kind::etcd_step:
    case event_kind::fence_done:
        return arbiter->happen(e);
    case event_kind::connected:
    case event_kind::deliver:
        return net.happen(e);
    case event_kind::fault_begins:
        return healed() ? void() : faults.begin(static_cast<std::uint32_t>(e.arg));
    case event_kind::heal:
        return faults.heal();
    case event_kind::client_asks:
        return outside.happen(e);
    case event_kind::person_looks:
        return operating.look();
    case event_kind::check:
        return liveness.look();
    default:
        return hosts[e.host]->vm.happen(e);
    }
}

void statistics::add(const statistics& other) {
    schedules += other.schedules;
    events += other.events;
    simulated_ms += other.simulated_ms;
    was_protected += other.was_protected;
    takeovers += other.takeovers;
    switchovers += other.switchovers;
    boots += other.boots;
    replies += other.replies;
    void_schedules += other.void_schedules;
    checkpoints += other.checkpoints;
    for (std::size_t i = 0; i < fault_kinds; ++i)
        faults[i] += other.faults[i];
    if (other.slowest_heal_ms > slowest_heal_ms) {
        slowest_heal_ms = other.slowest_heal_ms;
        slowest_seed = other.slowest_seed;
    }
}

std::string statistics::text() const {
    std::string out =
        fmt::format("{} schedules, {} events, {} s simulated: {} protected, {} boots, {} takeovers, "
                    "{} switchovers, {} checkpoints, {} replies, {} void\nfaults:",
                    schedules, events, simulated_ms / 1000, was_protected, boots, takeovers, switchovers,
                    checkpoints, replies, void_schedules);
    for (std::size_t i = 0; i < fault_kinds; ++i)
        out += fmt::format(" {} {}", name_of(static_cast<fault_kind>(i)), faults[i]);
    return out +
           fmt::format("\nslowest to be protected again: {} ms (seed {})", slowest_heal_ms, slowest_seed);
}

} // namespace kagemusha::world
