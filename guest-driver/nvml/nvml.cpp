// SPDX-License-Identifier: GPL-2.0-or-later
//
// libnvidia-ml.so.1 for a guest: which GPUs there are and what they can do, as the host's device tells it. Nothing
// is measured here: a guest's program cannot see how warm or busy the host's GPU is, and is told so.
#include "proto/nvml/nvml.h"

#include "guest-driver/cuda/pci_bus_id.hpp"
#include "guest-driver/opencl/context.hpp"
#include "guest-driver/opencl/query.hpp"
#include "proto/abi/vgpu_cuda.h"
#include "proto/cuda/attributes.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define KAGEMUSHA_EXPORT extern "C" __attribute__((visibility("default")))

namespace kagemusha::nvml {
namespace {

struct gpu {
    opencl::ref<opencl::device> native;
    vgpu_cuda_device known{};
    unsigned index = 0;

    int attribute(CUdevice_attribute which) const { return known.attributes[which]; }
    unsigned domain() const { return static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)); }
    unsigned bus() const { return static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)); }
    unsigned slot() const { return static_cast<unsigned>(attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)); }
};

std::mutex mutex;
unsigned users = 0; // nvmlInit without nvmlShutdown
std::vector<std::unique_ptr<gpu>>& all() {
    static auto* const only = new std::vector<std::unique_ptr<gpu>>;
    return *only;
}

bool find_gpus() {
    for (const std::string& name : opencl::device_names()) {
        auto one = std::make_unique<gpu>();
        one->native = opencl::make_object<opencl::device>(name);
        const auto link = one->native ? one->native->link() : nullptr;
        if (!link)
            continue;
        const auto known = opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_DEVICE}).as<vgpu_cuda_device>();
        if (!known)
            continue; // of another API
        one->known = *known;
        one->known.name[VGPU_CUDA_NAME_BYTES - 1] = 0;
        one->index = static_cast<unsigned>(all().size());
        all().push_back(std::move(one));
    }
    return !all().empty();
}

// Runs a function of the API: nothing is thrown into a program.
template <class Body>
nvmlReturn_t guarded(Body&& body) noexcept {
    try {
        const std::lock_guard held(mutex);
        return users == 0 ? NVML_ERROR_UNINITIALIZED : body();
    } catch (...) {
        return NVML_ERROR_UNKNOWN;
    }
}

template <class Body>
nvmlReturn_t of_device(nvmlDevice_t handle, Body&& body) noexcept {
    return guarded([&] {
        for (const auto& one : all())
            if (reinterpret_cast<nvmlDevice_t>(one.get()) == handle)
                return body(*one);
        return NVML_ERROR_INVALID_ARGUMENT;
    });
}

template <class Fits>
nvmlReturn_t find(nvmlDevice_t* out, nvmlReturn_t none, Fits&& fits) noexcept {
    return guarded([&] {
        if (!out)
            return NVML_ERROR_INVALID_ARGUMENT;
        for (const auto& one : all())
            if (fits(*one)) {
                *out = reinterpret_cast<nvmlDevice_t>(one.get());
                return NVML_SUCCESS;
            }
        return none;
    });
}

nvmlReturn_t give(const std::string& text, char* out, unsigned bytes) {
    if (!out || bytes == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (text.size() >= bytes)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    std::memcpy(out, text.c_str(), text.size() + 1);
    return NVML_SUCCESS;
}

template <class Value>
nvmlReturn_t put(Value* out, Value value) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return NVML_SUCCESS;
}

std::string uuid_of(const gpu& one) {
    std::string text = "GPU-";
    char two[3];
    for (unsigned i = 0; i < sizeof one.known.uuid; ++i) {
        std::snprintf(two, sizeof two, "%02x", one.known.uuid[i]);
        text += (i == 4 || i == 6 || i == 8 || i == 10) ? "-" : "";
        text += two;
    }
    return text;
}

// What the host's driver has free: all of its users together.
nvmlReturn_t memory_of(const gpu& one, nvmlMemory_t& out) {
    const auto link = one.native->link();
    if (!link)
        return NVML_ERROR_GPU_IS_LOST;
    const auto told = opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_MEMORY}).as<vgpu_cuda_memory>();
    if (!told || told->free_bytes > told->total_bytes)
        return NVML_ERROR_NOT_SUPPORTED; // an older device
    out = {told->total_bytes, told->free_bytes, told->total_bytes - told->free_bytes};
    return NVML_SUCCESS;
}

std::string version_text(unsigned version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

} // namespace

KAGEMUSHA_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int) {
    try {
        const std::lock_guard held(mutex);
        if (all().empty() && !find_gpus())
            return NVML_ERROR_DRIVER_NOT_LOADED;
        ++users;
        return NVML_SUCCESS;
    } catch (...) {
        return NVML_ERROR_UNKNOWN;
    }
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlInit_v2() {
    return nvmlInitWithFlags(0);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlInit() {
    return nvmlInitWithFlags(0);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlShutdown() {
    return guarded([] {
        --users;
        return NVML_SUCCESS;
    });
}

KAGEMUSHA_EXPORT const char* nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}

// ---- the system

// What the host's driver is called is not known here: the newest CUDA that it has.
KAGEMUSHA_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned int bytes) {
    return guarded([&] { return give(version_text(all().front()->known.driver_version), text, bytes); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned int bytes) {
    return guarded([&] { return give(version_text(all().front()->known.driver_version), text, bytes); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
    return guarded([&] { return put(version, static_cast<int>(all().front()->known.driver_version)); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
    return nvmlSystemGetCudaDriverVersion(version);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* text, unsigned int bytes) {
    return guarded([&] {
        std::string name;
        std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
        return name.empty() ? NVML_ERROR_NOT_FOUND : give(name, text, bytes);
    });
}

// ---- devices

KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
    return guarded([&] { return put(count, static_cast<unsigned>(all().size())); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) {
    return nvmlDeviceGetCount_v2(count);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
    return find(device, NVML_ERROR_INVALID_ARGUMENT, [&](const gpu& one) { return one.index == index; });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
    if (!uuid)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find(device, NVML_ERROR_NOT_FOUND, [&](const gpu& one) { return uuid_of(one) == uuid; });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
    const auto at = id ? guest::pci_bus_id_of(id, false) : std::nullopt;
    if (!at)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find(device, NVML_ERROR_NOT_FOUND, [&](const gpu& one) {
        return one.domain() == at->domain && one.bus() == at->bus && one.slot() == at->slot;
    });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int bytes) {
    return of_device(device, [&](const gpu& one) { return give(one.known.name, text, bytes); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int bytes) {
    return of_device(device, [&](const gpu& one) { return give(uuid_of(one), text, bytes); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
    return of_device(device, [&](const gpu& one) { return put(index, one.index); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* number) {
    return nvmlDeviceGetIndex(device, number);
}

// Where it is on its host: what CUDA's programs compare with.
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
    return of_device(device, [&](const gpu& one) {
        if (!info)
            return NVML_ERROR_INVALID_ARGUMENT;
        *info = {};
        std::snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04x:%02x:%02x.0", one.domain() & 0xffff,
                      one.bus() & 0xff, one.slot() & 0xff);
        std::snprintf(info->busId, sizeof info->busId, "%08x:%02x:%02x.0", one.domain(), one.bus() & 0xff,
                      one.slot() & 0xff);
        info->domain = one.domain();
        info->bus = one.bus();
        info->device = one.slot();
        return NVML_SUCCESS;
    });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* info) {
    return nvmlDeviceGetPciInfo_v3(device, info);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* info) {
    return nvmlDeviceGetPciInfo_v3(device, info);
}

KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
    return of_device(device, [&](const gpu& one) {
        return memory ? memory_of(one, *memory) : NVML_ERROR_INVALID_ARGUMENT;
    });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
    return of_device(device, [&](const gpu& one) {
        if (!memory || memory->version != NVML_MEMORY_V2)
            return NVML_ERROR_INVALID_ARGUMENT;
        nvmlMemory_t known{};
        const nvmlReturn_t result = memory_of(one, known);
        if (result == NVML_SUCCESS)
            *memory = {NVML_MEMORY_V2, known.total, 0, known.free, known.used};
        return result;
    });
}

KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major,
                                                                 int* minor) {
    return of_device(device, [&](const gpu& one) {
        if (!major || !minor)
            return NVML_ERROR_INVALID_ARGUMENT;
        *major = one.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        *minor = one.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        return NVML_SUCCESS;
    });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int* mode) {
    return of_device(
        device, [&](const gpu& one) { return put(mode, one.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                                        unsigned int* mhz) {
    return of_device(device, [&](const gpu& one) {
        if (static_cast<unsigned>(type) > NVML_CLOCK_MEM)
            return NVML_ERROR_NOT_SUPPORTED;
        const int khz = one.attribute(type == NVML_CLOCK_MEM ? CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
                                                             : CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
        return khz > 0 ? put(mhz, static_cast<unsigned>(khz) / 1000) : NVML_ERROR_NOT_SUPPORTED;
    });
}
// Of what generation a multiprocessor has how many, nobody told.
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int*) {
    return of_device(device, [](const gpu&) { return NVML_ERROR_NOT_SUPPORTED; });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t*) {
    return of_device(device, [](const gpu&) { return NVML_ERROR_NOT_SUPPORTED; });
}

// Who uses it is the host's to know.
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                      unsigned int* count,
                                                                      nvmlProcessInfo_t*) {
    return of_device(device, [&](const gpu&) { return put(count, 0u); });
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                      unsigned int* count,
                                                                      nvmlProcessInfo_t* list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                                   nvmlProcessInfo_t* list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
                                                                       unsigned int* count,
                                                                       nvmlProcessInfo_t* list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device,
                                                                       unsigned int* count,
                                                                       nvmlProcessInfo_t* list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}
KAGEMUSHA_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                                    nvmlProcessInfo_t* list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

} // namespace kagemusha::nvml
