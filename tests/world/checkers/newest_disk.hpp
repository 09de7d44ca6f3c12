// SPDX-License-Identifier: GPL-2.0-or-later
// Newest disk known: a VM that is started from a disk is started from one that has all that the outside was
// told, and not while a standby has the VM's whole state. And the marks never call the only newest image a
// copy.
#pragma once

#include <cstdint>

namespace kagemusha::world {

class world;

class newest_disk_checker {
public:
    explicit newest_disk_checker(world& w) : w_(w) {}

    void boots(std::uint8_t host, bool anew); // about to
    void marked_as_copy(std::uint8_t host);   // just now
    void primary_ended(bool protecting);      // its QEMU, or all of its host
    void taken_over() { left_a_standby_ = false; }

    // Every request that was replied to is in the host's image.
    bool is_newest(std::uint8_t host) const;

private:
    world& w_;
    bool left_a_standby_ = false; // the last primary ended while it was protected
};

} // namespace kagemusha::world
