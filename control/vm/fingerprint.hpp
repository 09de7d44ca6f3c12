// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a VM is made of on this host, as both supervisors compare it before one stands by for the other
// (control/ha/peer_identity.hpp): everything that the guest can see, and the builds that may differ.
#pragma once

#include "control/ha/peer_identity.hpp"
#include "control/qemu/vm_config.hpp"
#include "control/vm/description.hpp"
#include "control/vm/qemu_facts.hpp"

#include <optional>
#include <string>

namespace kagemusha::control {

struct fingerprint {
    std::string text;            // what releases that speak version 1 compare: SHA-256 over all of it
    ha::description_parts parts; // what all others compare
};

// Software of this host that may be another build than the peer's.
struct host_builds {
    std::string release, qemu, device_library, host_cpu; // device_library: "" for a VM without a GPU
};
host_builds builds_of_this_host(const std::string& qemu, const std::string& device_library);

// Of a file's content, "sha256:HEX". Nothing and a sentence in `error`.
std::optional<std::string> file_digest(const std::string& path, std::string& error);

// Reads every file. Nothing and a sentence in `error`.
std::optional<fingerprint> fingerprint_of(const vm_description& vm, const vm_config& config,
                                          const qemu_facts& qemu, const host_builds& builds,
                                          std::string& error);

// The limits of the guest's GPU as words, those that the description does not name with their default. Pure.
std::string gpu_limits(const described_gpu& gpu);

} // namespace kagemusha::control
