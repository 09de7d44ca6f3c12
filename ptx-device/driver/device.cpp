// SPDX-License-Identifier: GPL-2.0-or-later
// device: see device.hpp. Also cuInit and what can be asked about the device.
#include "device.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace kagemusha::ptx_driver {

device& device::one() {
    static device* const d = new device; // threads of the program may still call while it exits
    return *d;
}

std::vector<context*>& stack() {
    // Exit handlers still call, after the first thread's own objects are gone: its stack stays.
    thread_local auto* const contexts = new std::vector<context*>;
    thread_local const std::unique_ptr<std::vector<context*>> owner(gettid() != getpid() ? contexts
                                                                                         : nullptr);
    return *contexts;
}

CUdeviceptr device::take(std::size_t bytes) {
    const std::size_t whole = (bytes + 511) / 512 * 512;
    if (bytes == 0 || whole < bytes || whole > memory_bytes - used)
        return 0;
    void* p = std::aligned_alloc(512, whole);
    if (p == nullptr)
        return 0;
    std::memset(p, 0, whole); // the same each time
    const auto address = reinterpret_cast<CUdeviceptr>(p);
    allocations[address] = bytes;
    used += whole;
    memory.add({address, address + bytes, true});
    return address;
}

void device::give_back(CUdeviceptr address) {
    const auto it = allocations.find(address);
    if (it != allocations.end()) {
        used -= (it->second + 511) / 512 * 512;
        freed(address, it->second);
        memory.remove(address);
        allocations.erase(it);
        if (const auto pages = placed.find(address); pages != placed.end()) {
            munmap(reinterpret_cast<void*>(address), pages->second);
            placed.erase(pages);
        } else {
            std::free(reinterpret_cast<void*>(address));
        }
    }
}

CUdeviceptr device::take_at(std::uint64_t place, std::size_t bytes) {
    // Of what a process has of addresses, a part that neither programs nor the system's allocator use by themselves
    // and that lies outside of what guests choose from (VGPU_ARENA_BASE).
    constexpr CUdeviceptr begin = 0x200000000000, slot = CUdeviceptr{1} << 21;
    constexpr std::uint64_t slots = std::uint64_t{1} << 21;
    constexpr int tries = 64;
    const std::size_t pages = (bytes + 4095) / 4096 * 4096;
    if (bytes == 0 || pages < bytes || pages > memory_bytes - used)
        return 0;
    for (int i = 0; i < tries; i++) {
        void* const wanted =
            reinterpret_cast<void*>(begin + (place + static_cast<unsigned>(i)) % slots * slot);
        void* const p = mmap(wanted, pages, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (p == MAP_FAILED)
            continue;
        const auto address = reinterpret_cast<CUdeviceptr>(p);
        if (p != wanted) { // a kernel that does not know MAP_FIXED_NOREPLACE
            munmap(p, pages);
            continue;
        }
        allocations[address] = bytes;
        placed[address] = pages;
        used += (bytes + 511) / 512 * 512;
        memory.add({address, address + bytes, true});
        return address;
    }
    return take(bytes);
}

context* device::make_context(unsigned flags, bool is_primary) {
    auto made = std::make_unique<context>();
    made->flags = flags;
    made->primary = is_primary;
    context* const c = made.get();
    contexts[c] = std::move(made);
    return c;
}

void device::destroy(context* c) {
    for (const auto& [m, owner] : c->modules)
        for (CUdeviceptr v : m->variables)
            give_back(v);
    for (CUdeviceptr a : c->allocations)
        give_back(a);
    give_back(c->heap_memory);
    std::erase_if(texture_descriptions, [&](const auto& t) {
        if (t.second.owner != c)
            return false;
        textures.erase(t.first);
        free_textures.insert(t.first);
        return true;
    });
    std::erase_if(arrays,
                  [&](const auto& a) { return a.second->owner == c && (give_back(a.second->base), true); });
    contexts.erase(c);
}

thread_local bool call::is_in_callback = false;

call::call(needs n) : locked(device::one().lock), d(device::one()) {
    if (!d.started) {
        result = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    if (is_in_callback) {
        result = CUDA_ERROR_NOT_PERMITTED;
        return;
    }
    if (n == needs::driver)
        return;
    c = stack().empty() ? nullptr : stack().back();
    if (c == nullptr || !d.contexts.contains(c))
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (n == needs::working_context)
        result = c->failed;
}

bool is_stream(const call& c, CUstream s) {
    return s == nullptr || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD || c.c->streams.contains(s);
}

namespace {

int attribute_of(CUdevice_attribute a) {
    switch (a) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return block_threads;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return shared_default;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return shared_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return 100 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        return 1000; // kHz; of an interpreter
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
        return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return 32;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return capability_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return capability_minor;
    default:
        return 0; // what this device does not have
    }
}

constexpr char uuid[17] = "kagemusha-ptx-00";

} // namespace
} // namespace kagemusha::ptx_driver

using namespace kagemusha::ptx_driver;

CUresult cuInit(unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard locked(device::one().lock);
    device::one().started = true;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
    if (version == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version;
    return CUDA_SUCCESS;
}

namespace {

// A question about device 0, whose answer goes to `out`.
CUresult asked(const void* out, CUdevice number) {
    const call c(call::needs::driver);
    return c.result != CUDA_SUCCESS ? c.result
           : out == nullptr         ? CUDA_ERROR_INVALID_VALUE
           : number != 0            ? CUDA_ERROR_INVALID_DEVICE
                                    : CUDA_SUCCESS;
}

} // namespace

CUresult cuDeviceGetCount(int* count) {
    const CUresult r = asked(count, 0);
    if (r == CUDA_SUCCESS)
        *count = 1;
    return r;
}

CUresult cuDeviceGet(CUdevice* out, int ordinal) {
    const CUresult r = asked(out, ordinal);
    if (r == CUDA_SUCCESS)
        *out = 0;
    return r;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice number) {
    const CUresult r = asked(name, number);
    if (r != CUDA_SUCCESS || size <= 0)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    const std::size_t length = std::min(std::strlen(device_name), static_cast<std::size_t>(size) - 1);
    std::memcpy(name, device_name, length);
    name[length] = '\0';
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* out, CUdevice number) {
    const CUresult r = asked(out, number);
    if (r == CUDA_SUCCESS)
        std::memcpy(out->bytes, uuid, sizeof out->bytes);
    return r;
}
CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice number) {
    return cuDeviceGetUuid(out, number);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice number) {
    const CUresult r = asked(bytes, number);
    if (r == CUDA_SUCCESS)
        *bytes = memory_bytes;
    return r;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice number) {
    const CUresult r = asked(value, number);
    if (r != CUDA_SUCCESS || static_cast<int>(attribute) <= 0)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *value = attribute_of(attribute);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice number) {
    const CUresult r = asked(properties, number);
    if (r != CUDA_SUCCESS)
        return r;
    for (int d = 0; d < 3; ++d) {
        properties->maxThreadsDim[d] =
            attribute_of(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + d));
        properties->maxGridSize[d] =
            attribute_of(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + d));
    }
    properties->maxThreadsPerBlock = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    properties->sharedMemPerBlock = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    properties->totalConstantMemory = attribute_of(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    properties->SIMDWidth = attribute_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    properties->memPitch = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    properties->regsPerBlock = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    properties->clockRate = attribute_of(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = attribute_of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice number) {
    const CUresult r = asked(major == nullptr ? nullptr : minor, number);
    if (r == CUDA_SUCCESS) {
        *major = capability_major;
        *minor = capability_minor;
    }
    return r;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
    if (name == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *name = nullptr;
    switch (static_cast<int>(error)) {
    case 0:
        *name = "CUDA_SUCCESS";
        return CUDA_SUCCESS;
#define KAGEMUSHA_PTX_NAME(result, number, text)                                                             \
    case number:                                                                                             \
        *name = "CUDA_ERROR_" #result;                                                                       \
        return CUDA_SUCCESS;
        KVG_CUDA_RESULTS(KAGEMUSHA_PTX_NAME)
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult error, const char** out) {
    if (out == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    switch (static_cast<int>(error)) {
    case 0:
        *out = "no error";
        return CUDA_SUCCESS;
#define KAGEMUSHA_PTX_TEXT(result, number, text)                                                             \
    case number:                                                                                             \
        *out = text;                                                                                         \
        return CUDA_SUCCESS;
        KVG_CUDA_RESULTS(KAGEMUSHA_PTX_TEXT)
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
