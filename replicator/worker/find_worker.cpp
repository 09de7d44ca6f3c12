// SPDX-License-Identifier: GPL-2.0-or-later
// find_worker: where the worker's executable is.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "worker/process_port.hpp"

namespace kagemusha::worker {

namespace {

bool executable(const std::string& path) {
    return access(path.c_str(), X_OK) == 0;
}

// The folder of the library or program that this code is part of.
std::filesystem::path own_folder() {
    Dl_info info{};
    std::error_code error;
    if (dladdr(reinterpret_cast<void*>(&find_worker), &info) == 0 || info.dli_fname == nullptr)
        return {};
    const auto file = std::filesystem::canonical(info.dli_fname, error);
    return error ? std::filesystem::path() : file.parent_path();
}

} // namespace

std::string find_worker(const std::string& configured, std::string& error) {
    if (!configured.empty()) {
        if (executable(configured))
            return configured;
        error = "the worker " + configured + " is not an executable file";
        return "";
    }
    if (const char* from_environment = std::getenv("KAGEMUSHA_WORKER")) {
        if (executable(from_environment))
            return from_environment;
        error =
            std::string("KAGEMUSHA_WORKER names ") + from_environment + ", which is not an executable file";
        return "";
    }
    // Installed next to or below the library's prefix, or in a build folder.
    const auto folder = own_folder();
    for (const char* relative : {"kagemusha-worker", "../libexec/kagemusha/kagemusha-worker",
                                 "../../libexec/kagemusha/kagemusha-worker", "../worker/kagemusha-worker"}) {
        const std::string path = (folder / relative).lexically_normal().string();
        if (!folder.empty() && executable(path))
            return path;
    }
    if (executable(KAGEMUSHA_INSTALLED_WORKER))
        return KAGEMUSHA_INSTALLED_WORKER;
    error = "kagemusha-worker was not found: looked beside " + folder.string() + " and at " +
            KAGEMUSHA_INSTALLED_WORKER + "; build or install it, or set KAGEMUSHA_WORKER to its path";
    return "";
}

} // namespace kagemusha::worker
