// SPDX-License-Identifier: GPL-2.0-or-later
// backend: how users of GPU backends name, list and open GPUs. Implementers read gpu/backend_module.hpp.
//
// Backends: "opencl" (every platform that the host's ICD loader finds), "cuda" (a library with the CUDA
// driver API), "null" (accepts everything, executes nothing) and "faulty" (another backend with errors,
// delays, loss, hangs and crashes on command). Options are written "key=value,key=value"; gpu/README.md lists
// them.
//
// Errors are sentences for a person that say what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kagemusha::gpu {

class backend_device; // gpu/backend_module.hpp

struct gpu_description {
    std::uint32_t index = 0; // in the backend's list
    std::uint32_t platform_index = 0, device_index = 0;
    std::string platform; // "Portable Computing Language"
    std::string name;
    std::string vendor;
    std::string type; // "GPU", "CPU", "accelerator", "custom", "none"
    std::uint64_t memory_bytes = 0;
    std::string version; // of the API: "OpenCL 3.0 …"
    std::string driver_version;
    std::string
        fingerprint; // 16 hexadecimal digits; equal where platform, name, version and driver are equal
    bool is_default = false; // what the selector "" picks
    // Means the same GPU in a process that may not open the others (gpu/own_selector.hpp); "": it has none.
    std::string own_selector;
};

// Options in the order in which they were written: a fault script depends on it.
using backend_options = std::vector<std::pair<std::string, std::string>>;

// False with a sentence when `text` is not "key=value,key=value".
bool parse_options(std::string_view text, backend_options& out, std::string& error);

std::vector<std::string_view> backend_names();

struct gpu_list {
    std::vector<gpu_description> gpus;
    std::string error; // why there are none
};
gpu_list list_gpus(std::string_view backend, std::string_view options = {});

// `selector`: "" the default, "N" by index, "P.D" by platform and device, else a part of the name (in any
// case of letters) that fits only one GPU, or its own selector; of a MIG instance only after see_only(). What is left of the list is that one, or
// nothing and an error.
gpu_list choose_gpu(const gpu_list& list, std::string_view selector);

struct open_result {
    std::shared_ptr<backend_device> device; // nullptr: see error
    std::string error;
};
open_result open_gpu(std::string_view backend, std::string_view selector, std::string_view options = {});

const gpu_description& describe(const backend_device& device);

} // namespace kagemusha::gpu
