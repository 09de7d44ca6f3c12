// SPDX-License-Identifier: GPL-2.0-or-later
// A machine: its clock, its disk, the service that starts a supervisor, that supervisor and its QEMU.
#pragma once

#include <cstdint>

#include "world/disk.hpp"
#include "world/events.hpp"
#include "world/qemu.hpp"
#include "world/supervisor.hpp"

namespace kagemusha::world {

class world;

// What the system starts at boot, and again when it failed.
struct unit {
    enum class kind : std::uint8_t { none, run, standby };
    kind what = kind::none;
    std::int8_t standby = -1; // run: the host that stands by
    bool anew = false;        // once
    bool overwrite = false;   // once
};

class host {
public:
    host(world& w, std::uint8_t index) : index(index), vm(w, *this), process(w, *this), w_(w) {}

    const char* name() const {
        static constexpr const char* names[] = {"A", "B", "C"};
        return names[index];
    }
    bool up() const { return up_; }

    // Milliseconds of its CLOCK_BOOTTIME, and the time of the world when it says so.
    std::uint64_t clock_ms() const { return clock_ms(world_now()); }
    std::uint64_t clock_ms(time_us at) const;
    time_us when(std::uint64_t clock_ms) const;

    void power_off(time_us boots_in); // never: nobody switches it on
    void shut_down(time_us boots_in);
    void boot();
    void start_unit(); // systemctl start
    void stop_unit();  // no further start
    void supervisor_ended(bool in_order);
    void happen(const event& e);

    const std::uint8_t index;
    disk image;
    unit service;
    qemu vm;
    supervisor process;
    time_us frozen_until = 0; // all of it

private:
    time_us world_now() const;

    world& w_;
    bool up_ = true;
    std::uint32_t starts_ = 0; // an older start that is due is none any more
    std::uint32_t boots_ = 0;
};

} // namespace kagemusha::world
