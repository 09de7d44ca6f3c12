// SPDX-License-Identifier: GPL-2.0-or-later
// An operator: starts what nobody started, gives a VM that is alone a standby, stops it and starts it again.
// Before everything is mended he is slow and often away. He leaves alone whatever should mend itself: a
// supervisor that runs is not restarted.
#pragma once

#include <cstdint>

#include "world/events.hpp"

namespace kagemusha::world {

class world;
class host;

class person {
public:
    explicit person(world& w) : w_(w) {}

    void begin(); // the cluster as it is set up: A runs the VM, B stands by
    void look();

    void stop(time_us for_how_long);
    void upgrade(host& h);               // a switchover, then its supervisor is of another release
    void reboot(host& h, time_us lasts); // shutdown -r
    void supervisor_ended(host& h, bool in_order);

private:
    void give_standby(host& primary);
    bool upgrades_for_fence(host& primary);
    bool ends_what_stands_still();
    void start_vm();

    world& w_;
    bool stopping_ = false, stopped_ = false;
    bool said_anew_ = false; // so some host's disks are not wanted any more, whatever their mark says
    time_us start_again_at_ = 0;
    std::uint32_t refusals_ = 0;
    time_us nobody_since_ = never, claims_since_ = never, compares_since_ = never,
            stands_still_since_ = never;
    time_us off_for_[3] = {}; // hosts that shut down once their supervisor has ended
    bool upgrades_[3] = {}, overwrites_[3] = {};
};

} // namespace kagemusha::world
