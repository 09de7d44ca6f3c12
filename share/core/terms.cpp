// SPDX-License-Identifier: GPL-2.0-or-later
// terms: see terms.hpp.
#include "share/core/terms.hpp"
#include "base/gibibytes.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

namespace kagemusha::share {

namespace {

constexpr std::array<std::pair<policy_kind, std::string_view>, 4> policies{{
    {policy_kind::fair, "fair"},
    {policy_kind::round_robin, "round-robin"},
    {policy_kind::fixed, "fixed"},
    {policy_kind::priority, "priority"},
}};

std::string percent(std::uint32_t permille) {
    std::string text = std::to_string(permille / 10);
    if (permille % 10 != 0)
        text += "." + std::to_string(permille % 10);
    return text + " %";
}

} // namespace

std::string_view name_of(policy_kind policy) {
    for (const auto& [kind, name] : policies)
        if (kind == policy)
            return name;
    return "fair";
}

std::optional<policy_kind> policy_named(std::string_view name) {
    for (const auto& [kind, known] : policies)
        if (known == name)
            return kind;
    return {};
}

std::optional<std::uint32_t> parts_of_profile(std::string_view profile) {
    if (!profile.starts_with("1/"))
        return {};
    std::uint32_t parts = 0;
    const char* const end = profile.data() + profile.size();
    const auto [stopped, error] = std::from_chars(profile.data() + 2, end, parts);
    if (error != std::errc() || stopped != end || parts == 0 || parts > max_vms || profile[2] == '0')
        return {};
    return parts;
}

std::string profiles() {
    return "\"1/1\", \"1/2\", \"1/3\" … \"1/" + std::to_string(max_vms) + "\"";
}

std::string why_not_admitted(const vm_terms& terms, const gpu_ledger& ledger) {
    if (ledger.vms >= max_vms)
        return "this GPU is shared by " + std::to_string(ledger.vms) + " VMs, and by " +
               std::to_string(max_vms) + " at most: stop one of them, or choose another GPU";
    const std::uint32_t free_permille =
        whole_permille -
        (ledger.share_taken_permille < whole_permille ? ledger.share_taken_permille : whole_permille);
    if (terms.share_permille > free_permille)
        return "the share of " + percent(terms.share_permille) + " does not fit: " + percent(free_permille) +
               " of this GPU is free. Ask for less, stop another VM, or choose another GPU";
    if (ledger.memory_bytes == 0)
        return "";
    const std::uint64_t taken =
        ledger.memory_taken_bytes < ledger.memory_bytes ? ledger.memory_taken_bytes : ledger.memory_bytes;
    if (terms.memory_bytes > ledger.memory_bytes - taken)
        return gibibytes(terms.memory_bytes) +
               " of memory do not fit: " + gibibytes(ledger.memory_bytes - taken) + " of this GPU's " +
               gibibytes(ledger.memory_bytes) +
               " are free. Ask for less, stop another VM, or choose another GPU";
    return "";
}

} // namespace kagemusha::share
