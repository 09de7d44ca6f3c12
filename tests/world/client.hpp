// SPDX-License-Identifier: GPL-2.0-or-later
// The outside: one client with numbered requests, one at a time, repeated until there is a reply.
#pragma once

#include <cstdint>

#include "world/events.hpp"
#include "world/guest.hpp"

namespace kagemusha::world {

class world;

class client {
public:
    explicit client(world& w) : w_(w) {}

    void ask();
    void happen(const event& e);
    void hear(const packet& p);
    // A request from after that was replied to.
    bool answered_since(time_us when) const { return answered_asked_at_ >= when; }

private:
    world& w_;
    std::uint32_t wants_ = 1;
    time_us asked_at_ = 0, answered_asked_at_ = 0;
};

} // namespace kagemusha::world
