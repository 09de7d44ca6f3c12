// SPDX-License-Identifier: GPL-2.0-or-later
//
// See nvml_library.hpp. Numbers that the library tells are limited before memory is made for them.
#include "control/mig/nvml_library.hpp"

#include "proto/nvml/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <dlfcn.h>

namespace kagemusha::control {

#define NVML_FUNCTIONS(F)                                                                                    \
    F(nvmlInit_v2)                                                                                           \
    F(nvmlShutdown)                                                                                          \
    F(nvmlErrorString)                                                                                       \
    F(nvmlDeviceGetCount_v2)                                                                                 \
    F(nvmlDeviceGetHandleByIndex_v2)                                                                         \
    F(nvmlDeviceGetName)                                                                                     \
    F(nvmlDeviceGetUUID)                                                                                     \
    F(nvmlDeviceGetPciInfo_v3)                                                                               \
    F(nvmlDeviceGetMemoryInfo)                                                                               \
    F(nvmlDeviceGetComputeRunningProcesses_v3)                                                               \
    F(nvmlDeviceGetGraphicsRunningProcesses_v3)                                                              \
    F(nvmlDeviceGetMigMode)                                                                                  \
    F(nvmlDeviceSetMigMode)                                                                                  \
    F(nvmlDeviceGetGpuInstanceProfileInfoV)                                                                  \
    F(nvmlDeviceGetGpuInstanceRemainingCapacity)                                                             \
    F(nvmlDeviceGetGpuInstances)                                                                             \
    F(nvmlDeviceCreateGpuInstance)                                                                           \
    F(nvmlDeviceGetGpuInstanceById)                                                                          \
    F(nvmlGpuInstanceGetInfo)                                                                                \
    F(nvmlGpuInstanceDestroy)                                                                                \
    F(nvmlGpuInstanceGetComputeInstanceProfileInfo)                                                          \
    F(nvmlGpuInstanceCreateComputeInstance)                                                                  \
    F(nvmlGpuInstanceGetComputeInstances)                                                                    \
    F(nvmlComputeInstanceDestroy)                                                                            \
    F(nvmlDeviceGetMaxMigDeviceCount)                                                                        \
    F(nvmlDeviceGetMigDeviceHandleByIndex)                                                                   \
    F(nvmlDeviceGetGpuInstanceId)

struct nvml_functions {
#define DECLARE(name) decltype(&::name) name = nullptr;
    NVML_FUNCTIONS(DECLARE)
#undef DECLARE
};

namespace {

constexpr unsigned max_gpus = 64, max_mig_devices = 64, max_processes = 4096, max_instances = 64;

std::string sentence(const nvml_functions& call, const std::string& what, nvmlReturn_t result) {
    const char* text = call.nvmlErrorString(result);
    if (result == NVML_ERROR_NO_PERMISSION)
        return what + ": NVIDIA's driver allows it to root only";
    if (result == NVML_ERROR_IN_USE)
        return what + ": the driver says that it is in use; monitoring agents (DCGM) count, too";
    if (result == NVML_ERROR_INSUFFICIENT_RESOURCES)
        return what + ": it does not fit beside the others";
    return fmt::format("{}: NVML's error {}, {}", what, static_cast<int>(result), text ? text : "unknown");
}

template <std::size_t N>
std::string text_of(const char (&text)[N]) {
    return {text, std::find(text, text + N, '\0')};
}

// A profile is named by the driver as "MIG 1g.10gb".
std::string profile_name(const nvmlGpuInstanceProfileInfo_v2_t& info) {
    const std::string name = text_of(info.name);
    constexpr std::string_view before = "MIG ";
    return name.starts_with(before) ? name.substr(before.size()) : name;
}

using process_query = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);

void add_processes(process_query query, nvmlDevice_t device, std::vector<std::uint32_t>& out) {
    std::vector<nvmlProcessInfo_t> all(64);
    unsigned count = 0;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    while (result == NVML_ERROR_INSUFFICIENT_SIZE && all.size() <= max_processes) {
        count = static_cast<unsigned>(all.size());
        result = query(device, &count, all.data());
        if (result == NVML_ERROR_INSUFFICIENT_SIZE)
            all.resize(all.size() * 2);
    }
    if (result != NVML_SUCCESS)
        return;
    for (unsigned i = 0; i < std::min<std::size_t>(count, all.size()); ++i)
        out.push_back(all[i].pid);
}

std::vector<std::uint32_t> processes_of(const nvml_functions& call, nvmlDevice_t device) {
    std::vector<std::uint32_t> out;
    add_processes(call.nvmlDeviceGetComputeRunningProcesses_v3, device, out);
    add_processes(call.nvmlDeviceGetGraphicsRunningProcesses_v3, device, out);
    std::ranges::sort(out);
    out.erase(std::ranges::unique(out).begin(), out.end());
    return out;
}

mig_mode mode_of(unsigned mode) {
    return mode == NVML_DEVICE_MIG_ENABLE ? mig_mode::on : mig_mode::off;
}

// The instances that can be used, with the names that programs use; by the number of their GPU instance.
void add_mig_devices(const nvml_functions& call, nvmlDevice_t device, std::vector<mig_instance>& instances) {
    unsigned most = 0;
    if (call.nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
        return;
    for (unsigned i = 0; i < std::min(most, max_mig_devices); ++i) {
        nvmlDevice_t mig = nullptr;
        unsigned id = 0;
        char uuid[96] = {};
        if (call.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) != NVML_SUCCESS ||
            call.nvmlDeviceGetGpuInstanceId(mig, &id) != NVML_SUCCESS ||
            call.nvmlDeviceGetUUID(mig, uuid, sizeof uuid - 1) != NVML_SUCCESS)
            continue;
        const auto its = std::ranges::find_if(instances, [&](const auto& one) { return one.id == id; });
        // One that others cut into several compute instances has the name of the first here.
        if (its == instances.end() || !its->uuid.empty())
            continue;
        its->uuid = text_of(uuid);
        nvmlMemory_t memory{};
        if (call.nvmlDeviceGetMemoryInfo(mig, &memory) == NVML_SUCCESS)
            its->memory_bytes = memory.total;
        its->processes = processes_of(call, mig);
    }
}

void read_profiles(const nvml_functions& call, nvmlDevice_t device, mig_gpu& gpu) {
    for (unsigned which = 0; which < NVML_GPU_INSTANCE_PROFILE_COUNT; ++which) {
        nvmlGpuInstanceProfileInfo_v2_t info{};
        info.version = NVML_GPU_INSTANCE_PROFILE_INFO_V2;
        if (call.nvmlDeviceGetGpuInstanceProfileInfoV(device, which, &info) != NVML_SUCCESS)
            continue;
        mig_profile profile{info.id, profile_name(info), info.sliceCount, info.memorySizeMB << 20, 0};
        unsigned free = 0;
        if (call.nvmlDeviceGetGpuInstanceRemainingCapacity(device, info.id, &free) == NVML_SUCCESS)
            profile.free = free;
        std::vector<nvmlGpuInstance_t> all(std::min(info.instanceCount, max_instances));
        unsigned count = static_cast<unsigned>(all.size());
        if (!all.empty() &&
            call.nvmlDeviceGetGpuInstances(device, info.id, all.data(), &count) == NVML_SUCCESS) {
            for (unsigned i = 0; i < std::min<std::size_t>(count, all.size()); ++i) {
                nvmlGpuInstanceInfo_t its{};
                if (call.nvmlGpuInstanceGetInfo(all[i], &its) == NVML_SUCCESS)
                    gpu.instances.push_back({"",
                                             its.id,
                                             profile.name,
                                             profile.memory_bytes,
                                             its.placement.start,
                                             its.placement.size,
                                             {}});
            }
        }
        gpu.profiles.push_back(std::move(profile));
    }
    std::ranges::sort(gpu.instances, {}, &mig_instance::start);
    add_mig_devices(call, device, gpu.instances);
}

mig_gpu read_gpu(const nvml_functions& call, nvmlDevice_t device, unsigned index) {
    mig_gpu gpu;
    gpu.index = index;
    char text[96] = {};
    if (call.nvmlDeviceGetName(device, text, sizeof text - 1) == NVML_SUCCESS)
        gpu.name = text_of(text);
    if (call.nvmlDeviceGetUUID(device, text, sizeof text - 1) == NVML_SUCCESS)
        gpu.uuid = text_of(text);
    nvmlPciInfo_t place{};
    if (call.nvmlDeviceGetPciInfo_v3(device, &place) == NVML_SUCCESS) // NVIDIA's GPUs are function 0
        gpu.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", place.domain, place.bus, place.device);
    nvmlMemory_t memory{};
    if (call.nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS) {
        gpu.memory_bytes = memory.total;
        gpu.used_bytes = memory.used;
    }
    unsigned now = 0, pending = 0;
    if (call.nvmlDeviceGetMigMode(device, &now, &pending) != NVML_SUCCESS)
        return gpu; // it has none
    gpu.mode = mode_of(now);
    gpu.pending = mode_of(pending);
    gpu.processes = processes_of(call, device);
    if (gpu.mode == mig_mode::on)
        read_profiles(call, device, gpu);
    return gpu;
}

// An instance is used through a compute instance; ours has all of its slices.
nvmlReturn_t fill_instance(const nvml_functions& call, nvmlGpuInstance_t instance) {
    nvmlComputeInstanceProfileInfo_t largest{};
    for (unsigned which = 0; which < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++which) {
        nvmlComputeInstanceProfileInfo_t info{};
        if (call.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, which, 0, &info) == NVML_SUCCESS &&
            info.sliceCount > largest.sliceCount)
            largest = info;
    }
    if (largest.sliceCount == 0)
        return NVML_ERROR_NOT_FOUND;
    nvmlComputeInstance_t made = nullptr;
    return call.nvmlGpuInstanceCreateComputeInstance(instance, largest.id, &made);
}

nvmlReturn_t empty_instance(const nvml_functions& call, nvmlGpuInstance_t instance) {
    for (unsigned which = 0; which < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++which) {
        nvmlComputeInstanceProfileInfo_t info{};
        if (call.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, which, 0, &info) != NVML_SUCCESS)
            continue;
        std::vector<nvmlComputeInstance_t> all(std::min(info.instanceCount, max_instances));
        unsigned count = static_cast<unsigned>(all.size());
        if (all.empty() ||
            call.nvmlGpuInstanceGetComputeInstances(instance, info.id, all.data(), &count) != NVML_SUCCESS)
            continue;
        for (unsigned i = 0; i < std::min<std::size_t>(count, all.size()); ++i)
            if (const auto result = call.nvmlComputeInstanceDestroy(all[i]); result != NVML_SUCCESS)
                return result;
    }
    return NVML_SUCCESS;
}

} // namespace

std::unique_ptr<nvml_library> nvml_library::open(const std::string& path, std::string& error) {
    const std::string name = path.empty() ? "libnvidia-ml.so.1" : path;
    std::unique_ptr<nvml_library> self(new nvml_library);
    self->call_ = std::make_unique<nvml_functions>();
    self->library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!self->library_) {
        const char* why = ::dlerror();
        error = fmt::format(
            "NVIDIA's management library can't be opened: {}; it comes with NVIDIA's driver (Debian: "
            "libnvidia-ml1), and MIG needs it",
            why ? why : name);
        return nullptr;
    }
    const char* absent = nullptr;
    const auto find = [&](const char* function) {
        void* const found = ::dlsym(self->library_, function);
        if (!found)
            absent = function;
        return found;
    };
#define FIND(function)                                                                                       \
    self->call_->function = reinterpret_cast<decltype(self->call_->function)>(find(#function));
    NVML_FUNCTIONS(FIND)
#undef FIND
    if (absent) {
        error = fmt::format("{} has no {}: MIG needs NVIDIA's driver 520 or later", name, absent);
        return nullptr;
    }
    if (const auto result = self->call_->nvmlInit_v2(); result != NVML_SUCCESS) {
        error = sentence(*self->call_, "NVIDIA's driver does not answer", result);
        return nullptr;
    }
    self->initialised_ = true;
    return self;
}

nvml_library::~nvml_library() {
    if (initialised_)
        call_->nvmlShutdown();
    if (library_)
        ::dlclose(library_);
}

std::vector<mig_gpu> nvml_library::read(std::string& error) const {
    std::vector<mig_gpu> out;
    unsigned count = 0;
    if (const auto result = call_->nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS) {
        error = sentence(*call_, "the host's GPUs can't be counted", result);
        return out;
    }
    for (unsigned i = 0; i < std::min(count, max_gpus); ++i) {
        nvmlDevice_t device = nullptr;
        if (call_->nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS)
            out.push_back(read_gpu(*call_, device, i));
    }
    if (out.empty())
        error = "NVIDIA's driver knows no GPU on this host";
    return out;
}

std::string nvml_library::apply(const mig_plan& plan, std::vector<std::string>& done) const {
    for (const auto& action : plan.actions) {
        std::string did;
        if (auto error = apply(plan.gpu, action, did); !error.empty())
            return error;
        done.push_back(std::move(did));
    }
    return {};
}

std::string nvml_library::apply(std::uint32_t gpu, const mig_action& action, std::string& did) const {
    nvmlDevice_t device = nullptr;
    nvmlGpuInstance_t instance = nullptr;
    auto result = call_->nvmlDeviceGetHandleByIndex_v2(gpu, &device);
    if (result != NVML_SUCCESS)
        return sentence(*call_, fmt::format("GPU {} is gone", gpu), result);
    switch (action.what) {
    case mig_action::kind::set_mode: {
        nvmlReturn_t activation = NVML_SUCCESS;
        result = call_->nvmlDeviceSetMigMode(
            device, action.on ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE, &activation);
        if (result != NVML_SUCCESS)
            return sentence(*call_, fmt::format("MIG mode of GPU {} can't be changed", gpu), result);
        did = fmt::format("MIG mode of GPU {} is {}{}", gpu, action.on ? "on" : "off",
                          activation == NVML_SUCCESS ? "" : " after the GPU's reset or the host's restart");
        return {};
    }
    case mig_action::kind::create:
        result = call_->nvmlDeviceCreateGpuInstance(device, action.profile_id, &instance);
        if (result == NVML_SUCCESS && (result = fill_instance(*call_, instance)) != NVML_SUCCESS)
            call_->nvmlGpuInstanceDestroy(instance); // nobody could use it
        if (result != NVML_SUCCESS)
            return sentence(*call_, fmt::format("an instance {} of GPU {} can't be made", action.name, gpu),
                            result);
        did = fmt::format("an instance {} of GPU {} was made", action.name, gpu);
        return {};
    case mig_action::kind::destroy:
        result = call_->nvmlDeviceGetGpuInstanceById(device, action.instance_id, &instance);
        if (result == NVML_SUCCESS)
            result = empty_instance(*call_, instance);
        if (result == NVML_SUCCESS)
            result = call_->nvmlGpuInstanceDestroy(instance);
        if (result != NVML_SUCCESS)
            return sentence(*call_, fmt::format("the instance {} can't be destroyed", action.name), result);
        did = fmt::format("the instance {} was destroyed", action.name);
        return {};
    }
    return {};
}

} // namespace kagemusha::control
