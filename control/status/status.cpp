// SPDX-License-Identifier: GPL-2.0-or-later
//
// See status.hpp.
#include "control/status/status.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/qemu/qmp_client.hpp"
#include "control/share/share_status.hpp"
#include "control/supervise/control_socket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <poll.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using clock = std::chrono::steady_clock;

// Bandwidth is what was sent between two readings.
constexpr auto between_readings = std::chrono::milliseconds(250);
constexpr int watch_period_ms = 1000;

constexpr char devices_path[] = "/machine/peripheral";
constexpr char device_type[] = "child<virtio-vgpu"; // -pci

} // namespace

vm_reading read_vm(const registered_vm& vm) {
    vm_reading out{vm.name, vm.pid, {}, {}, nullptr, nullptr};
    if (!vm.control_socket.empty()) {
        auto said = ask_supervisor(vm.control_socket, {{"command", "status"}}, out.problem);
        if (!said)
            return out;
        out.supervisor = std::move(*said);
        // A standby's QEMU may wait for its primary for as long as it likes; its supervisor knows what
        // counts.
        if (out.supervisor.value("role", "") == "standby" || !out.supervisor.value("qemu", false))
            return out;
    }
    auto qemu = qmp_client::connect(vm.qmp_socket, out.problem);
    if (!qemu)
        return out;
    const auto devices = qemu->ask("qom-list", {{"path", devices_path}}, out.problem);
    if (!devices || !devices->is_array())
        return out;
    for (const auto& entry : *devices) {
        if (!entry.is_object() || !entry.value("type", "").starts_with(device_type))
            continue;
        device_reading device;
        device.name = entry.value("name", "");
        const auto path = std::string(devices_path) + "/" + device.name;
        std::string missing;
        if (const auto gpu = qemu->get(path, "gpu-name", missing); gpu && gpu->is_string())
            device.gpu = gpu->get<std::string>();
        if (const auto names = qemu->get(path, "unsupported", missing); names && names->is_string())
            device.unsupported = names->get<std::string>();
        if (const auto answer = qemu->get(path, "replication", missing))
            device.replication = parse_replication(*answer);
        out.devices.push_back(std::move(device));
    }
    return out;
}

std::vector<registered_vm> chosen_vms(const status_options& options, std::string& error) {
    std::vector<registered_vm> vms;
    for (const auto& socket : options.qmp_sockets)
        vms.push_back({socket, 0, socket, {}});
    if (!vms.empty())
        return vms;
    for (auto& vm : running_vms(error))
        if (options.vm.empty() || vm.name == options.vm)
            vms.push_back(std::move(vm));
    if (vms.empty() && !options.vm.empty() && error.empty())
        error = fmt::format("no VM of this user with the name {} runs", options.vm);
    return vms;
}

namespace {

// What was read of each VM, and when.
struct readings {
    clock::time_point at;
    std::vector<vm_reading> vms;
    std::vector<shared_gpu> gpus = {};
};

readings read_all(const std::vector<registered_vm>& vms) {
    readings out{clock::now(), {}};
    for (const auto& vm : vms)
        out.vms.push_back(read_vm(vm));
    out.gpus = read_shared_gpus(false, true);
    return out;
}

void set_shares(readings& now) {
    for (const auto& gpu : shared_json(now.gpus))
        for (const auto& share : gpu["vms"])
            for (auto& vm : now.vms)
                if (share["vm"] == vm.name) {
                    vm.share = share;
                    vm.share["policy"] = gpu["policy"];
                }
}

// A VM may have come or gone meanwhile.
void set_all_rates(readings& now, const readings& before) {
    const double seconds = std::chrono::duration<double>(now.at - before.at).count();
    for (auto& vm : now.vms)
        for (const auto& old : before.vms)
            for (std::size_t d = 0;
                 old.name == vm.name && d < std::min(vm.devices.size(), old.devices.size()); ++d)
                set_rates(vm.devices[d], old.devices[d], seconds);
    set_shared_rates(now.gpus, before.gpus);
    set_shares(now);
}

int watch(const status_options& options) {
    const bool screen = !options.json && ::isatty(STDOUT_FILENO);
    readings before;
    for (;;) {
        std::string error;
        auto now = read_all(chosen_vms(options, error));
        set_all_rates(now, before);
        auto text = options.json    ? as_json_text(status_json(now.vms)) + "\n"
                    : error.empty() ? status_text(now.vms)
                                    : error + "\n";
        if (screen)
            text = "\x1b[H\x1b[2J" + text; // home, and nothing on it
        if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
            return 0; // nobody reads any more
        before = std::move(now);
        pollfd interrupted{interrupt_fd(), POLLIN, 0};
        ::poll(&interrupted, 1, watch_period_ms);
        if (interrupted_by())
            return 0;
    }
}

} // namespace

int run_status(const status_options& options) {
    if (options.watch)
        return watch(options);
    std::string error;
    const auto vms = chosen_vms(options, error);
    if (!error.empty()) {
        fmt::print(stderr, "kage: {}\n", error);
        return 125;
    }
    const auto before = read_all(vms);
    if (!vms.empty())
        std::this_thread::sleep_until(before.at + between_readings);
    auto now = read_all(vms);
    set_all_rates(now, before);
    if (options.json)
        fmt::print("{}\n", as_json_text(status_json(now.vms), 2));
    else
        fmt::print("{}", status_text(now.vms));
    return anything_wrong(now.vms) ? 1 : 0;
}

} // namespace kagemusha::control
