// SPDX-License-Identifier: GPL-2.0-or-later
//
// See prepare.hpp.
#include "control/vm/prepare.hpp"

#include "control/base/assets.hpp"
#include "control/base/gpu_parts.hpp"
#include "control/base/host_clock.hpp"
#include "control/keys/qemu_keys.hpp"
#include "control/qemu/kvm_probe.hpp"
#include "control/qemu/qemu_command.hpp"
#include "control/relay/relayed_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

bool make_payload(const vm_description& vm, const assets& parts, const std::string& out) {
    std::error_code missing;
    fs::remove(out, missing); // the file may be kept under another name: it must not be written again
    std::vector<std::string> command{source_root() + "/scripts/make-payload",
                                     "--out",
                                     out,
                                     "--kernel",
                                     parts.flavour,
                                     "--initramfs",
                                     parts.initramfs,
                                     "--job",
                                     vm.job};
    for (const auto& file : vm.files)
        command.insert(command.end(), {"--file", file});
    if (vm.gpu) {
        const auto drivers = guest_driver_words(parts, vm.gpu->backend);
        command.insert(command.end(), drivers.begin(), drivers.end());
    }
    const auto made = run_captured(command);
    if (made.status != 0)
        fmt::print(stderr, "kage: scripts/make-payload failed with status {}\n", made.status);
    return made.status == 0;
}

// Both ends of a GPU's connection are ordinary threads of QEMU, which a busy host lets wait: silences of 113 ms
// were seen (docs/results/soak.md).
constexpr std::uint32_t least_gpu_budget_ms = 500;

} // namespace

gpu_config gpu_of(const vm_description& vm, const std::string& address, bool standby, const std::string& keys,
                  const std::string& driver) {
    gpu_config gpu{vm.gpu->backend, vm.gpu->gpu, vm.gpu->properties};
    add_host_driver(gpu.properties, driver); // the description has no `options` beside it
    const auto& p = vm.protection;
    if (p.standby.empty())
        return gpu;
    gpu.properties.emplace_back("vm-id", vm.name);
    gpu.properties.emplace_back(standby ? "standby-listen" : "replicate-to", address);
    // A failure is the supervisor's matter first (control/ha/primary_fsm.hpp).
    gpu.properties.emplace_back("hold-failures", "on");
    if (vm.gpu->differences == "ship")
        gpu.properties.emplace_back("ship-differences", "on"); // on a standby: when it has taken over
    if (!vm.gpu->ship_kernels.empty())
        gpu.properties.emplace_back("ship-kernels", fmt::format("{}", fmt::join(vm.gpu->ship_kernels, ",")));
    if (!keys.empty())
        gpu.properties.emplace_back("tls-dir", keys);
    // A GPU that gives its standby up earlier than the supervisors do begins a new copy, and the VM's last
    // checkpoint does not fit that one. It may be later: who is dead is the supervisors' to say. So it is never as
    // impatient as they may be, whose deciding threads go before all others. The device wants three heartbeats in
    // its budget.
    const auto budget_ms = std::max(p.heartbeat_budget_ms, least_gpu_budget_ms);
    const std::pair<const char*, std::uint32_t> times[] = {
        {"heartbeat-ms", std::min(p.heartbeat_ms, budget_ms / 3)}, {"heartbeat-budget-ms", budget_ms}};
    for (const auto& [name, value] : times)
        if (std::none_of(vm.gpu->properties.begin(), vm.gpu->properties.end(),
                         [name = name](const auto& property) { return property.first == name; }))
            gpu.properties.emplace_back(name, fmt::format("{}", value));
    return gpu;
}

namespace {

// The folders of what it loads from elsewhere than the system's: the dynamic linker knows.
std::vector<std::string>
folders_of_libraries(const std::string& program,
                     const std::vector<std::pair<std::string, std::string>>& environment) {
    std::vector<std::string> folders;
    std::istringstream lines(run_captured({"ldd", program}, environment).out);
    for (std::string line; std::getline(lines, line);) {
        const auto begin = line.find("=> /");
        const auto end = line.rfind(" (");
        if (begin != std::string::npos && end != std::string::npos && end > begin + 3)
            folders.push_back(fs::path(line.substr(begin + 3, end - begin - 3)).parent_path().string());
    }
    return folders;
}

confinement_needs needs_of(const vm_description& vm, const vm_config& config, const vm_places& places,
                           const prepared_vm& prepared, const std::string& driver) {
    confinement_needs needs;
    needs.vm = vm.name;
    needs.directory = places.directory;
    needs.programs = {config.qemu};
    needs.programs.insert(needs.programs.end(), config.firmware_dirs.begin(), config.firmware_dirs.end());
    auto libraries = folders_of_libraries(config.qemu, prepared.environment);
    if (!driver.empty())
        libraries.push_back(fs::path(driver).parent_path().string());
    for (const auto& [name, value] : prepared.environment)
        if (name == "KAGEMUSHA_WORKER") {
            needs.programs.push_back(value);
            for (auto& folder : folders_of_libraries(value, prepared.environment))
                libraries.push_back(std::move(folder));
        }
    // Where runtimes of GPUs are looked for, in workers that this host's owner has told so.
    if (vm.gpu)
        for (const char* variable : {"OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"})
            if (const char* value = std::getenv(variable); value && *value == '/')
                needs.programs.emplace_back(value);
    for (auto& folder : libraries)
        if (!folder.starts_with("/usr/") && !folder.starts_with("/lib"))
            needs.programs.push_back(std::move(folder));
    for (const auto& path : {config.kernel, config.initramfs, config.root_image})
        needs.images.push_back(path);
    for (const auto& disk : config.disks)
        (disk.writable ? needs.writable : needs.images).push_back(disk.path);
    needs.own_files = {config.payload, places.gate};
    needs.console_log = places.console_log;
    needs.keys = prepared.keys;
    needs.to_peers = places.to_peers;
    needs.of_qemu = places.of_qemu;
    needs.share = places.share;
    for (const auto& network : config.networks)
        needs.netdevs.push_back(network.netdev);
    needs.options = config.extra;
    needs.status_socket = places.status_socket;
    needs.console_socket = places.console_socket;
    needs.gpu = vm.gpu.has_value();
    needs.kvm = config.accel == accelerator::kvm;
    needs.sandboxed = config.sandboxed;
    return needs;
}

// What such a part of the description is in QEMU's configuration; nullptr: nothing.
std::string* guest_file(vm_config& config, std::string_view part) {
    const std::pair<std::string_view, std::string*> files[] = {{"kernel", &config.kernel},
                                                               {"initramfs", &config.initramfs},
                                                               {"root image", &config.root_image},
                                                               {"payload", &config.payload}};
    for (const auto& [name, path] : files)
        if (name == part)
            return path;
    return nullptr;
}

// QEMU gets the kept names. What can't be kept is not missed before an upgrade.
void keep_files(kept_files& kept, const ha::description_parts& parts, vm_config& config) {
    for (const auto& part : parts) {
        auto* const path = guest_file(config, part.name);
        if (!path || path->empty())
            continue;
        std::string error;
        if (auto name = kept.keep(*path, part.value, error); !name.empty())
            *path = std::move(name);
        else
            fmt::print(stderr, "kage: {}: a standby on this host can't follow this VM through an upgrade\n",
                       error);
    }
}

// Of a VM's configuration: how it is confined, and QEMU's command lines. A sentence, or "".
std::string complete(prepared_vm& out, vm_config config, const vm_description& vm, const vm_places& places) {
    if (places.offers) {
        out.confinement =
            decide_confinement(vm.confinement, needs_of(vm, config, places, out, out.driver), *places.offers);
        if (!out.confinement.refusal.empty())
            return out.confinement.refusal;
    }
    const auto& confined = out.confinement.what;
    if (confined) {
        config.status_listener = status_listener_fd;
        config.console->listener = console_listener_fd;
        for (const auto& one : confined->descriptors)
            if (one.what == handed_descriptor::kind::tap) {
                auto& netdev = config.networks[static_cast<std::size_t>(one.fd - first_tap_fd)].netdev;
                netdev = netdev_with_tap(netdev, one.fd);
            }
    }
    auto standby = config;
    standby.standby = true;
    if (vm.gpu) {
        const auto& address = places.gpu_address.empty() ? vm.protection.gpu : places.gpu_address;
        config.gpu =
            gpu_of(vm, confined ? links_in(places.to_peers).gpu : address, false, out.keys, out.driver);
        standby.gpu =
            gpu_of(vm, confined ? links_in(places.of_qemu).gpu : address, true, out.keys, out.driver);
    }
    out.command = qemu_command(config);
    out.standby_command = qemu_command(standby);
    out.config = std::move(config);
    return {};
}

} // namespace

std::optional<prepared_vm> prepare_vm(const vm_description& vm, const vm_places& places) {
    const auto parts =
        find_assets(vm.guest.empty() ? default_flavour : kernel_of_guest(vm.guest), vm.gpu.has_value());
    if (!parts)
        return std::nullopt;
    const auto driver = vm.gpu ? find_host_driver(vm.gpu->backend, vm.gpu->driver) : std::string();
    if (!driver)
        return std::nullopt;
    prepared_vm out;
    vm_config config;
    config.described = true;
    config.qemu = parts->qemu;
    config.firmware_dirs = firmware_dirs(config.qemu);
    if (!vm.machine.empty())
        config.machine = vm.machine;
    config.cpu = vm.cpu;
    config.memory_mib = vm.memory_mib;
    config.cpus = vm.cpus;
    config.kernel = vm.kernel;
    config.initramfs = vm.initramfs;
    config.append = vm.append;
    config.sandboxed = vm.sandbox;
    config.extra = vm.qemu_options;
    config.status_socket = places.status_socket;
    config.console = console_config{places.console_socket, places.console_log};
    config.gate = places.gate;
    const auto& p = vm.protection;
    if (!p.standby.empty() && p.min_epoch_ms < p.max_epoch_ms)
        config.early = early_checkpoints{p.min_epoch_ms, p.max_paused_percent};
    std::string error;
    if (!p.tls.empty()) {
        out.keys = places.directory + "/keys";
        bool changed = false;
        if (error = copy_qemu_keys(p.tls, vm.name, out.keys, changed); !error.empty()) {
            fmt::print(stderr, "kage: {}\n", error);
            return std::nullopt;
        }
        config.state_keys = out.keys;
    }
    config.state_vm = vm.name;
    for (const auto& disk : vm.disks)
        config.disks.push_back({disk.path, disk.format, disk.writable});
    for (const auto& network : vm.networks)
        config.networks.push_back({network.netdev, network.model, network.mac});
    if (!vm.guest.empty()) {
        config.kernel = parts->kernel;
        config.initramfs = parts->initramfs;
        config.root_image = root_image_of(vm.guest, *parts);
        if (config.root_image.empty())
            return std::nullopt;
        config.payload = places.directory + "/payload";
        if (!make_payload(vm, *parts, config.payload))
            return std::nullopt;
    }
    auto probe = config;
    probe.kernel = parts->kernel;
    probe.initramfs = parts->initramfs;
    config.accel = choose_accelerator(vm.accel, probe, places.directory).accel;
    // Each host has its own. A guest that goes on here has what it was told, or would have measured, at its
    // start on the other one; one that starts here again is told ours.
    if (config.accel == accelerator::tcg)
        config.tsc_khz = host_tsc_khz();
    if (vm.gpu)
        out.environment = gpu_environment(*parts, *driver);
    const auto qemu = ask_qemu(config, error);
    const auto builds = builds_of_this_host(config.qemu, vm.gpu ? parts->device_library : std::string());
    auto made = qemu ? fingerprint_of(vm, config, *qemu, builds, error) : std::nullopt;
    if (!made) {
        fmt::print(stderr, "kage: {}\n", error);
        return std::nullopt;
    }
    out.fingerprint = std::move(*made);
    if (places.kept)
        keep_files(*places.kept, out.fingerprint.parts, config);
    out.driver = *driver;
    out.own = std::move(config);
    if (const auto refusal = complete(out, out.own, vm, places); !refusal.empty()) {
        fmt::print(stderr, "kage: {}\n", refusal);
        return std::nullopt;
    }
    return out;
}

std::string use_guest_files(prepared_vm& prepared, const vm_description& vm, const vm_places& places,
                            const ha::description_parts& parts) {
    auto changed = prepared;
    auto config = prepared.own;
    std::string error;
    const auto& own = prepared.fingerprint.parts;
    for (const auto& part : parts) {
        auto* const path = guest_file(config, part.name);
        if (!path || path->empty() || std::find(own.begin(), own.end(), part) != own.end())
            continue;
        if (auto kept = places.kept->find(part.value, error); !kept.empty())
            *path = std::move(kept);
        else
            return fmt::format("the {} of the primary's guest: {}", part.name, error);
    }
    error = complete(changed, std::move(config), vm, places);
    if (error.empty())
        prepared = std::move(changed);
    return error;
}

} // namespace kagemusha::control
