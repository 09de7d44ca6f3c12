// SPDX-License-Identifier: GPL-2.0-or-later
//
// What this host's QEMU says of itself: its version, and what its processor model has for the guest. "host"
// and "max" are other processors on each host or with each QEMU, so their names say nothing.
#pragma once

#include "control/qemu/vm_config.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control {

struct qemu_facts {
    std::string version;      // "10.0.13"
    std::string cpu;          // the model, and which processor it says it is
    std::string cpu_features; // words, ascending
};

// Starts a QEMU for a moment (0.1 s) that has no disks and never runs. Nothing and a sentence in `error`.
std::optional<qemu_facts> ask_qemu(const vm_config& config, std::string& error);

// Of what QEMU printed (QMP). Pure.
std::optional<qemu_facts> read_qemu_facts(std::string_view printed, const std::string& cpu_model,
                                          std::string& error);

} // namespace kagemusha::control
