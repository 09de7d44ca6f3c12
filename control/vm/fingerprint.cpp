// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fingerprint.hpp.
#include "control/vm/fingerprint.hpp"

#include "base/hexadecimal.hpp"
#include "control/base/process.hpp"
#include "core/limits.hpp"
#include "mirror/log/limits.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using mirror::part_rule;

class sha256 {
public:
    sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
        if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1)
            std::abort(); // no memory
    }
    void bytes(const void* data, std::size_t size) { EVP_DigestUpdate(context_.get(), data, size); }
    // With its length, so that two texts are never taken for one.
    void text(const std::string& value) {
        const std::uint64_t size = value.size();
        bytes(&size, sizeof size);
        bytes(value.data(), value.size());
    }
    std::string hex() {
        unsigned char bytes[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        EVP_DigestFinal_ex(context_.get(), bytes, &size);
        return hexadecimal({reinterpret_cast<const char*>(bytes), size});
    }

private:
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// Of its content; all of it goes into `whole`, too, if there is one. Nothing and a sentence.
std::optional<std::string> digest_of(const std::string& path, sha256* whole, std::string& error) {
    sha256 own;
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<char> buffer(1 << 20);
    ssize_t got = fd ? 1 : -1;
    while (got > 0) {
        got = ::read(fd.get(), buffer.data(), buffer.size());
        if (got > 0) {
            own.bytes(buffer.data(), static_cast<std::size_t>(got));
            if (whole)
                whole->bytes(buffer.data(), static_cast<std::size_t>(got));
        }
        if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (got < 0) {
        error = fmt::format("cannot read {}: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    return "sha256:" + own.hex();
}

// Tells builds apart, whoever made them. Empty: it can't be read.
std::string build_of(const std::string& path) {
    std::string error;
    const auto digest = digest_of(path, nullptr, error);
    return digest ? "build " + digest->substr(7, 12) : std::string();
}

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

std::string host_cpu() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name"))
            if (const auto colon = line.find(": "); colon != std::string::npos)
                return line.substr(colon + 2);
    return "unknown";
}

// "64M" and "67108864" are the same limit. What is no size stays as it is: QEMU complains of it.
std::string as_number(const std::string& text) {
    constexpr std::string_view units = "KMGT";
    std::size_t end = 0;
    unsigned long long value = 0;
    try {
        value = std::stoull(text, &end);
    } catch (const std::exception&) {
        return text;
    }
    const auto unit = end + 1 == text.size() ? units.find(static_cast<char>(text[end] & ~0x20)) : units.npos;
    if (end != text.size() && unit == units.npos)
        return text;
    return fmt::format("{}", end == text.size() ? value : value << (10 * (unit + 1)));
}

} // namespace

std::optional<std::string> file_digest(const std::string& path, std::string& error) {
    return digest_of(path, nullptr, error);
}

// The properties of qemu-device/README.md that bound what a guest can have.
std::string gpu_limits(const described_gpu& gpu) {
    std::pair<std::string, std::string> limits[] = {
        {"max-events-per-file", fmt::format("{}", core::default_max_events_per_file)},
        {"max-file-memory", fmt::format("{}", core::default_max_file_memory_bytes)},
        {"max-files", fmt::format("{}", core::default_max_files)},
        {"max-memory", fmt::format("{}", core::default_max_memory_bytes)},
        {"max-objects-per-file", fmt::format("{}", core::default_max_objects_per_file)},
        {"max-requests-per-file", fmt::format("{}", core::default_max_requests_per_file)},
        {"max-worker-memory", fmt::format("{}", core::default_max_worker_bytes)},
        {"window-bar-size", "4294967296"},
        {"window-size", "268435456"}};
    std::string text;
    for (auto& [name, value] : limits) {
        for (const auto& [given, as] : gpu.properties)
            if (given == name)
                value = as_number(as);
        text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
    }
    return text;
}

host_builds builds_of_this_host(const std::string& qemu, const std::string& device_library) {
    host_builds builds;
    builds.qemu = build_of(qemu);
    builds.release = KAGEMUSHA_VERSION " " + build_of("/proc/self/exe");
    if (!device_library.empty())
        builds.device_library = build_of(device_library);
    builds.host_cpu = host_cpu();
    return builds;
}

std::optional<fingerprint> fingerprint_of(const vm_description& vm, const vm_config& config,
                                          const qemu_facts& qemu, const host_builds& builds,
                                          std::string& error) {
    fingerprint out;
    const auto equal = [&](std::string name, std::string value) {
        out.parts.push_back({part_rule::equal, std::move(name), std::move(value)});
    };
    // `whole` and its order are those of version 1 for good: new things are parts only.
    sha256 whole;
    for (const auto& value :
         {vm.name, fmt::format("{} MiB, {} CPUs", vm.memory_mib, vm.cpus), config.append, vm.guest})
        whole.text(value);
    const std::string accel = config.accel == accelerator::kvm ? "kvm" : "tcg";
    whole.text(accel);
    if (config.machine != default_machine || !config.cpu.empty()) // what version 1 can't describe differs
        whole.text(config.machine + " " + config.cpu);
    equal("machine", config.machine);
    equal("memory", fmt::format("{} MiB", vm.memory_mib));
    equal("CPUs", fmt::format("{}", vm.cpus));
    equal("accelerator", accel);
    equal("CPU model", qemu.cpu);
    equal("CPU features", qemu.cpu_features);
    equal("kernel arguments", config.append);
    equal("guest image", vm.guest);
    std::vector<std::pair<std::string, std::string>> files{{"kernel", config.kernel},
                                                           {"initramfs", config.initramfs},
                                                           {"root image", config.root_image},
                                                           {"payload", config.payload}};
    for (std::size_t i = 0; i < config.disks.size(); ++i) {
        const auto& disk = config.disks[i];
        const auto name = fmt::format("disk {}", i);
        if (disk.writable) {
            const auto size = size_of(disk, error);
            if (!size)
                return std::nullopt;
            const auto text = fmt::format("writable, {} bytes", *size);
            whole.text(text);
            equal(name, text);
        } else {
            whole.text(disk.format);
            equal(name + "'s format", disk.format);
            files.emplace_back(name, disk.path);
        }
    }
    for (std::size_t i = 0; i < config.networks.size(); ++i) {
        const auto text = config.networks[i].model + " " + config.networks[i].mac;
        whole.text(text);
        equal(fmt::format("network {}", i), text);
    }
    std::string options;
    for (const auto& option : vm.qemu_options) {
        whole.text(option);
        options += (options.empty() ? "" : " ") + option;
    }
    equal("qemu-options", options);
    if (vm.gpu) {
        whole.text("gpu");
        equal("GPU limits", gpu_limits(*vm.gpu));
    }
    for (const auto& [name, path] : files) {
        whole.text(path.empty() ? "no file" : "file");
        if (path.empty())
            continue;
        const auto digest = digest_of(path, &whole, error);
        if (!digest)
            return std::nullopt;
        equal(name, *digest);
    }
    const std::pair<const char*, std::string> shown[] = {{"release", builds.release},
                                                         {"QEMU", qemu.version + " " + builds.qemu},
                                                         {"device library", builds.device_library},
                                                         {"host CPU", builds.host_cpu}};
    for (const auto& [name, value] : shown)
        if (!value.empty())
            out.parts.push_back({part_rule::shown, name, value});
    for (auto& part : out.parts)
        if (part.value.size() > mirror::max_part_value_bytes) { // many options: their digest is compared
            sha256 long_value;
            long_value.text(part.value);
            part.value = "sha256:" + long_value.hex();
        }
    if (out.parts.size() > mirror::max_description_parts) {
        error = fmt::format("a VM of {} parts can't be protected: at most {}", out.parts.size(),
                            mirror::max_description_parts);
        return std::nullopt;
    }
    out.text = whole.hex();
    return out;
}

} // namespace kagemusha::control
