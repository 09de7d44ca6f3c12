// SPDX-License-Identifier: GPL-2.0-or-later
//
// See mig_command.hpp.
#include "control/mig/mig_command.hpp"

#include "control/base/json_text.hpp"
#include "control/mig/nvml_library.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>

namespace kagemusha::control {

namespace {

int refuse(const std::string& sentence) {
    fmt::print(stderr, "kage: {}\n", as_log_line(sentence));
    return 125;
}

const char* word_of(mig_mode mode) {
    switch (mode) {
    case mig_mode::impossible:
        return "impossible";
    case mig_mode::off:
        return "off";
    case mig_mode::on:
        return "on";
    }
    return "?";
}

nlohmann::json mig_json(const std::vector<mig_gpu>& gpus) {
    auto out = nlohmann::json::array();
    for (const auto& gpu : gpus) {
        auto profiles = nlohmann::json::array(), instances = nlohmann::json::array();
        for (const auto& one : gpu.profiles)
            profiles.push_back({{"name", one.name},
                                {"compute_slices", one.compute_slices},
                                {"memory_bytes", one.memory_bytes},
                                {"free", one.free}});
        for (const auto& one : gpu.instances)
            instances.push_back({{"uuid", one.uuid},
                                 {"id", one.id},
                                 {"profile", one.profile},
                                 {"memory_bytes", one.memory_bytes},
                                 {"start", one.start},
                                 {"size", one.size},
                                 {"processes", one.processes}});
        out.push_back({{"index", gpu.index},
                       {"uuid", gpu.uuid},
                       {"name", gpu.name},
                       {"pci", gpu.pci},
                       {"memory_bytes", gpu.memory_bytes},
                       {"used_bytes", gpu.used_bytes},
                       {"mig", word_of(gpu.mode)},
                       {"mig_after_reset", word_of(gpu.pending)},
                       {"processes", gpu.processes},
                       {"profiles", profiles},
                       {"instances", instances}});
    }
    return out;
}

std::string planned(const mig_plan& plan, const mig_action& action) {
    switch (action.what) {
    case mig_action::kind::set_mode:
        return fmt::format("turn MIG mode of GPU {} {}", plan.gpu, action.on ? "on" : "off");
    case mig_action::kind::create:
        return fmt::format("make an instance {} of GPU {}", action.name, plan.gpu);
    case mig_action::kind::destroy:
        return fmt::format("destroy the instance {}", action.name);
    }
    return {};
}

// A VM's workers are started with its first program, so a GPU without a process may be somebody's all the same.
bool read_described(std::vector<std::string>& out, std::string& error) {
    for (const auto& vm : running_vms(error)) {
        const auto colon = vm.gpu.find(':');
        if (colon != vm.gpu.npos) // without one it computes nothing here
            out.push_back(vm.gpu.substr(colon + 1));
    }
    return error.empty();
}

} // namespace

int run_mig(mig_options options) {
    std::string error;
    const auto library = nvml_library::open(options.library, error);
    if (!library)
        return refuse(error);
    const auto gpus = library->read(error);
    if (!error.empty())
        return refuse(error);
    auto& request = options.request;
    if (options.enable || options.disable)
        request.enable = options.enable;
    if (!request.enable && request.create.empty() && request.destroy.empty() && !request.destroy_all) {
        if (options.json)
            fmt::print("{}\n", as_json_text(mig_json(gpus), 2));
        else if (const auto text = mig_text(gpus); !text.empty())
            fmt::print("{}", text);
        else
            return refuse("no GPU of this host can be cut into MIG instances");
        return 0;
    }
    if (!read_described(request.described, error))
        return refuse(error);
    const auto plan = plan_mig(gpus, request);
    if (!plan.error.empty())
        return refuse(plan.error);
    if (plan.actions.empty())
        fmt::print("nothing to do: MIG mode of GPU {} is so already\n", plan.gpu);
    if (options.dry_run) {
        for (const auto& action : plan.actions)
            fmt::print("would {}\n", planned(plan, action));
        return 0;
    }
    std::vector<std::string> done;
    error = library->apply(plan, done);
    for (const auto& line : done)
        fmt::print("{}\n", line);
    if (!error.empty())
        return refuse(error);
    if (const auto now = library->read(error); error.empty())
        fmt::print("{}", mig_text(now));
    return 0;
}

std::string mig_text_of_host() {
    std::string error;
    const char* named = std::getenv("KAGEMUSHA_NVML");
    const auto library = nvml_library::open(named ? named : "", error);
    return library ? mig_text(library->read(error)) : std::string();
}

} // namespace kagemusha::control
