// SPDX-License-Identifier: GPL-2.0-or-later
//
// See summary.hpp.
#include "control/status/summary.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace kagemusha::control {

namespace {

// Statistics come as QOM writes them: names with underscores or dashes, unsigned numbers.
std::uint64_t counter(const nlohmann::json& stats, std::string name) {
    if (!stats.is_object())
        return 0;
    auto found = stats.find(name);
    if (found == stats.end()) {
        for (auto& c : name)
            if (c == '_')
                c = '-';
        found = stats.find(name);
    }
    return found != stats.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

} // namespace

gpu_activity activity_between(const nlohmann::json& before, const nlohmann::json& after) {
    gpu_activity activity;
    const auto since = [&](const char* name) {
        const auto old = counter(before, name), now = counter(after, name);
        return now > old ? now - old : 0;
    };
    activity.requests = since("requests");
    activity.commands = since("commands");
    activity.launches = since("launches");
    activity.calls = since("calls");
    activity.bytes_to_gpu = since("bytes_to_gpu");
    activity.bytes_from_gpu = since("bytes_from_gpu");
    activity.doorbells = since("doorbells");
    activity.workers_lost = since("workers_lost");
    activity.workers_killed_hung = since("workers_killed_hung");
    return activity;
}

std::string format_bytes(std::uint64_t bytes) {
    constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024)
        return fmt::format("{} B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < std::size(units); ++unit)
        value /= 1024;
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_count(std::uint64_t count) {
    auto text = fmt::format("{}", count);
    for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3)
        text.insert(static_cast<std::size_t>(at), 1, ',');
    return text;
}

std::string format_duration(double seconds) {
    if (seconds < 60)
        return fmt::format("{:.1f} s", seconds);
    const auto whole = static_cast<long>(std::lround(seconds));
    return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string demo_summary(const demo_facts& facts) {
    const auto& did = facts.activity;
    std::string text = "\n── what happened ──────────────────────────────────────────────────────────\n";
    const auto line = [&](const char* title, const std::string& value) {
        text += fmt::format("  {:<12}{}\n", title, value);
    };
    line("program", facts.program);
    line("asked", facts.task);
    line("answer", facts.answer.empty() ? "none" : facts.answer);
    line("verified", facts.verified ? "yes" : fmt::format("NO: {}", facts.why_not));
    line("GPU", fmt::format("{} (backend {})", facts.gpu.empty() ? "unknown" : facts.gpu, facts.backend));
    line("guest", fmt::format("Linux {}, CPU by {}", facts.kernel, facts.cpu));
    line("GPU work",
         fmt::format("{} commands, {} of them kernel launches, in {} requests", format_count(did.commands),
                     format_count(did.launches), format_count(did.requests)));
    line("data", fmt::format("{} to the GPU, {} back", format_bytes(did.bytes_to_gpu),
                             format_bytes(did.bytes_from_gpu)));
    line("wake-ups", fmt::format("{} of the GPU's worker process", format_count(did.doorbells)));
    if (did.workers_lost)
        line("lost", fmt::format("{} worker processes died", format_count(did.workers_lost)));
    line("time", fmt::format("{} for the program, after {} of booting", format_duration(facts.job_seconds),
                             format_duration(facts.boot_seconds)));
    return text;
}

} // namespace kagemusha::control
