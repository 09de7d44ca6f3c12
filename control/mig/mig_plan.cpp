// SPDX-License-Identifier: GPL-2.0-or-later
//
// See mig_plan.hpp.
#include "control/mig/mig_plan.hpp"

#include "base/gibibytes.hpp"
#include "control/base/json_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kagemusha::control {

namespace {

mig_plan refused(std::string sentence) {
    mig_plan plan;
    plan.error = std::move(sentence);
    return plan;
}

std::string names_of(const std::vector<mig_gpu>& gpus) {
    std::string out;
    for (const auto& gpu : gpus)
        out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", gpu.index, gpu.name);
    return out;
}

const mig_gpu* chosen(const std::vector<mig_gpu>& gpus, const std::string& named, std::string& error) {
    if (gpus.empty()) {
        error = "NVIDIA's management library knows no GPU on this host";
        return nullptr;
    }
    if (named.empty() && gpus.size() == 1)
        return &gpus[0];
    for (const auto& gpu : gpus)
        if (!named.empty() && (named == gpu.uuid || named == std::to_string(gpu.index)))
            return &gpu;
    error = named.empty() ? "this host has several GPUs: name one with --gpu; there are " + names_of(gpus)
                          : fmt::format("there is no GPU '{}'; there are {}", named, names_of(gpus));
    return nullptr;
}

// Whether the name is surely another GPU's. Numbers and parts of names are of OpenCL's and CUDA's lists, not of this one.
bool elsewhere(const std::vector<mig_gpu>& gpus, const mig_gpu& gpu, const std::string& named) {
    return std::ranges::any_of(gpus, [&](const mig_gpu& other) {
        return &other != &gpu &&
               (named == other.uuid || std::ranges::any_of(other.instances, [&](const mig_instance& one) {
                    return !one.uuid.empty() && one.uuid == named;
                }));
    });
}

// Who would lose something if the GPU were changed.
std::string users_of(const std::vector<mig_gpu>& gpus, const mig_gpu& gpu, const mig_request& request) {
    auto processes = gpu.processes;
    for (const auto& instance : gpu.instances)
        processes.insert(processes.end(), instance.processes.begin(), instance.processes.end());
    std::ranges::sort(processes);
    processes.erase(std::ranges::unique(processes).begin(), processes.end());
    if (!processes.empty())
        return fmt::format("GPU {} is in use by process{} {}: end {} first", gpu.index,
                           processes.size() == 1 ? "" : "es", fmt::join(processes, ", "),
                           processes.size() == 1 ? "it" : "them");
    for (const auto& named : request.described)
        if (!elsewhere(gpus, gpu, named))
            return fmt::format("a VM that runs here has the GPU '{}', which may be GPU {}: stop it first",
                               named, gpu.index);
    return {};
}

std::string profiles_of(const mig_gpu& gpu) {
    std::string out;
    for (const auto& profile : gpu.profiles)
        out += fmt::format("{}{} ({} free)", out.empty() ? "" : ", ", profile.name, profile.free);
    return out.empty() ? "none" : out;
}

std::string plan_destroy(const mig_gpu& gpu, const mig_request& request, mig_plan& plan) {
    for (const auto& named : request.destroy)
        if (std::ranges::none_of(gpu.instances, [&](const auto& one) { return one.uuid == named; }))
            return fmt::format("GPU {} has no instance '{}': `kage gpus mig` lists them", gpu.index, named);
    for (const auto& instance : gpu.instances)
        if (request.destroy_all || std::ranges::find(request.destroy, instance.uuid) != request.destroy.end())
            plan.actions.push_back({mig_action::kind::destroy, false, 0, instance.id,
                                    instance.uuid.empty() ? instance.profile : instance.uuid});
    return {};
}

// Whether they all fit together only the driver knows: it has the rules of places. What can be known is that one of
// them does not fit at all.
std::string plan_create(const mig_gpu& gpu, const mig_request& request, mig_plan& plan) {
    const bool room_is_made = !plan.actions.empty();
    for (const auto& wanted : request.create) {
        const auto profile =
            std::ranges::find_if(gpu.profiles, [&](const auto& one) { return one.name == wanted; });
        if (profile == gpu.profiles.end())
            return fmt::format("GPU {} has no profile '{}'; it has {}", gpu.index, wanted, profiles_of(gpu));
        const auto same = std::ranges::count(request.create, wanted);
        if (!room_is_made && static_cast<std::uint64_t>(same) > profile->free)
            return fmt::format("{} of '{}' do not fit on GPU {}; it has {}", same, wanted, gpu.index,
                               profiles_of(gpu));
        plan.actions.push_back({mig_action::kind::create, false, profile->id, 0, profile->name});
    }
    return {};
}

} // namespace

mig_plan plan_mig(const std::vector<mig_gpu>& gpus, const mig_request& request) {
    mig_plan plan;
    const auto* gpu = chosen(gpus, request.gpu, plan.error);
    if (!gpu)
        return plan;
    plan.gpu = gpu->index;
    if (gpu->mode == mig_mode::impossible)
        return refused(fmt::format("GPU {}, {}, can't be cut into instances", gpu->index, gpu->name));
    const bool instances = request.destroy_all || !request.destroy.empty() || !request.create.empty();
    const bool changes_mode = request.enable && *request.enable != (gpu->mode == mig_mode::on);
    if (request.enable && instances)
        return refused("change MIG mode first, and instances when the GPU has come back with it");
    if (!instances && !changes_mode)
        return plan;
    if (auto users = users_of(gpus, *gpu, request); !users.empty())
        return refused(std::move(users));
    if (changes_mode) {
        if (!*request.enable && !gpu->instances.empty())
            return refused(fmt::format("GPU {} has {} instances: destroy them first", gpu->index,
                                       gpu->instances.size()));
        plan.actions.push_back({mig_action::kind::set_mode, *request.enable, 0, 0, {}});
        return plan;
    }
    if (gpu->mode != mig_mode::on)
        return refused(fmt::format("MIG mode of GPU {} is off{}", gpu->index,
                                   gpu->pending == mig_mode::on
                                       ? ", and on after the GPU's reset: reset it or restart the host"
                                       : ": turn it on with --enable"));
    auto error = plan_destroy(*gpu, request, plan);
    if (error.empty())
        error = plan_create(*gpu, request, plan);
    return error.empty() ? plan : refused(std::move(error));
}

std::string mig_text(const std::vector<mig_gpu>& gpus) {
    std::string out;
    for (const auto& gpu : gpus) {
        if (gpu.mode == mig_mode::impossible)
            continue;
        out += fmt::format("GPU {}, {}, {}: MIG {}{}\n", gpu.index, as_log_line(gpu.name),
                           gibibytes(gpu.memory_bytes), gpu.mode == mig_mode::on ? "on" : "off",
                           gpu.pending != gpu.mode ? ", the other after the GPU's reset" : "");
        if (gpu.mode != mig_mode::on)
            continue;
        for (const auto& instance : gpu.instances)
            out += fmt::format("  {:<10} {:>10}  {:<42} {}\n", instance.profile,
                               gibibytes(instance.memory_bytes),
                               instance.uuid.empty() ? "(without a compute instance)" : instance.uuid,
                               instance.processes.empty()
                                   ? std::string("free")
                                   : fmt::format("process{} {}", instance.processes.size() == 1 ? "" : "es",
                                                 fmt::join(instance.processes, ", ")));
        out += fmt::format("  more fit: {}\n", profiles_of(gpu));
    }
    return out;
}

} // namespace kagemusha::control
