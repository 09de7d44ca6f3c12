// SPDX-License-Identifier: GPL-2.0-or-later
//
// See cdi.hpp.
#include "kubernetes/core/cdi.hpp"

namespace kagemusha::kubernetes {

using nlohmann::json;

json container_edits(const found_gpu& gpu, const node_paths& paths,
                     const std::map<std::string, std::string>& environment) {
    json edits = json::object();
    for (const auto* const list : {&gpu.nodes, &paths.nodes})
        for (const auto& node : *list)
            edits["deviceNodes"].push_back({{"path", node}, {"permissions", "rw"}});
    edits["mounts"].push_back({{"hostPath", paths.share_directory},
                               {"containerPath", share_directory_inside},
                               {"options", {"bind", "ro", "nosuid", "nodev", "noexec"}}});
    for (const auto& [key, value] : environment)
        edits["env"].push_back(key + "=" + value);
    return edits;
}

json gpu_specification(const std::vector<known_gpu>& gpus, const node_paths& paths) {
    json devices = json::array();
    for (const auto& known : gpus)
        if (known.listed)
            devices.push_back(
                {{"name", known.gpu.id}, {"containerEdits", container_edits(known.gpu, paths)}});
    if (devices.empty())
        return nullptr;
    return {{"cdiVersion", "0.5.0"}, {"kind", resource_name}, {"devices", devices}};
}

std::string cdi_name(const found_gpu& gpu) {
    return std::string(resource_name) + "=" + gpu.id;
}

} // namespace kagemusha::kubernetes
