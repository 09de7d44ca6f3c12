// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gpu_of_host.hpp.
#include "control/share/gpu_of_host.hpp"

#include "base/fnv1a.hpp"
#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>

namespace kagemusha::control {

std::vector<gpu_of_host> parse_gpus(std::string_view json) {
    std::vector<gpu_of_host> out;
    const auto answer = nlohmann::json::parse(json, nullptr, false);
    const auto gpus = answer.is_object() ? answer.find("gpus") : answer.end();
    if (!answer.is_object() || gpus == answer.end() || !gpus->is_array())
        return out;
    for (const auto& gpu : *gpus) {
        if (!gpu.is_object())
            continue;
        const auto bytes = gpu.find("memory_bytes");
        out.push_back({text_in(gpu, "name"), text_in(gpu, "own_selector"),
                       bytes != gpu.end() && bytes->is_number_unsigned() ? bytes->get<std::uint64_t>() : 0});
    }
    return out;
}

std::vector<gpu_of_host> gpus_of_host(const std::optional<std::string>& selector, std::string& error) {
    const auto lister = find_built("kagemusha-gpus");
    if (lister.empty()) {
        error = not_there("kagemusha-gpus");
        return {};
    }
    std::vector<std::string> command{lister, "--json"};
    if (selector)
        command.push_back(*selector);
    const auto said = run_captured(command);
    auto gpus = parse_gpus(said.out);
    if (gpus.empty()) {
        const auto answer = nlohmann::json::parse(said.out, nullptr, false);
        error = answer.is_object() ? text_in(answer, "error") : std::string();
        if (error.empty())
            error = "this host's GPUs can't be listed: " + how_it_ended(said.status);
    }
    return gpus;
}

std::optional<gpu_of_host> gpu_of_vm(const std::string& backend, const std::string& selector,
                                     std::string& error) {
    if (backend != "opencl")
        return gpu_of_host{backend, backend + ":" + selector, 0};
    auto gpus = gpus_of_host(selector, error);
    if (gpus.empty())
        return std::nullopt;
    if (gpus[0].selector.empty())
        gpus[0].selector = backend + ":" + gpus[0].name;
    return gpus[0];
}

std::string share_directory(std::string& error) {
    if (const char* own = std::getenv("KAGEMUSHA_SHARE_DIR"); own && *own)
        return own;
    const auto path = runtime_directory(error);
    return path.empty() ? path : path + "/share";
}

std::string made_share_directory(std::string& error) {
    const auto path = share_directory(error);
    if (path.empty())
        return {};
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
        error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
        return {};
    }
    return path;
}

std::string share_socket_name(const gpu_of_host& gpu) {
    return fmt::format("gpu-{:016x}", fnv1a(gpu.selector)); // selectors have blanks, slashes and any length
}

} // namespace kagemusha::control
