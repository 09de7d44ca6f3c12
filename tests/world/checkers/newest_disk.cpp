// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/checkers/newest_disk.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

bool newest_disk_checker::is_newest(std::uint8_t host) const {
    const auto told = w_.output.reported_request();
    const auto& blocks = w_.hosts[host]->image.read();
    for (std::uint32_t i = 0; i < std::min(slots, told); ++i)
        if (blocks[(told - i) % slots] < told - i)
            return false;
    return true;
}

void newest_disk_checker::boots(std::uint8_t host, bool anew) {
    if (!is_newest(host))
        return w_.fail(fmt::format("newest disk: the VM starts on {}{}, whose image lacks what was told",
                                   w_.hosts[host]->name(), anew ? " with --force-new" : ""));
    if (anew || !left_a_standby_)
        return;
    for (const auto& h : w_.hosts)
        if (h->up() && h->vm.has_checkpoint() && w_.output.has_all_that_was_told(h->vm.node_of_copy()))
            return w_.fail(fmt::format("newest disk: the VM starts anew on {}, and {} has all of its state",
                                       w_.hosts[host]->name(), h->name()));
    left_a_standby_ = false;
}

void newest_disk_checker::marked_as_copy(std::uint8_t host) {
    if (w_.o.old_release[host]) // it did so
        return;
    if (!is_newest(host) || w_.output.reported_request() == 0)
        return;
    for (std::uint8_t i = 0; i < w_.hosts.size(); ++i)
        if (i != host && (is_newest(i) || w_.hosts[i]->vm.runs()))
            return;
    w_.fail(fmt::format("newest disk: the only newest image is on {}, and is marked as a copy",
                        w_.hosts[host]->name()));
}

void newest_disk_checker::primary_ended(bool protecting) {
    left_a_standby_ = protecting;
}

} // namespace kagemusha::world
