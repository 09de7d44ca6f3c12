// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_nvml_check NVML CUDA: what the guest's management library tells against what its CUDA driver tells.
#include "proto/cuda/cuda.h"
#include "proto/nvml/nvml.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

int failures = 0;
void* nvml = nullptr;
void* cuda = nullptr;

void expect(bool holds, const char* what, int line) {
    if (!holds) {
        std::printf("nvml_check.cpp:%d: %s\n", line, what);
        ++failures;
    }
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

template <class Function>
Function* find(void* in, const char* name) {
    void* const found = dlsym(in, name);
    if (!found) {
        std::printf("there is no %s\n", name);
        std::_Exit(1);
    }
    return reinterpret_cast<Function*>(found);
}
#define NVML(name) find<decltype(name)>(nvml, #name)
#define CUDA(name) find<decltype(name)>(cuda, #name)

std::string text_of(nvmlReturn_t (*ask)(nvmlDevice_t, char*, unsigned), nvmlDevice_t device) {
    char text[256] = {};
    EXPECT(ask(device, text, sizeof text) == NVML_SUCCESS);
    EXPECT(ask(device, text + 200, 2) == NVML_ERROR_INSUFFICIENT_SIZE);
    return text;
}

void compare(nvmlDevice_t device, CUdevice number) {
    char name[256] = {}, bus[64] = {};
    std::size_t bytes = 0;
    int major = 0, minor = 0, other_major = 0, other_minor = 0;
    EXPECT(CUDA(cuDeviceGetName)(name, sizeof name, number) == CUDA_SUCCESS);
    EXPECT(text_of(NVML(nvmlDeviceGetName), device) == name);
    EXPECT(CUDA(cuDeviceTotalMem_v2)(&bytes, number) == CUDA_SUCCESS);
    EXPECT(CUDA(cuDeviceComputeCapability)(&major, &minor, number) == CUDA_SUCCESS);
    EXPECT(NVML(nvmlDeviceGetCudaComputeCapability)(device, &other_major, &other_minor) == NVML_SUCCESS);
    EXPECT(major == other_major && minor == other_minor);
    nvmlMemory_t memory{};
    nvmlMemory_v2_t memory_2{};
    EXPECT(NVML(nvmlDeviceGetMemoryInfo)(device, &memory) == NVML_SUCCESS);
    EXPECT(memory.total == bytes && memory.free + memory.used == memory.total);
    EXPECT(NVML(nvmlDeviceGetMemoryInfo_v2)(device, &memory_2) == NVML_ERROR_INVALID_ARGUMENT);
    memory_2.version = NVML_MEMORY_V2;
    EXPECT(NVML(nvmlDeviceGetMemoryInfo_v2)(device, &memory_2) == NVML_SUCCESS && memory_2.total == bytes);
    nvmlPciInfo_t pci{};
    nvmlDevice_t again = nullptr;
    EXPECT(CUDA(cuDeviceGetPCIBusId)(bus, sizeof bus, number) == CUDA_SUCCESS);
    EXPECT(NVML(nvmlDeviceGetPciInfo_v3)(device, &pci) == NVML_SUCCESS &&
           std::strcmp(pci.busIdLegacy, bus) == 0);
    EXPECT(NVML(nvmlDeviceGetHandleByPciBusId_v2)(pci.busId, &again) == NVML_SUCCESS && again == device);
    const std::string uuid = text_of(NVML(nvmlDeviceGetUUID), device);
    EXPECT(uuid.size() == 40 && uuid.starts_with("GPU-"));
    EXPECT(NVML(nvmlDeviceGetHandleByUUID)(uuid.c_str(), &again) == NVML_SUCCESS && again == device);
    EXPECT(NVML(nvmlDeviceGetHandleByUUID)("GPU-none", &again) == NVML_ERROR_NOT_FOUND);
    unsigned processes = 7;
    nvmlUtilization_t rates{};
    EXPECT(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &processes, nullptr) == NVML_SUCCESS &&
           processes == 0);
    EXPECT(NVML(nvmlDeviceGetUtilizationRates)(device, &rates) == NVML_ERROR_NOT_SUPPORTED);
    // hashcat ends where it misses one of those that it asks.
    for (const char* sensor : {"nvmlDeviceGetTemperature", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetClockInfo",
                               "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetCurrPcieLinkGeneration",
                               "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetCurrentClocksThrottleReasons",
                               "nvmlDeviceGetSupportedClocksThrottleReasons"}) {
        auto* const ask = reinterpret_cast<int (*)(nvmlDevice_t, unsigned, unsigned*)>(dlsym(nvml, sensor));
        EXPECT(ask && ask(device, 0, &processes) == NVML_ERROR_NOT_SUPPORTED);
    }
}

} // namespace

int main(int count, char** arguments) {
    nvml = count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    cuda = count == 3 ? dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!nvml || !cuda) {
        std::printf("usage: kagemusha_nvml_check NVML CUDA: %s\n", count == 3 ? dlerror() : "two libraries");
        return 1;
    }
    unsigned number = 0;
    int devices = 0, version = 0, other = 0;
    EXPECT(NVML(nvmlDeviceGetCount_v2)(&number) == NVML_ERROR_UNINITIALIZED);
    EXPECT(NVML(nvmlInit_v2)() == NVML_SUCCESS);
    EXPECT(CUDA(cuInit)(0) == CUDA_SUCCESS);
    EXPECT(NVML(nvmlDeviceGetCount_v2)(&number) == NVML_SUCCESS);
    EXPECT(CUDA(cuDeviceGetCount)(&devices) == CUDA_SUCCESS && devices >= 1);
    EXPECT(number == static_cast<unsigned>(devices));
    EXPECT(NVML(nvmlSystemGetCudaDriverVersion_v2)(&version) == NVML_SUCCESS);
    EXPECT(CUDA(cuDriverGetVersion)(&other) == CUDA_SUCCESS && other <= version);
    char text[80];
    EXPECT(NVML(nvmlSystemGetDriverVersion)(text, sizeof text) == NVML_SUCCESS && text[0] != 0);
    nvmlDevice_t device = nullptr;
    for (unsigned i = 0; i < number; ++i) {
        EXPECT(NVML(nvmlDeviceGetHandleByIndex_v2)(i, &device) == NVML_SUCCESS);
        compare(device, static_cast<CUdevice>(i));
    }
    EXPECT(NVML(nvmlDeviceGetHandleByIndex_v2)(number, &device) == NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(NVML(nvmlDeviceGetName)(nullptr, text, sizeof text) == NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(NVML(nvmlShutdown)() == NVML_SUCCESS);
    EXPECT(NVML(nvmlShutdown)() == NVML_ERROR_UNINITIALIZED);
    std::printf("%s\n", failures == 0 ? "ok" : "FAILED");
    return failures == 0 ? 0 : 1;
}
