// SPDX-License-Identifier: GPL-2.0-or-later
//
// See status.hpp.
#include "control/status.hpp"

#include "control/qmp_client.hpp"
#include "control/supervise/control_socket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace kagemusha::control {

namespace {

using clock = std::chrono::steady_clock;

// Bandwidth is what was sent between two readings.
constexpr auto between_readings = std::chrono::milliseconds(250);

constexpr char devices_path[] = "/machine/peripheral";
constexpr char device_type[] = "child<virtio-vgpu"; // -pci

} // namespace

vm_reading read_vm(const registered_vm& vm) {
    vm_reading out{vm.name, vm.pid, {}, {}, nullptr};
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

int run_status(const status_options& options) {
    std::string error;
    const auto vms = chosen_vms(options, error);
    if (!error.empty()) {
        fmt::print(stderr, "kagemusha: {}\n", error);
        return 125;
    }
    std::vector<vm_reading> before, now;
    const auto first = clock::now();
    for (const auto& vm : vms)
        before.push_back(read_vm(vm));
    if (!vms.empty())
        std::this_thread::sleep_until(first + between_readings);
    const auto second = clock::now();
    for (const auto& vm : vms)
        now.push_back(read_vm(vm));
    const double seconds = std::chrono::duration<double>(second - first).count();
    for (std::size_t v = 0; v < now.size(); ++v) {
        for (std::size_t d = 0; d < std::min(now[v].devices.size(), before[v].devices.size()); ++d)
            set_rates(now[v].devices[d], before[v].devices[d], seconds);
    }
    if (options.json)
        fmt::print("{}\n", status_json(now).dump(2));
    else
        fmt::print("{}", status_text(now));
    return anything_wrong(now) ? 1 : 0;
}

} // namespace kagemusha::control
