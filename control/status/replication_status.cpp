// SPDX-License-Identifier: GPL-2.0-or-later
//
// See replication_status.hpp.
#include "control/status/replication_status.hpp"

#include "control/base/json_text.hpp"
#include "control/status/summary.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace kagemusha::control {

namespace {

// enum kagemusha_replication_role and _state.
constexpr std::array roles{"none", "primary", "standby"};
constexpr std::array states{"off",       "disconnected", "greeting", "syncing",    "protecting",
                            "listening", "following",    "ready",    "taken-over", "ended"};

struct number_field {
    const char* name;
    std::uint64_t replication_status::* where;
};
constexpr number_field numbers[] = {
    {"epoch", &replication_status::epoch},
    {"committed-epoch", &replication_status::committed_epoch},
    {"lag-entries", &replication_status::lag_entries},
    {"lag-bytes", &replication_status::lag_bytes},
    {"lag-ms", &replication_status::lag_ms},
    {"sent-bytes", &replication_status::sent_bytes},
    {"received-bytes", &replication_status::received_bytes},
    {"compression-saved-bytes", &replication_status::compression_saved_bytes},
    {"digests-compared", &replication_status::digests_compared},
    {"digests-different", &replication_status::digests_different},
    {"digests-repaired", &replication_status::digests_repaired},
    {"memory-shipped", &replication_status::memory_shipped},
    {"held-bytes", &replication_status::held_bytes},
    {"registry-bytes", &replication_status::registry_bytes},
    {"transferred-bytes", &replication_status::transferred_bytes},
    {"held-back-ns", &replication_status::held_back_ns},
    {"connections", &replication_status::connections},
    {"faults", &replication_status::faults},
    {"round-trip-ms", &replication_status::round_trip_ms},
    {"takeovers", &replication_status::takeovers},
    {"committed-at-ns", &replication_status::committed_at_ns},
    {"took-over-at-ns", &replication_status::took_over_at_ns},
    {"first-completion-at-ns", &replication_status::first_completion_at_ns},
    {"copy-lost", &replication_status::copy_lost},
    {"behind-ms", &replication_status::behind_ms},
    {"unexecuted-ms", &replication_status::unexecuted_ms},
    {"built-packs", &replication_status::built_packs},
    {"built-bytes", &replication_status::built_bytes},
    {"built-dropped", &replication_status::built_dropped},
};

template <std::size_t Count>
std::string word(const nlohmann::json& answer, const char* key, const std::array<const char*, Count>& words) {
    const auto found = answer.find(key);
    if (found == answer.end())
        return words[0];
    if (found->is_number_unsigned()) {
        const auto number = found->get<std::uint64_t>();
        return number < Count ? std::string(words[number]) : fmt::format("unknown ({})", number);
    }
    return found->is_string() ? found->get<std::string>() : std::string("unknown");
}

std::string rate(double bytes_per_s) {
    return format_bytes(static_cast<std::uint64_t>(bytes_per_s)) + "/s";
}

std::string replication_text(const device_reading& device) {
    const auto gpu = device.gpu.empty() ? std::string{} : fmt::format(" ({})", device.gpu);
    if (!device.replication)
        return fmt::format("  {}{}: this QEMU knows no replication\n", device.name, gpu);
    const auto& r = *device.replication;
    if (r.role == "none")
        return fmt::format("  {}{}: not replicated\n", device.name, gpu);
    auto out = fmt::format("  {}{}: {}, {}\n", device.name, gpu, r.role, r.state);
    if (!r.degraded.empty())
        out += fmt::format("    DEGRADED   {}\n", r.degraded);
    if (!r.standby_address.empty())
        out += fmt::format("    listens    {}\n", r.standby_address);
    if (!r.peer_gpu.empty())
        out += fmt::format("    other end  {}\n", r.peer_gpu);
    out += fmt::format("    epoch      {}, {} committed\n", format_count(r.epoch),
                       format_count(r.committed_epoch));
    if (r.role == "primary")
        out += fmt::format("    lag        {} ops, {}, {} ms; its GPU is {} ms behind\n",
                           format_count(r.lag_entries), format_bytes(r.lag_bytes), format_count(r.lag_ms),
                           format_count(r.behind_ms));
    else
        out += fmt::format("    held       {}\n", format_bytes(r.held_bytes));
    out += fmt::format("    link       {} out, {} in; round trip {} ms; {} connections so far\n",
                       rate(device.sent_bytes_per_s), rate(device.received_bytes_per_s),
                       format_count(r.round_trip_ms), format_count(r.connections));
    if (r.compression_saved_bytes > 0)
        out += fmt::format("    saved      {} by compression\n", format_bytes(r.compression_saved_bytes));
    out += fmt::format("    digests    {} chunks compared, {} different, {} repaired\n",
                       format_count(r.digests_compared), format_count(r.digests_different),
                       format_count(r.digests_repaired));
    if (r.transferred_bytes > 0)
        out +=
            fmt::format("    transfers  {} of state; the guest's commands were held back {:.1f} ms at most\n",
                        format_bytes(r.transferred_bytes), static_cast<double>(r.held_back_ns) * 1e-6);
    if (r.built_packs > 0)
        out += fmt::format("    programs   {} packs of compiled programs, {}\n", format_count(r.built_packs),
                           format_bytes(r.built_bytes));
    if (r.memory_shipped > 0)
        out += fmt::format("    shipped    {} memory objects after each launch: they differed repeatedly\n",
                           format_count(r.memory_shipped));
    if (r.faults > 0)
        out += fmt::format("    faults     {} entries failed on this standby and not on the primary\n",
                           format_count(r.faults));
    return out;
}

std::string device_text(const device_reading& device) {
    auto out = replication_text(device);
    if (!device.unsupported.empty())
        out += fmt::format("    not supported, called by programs: {}\n", device.unsupported);
    return out;
}

} // namespace

std::optional<replication_status> parse_replication(const nlohmann::json& answer) {
    if (!answer.is_object() || !answer.contains("role"))
        return std::nullopt;
    replication_status out;
    out.role = word(answer, "role", roles);
    out.state = word(answer, "state", states);
    out.degraded = text_in(answer, "degraded");
    out.peer_gpu = text_in(answer, "peer-gpu");
    out.standby_address = text_in(answer, "standby-address");
    for (const auto& field : numbers) {
        const auto found = answer.find(field.name);
        if (found != answer.end() && found->is_number_unsigned())
            out.*field.where = found->get<std::uint64_t>();
    }
    return out;
}

void set_rates(device_reading& now, const device_reading& before, double seconds) {
    if (!now.replication || !before.replication || now.name != before.name || seconds <= 0)
        return;
    const auto since = [&](std::uint64_t replication_status::* counter) {
        const auto was = *before.replication.*counter, is = *now.replication.*counter;
        return is > was ? static_cast<double>(is - was) / seconds : 0.0;
    };
    now.sent_bytes_per_s = since(&replication_status::sent_bytes);
    now.received_bytes_per_s = since(&replication_status::received_bytes);
}

namespace {

// When the guest ran again, and when its GPU had done something for it, counted from the decision.
std::string takeover_text(const nlohmann::json& s) {
    const auto times = s.find("last_takeover_ns");
    if (times == s.end() || !times->is_object())
        return {};
    const auto at = [&](const char* key) { return times->value(key, std::uint64_t{0}); };
    const auto decided = at("decided");
    std::string out;
    for (const auto& [key, what] : {std::pair{"running", "the guest ran"},
                                    {"output", "its output left"},
                                    {"first_command", "its GPU had done a command"}})
        if (decided != 0 && at(key) > decided)
            out += fmt::format("{}{} {:.1f} ms", out.empty() ? "    after the decision: " : ", ", what,
                               static_cast<double>(at(key) - decided) * 1e-6);
    return out.empty() ? out : out + "\n";
}

std::string supervisor_text(const nlohmann::json& s) {
    const auto text = [&](const char* key) { return s.value(key, std::string()); };
    auto out =
        fmt::format("  {}, {}, term {}", text("role"), text("state"), s.value("term", std::uint64_t{0}));
    if (!text("peer").empty())
        out += ", connected with " + text("peer");
    if (const auto checkpoints = s.value("checkpoints", std::uint64_t{0}))
        out += fmt::format(", {} checkpoints", checkpoints);
    if (const auto epoch_us = s.value("epoch_us", std::uint64_t{0}); epoch_us && text("role") == "primary")
        out += fmt::format(" (the last one after {:.0f} ms; {:.1f} % of the time paused)",
                           static_cast<double>(epoch_us) * 1e-3, s.value("paused_percent", 0.0));
    out += '\n';
    if (const auto takeovers = s.value("takeovers", std::uint64_t{0}))
        out += fmt::format("  taken over {} time{}: {}\n", takeovers, takeovers == 1 ? "" : "s",
                           text("last_takeover")) +
               takeover_text(s);
    if (!text("degraded").empty() && text("role") == "primary")
        out += fmt::format("  NOT PROTECTED: {}\n", text("degraded"));
    if (!text("standby_problem").empty())
        out += fmt::format("  A TAKEOVER WOULD WAIT: the standby's host has a problem: {}\n",
                           text("standby_problem"));
    if (!text("gpu_lost").empty())
        out += fmt::format("  GPU LOST: {}\n", text("gpu_lost"));
    if (!text("warning").empty())
        out += fmt::format("  WARNING: {}\n", text("warning"));
    if (!text("waiting_for").empty())
        out += fmt::format("  waits: {}\n", text("waiting_for"));
    return out;
}

std::string share_text(const nlohmann::json& s) {
    const auto number = [&](const char* key) { return s.value(key, std::uint64_t{0}); };
    const auto asked = number("share_permille");
    auto out = fmt::format("  GPU time   {:.1f} %, waited {:.1f} %; policy {}", 100 * s.value("got", 0.0),
                           100 * s.value("waited", 0.0), s.value("policy", ""));
    out += asked != 0 ? fmt::format(", {:.1f} % asked", static_cast<double>(asked) / 10) : std::string();
    if (number("cap_permille") < 1000)
        out += fmt::format(", at most {:.1f} %", static_cast<double>(number("cap_permille")) / 10);
    return out + "\n";
}

} // namespace

std::string status_text(const std::vector<vm_reading>& vms) {
    if (vms.empty())
        return "No VM of this user runs.\n";
    std::string out;
    for (const auto& vm : vms) {
        out += vm.pid ? fmt::format("{} (process {})\n", vm.name, vm.pid) : vm.name + "\n";
        if (vm.supervisor.is_object())
            out += supervisor_text(vm.supervisor);
        if (vm.share.is_object())
            out += share_text(vm.share);
        if (!vm.problem.empty())
            out += fmt::format("  {}\n", vm.problem);
        else if (vm.supervisor.is_object() && vm.devices.empty())
            continue;
        else if (vm.devices.empty())
            out += "  has no GPU\n";
        for (const auto& device : vm.devices)
            out += device_text(device);
    }
    return out;
}

nlohmann::json status_json(const std::vector<vm_reading>& vms) {
    auto out = nlohmann::json::array();
    for (const auto& vm : vms) {
        auto devices = nlohmann::json::array();
        for (const auto& device : vm.devices) {
            nlohmann::json one{
                {"name", device.name}, {"gpu", device.gpu}, {"unsupported", device.unsupported}};
            if (device.replication) {
                const auto& r = *device.replication;
                nlohmann::json replication{{"role", r.role},
                                           {"state", r.state},
                                           {"degraded", r.degraded},
                                           {"peer-gpu", r.peer_gpu},
                                           {"standby-address", r.standby_address},
                                           {"sent-bytes-per-s", device.sent_bytes_per_s},
                                           {"received-bytes-per-s", device.received_bytes_per_s}};
                for (const auto& field : numbers)
                    replication[field.name] = r.*field.where;
                one["replication"] = std::move(replication);
            }
            devices.push_back(std::move(one));
        }
        nlohmann::json one{{"name", vm.name}, {"pid", vm.pid}, {"problem", vm.problem}, {"devices", devices}};
        if (vm.supervisor.is_object())
            one["supervisor"] = vm.supervisor;
        if (vm.share.is_object())
            one["share"] = vm.share;
        out.push_back(std::move(one));
    }
    return out;
}

bool anything_wrong(const std::vector<vm_reading>& vms) {
    for (const auto& vm : vms) {
        if (!vm.problem.empty())
            return true;
        if (vm.supervisor.is_object() && vm.supervisor.value("role", "") == "primary" &&
            !vm.supervisor.value("protected", true))
            return true;
        for (const auto& device : vm.devices)
            if (device.replication && !device.replication->degraded.empty())
                return true;
    }
    return false;
}

} // namespace kagemusha::control
