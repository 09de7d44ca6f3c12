// SPDX-License-Identifier: GPL-2.0-or-later
//
// See mig_lister.hpp.
#include "kubernetes/node/mig_lister.hpp"

#include "control/base/json_text.hpp"
#include "control/share/gpu_of_host.hpp"
#include "gpu/own_selector.hpp"
#include "kubernetes/node/gpu_lister.hpp"
#include "kubernetes/node/program_output.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kagemusha::kubernetes {

namespace fs = std::filesystem;
using control::number_in;
using control::text_in;
using nlohmann::json;

namespace {

constexpr char capabilities[] = "/proc/driver/nvidia/capabilities", capability_nodes[] = "/dev/nvidia-caps";

// "/dev/nvidia-caps/nvidia-cap21", of a file that says "DeviceFileMinor: 21"; "": it does not.
std::string capability_node(const fs::path& file) {
    std::ifstream lines(file);
    constexpr std::string_view label = "DeviceFileMinor:";
    for (std::string line; std::getline(lines, line);) {
        const auto digit = line.find_first_of("0123456789");
        unsigned minor = 0;
        if (line.starts_with(label) && digit != line.npos &&
            std::from_chars(line.data() + digit, line.data() + line.size(), minor).ec == std::errc())
            return fmt::format("{}/nvidia-cap{}", capability_nodes, minor);
    }
    return {};
}

// The rights to use this instance, and no other one of the GPU: a node for it and one for each of its compute instances.
std::vector<std::string> capabilities_of(const std::string& minor, std::uint32_t instance,
                                         const std::string& root) {
    const auto folder = fs::path(fmt::format("{}{}/gpu{}/mig/gi{}", root, capabilities, minor, instance));
    std::vector<std::string> out{capability_node(folder / "access")};
    std::error_code failed;
    for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed))
        if (entry->path().filename().string().starts_with("ci"))
            out.push_back(capability_node(entry->path() / "access"));
    std::erase_if(out, [&](const std::string& node) {
        return node.empty() || !fs::is_character_file(root + node, failed);
    });
    std::ranges::sort(out);
    return out;
}

std::vector<std::string> nodes_of_instance(const std::string& parent, std::uint32_t instance,
                                           const std::string& root) {
    auto out = device_nodes_of(parent, root);
    constexpr std::string_view gpu_node = "/dev/nvidia";
    std::string minor; // of the GPU's own node
    for (const auto& node : out)
        if (const auto digits = std::string_view(node).substr(std::min(gpu_node.size(), node.size()));
            node.starts_with(gpu_node) && !digits.empty() &&
            digits.find_first_not_of("0123456789") == digits.npos)
            minor = digits;
    const auto rights = capabilities_of(minor, instance, root);
    if (minor.empty() || rights.empty())
        return out; // a driver that does not tell: then all
    std::erase_if(out, [](const std::string& node) { return node.starts_with(capability_nodes); });
    out.insert(out.end(), rights.begin(), rights.end());
    return out;
}

} // namespace

std::optional<std::vector<cut_gpu>> parse_mig(std::string_view text, std::string& error) {
    const auto answer = json::parse(text, nullptr, false);
    if (!answer.is_array()) {
        error = "the list of MIG instances is no JSON array";
        return std::nullopt;
    }
    std::vector<cut_gpu> out;
    for (const auto& gpu : answer) {
        if (!gpu.is_object() || text_in(gpu, "mig") != "on")
            continue;
        cut_gpu cut{"pci:" + text_in(gpu, "pci"), text_in(gpu, "name"), {}};
        const auto instances = gpu.find("instances");
        if (instances != gpu.end() && instances->is_array())
            for (const auto& one : *instances)
                // Without a name nobody can use it.
                if (one.is_object() && gpu::is_mig_selector(text_in(one, "uuid")) &&
                    !text_in(one, "profile").empty())
                    cut.instances.push_back({text_in(one, "uuid"), text_in(one, "profile"),
                                             static_cast<std::uint32_t>(number_in(one, "id")),
                                             number_in(one, "memory_bytes")});
        out.push_back(std::move(cut));
    }
    return out;
}

std::optional<std::vector<cut_gpu>> list_mig(const std::string& program, int timeout_ms, std::string& error) {
    std::vector<std::string> command{program, "gpus", "mig", "--json"};
    if (const char* const library = std::getenv("KAGEMUSHA_NVML"); library && *library)
        command.insert(command.end(), {"--library", library});
    const auto listed = output_of(command, true, timeout_ms, error);
    if (!listed)
        return std::nullopt;
    if (listed->status == 0)
        return parse_mig(listed->said, error);
    error = fmt::format("MIG instances are not known: {}", listed->said.substr(0, listed->said.find('\n')));
    return std::nullopt;
}

std::vector<found_gpu> with_instances(std::vector<found_gpu> gpus, const std::vector<cut_gpu>& cut,
                                      const std::string& root) {
    for (const auto& gpu : cut) {
        std::erase_if(gpus, [&](const found_gpu& one) { return one.selector == gpu.selector; });
        for (const auto& one : gpu.instances)
            gpus.push_back({.id = control::share_socket_name({{}, one.uuid, 0}),
                            .name = fmt::format("{} MIG {}", gpu.name, one.profile),
                            .selector = one.uuid,
                            .memory_bytes = one.memory_bytes,
                            .nodes = nodes_of_instance(gpu.selector, one.id, root),
                            .numa = numa_node_of(gpu.selector),
                            .profile = one.profile,
                            .parent = gpu.selector});
    }
    return gpus;
}

} // namespace kagemusha::kubernetes
