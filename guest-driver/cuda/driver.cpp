// SPDX-License-Identifier: GPL-2.0-or-later
//
// The start of the driver, its devices, and what is asked about them: answered from what the host said once.
#include "driver.hpp"

#include "guest-driver/cuda/pci_bus_id.hpp"
#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr unsigned max_devices = 8; // addresses are divided between so many

bool ask_device(device& one) {
    const auto link = one.native->link();
    if (!link)
        return false;
    const opencl::answer known = opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_DEVICE});
    const auto value = known.as<vgpu_cuda_device>();
    if (!value)
        return false;
    one.known = *value;
    one.known.name[VGPU_CUDA_NAME_BYTES - 1] = 0;
    return true;
}

void find_devices(driver& self) {
    for (const std::string& name : opencl::device_names()) {
        auto one = std::make_unique<device>();
        one->native = opencl::make_object<opencl::device>(name);
        if (!one->native || !ask_device(*one))
            continue;
        one->number = static_cast<CUdevice>(self.devices.size());
        constexpr std::uint64_t share = VGPU_ARENA_RANGE_BYTES / max_devices;
        one->arenas.add(VGPU_ARENA_BASE + share * self.devices.size(), share);
        self.devices.push_back(std::move(one));
        if (self.devices.size() == max_devices)
            break;
    }
}

} // namespace

driver& the_driver() {
    static auto* const only = new driver; // never destroyed: programs come here until the very end
    return *only;
}

device* device_of(CUdevice number) {
    auto& devices = the_driver().devices;
    return number >= 0 && static_cast<std::size_t>(number) < devices.size() ? devices[number].get() : nullptr;
}

void report_unsupported(std::string_view name) {
    driver& self = the_driver();
    if (!self.ready || name.size() > VGPU_CUDA_REPORT_BYTES)
        return;
    const auto link = self.devices.front()->native->link();
    // An older device takes no input there, and would end the file.
    if (!link || !(opencl::known_commands(*link) >> VGPU_CMD_CREATE_VARIABLE & 1))
        return;
    opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_UNSUPPORTED, 0, 0, std::as_bytes(std::span(name))});
}

CUresult cuda_result(cl_int error) {
    if (error <= VGPU_CUDA_ERROR_BASE)
        return static_cast<CUresult>(VGPU_CUDA_ERROR_BASE - error);
    switch (error) {
    case CL_SUCCESS:
        return CUDA_SUCCESS;
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case CL_INVALID_OPERATION:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CL_INVALID_VALUE:
    case CL_INVALID_KERNEL_ARGS:
        return CUDA_ERROR_INVALID_VALUE;
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        return CUDA_ERROR_LAUNCH_FAILED;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

KAGEMUSHA_EXPORT CUresult cuInit(unsigned int flags) {
    return guarded([&] {
        if (flags != 0)
            return CUDA_ERROR_INVALID_VALUE;
        static std::mutex once;
        const std::lock_guard held(once);
        driver& self = the_driver();
        if (!self.ready) {
            find_devices(self);
            self.ready = !self.devices.empty();
        }
        return self.ready ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDriverGetVersion(int* version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    // Also before cuInit. Of what the host's driver is newer in, this library has nothing.
    constexpr int newest = 13000;
    *version = newest;
    for (const auto& one : the_driver().devices)
        *version = std::min<int>(*version, static_cast<int>(one->known.driver_version));
    return CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuGetErrorName(CUresult error, const char** name) {
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    switch (static_cast<int>(error)) {
    case 0:
        *name = "CUDA_SUCCESS";
        return CUDA_SUCCESS;
#define KAGEMUSHA_NAME(what, number, text)                                                                   \
    case number:                                                                                             \
        *name = "CUDA_ERROR_" #what;                                                                         \
        return CUDA_SUCCESS;
        KVG_CUDA_RESULTS(KAGEMUSHA_NAME)
#undef KAGEMUSHA_NAME
    default:
        *name = nullptr;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

KAGEMUSHA_ANSWERED CUresult cuGetErrorString(CUresult error, const char** text) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    switch (static_cast<int>(error)) {
    case 0:
        *text = "no error";
        return CUDA_SUCCESS;
#define KAGEMUSHA_TEXT(what, number, sentence)                                                               \
    case number:                                                                                             \
        *text = sentence;                                                                                    \
        return CUDA_SUCCESS;
        KVG_CUDA_RESULTS(KAGEMUSHA_TEXT)
#undef KAGEMUSHA_TEXT
    default:
        *text = nullptr;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetCount(int* count) {
    if (!the_driver().ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(the_driver().devices.size());
    return CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return of_device(ordinal, [&](const kagemusha::cuda::device& one) {
        if (!device)
            return CUDA_ERROR_INVALID_VALUE;
        *device = one.number;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetName(char* name, int size, CUdevice number) {
    return of_device(number, [&](const device& one) {
        if (!name || size <= 0)
            return CUDA_ERROR_INVALID_VALUE;
        std::snprintf(name, static_cast<std::size_t>(size), "%s", one.known.name);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice number) {
    return of_device(number, [&](const device& one) {
        if (!uuid)
            return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(uuid->bytes, one.known.uuid, sizeof uuid->bytes);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice number) {
    return cuDeviceGetUuid(uuid, number);
}

KAGEMUSHA_ANSWERED CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice number) {
    return of_device(number, [&](const device& one) {
        if (!bytes)
            return CUDA_ERROR_INVALID_VALUE;
        *bytes = one.known.memory_bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice number) {
    return of_device(number, [&](const device& one) {
        const auto index = static_cast<unsigned>(attribute);
        if (!value || index >= VGPU_CUDA_DEVICE_ATTRIBUTES)
            return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        // What this library does not have, whatever the host's device could do.
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
            *value = 0;
            break;
        // What it has itself, on any.
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
            *value = 1;
            break;
        default:
            if (!(one.known.known[index / 8] >> index % 8 & 1))
                return CUDA_ERROR_INVALID_VALUE;
            *value = one.known.attributes[index];
        }
        return CUDA_SUCCESS;
    });
}

// What the API asked before there were attributes.
KAGEMUSHA_ANSWERED CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice number) {
    return of_device(number, [&](const device& one) {
        if (!properties)
            return CUDA_ERROR_INVALID_VALUE;
        const auto& known = one.known.attributes;
        properties->maxThreadsPerBlock = known[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
        std::copy_n(&known[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X], 3, properties->maxThreadsDim);
        std::copy_n(&known[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X], 3, properties->maxGridSize);
        properties->sharedMemPerBlock = known[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
        properties->totalConstantMemory = known[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
        properties->SIMDWidth = known[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
        properties->memPitch = known[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
        properties->regsPerBlock = known[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
        properties->clockRate = known[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
        properties->textureAlign = known[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice number) {
    return of_device(number, [&](const device& one) {
        if (!id || bytes <= 0)
            return CUDA_ERROR_INVALID_VALUE;
        std::snprintf(id, static_cast<std::size_t>(bytes), "%04x:%02x:%02x.0",
                      static_cast<unsigned>(one.known.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID]),
                      static_cast<unsigned>(one.known.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID]),
                      static_cast<unsigned>(one.known.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]));
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        const auto at = id ? guest::pci_bus_id_of(id, true) : std::nullopt;
        if (!device || !at)
            return CUDA_ERROR_INVALID_VALUE;
        for (const auto& one : the_driver().devices) {
            const auto& known = one->known.attributes;
            if (static_cast<unsigned>(known[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID]) == at->domain &&
                static_cast<unsigned>(known[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID]) == at->bus &&
                static_cast<unsigned>(known[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]) == at->slot) {
                *device = one->number;
                return CUDA_SUCCESS;
            }
        }
        return CUDA_ERROR_INVALID_DEVICE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice number) {
    const CUresult error = cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number);
    return error ? error : cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number);
}

} // namespace kagemusha::cuda
