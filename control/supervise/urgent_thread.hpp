// SPDX-License-Identifier: GPL-2.0-or-later
//
// urgent_thread: what makes the deciding thread run in time on a host that is short of processors or memory.
// Its heartbeats have a budget of some hundred ms; whoever is late looks dead.
//
// The thread gets the lowest real-time priority, or else a negative nice value; it never computes for long.
// The process's pages stay in memory once they were used. Nothing of it is inherited: neither QEMU nor any
// command that is started runs so, and no memory of a guest is locked. What the host does not allow is said
// in a sentence, and goes without.
#pragma once

#include <string>

namespace kagemusha::control {

struct urgency {
    bool real_time = false;
    bool nice = false; // tried where there is no real time
    bool locked = false;
    // What could not be had, and how to allow it; empty: everything was.
    std::string complaint() const;
};

// For the calling thread, and the memory of its process.
urgency become_urgent();

} // namespace kagemusha::control
