// SPDX-License-Identifier: GPL-2.0-or-later
// Ends: a supervisor ends by itself only for a reason of docs/spec/takeover.md, section 4. One that ends
// without is started again by whatever starts services, so nothing else would show it.
#pragma once

#include <cstdint>

#include "world/network.hpp"

namespace kagemusha::world {

class world;

class ends_checker {
public:
    explicit ends_checker(world& w) : w_(w) {}

    // What happens to the supervisor of a host.
    void starts(std::uint8_t host) { seen_[host] = {}; }
    void told_to_stop(std::uint8_t host) { seen_[host].told_to_stop = true; }
    void qemu_ended(std::uint8_t host) { seen_[host].qemu_ended = true; } // the one that it counts on
    void refused(std::uint8_t host) { seen_[host].refused = true; }       // by the arbiter
    void runs_elsewhere(std::uint8_t host) { seen_[host].runs_elsewhere = true; }
    void starts_qemu_anew(std::uint8_t host);

    void ends(std::uint8_t host, bool had_vm, bool standby); // decided just now

private:
    struct facts {
        bool told_to_stop = false, qemu_ended = false, refused = false, runs_elsewhere = false;
    };
    world& w_;
    facts seen_[most_hosts];
};

} // namespace kagemusha::world
