// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a virtual machine is made of, as plain data. Everything that decides how QEMU is called is in here, so
// that the command line (qemu_command.hpp) is a pure function and can be tested without starting anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

enum class accelerator { kvm, tcg };

// A virtio-serial port of the guest (found there by its name under /sys/class/virtio-ports).
struct serial_port {
    enum class end {
        file,
        socket
    }; // what is on the host's side: a file that is written, or a listening Unix socket
    std::string name;
    end host_end = end::file;
    std::string path;
};

// The paravirtual GPU. The names are those of the device's properties; values are passed as they are.
struct gpu_config {
    std::string backend = "opencl";
    std::string gpu; // "" the default, a number, or a part of the GPU's name
    std::vector<std::pair<std::string, std::string>> properties;
};

struct vm_config {
    std::string qemu;
    std::vector<std::string> firmware_dirs;
    std::string kernel, initramfs;
    std::string root_image, payload; // both "" for a probe: the guest then only says that it came up
    accelerator accel = accelerator::tcg;
    std::uint32_t tsc_khz = 0; // of the host's time stamp counter, for TCG guests; 0: the guest measures it
    std::uint64_t memory_mib = 1024;
    unsigned cpus = 2;
    std::optional<gpu_config> gpu;
    std::vector<serial_port> ports;
    std::optional<int> qmp_fd;                // a connected socket that QEMU inherits
    std::optional<std::string> qmp_socket;    // a second monitor, for somebody else (tests)
    std::optional<std::string> status_socket; // a third one, for `kagemusha status`
    std::vector<std::string> extra;           // appended as they are
};

// Where the device is found through QMP.
inline constexpr char gpu_qom_path[] = "/machine/peripheral/vgpu0";

} // namespace kagemusha::control
