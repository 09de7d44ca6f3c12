// SPDX-License-Identifier: GPL-2.0-or-later
//
// See prepare.hpp.
#include "control/vm/prepare.hpp"

#include "control/assets.hpp"
#include "control/host_clock.hpp"
#include "control/kvm_probe.hpp"
#include "control/qemu_command.hpp"
#include "control/qemu_keys.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

class sha256 {
public:
    sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
        if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1)
            std::abort(); // no memory
    }
    // With its length, so that two texts are never taken for one.
    void text(const std::string& value) {
        const std::uint64_t size = value.size();
        EVP_DigestUpdate(context_.get(), &size, sizeof size);
        EVP_DigestUpdate(context_.get(), value.data(), value.size());
    }
    bool file(const std::string& path, std::string& error) {
        const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        std::vector<char> buffer(1 << 20);
        ssize_t got = fd ? 1 : -1;
        while (got > 0) {
            got = ::read(fd.get(), buffer.data(), buffer.size());
            if (got > 0)
                EVP_DigestUpdate(context_.get(), buffer.data(), static_cast<std::size_t>(got));
            if (got < 0 && errno == EINTR)
                got = 1;
        }
        if (got < 0)
            error = fmt::format("cannot read {}: {}", path, std::strerror(errno));
        return got == 0;
    }
    std::string hex() {
        unsigned char bytes[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        EVP_DigestFinal_ex(context_.get(), bytes, &size);
        std::string out;
        for (unsigned i = 0; i < size; ++i)
            out += fmt::format("{:02x}", bytes[i]);
        return out;
    }

private:
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// What the guest sees of a writable disk, whose content comes from the other host.
std::optional<std::uint64_t> size_of(const disk_config& disk, std::string& error) {
    const unique_fd fd(::open(disk.path.c_str(), O_RDWR | O_CLOEXEC));
    const auto size = fd ? ::lseek(fd.get(), 0, SEEK_END) : -1;
    if (size < 0) {
        error = fmt::format(
            "the image {} of a writable disk can't be used: {}{}", disk.path, std::strerror(errno),
            errno == ENOENT ? ". Each host has one of its own, all of the same size; what is in "
                              "that of a standby does not matter"
                            : "");
        return std::nullopt;
    }
    if (disk.format == "raw")
        return size;
    // qcow2: the guest's size is at byte 24 of its header, big-endian.
    std::array<unsigned char, 32> header{};
    if (::pread(fd.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()) ||
        std::memcmp(header.data(), "QFI\xfb", 4) != 0) {
        error = fmt::format("{} is no qcow2 image", disk.path);
        return std::nullopt;
    }
    std::uint64_t inside = 0;
    for (std::size_t i = 24; i < 32; ++i)
        inside = inside << 8 | header[i];
    return inside;
}

bool make_payload(const vm_description& vm, const assets& parts, const std::string& out) {
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
    if (vm.gpu)
        command.insert(command.end(), {"--module", parts.module, "--icd", parts.icd});
    const auto made = run_captured(command);
    if (made.status != 0)
        fmt::print(stderr, "kagemusha: scripts/make-payload failed with status {}\n", made.status);
    return made.status == 0;
}

} // namespace

gpu_config gpu_of(const vm_description& vm, const std::string& address, bool standby,
                  const std::string& keys) {
    gpu_config gpu{vm.gpu->backend, vm.gpu->gpu, vm.gpu->properties};
    const auto& p = vm.protection;
    if (p.standby.empty())
        return gpu;
    gpu.properties.emplace_back("vm-id", vm.name);
    gpu.properties.emplace_back(standby ? "standby-listen" : "replicate-to", address);
    // A failure is the supervisor's matter first (control/ha/primary_fsm.hpp).
    gpu.properties.emplace_back("hold-failures", "on");
    if (vm.gpu->differences == "ship")
        gpu.properties.emplace_back("ship-differences", "on"); // on a standby: when it has taken over
    if (!keys.empty())
        gpu.properties.emplace_back("tls-dir", keys);
    // A GPU that gives its standby up earlier than the supervisors do begins a new copy, and the VM's last
    // checkpoint does not fit that one. The device wants three heartbeats in its budget.
    const std::pair<const char*, std::uint32_t> times[] = {
        {"heartbeat-ms", std::min(p.heartbeat_ms, p.heartbeat_budget_ms / 3)},
        {"heartbeat-budget-ms", p.heartbeat_budget_ms}};
    for (const auto& [name, value] : times)
        if (std::none_of(vm.gpu->properties.begin(), vm.gpu->properties.end(),
                         [name = name](const auto& property) { return property.first == name; }))
            gpu.properties.emplace_back(name, fmt::format("{}", value));
    return gpu;
}

std::optional<std::string> fingerprint_of(const vm_description& vm, const vm_config& config,
                                          std::string& error) {
    sha256 hash;
    for (const auto& value :
         {vm.name, fmt::format("{} MiB, {} CPUs", vm.memory_mib, vm.cpus), config.append, vm.guest})
        hash.text(value);
    hash.text(config.accel == accelerator::kvm ? "kvm" : "tcg");
    std::vector<std::string> files{config.kernel, config.initramfs, config.root_image, config.payload};
    for (const auto& disk : config.disks) {
        if (disk.writable) {
            const auto size = size_of(disk, error);
            if (!size)
                return std::nullopt;
            hash.text(fmt::format("writable, {} bytes", *size));
        } else {
            hash.text(disk.format);
            files.push_back(disk.path);
        }
    }
    for (const auto& network : config.networks)
        hash.text(network.model + " " + network.mac);
    for (const auto& option : vm.qemu_options)
        hash.text(option);
    if (vm.gpu)
        hash.text("gpu");
    for (const auto& file : files) {
        hash.text(file.empty() ? "no file" : "file");
        if (!file.empty() && !hash.file(file, error))
            return std::nullopt;
    }
    return hash.hex();
}

std::optional<prepared_vm> prepare_vm(const vm_description& vm, const vm_places& places) {
    const auto parts = find_assets(vm.guest.empty() ? default_flavour : vm.guest, vm.gpu.has_value());
    if (!parts)
        return std::nullopt;
    prepared_vm out;
    auto& config = out.config;
    config.described = true;
    config.qemu = parts->qemu;
    config.firmware_dirs = firmware_dirs();
    config.memory_mib = vm.memory_mib;
    config.cpus = vm.cpus;
    config.kernel = vm.kernel;
    config.initramfs = vm.initramfs;
    config.append = vm.append;
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
            fmt::print(stderr, "kagemusha: {}\n", error);
            return std::nullopt;
        }
    }
    if (state_is_encrypted(p))
        config.state_keys = out.keys;
    config.state_vm = vm.name;
    for (const auto& disk : vm.disks)
        config.disks.push_back({disk.path, disk.format, disk.writable});
    for (const auto& network : vm.networks)
        config.networks.push_back({network.netdev, network.model, network.mac});
    if (!vm.guest.empty()) {
        config.kernel = parts->kernel;
        config.initramfs = parts->initramfs;
        config.root_image = parts->root_image;
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
    if (vm.gpu) {
        auto path = fs::path(parts->device_library).parent_path().string();
        if (const char* before = std::getenv("LD_LIBRARY_PATH"); before && *before)
            path += std::string(":") + before;
        out.environment = {{"LD_LIBRARY_PATH", path}, {"KAGEMUSHA_WORKER", parts->worker}};
    }
    const auto fingerprint = fingerprint_of(vm, config, error);
    if (!fingerprint) {
        fmt::print(stderr, "kagemusha: {}\n", error);
        return std::nullopt;
    }
    out.fingerprint = *fingerprint;
    auto standby = config;
    standby.standby = true;
    if (vm.gpu) {
        const auto& address = places.gpu_address.empty() ? vm.protection.gpu : places.gpu_address;
        config.gpu = gpu_of(vm, address, false, out.keys);
        standby.gpu = gpu_of(vm, address, true, out.keys);
    }
    out.command = qemu_command(config);
    out.standby_command = qemu_command(standby);
    return out;
}

} // namespace kagemusha::control
