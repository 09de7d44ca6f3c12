// SPDX-License-Identifier: GPL-2.0-or-later
// Makes drawn faults happen, and ends them. A fault names hosts by what they are at that time: 0 the one
// whose VM runs, 1 its standby or another one, 2 the third.
#pragma once

#include <cstdint>

#include "world/options.hpp"

namespace kagemusha::world {

class world;
class host;

class fault_injector {
public:
    explicit fault_injector(world& w) : w_(w) {}

    void plan(); // puts all of them on the queue
    void begin(std::uint32_t i);
    void heal(); // nothing is broken any more

private:
    host& who(std::uint8_t role);
    void on_links(const fault& f, host& a, host& b);

    world& w_;
};

} // namespace kagemusha::world
