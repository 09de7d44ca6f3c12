// SPDX-License-Identifier: GPL-2.0-or-later
//
// See allocation.hpp.
#include "kubernetes/core/allocation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace kagemusha::kubernetes {

namespace {

constexpr std::size_t longest_name = 80, longest_sentence = 300;

std::string printable(std::string_view text, char first) {
    std::string out;
    for (const char c : text)
        out += c >= first && c < 0x7f ? c : '?';
    return out;
}

} // namespace

std::string shown(std::string_view text) {
    return printable(text.substr(0, longest_name), ' ' + 1);
}

std::string shown_sentence(std::string_view text) {
    return printable(text.substr(0, longest_sentence), ' ');
}

std::string mig_resource(std::string_view profile) {
    std::string out = "kagemusha.io/mig-";
    for (const char c : profile)
        out += (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ? c : '.';
    return out;
}

std::string unit_id(std::string_view gpu, std::uint32_t unit) {
    return fmt::format("{}-{:02}", gpu, unit);
}

std::string resource_of(const found_gpu& gpu) {
    return gpu.profile.empty() ? resource_name : mig_resource(gpu.profile);
}

std::vector<std::string> units_of(const found_gpu& gpu) {
    if (!gpu.profile.empty())
        return {gpu.id};
    std::vector<std::string> out;
    for (std::uint32_t unit = 0; unit < units_of_gpu; ++unit)
        out.push_back(unit_id(gpu.id, unit));
    return out;
}

std::optional<std::string> gpu_of_unit(std::string_view id) {
    const auto dash = id.rfind('-');
    if (dash == std::string_view::npos || id.size() - dash != 3)
        return std::nullopt;
    std::uint32_t unit = 0;
    const auto* const end = id.data() + id.size();
    const auto [rest, failed] = std::from_chars(id.data() + dash + 1, end, unit);
    if (failed != std::errc{} || rest != end)
        return std::nullopt;
    return std::string(id.substr(0, dash));
}

namespace {

// `known`: an instance, one of so many devices that were asked for.
std::optional<grant> allocate_instance(const known_gpu& known, std::size_t asked, std::string& refusal) {
    refusal = asked == 1 ? known.trouble()
                         : fmt::format("{} MIG instances were asked for: a VM has one GPU", asked);
    if (!refusal.empty())
        return std::nullopt;
    return grant{known.gpu, units_of_gpu, known.gpu.memory_bytes >> 20};
}

} // namespace

std::optional<grant> allocate(const inventory& gpus, const std::vector<std::string>& ids,
                              std::string& refusal) {
    if (ids.empty() || ids.size() > units_of_gpu) {
        refusal = fmt::format("{} units of {} were asked for: a container has 1 to {}, percent of one GPU",
                              ids.size(), resource_name, units_of_gpu);
        return std::nullopt;
    }
    for (const auto& id : ids)
        if (const auto* const known = gpus.find(id); known && !known->gpu.profile.empty())
            return allocate_instance(*known, ids.size(), refusal);
    const known_gpu* gpu = nullptr;
    std::set<std::string_view> once;
    for (const auto& id : ids) {
        const auto named = gpu_of_unit(id);
        const auto* const known = named ? gpus.find(*named) : nullptr;
        if (!known || !known->gpu.profile.empty()) {
            refusal =
                fmt::format("{} is no GPU of this node: it was there before a restart, or never", shown(id));
            return std::nullopt;
        }
        if (!once.insert(id).second) {
            refusal = fmt::format("{} was asked for twice", shown(id));
            return std::nullopt;
        }
        if (gpu && gpu != known) {
            refusal =
                fmt::format("{} percent are free on no single GPU of this node: ask for less, or use the "
                            "DRA driver, which the scheduler asks GPU by GPU",
                            ids.size());
            return std::nullopt;
        }
        gpu = known;
    }
    if (refusal = gpu->trouble(); !refusal.empty())
        return std::nullopt;
    const auto percent = static_cast<std::uint32_t>(ids.size());
    return grant{gpu->gpu, percent, (gpu->gpu.memory_bytes >> 20) * percent / units_of_gpu};
}

std::vector<std::string> prefer(const std::vector<std::string>& available,
                                const std::vector<std::string>& must_include, std::uint32_t size) {
    std::map<std::string, std::vector<std::string>> free;
    for (const auto& id : available)
        if (const auto gpu = gpu_of_unit(id))
            free[*gpu].push_back(id);
    std::vector<std::string>* best = nullptr;
    for (auto& [gpu, ids] : free) {
        const bool has_all = std::ranges::all_of(
            must_include, [&](const std::string& id) { return std::ranges::find(ids, id) != ids.end(); });
        if (has_all && ids.size() >= size && (!best || ids.size() < best->size()))
            best = &ids;
    }
    if (!best || must_include.size() > size)
        return {};
    std::ranges::sort(*best);
    std::vector<std::string> out = must_include;
    for (const auto& id : *best)
        if (out.size() < size && std::ranges::find(must_include, id) == must_include.end())
            out.push_back(id);
    return out;
}

std::map<std::string, std::string> environment_of(const grant& given) {
    std::map<std::string, std::string> out{
        {"KAGEMUSHA_GPU", given.gpu.selector},
        {"KAGEMUSHA_GPU_SHARE", std::to_string(given.percent)},
        {"KAGEMUSHA_GPU_ARBITER", fmt::format("{}/{}", share_directory_inside, given.gpu.id)},
        {"KAGEMUSHA_SHARE_DIR", share_directory_inside},
    };
    if (given.memory_mib != 0)
        out["KAGEMUSHA_GPU_MEMORY_MIB"] = std::to_string(given.memory_mib);
    return out;
}

} // namespace kagemusha::kubernetes
