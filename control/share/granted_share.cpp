// SPDX-License-Identifier: GPL-2.0-or-later
//
// See granted_share.hpp.
#include "control/share/granted_share.hpp"

#include "base/fnv1a.hpp"
#include "control/base/json_text.hpp"
#include "proto/share/share_protocol.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace kagemusha::control {

namespace {

constexpr std::uint64_t max_memory_mib = std::uint64_t{1} << 32;

bool read_number(const char* text, std::uint64_t most, std::uint64_t& out) {
    const std::string_view digits(text);
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return failed == std::errc{} && end == digits.data() + digits.size() && out >= 1 && out <= most;
}

} // namespace

std::optional<granted_share> read_granted_share(const std::function<const char*(const char*)>& variable,
                                                std::string& error) {
    const char* const percent = variable("KAGEMUSHA_GPU_SHARE");
    if (!percent || !*percent)
        return std::nullopt;
    granted_share out;
    std::uint64_t number = 0;
    if (!read_number(percent, 100, number)) {
        error = "KAGEMUSHA_GPU_SHARE is no number from 1 to 100: whoever gave this container a GPU sets it";
        return std::nullopt;
    }
    out.percent = static_cast<std::uint32_t>(number);
    if (const char* const memory = variable("KAGEMUSHA_GPU_MEMORY_MIB");
        memory && *memory && !read_number(memory, max_memory_mib, out.memory_mib)) {
        error = "KAGEMUSHA_GPU_MEMORY_MIB is no number of MiB: whoever gave this container a GPU sets it";
        return std::nullopt;
    }
    const char* const gpu = variable("KAGEMUSHA_GPU");
    const char* const arbiter = variable("KAGEMUSHA_GPU_ARBITER");
    out.gpu = gpu ? gpu : "";
    out.arbiter = arbiter ? arbiter : "";
    return out;
}

std::string use_granted_share(const granted_share& granted, described_gpu& gpu) {
    if (!granted.gpu.empty() && !gpu.gpu.empty() && gpu.gpu != granted.gpu)
        return fmt::format(
            "the description wants the GPU \"{}\", and \"{}\" was given to this place: leave 'gpu' out",
            as_log_line(gpu.gpu), as_log_line(granted.gpu));
    if (gpu.gpu.empty())
        gpu.gpu = granted.gpu;
    if (!gpu.share)
        gpu.share.emplace();
    auto& share = *gpu.share;
    if (share.percent > granted.percent)
        return fmt::format(
            "the description wants {} percent of the GPU, and {} were given to this place: ask for "
            "as many, or describe less",
            share.percent, granted.percent);
    if (granted.memory_mib != 0 && share.memory_mib > granted.memory_mib)
        return fmt::format(
            "the description wants {} MiB of the GPU's memory, and {} were given to this place",
            share.memory_mib, granted.memory_mib);
    if (share.percent == 0)
        share.percent = granted.percent;
    bool has_quota = share.memory_mib != 0 || share.parts != 0;
    for (const auto& [key, value] : gpu.properties)
        has_quota = has_quota || key == "max-memory" || key == "max-file-memory";
    if (!has_quota)
        share.memory_mib = granted.memory_mib;
    if (!granted.arbiter.empty())
        share.socket = granted.arbiter;
    return {};
}

std::string name_in_place(const std::string& vm, const std::string& place) {
    constexpr std::size_t longest = SHARE_NAME_BYTES - 1, kept = longest - 17;
    auto name = place.empty() ? vm : vm + "." + place;
    if (name.size() <= longest)
        return name;
    return fmt::format("{}_{:016x}", name.substr(0, kept), fnv1a(name));
}

} // namespace kagemusha::control
