// SPDX-License-Identifier: GPL-2.0-or-later
//
// See described_share.hpp.
#include "control/vm/described_share.hpp"

#include "share/core/terms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kagemusha::control {

namespace {

void read_profile(toml_table& gpu, described_share& s) {
    std::string profile;
    gpu.text("profile", profile);
    const auto parts = share::parts_of_profile(profile);
    if (!parts)
        return gpu.complain(
            "profile", fmt::format("there is no profile \"{}\": there are {}", profile, share::profiles()));
    if (gpu.has("share") || gpu.has("memory"))
        return gpu.complain("profile", "'profile' says what 'share' and 'memory' are: give it, or them");
    s.parts = *parts;
    s.percent = 100 / *parts;
}

} // namespace

void read_share(toml_table& gpu, described_gpu& g) {
    constexpr const char* keys[] = {"share", "cap", "priority", "memory", "profile", "policy"};
    if (std::none_of(std::begin(keys), std::end(keys), [&](const char* key) { return gpu.has(key); }))
        return;
    described_share s;
    gpu.number("share", s.percent, 1, 100);
    gpu.number("cap", s.cap_percent, 1, 100);
    gpu.number("priority", s.priority, 0, share::max_priority);
    gpu.mebibytes("memory", s.memory_mib);
    if (gpu.has("profile"))
        read_profile(gpu, s);
    if (gpu.has("policy")) {
        s.policy = "fair";
        gpu.choice("policy", s.policy, {"fair", "round-robin", "fixed", "priority"});
    }
    if (gpu.has("share") && s.cap_percent < s.percent)
        gpu.complain("cap",
                     fmt::format("'cap' is less than 'share' ({} and {} percent)", s.cap_percent, s.percent));
    g.share = std::move(s);
}

void refuse_two_quotas(toml_table& gpu, const described_gpu& g) {
    if (g.share && (g.share->memory_mib != 0 || g.share->parts != 0) &&
        std::any_of(g.properties.begin(), g.properties.end(),
                    [](const auto& p) { return p.first == "max-memory" || p.first == "max-file-memory"; }))
        gpu.complain(g.share->parts != 0 ? "profile" : "memory",
                     "the quota is in 'properties' as well (max-memory, max-file-memory): give one");
}

std::string limit_memory(described_gpu& g, std::uint64_t gpu_memory_bytes) {
    if (!g.share)
        return {};
    described_share& s = *g.share;
    if (s.parts != 0) {
        if (gpu_memory_bytes == 0)
            return fmt::format(
                "profile = \"1/{}\" is a part of the GPU's memory, and how much this GPU has is "
                "not known: give 'share' and 'memory' instead",
                s.parts);
        s.memory_mib = (gpu_memory_bytes >> 20) / s.parts;
    }
    if (s.memory_mib != 0)
        for (const char* limit : {"max-memory", "max-file-memory"})
            g.properties.emplace_back(limit, fmt::format("{}", s.memory_mib << 20));
    return {};
}

} // namespace kagemusha::control
