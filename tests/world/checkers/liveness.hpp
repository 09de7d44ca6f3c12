// SPDX-License-Identifier: GPL-2.0-or-later
// Liveness: once nothing is broken any more, the VM is protected again within a bound, and answers. And what
// a person has stopped stays stopped until a person starts it.
#pragma once

#include <cstdint>
#include <string>

#include "world/events.hpp"

namespace kagemusha::world {

class world;

// From the mending of the last fault (docs/spec/takeover.md, section 5): a supervisor that waits for
// another's lease gives up after 15 s and is started again; a person looks twice a second; a connection that
// is dead without a sign is given up after 5 s; then a copy is made.
constexpr std::uint32_t protected_again_ms = 40000;

class liveness_checker {
public:
    explicit liveness_checker(world& w) : w_(w) {}

    void now_protected() { ++protections_; }
    void look(); // at the world, every now and then after everything was mended
    std::uint64_t protections() const { return protections_; }

    // What a person has stopped.
    void stopped() { is_stopped_ = true; }
    void started() { is_stopped_ = false; }
    void vm_starts(std::uint8_t host);

private:
    bool is_protected() const;
    std::string state() const;

    world& w_;
    std::uint64_t protections_ = 0;
    bool is_stopped_ = false;
    time_us well_since_ = never;
};

} // namespace kagemusha::world
