// SPDX-License-Identifier: GPL-2.0-or-later
//
// The GPUs of this host, as kagemusha-gpus lists them, and where the share arbiter of each one listens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct gpu_of_host {
    std::string name;
    std::string selector; // means this GPU in every process; "": it has none
    std::uint64_t memory_bytes = 0;
};

// kagemusha-gpus' answer. Pure.
std::vector<gpu_of_host> parse_gpus(std::string_view json);

// `selector`: a description's; nothing: all. Empty, with a sentence: there is none like it.
std::vector<gpu_of_host> gpus_of_host(const std::optional<std::string>& selector, std::string& error);

// The GPU that a VM's description means. Of backends other than "opencl" nobody knows the memory.
std::optional<gpu_of_host> gpu_of_vm(const std::string& backend, const std::string& selector,
                                     std::string& error);

// The arbiters' sockets of this user, in a directory of their own. $KAGEMUSHA_SHARE_DIR names another one.
std::string share_directory(std::string& error);
// Makes it if it is not there.
std::string made_share_directory(std::string& error);
// A file's name for a GPU. Pure.
std::string share_socket_name(const gpu_of_host& gpu);

} // namespace kagemusha::control
