// SPDX-License-Identifier: GPL-2.0-or-later
//
// KVM or TCG? A file /dev/kvm is no proof that a guest runs under it (nested or restricted hosts), so a
// kernel is booted to see.
#pragma once

#include "control/qemu/vm_config.hpp"

#include <string>

namespace kagemusha::control {

struct accelerator_choice {
    accelerator accel = accelerator::tcg;
    std::string sentence; // "KVM", or "TCG (why not KVM)"
};

// `wanted`: auto, kvm or tcg. The answer of a probe is kept until the host is booted again or QEMU or kernel
// change.
accelerator_choice choose_accelerator(const std::string& wanted, const vm_config& config,
                                      const std::string& directory);

} // namespace kagemusha::control
