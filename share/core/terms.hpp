// SPDX-License-Identifier: GPL-2.0-or-later
// terms: what a VM asks of the GPU that it shares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "share/core/limits.hpp"

namespace kagemusha::share {

enum class policy_kind : std::uint32_t {
    fair = 0,        // by weight; what one leaves the others get
    round_robin = 1, // equal turns, one after the other
    fixed = 2,       // by weight; what one leaves is left
    priority = 3,    // the highest first; who waits rises
};

std::string_view name_of(policy_kind policy);
std::optional<policy_kind> policy_named(std::string_view name);

struct vm_terms {
    std::uint32_t share_permille = 0; // of the GPU's time; 0: an equal part of what nobody asked for
    std::uint32_t cap_permille = whole_permille;
    std::uint32_t priority = 0;
    std::uint64_t memory_bytes = 0; // of the GPU's memory; 0: none was asked for
    bool standby = false;           // replays what its primary does elsewhere

    bool operator==(const vm_terms&) const = default;
};

// "1/4": a quarter of the time and of the memory. Nothing: there is no such profile.
std::optional<std::uint32_t> parts_of_profile(std::string_view profile);
// The profiles there are, for a sentence.
std::string profiles();

// What a GPU has and what of it is taken.
struct gpu_ledger {
    std::uint64_t memory_bytes = 0; // 0: not known, so nothing is refused for its sake
    std::uint64_t memory_taken_bytes = 0;
    std::uint32_t share_taken_permille = 0;
    std::uint32_t vms = 0;
};

// Empty: the VM fits. Else a sentence with what is free. A standby counts like every other VM: its host must
// be able to run it.
std::string why_not_admitted(const vm_terms& terms, const gpu_ledger& ledger);

} // namespace kagemusha::share
