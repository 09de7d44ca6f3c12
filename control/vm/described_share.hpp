// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a description says about the VM's share of its GPU: the keys of [gpu] that share/README.md is about.
#pragma once

#include "control/vm/description.hpp"
#include "control/vm/toml_table.hpp"

#include <cstdint>
#include <string>

namespace kagemusha::control {

// Sets g.share if there is any of the keys.
void read_share(toml_table& gpu, described_gpu& g);
// After the properties were read: a quota is given once.
void refuse_two_quotas(toml_table& gpu, const described_gpu& g);

// Turns the VM's quota into limits of its device, so that both hosts compare them and it holds after a
// takeover. `gpu_memory_bytes`: of this host's GPU; 0: not known. "" or why not.
std::string limit_memory(described_gpu& g, std::uint64_t gpu_memory_bytes);

} // namespace kagemusha::control
