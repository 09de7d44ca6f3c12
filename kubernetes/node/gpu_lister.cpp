// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gpu_lister.hpp.
#include "kubernetes/node/gpu_lister.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/share/gpu_of_host.hpp"
#include "gpu/own_selector.hpp"
#include "kubernetes/node/program_output.hpp"
#include "worker/gpu_nodes.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace kagemusha::kubernetes {

namespace fs = std::filesystem;

int numa_node_of(const std::string& selector) {
    const auto place = gpu::pci_of_selector(selector);
    int node = -1;
    if (!place.empty())
        std::ifstream("/sys/bus/pci/devices/" + place + "/numa_node") >> node;
    return node;
}

std::vector<std::string> device_nodes_of(const std::string& selector, const std::string& root) {
    std::vector<std::string> out;
    std::error_code failed;
    for (const auto& path : worker::nodes_of_gpu(selector, root).devices) {
        if (fs::is_character_file(root + path, failed))
            out.push_back(path);
        // NVIDIA's capabilities are a folder of nodes.
        for (fs::directory_iterator entry(root + path, failed), end; !failed && entry != end;
             entry.increment(failed))
            if (entry->is_character_file(failed))
                out.push_back(path + "/" + entry->path().filename().string());
    }
    return out;
}

std::optional<std::vector<found_gpu>> list_gpus(const std::string& program, int timeout_ms,
                                                std::string& error) {
    const auto listed = output_of({program, "--json"}, false, timeout_ms, error);
    if (!listed)
        return std::nullopt;
    if (listed->status != 0) {
        const auto answer = nlohmann::json::parse(listed->said, nullptr, false);
        error = answer.is_object() ? control::text_in(answer, "error") : std::string();
        if (error.empty())
            error = program + ": " + control::how_it_ended(listed->status);
        return std::nullopt;
    }
    std::vector<found_gpu> out;
    for (const auto& gpu : control::parse_gpus(listed->said))
        if (!gpu.selector.empty())
            out.push_back({control::share_socket_name(gpu), gpu.name, gpu.selector, gpu.memory_bytes,
                           device_nodes_of(gpu.selector), numa_node_of(gpu.selector)});
    if (out.empty()) {
        error =
            "no GPU that VMs can share: none is listed, or none has a name that means it in every process";
        return std::nullopt;
    }
    return out;
}

} // namespace kagemusha::kubernetes
