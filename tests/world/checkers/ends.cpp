// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/checkers/ends.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

// What was before is no reason any more.
void ends_checker::starts_qemu_anew(std::uint8_t host) {
    seen_[host].qemu_ended = seen_[host].refused = false;
}

void ends_checker::ends(std::uint8_t host, bool had_vm, bool standby) {
    const auto& f = seen_[host];
    if (f.told_to_stop || f.qemu_ended || f.refused || f.runs_elsewhere)
        return;
    if (!standby && !had_vm)
        return; // the VM can't be started here
    w_.fail(fmt::format("ends: the supervisor of {} on {} ends without a reason",
                        standby ? "a standby" : "a VM", w_.hosts[host]->name()));
}

} // namespace kagemusha::world
