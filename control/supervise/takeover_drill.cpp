// SPDX-License-Identifier: GPL-2.0-or-later
//
// See takeover_drill.hpp.
#include "control/supervise/takeover_drill.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

double ms_between(std::uint64_t from_ns, std::uint64_t to_ns) {
    return from_ns != 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-6 : 0;
}

} // namespace

void takeover_drill::begin(std::uint64_t checkpoint_age_ms, std::uint64_t now) {
    *this = {};
    begun_ = true;
    checkpoint_age_ms_ = checkpoint_age_ms;
    begun_at_ = now;
}

void takeover_drill::killed(std::uint64_t now) {
    if (begun_ && killed_at_ == 0)
        killed_at_ = now;
}

void takeover_drill::qemu_ended(std::uint64_t now) {
    if (begun_ && ended_at_ == 0)
        ended_at_ = now;
}

std::optional<nlohmann::json> takeover_drill::refusal(std::uint64_t now) {
    if (!begun_ || killed_at_ != 0 || ended_at_ != 0 || now < begun_at_ + permission_ns)
        return std::nullopt;
    begun_ = false;
    return nlohmann::json{
        {"error", "the standby was lost before the drill began; the VM runs on here, and was not touched"}};
}

nlohmann::json takeover_drill::over(bool in_order, const std::string& why, std::uint64_t now) const {
    if (!in_order)
        return {{"error", "the standby did not say that it runs the VM: " + why +
                              ". Look at `kage status` on its host"}};
    return {{"done", true},
            {"result", why},
            {"checkpoint_age_ms", checkpoint_age_ms_},
            {"noticed_ms", ms_between(killed_at_, ended_at_)},
            {"running_ms", ms_between(killed_at_, now)}};
}

std::string drill_text(const nlohmann::json& result) {
    const auto ms = [&](const char* key) { return result.value(key, 0.0); };
    return fmt::format(
        "The VM's QEMU was killed, {:.0f} ms after the last checkpoint.\n"
        "{:>8.1f} ms  its supervisor knew it\n"
        "{:>8.1f} ms  the standby said that the VM runs there\n"
        "The VM has no standby now: begin one with `kage standby` here, and name it there with "
        "`kage protect`.\n",
        ms("checkpoint_age_ms"), ms("noticed_ms"), ms("running_ms"));
}

} // namespace kagemusha::control
