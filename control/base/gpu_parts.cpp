// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gpu_parts.hpp.
#include "control/base/gpu_parts.hpp"

#include "control/base/installation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr char ptx_device[] = "libkagemusha_ptx_cuda.so";

} // namespace

std::vector<std::string> guest_driver_words(const assets& parts, const std::string& backend) {
    // One of them: a program that finds both would try the one that the device does not speak.
    if (backend == "cuda")
        return {"--module", parts.module, "--cuda", parts.cuda};
    return {"--module", parts.module, "--icd", parts.icd};
}

std::optional<std::string> find_host_driver(const std::string& backend, const std::string& wanted) {
    if (wanted.empty())
        return wanted;
    if (backend != "cuda") {
        fmt::print(stderr, "kage: a driver library can be chosen for the backend cuda only, not for {}\n",
                   backend);
        return std::nullopt;
    }
    const auto path = wanted == "ptx" ? find_built(ptx_device) : wanted;
    std::error_code error;
    if (path.empty()) {
        fmt::print(stderr, "kage: {}\n", not_there(ptx_device));
        return std::nullopt;
    }
    if (path.front() != '/' || path.find(',') != std::string::npos || !fs::exists(path, error)) {
        fmt::print(stderr,
                   "kage: the driver '{}' is no library of this host: name libcuda.so.1 by its absolute "
                   "path, or 'ptx' for the device without a GPU\n",
                   wanted);
        return std::nullopt;
    }
    return path;
}

bool add_host_driver(std::vector<std::pair<std::string, std::string>>& properties,
                     const std::string& driver) {
    if (driver.empty())
        return true;
    if (std::any_of(properties.begin(), properties.end(),
                    [](const auto& property) { return property.first == "options"; }))
        return false;
    properties.emplace_back("options", "driver=" + driver);
    return true;
}

std::vector<std::pair<std::string, std::string>> gpu_environment(const assets& parts,
                                                                 const std::string& driver) {
    auto path = fs::path(parts.device_library).parent_path().string();
    if (!driver.empty())
        path += ":" + fs::path(driver).parent_path().string();
    if (const char* before = std::getenv("LD_LIBRARY_PATH"); before && *before)
        path += std::string(":") + before;
    return {{"LD_LIBRARY_PATH", path}, {"KAGEMUSHA_WORKER", parts.worker}};
}

} // namespace kagemusha::control
