// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_nodes: see gpu_nodes.hpp.
#include "worker/gpu_nodes.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "gpu/own_selector.hpp"

namespace kagemusha::worker {

namespace {

namespace fs = std::filesystem;

constexpr unsigned max_nvidia_gpus = 32;

bool exists(const std::string& path) {
    std::error_code error;
    return fs::exists(path, error);
}

void add_nvidia(gpu_nodes& nodes) {
    // Not nvidia-modeset and nvidia-uvm-tools, which computing does not need.
    for (const char* name : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps"})
        nodes.devices.emplace_back(name);
    nodes.nvidia = true;
}

// The N of /dev/nvidiaN. Nothing: NVIDIA's driver does not know the GPU, or does not tell.
std::optional<unsigned> nvidia_minor(const std::string& pci, const std::string& root) {
    std::ifstream information(root + "/proc/driver/nvidia/gpus/" + pci + "/information");
    constexpr std::string_view label = "Device Minor:";
    for (std::string line; std::getline(information, line);) {
        if (!line.starts_with(label))
            continue;
        const auto digit = line.find_first_not_of(" \t", label.size());
        unsigned minor = 0;
        if (digit == line.npos ||
            std::from_chars(line.data() + digit, line.data() + line.size(), minor).ec != std::errc())
            return std::nullopt;
        return minor;
    }
    return std::nullopt;
}

// /dev/dri/card1, /dev/dri/renderD129
std::vector<std::string> render_nodes(const std::string& pci, const std::string& root) {
    std::vector<std::string> nodes;
    std::error_code error;
    for (fs::directory_iterator at(root + "/sys/bus/pci/devices/" + pci + "/drm", error), end;
         !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename().string();
        if (exists(root + "/dev/dri/" + name))
            nodes.push_back("/dev/dri/" + name);
    }
    return nodes;
}

gpu_nodes every_node(const std::string& root) {
    gpu_nodes nodes;
    add_nvidia(nodes);
    nodes.nvidia = exists(root + "/dev/nvidiactl");
    for (unsigned i = 0; i < max_nvidia_gpus; ++i)
        nodes.devices.push_back("/dev/nvidia" + std::to_string(i));
    nodes.devices.emplace_back("/dev/kfd");
    nodes.devices.emplace_back("/dev/dri");
    return nodes;
}

} // namespace

gpu_nodes nodes_of_gpu(std::string_view selector, const std::string& root) {
    if (gpu::is_processor_selector(selector))
        return {};
    const std::string pci = gpu::pci_of_selector(selector);
    if (pci.empty())
        return every_node(root);
    gpu_nodes nodes;
    if (const auto minor = nvidia_minor(pci, root)) {
        add_nvidia(nodes);
        nodes.devices.push_back("/dev/nvidia" + std::to_string(*minor));
        return nodes;
    }
    nodes.devices = render_nodes(pci, root);
    if (nodes.devices.empty()) {
        nodes = every_node(root);
        nodes.problem = "nodes of its own GPU only: neither /proc/driver/nvidia nor /sys knows " + pci;
        return nodes;
    }
    nodes.devices.emplace_back("/dev/kfd"); // of all GPUs; each queue also needs a node of its GPU
    return nodes;
}

} // namespace kagemusha::worker
