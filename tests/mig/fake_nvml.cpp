// SPDX-License-Identifier: GPL-2.0-or-later
//
// A libnvidia-ml.so.1 without a GPU, for tests of `kage gpus mig`: one GPU with 8 slices of memory and 7 of compute, cut
// by the rules of an H100 of 80 GB, and a second one without MIG. Its state is in the file $FAKE_NVML_STATE, a word and
// numbers on each line, so that it lasts from one program to the next as a GPU's does:
//
//     mode 1                   MIG is on
//     pending 1                it will be, after a reset
//     reset 1                  a change of the mode needs a reset
//     instance ID PROFILE START COMPUTE
//     process PID [ID]         runs on the GPU, or on that instance
//     lost 1                   the driver does not answer
//     permission 0             only root may change something, and we are not root
#include "proto/nvml/nvml.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#define EXPORT __attribute__((visibility("default")))

namespace {

struct profile {
    unsigned id, slices, memory_slices, most;
    unsigned long long mib;
    const char* name;
    std::vector<unsigned> starts;
};

const std::array<profile, 5> profiles{{
    {19, 1, 1, 7, 9856, "MIG 1g.10gb", {0, 1, 2, 3, 4, 5, 6}},
    {14, 2, 2, 3, 20096, "MIG 2g.20gb", {0, 2, 4}},
    {9, 3, 4, 2, 40448, "MIG 3g.40gb", {0, 4}},
    {5, 4, 4, 1, 40448, "MIG 4g.40gb", {0}},
    {0, 7, 8, 1, 81152, "MIG 7g.80gb", {0}},
}};

struct instance {
    unsigned id, profile, start, computes;
};
struct process {
    unsigned pid;
    int instance; // -1: the whole GPU
};

struct state {
    unsigned mode = 0, pending = 0, reset = 0, permission = 1, lost = 0;
    std::vector<instance> instances;
    std::vector<process> processes;
};

const char* path() {
    const char* named = std::getenv("FAKE_NVML_STATE");
    return named ? named : "";
}

state read_state() {
    state s;
    std::ifstream in(path());
    bool has_pending = false;
    for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        std::string what;
        words >> what;
        if (what == "mode")
            words >> s.mode;
        else if (what == "pending")
            words >> s.pending, has_pending = true;
        else if (what == "reset")
            words >> s.reset;
        else if (what == "permission")
            words >> s.permission;
        else if (what == "lost")
            words >> s.lost;
        else if (instance i{}; what == "instance" && words >> i.id >> i.profile >> i.start >> i.computes)
            s.instances.push_back(i);
        else if (process p{0, -1}; what == "process" && words >> p.pid)
            words >> p.instance, s.processes.push_back({p.pid, words ? p.instance : -1});
    }
    if (!has_pending)
        s.pending = s.mode;
    return s;
}

void write_state(const state& s) {
    std::ofstream out(path());
    out << "mode " << s.mode << "\npending " << s.pending << "\nreset " << s.reset << "\npermission "
        << s.permission << '\n';
    for (const auto& i : s.instances)
        out << "instance " << i.id << ' ' << i.profile << ' ' << i.start << ' ' << i.computes << '\n';
    for (const auto& p : s.processes) {
        out << "process " << p.pid;
        if (p.instance >= 0)
            out << ' ' << p.instance;
        out << '\n';
    }
}

const profile* profile_of(unsigned id) {
    const auto found = std::ranges::find_if(profiles, [&](const profile& one) { return one.id == id; });
    return found == profiles.end() ? nullptr : &*found;
}

bool fits(const state& s, const profile& wanted, unsigned start) {
    unsigned slices = wanted.slices;
    for (const auto& i : s.instances) {
        const auto& its = *profile_of(i.profile);
        slices += its.slices;
        if (start < i.start + its.memory_slices && i.start < start + wanted.memory_slices)
            return false;
    }
    return slices <= 7;
}

bool place(state& s, const profile& wanted) {
    for (const unsigned start : wanted.starts) {
        if (!fits(s, wanted, start))
            continue;
        unsigned id = 1;
        while (std::ranges::any_of(s.instances, [&](const instance& i) { return i.id == id; }))
            ++id;
        s.instances.push_back({id, wanted.id, start, 0});
        return true;
    }
    return false;
}

// Handles are numbers: GPUs 1 and 2, MIG devices 100 + the instance, GPU instances 200 +, compute instances 300 +.
template <class Handle>
Handle handle_of(std::uintptr_t number) {
    return reinterpret_cast<Handle>(number);
}
template <class Handle>
unsigned number_of(Handle handle) {
    return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(handle));
}

instance* find(state& s, unsigned id) {
    const auto found = std::ranges::find_if(s.instances, [&](const instance& i) { return i.id == id; });
    return found == s.instances.end() ? nullptr : &*found;
}

bool busy(const state& s, unsigned id) {
    return std::ranges::any_of(s.processes,
                               [&](const process& p) { return p.instance == static_cast<int>(id); });
}

nvmlReturn_t copy(const std::string& from, char* to, unsigned bytes) {
    if (from.size() >= bytes)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    std::memcpy(to, from.c_str(), from.size() + 1);
    return NVML_SUCCESS;
}

constexpr unsigned with_mig = 1, without_mig = 2, first_mig = 100, first_instance = 200, first_compute = 300;

} // namespace

extern "C" {

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return *path() ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}
EXPORT nvmlReturn_t nvmlShutdown(void) {
    return NVML_SUCCESS;
}
EXPORT const char* nvmlErrorString(nvmlReturn_t) {
    return "a word of the fake's";
}
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 2;
    return read_state().lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
    *device = handle_of<nvmlDevice_t>(index + 1);
    return index < 2 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned bytes) {
    return copy(number_of(device) == without_mig ? "Fake L4" : "Fake H100", text, bytes);
}
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned bytes) {
    char uuid[64];
    std::snprintf(uuid, sizeof uuid, "%s-00000000-0000-4000-8000-%012u",
                  number_of(device) >= first_mig ? "MIG" : "GPU", number_of(device));
    return copy(uuid, text, bytes);
}
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* place) {
    *place = {};
    place->bus = number_of(device) == without_mig ? 0x65 : 0x17;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
    state s = read_state();
    const auto* its = number_of(device) >= first_mig ? find(s, number_of(device) - first_mig) : nullptr;
    memory->total = (its ? profile_of(its->profile)->mib : 81559ull) << 20;
    memory->used = 0;
    memory->free = memory->total;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                            nvmlProcessInfo_t* all) {
    const state s = read_state();
    std::vector<unsigned> pids;
    for (const auto& p : s.processes) {
        const unsigned its = p.instance < 0 ? with_mig : first_mig + static_cast<unsigned>(p.instance);
        if (its == number_of(device))
            pids.push_back(p.pid);
    }
    const bool room = *count >= pids.size();
    *count = static_cast<unsigned>(pids.size());
    for (unsigned i = 0; room && i < pids.size(); ++i)
        all[i] = {pids[i], 0, 0, 0};
    return room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                             nvmlProcessInfo_t*) {
    *count = 0;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
    if (number_of(device) == without_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    const state s = read_state();
    *current = s.mode;
    *pending = s.pending;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t, unsigned mode, nvmlReturn_t* activation) {
    state s = read_state();
    if (!s.permission)
        return NVML_ERROR_NO_PERMISSION;
    s.pending = mode;
    *activation = s.reset ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
    if (!s.reset)
        s.mode = mode;
    write_state(s);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t, unsigned which,
                                                         nvmlGpuInstanceProfileInfo_v2_t* info) {
    if (info->version != NVML_GPU_INSTANCE_PROFILE_INFO_V2)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (which >= profiles.size())
        return NVML_ERROR_NOT_SUPPORTED;
    const auto& one = profiles[which];
    *info = {};
    info->version = NVML_GPU_INSTANCE_PROFILE_INFO_V2;
    info->id = one.id;
    info->sliceCount = one.slices;
    info->instanceCount = one.most;
    info->memorySizeMB = one.mib;
    return copy(one.name, info->name, sizeof info->name);
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t, unsigned id, unsigned* count) {
    state s = read_state();
    const auto* wanted = profile_of(id);
    if (!wanted)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (*count = 0; place(s, *wanted);)
        ++*count;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t, unsigned id, nvmlGpuInstance_t* all,
                                              unsigned* count) {
    *count = 0; // of those that it fills; the room is the profile's most
    for (const auto& i : read_state().instances)
        if (i.profile == id)
            all[(*count)++] = handle_of<nvmlGpuInstance_t>(first_instance + i.id);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t, unsigned id, nvmlGpuInstance_t* found) {
    state s = read_state();
    *found = handle_of<nvmlGpuInstance_t>(first_instance + id);
    return find(s, id) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t, unsigned id, nvmlGpuInstance_t* made) {
    state s = read_state();
    if (!s.permission)
        return NVML_ERROR_NO_PERMISSION;
    const auto* wanted = profile_of(id);
    if (!wanted || !s.mode)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!place(s, *wanted))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *made = handle_of<nvmlGpuInstance_t>(first_instance + s.instances.back().id);
    write_state(s);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t* info) {
    state s = read_state();
    const auto* its = find(s, number_of(handle) - first_instance);
    if (!its)
        return NVML_ERROR_NOT_FOUND;
    *info = {handle_of<nvmlDevice_t>(with_mig),
             its->id,
             its->profile,
             {its->start, profile_of(its->profile)->memory_slices}};
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
    state s = read_state();
    const auto* its = find(s, number_of(handle) - first_instance);
    if (!its)
        return NVML_ERROR_NOT_FOUND;
    if (its->computes != 0 || busy(s, its->id))
        return NVML_ERROR_IN_USE;
    s.instances.erase(s.instances.begin() + (its - s.instances.data()));
    write_state(s);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned which,
                                                                 unsigned,
                                                                 nvmlComputeInstanceProfileInfo_t* info) {
    state s = read_state();
    const auto* its = find(s, number_of(handle) - first_instance);
    if (!its || which >= profile_of(its->profile)->slices)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = {};
    info->id = which;
    info->sliceCount = which + 1;
    info->instanceCount = profile_of(its->profile)->slices / (which + 1);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned id,
                                                         nvmlComputeInstance_t* made) {
    state s = read_state();
    auto* its = find(s, number_of(handle) - first_instance);
    if (!its || id + 1 != profile_of(its->profile)->slices || its->computes)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    its->computes = id + 1;
    *made = handle_of<nvmlComputeInstance_t>(first_compute + its->id);
    write_state(s);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned id,
                                                       nvmlComputeInstance_t* all, unsigned* count) {
    state s = read_state();
    const auto* its = find(s, number_of(handle) - first_instance);
    *count = its && its->computes == id + 1;
    if (*count)
        all[0] = handle_of<nvmlComputeInstance_t>(first_compute + its->id);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
    state s = read_state();
    auto* its = find(s, number_of(handle) - first_compute);
    if (!its || busy(s, its->id))
        return NVML_ERROR_IN_USE;
    its->computes = 0;
    write_state(s);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t, unsigned* count) {
    *count = 7;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t, unsigned index, nvmlDevice_t* mig) {
    unsigned usable = 0;
    for (const auto& i : read_state().instances) {
        if (i.computes && usable++ == index) {
            *mig = handle_of<nvmlDevice_t>(first_mig + i.id);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned* id) {
    *id = number_of(mig) - first_mig;
    return NVML_SUCCESS;
}

} // extern "C"
