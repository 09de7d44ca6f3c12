// SPDX-License-Identifier: GPL-2.0-or-later
// Memory in four steps: an address is reserved, memory is made, mapped there, and opened. A reservation at a
// wanted address is given exactly there or, if that range is in use, elsewhere, as the reference says.
#include "device.hpp"

#include <sys/mman.h>
#include <unistd.h>

using namespace kagemusha::ptx_driver;

namespace {

struct physical {
    int file = -1; // -1: this process may have none (a worker's sandbox), and its one mapping is the memory
    std::size_t bytes = 0;
    unsigned users = 0; // the handle, and each mapping
    bool was_mapped = false;
};
struct mapping {
    std::size_t bytes;
    CUmemGenericAllocationHandle of;
};

// Under the device's lock.
// Never destroyed: programs call from exit handlers, too.
auto& reservations = *new std::map<CUdeviceptr, std::size_t>;
auto& made = *new std::map<CUmemGenericAllocationHandle, physical>;
auto& open_handles = *new std::map<CUmemGenericAllocationHandle, bool>;
auto& mappings = *new std::map<CUdeviceptr, mapping>;
CUmemGenericAllocationHandle last_handle = 0;

void drop(device& d, CUmemGenericAllocationHandle h) {
    const auto it = made.find(h);
    if (--it->second.users == 0) {
        if (it->second.file >= 0)
            close(it->second.file);
        d.used -= it->second.bytes;
        made.erase(it);
    }
}

bool whole(std::size_t bytes) {
    return bytes != 0 && bytes % granularity == 0;
}
void* pointer(CUdeviceptr a) {
    return reinterpret_cast<void*>(a);
}

bool reserved(CUdeviceptr address, std::size_t bytes) {
    auto it = reservations.upper_bound(address);
    if (it == reservations.begin())
        return false;
    --it;
    const std::size_t offset = address - it->first;
    return offset <= it->second && bytes <= it->second - offset;
}

// The mapping in which a range begins where it begins and ends.
bool mapped(CUdeviceptr address, std::size_t bytes) {
    auto it = mappings.lower_bound(address);
    if (it == mappings.begin() && (it == mappings.end() || it->first >= address + bytes))
        return false;
    if (it != mappings.begin()) {
        const auto before = std::prev(it);
        if (before->first + before->second.bytes > address)
            return true;
    }
    return it != mappings.end() && it->first < address + bytes;
}

} // namespace

CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || out == nullptr || properties == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *out = granularity;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (address == nullptr || !whole(bytes) || flags != 0 || wanted % granularity != 0 ||
        (alignment & (alignment - 1)) != 0 || alignment > granularity) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = MAP_FAILED;
    if (wanted != 0)
        p = mmap(pointer(wanted), bytes, PROT_NONE, kind | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) { // anywhere, on a whole granule
        p = mmap(nullptr, bytes + granularity, PROT_NONE, kind, -1, 0);
        if (p == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        const auto begin = reinterpret_cast<CUdeviceptr>(p);
        const CUdeviceptr at = (begin + granularity - 1) / granularity * granularity;
        if (at != begin)
            munmap(p, at - begin);
        if (at + bytes != begin + bytes + granularity)
            munmap(pointer(at + bytes), begin + granularity - at);
        p = pointer(at);
    }
    *address = reinterpret_cast<CUdeviceptr>(p);
    reservations[*address] = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const auto it = reservations.find(address);
    if (it == reservations.end() || it->second != bytes || mapped(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    munmap(pointer(address), bytes);
    reservations.erase(it);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (handle == nullptr || properties == nullptr || !whole(bytes) || flags != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.id != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (bytes > memory_bytes - c.d.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const int file = memfd_create("kagemusha-ptx", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = ++last_handle;
    made[*handle] = {file, bytes, 1, false};
    open_handles[*handle] = true;
    c.d.used += bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (open_handles.erase(handle) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    drop(c.d, handle);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!open_handles.contains(handle) || !whole(bytes) || offset != 0 || flags != 0 ||
        address % granularity != 0 || bytes > made[handle].bytes || !reserved(address, bytes) ||
        mapped(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical& p = made[handle];
    if (p.file < 0 && p.was_mapped) // a second place, or its content again: nobody would have it
        return CUDA_ERROR_NOT_SUPPORTED;
    const int kind = p.file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    if (mmap(pointer(address), bytes, PROT_NONE, kind | MAP_FIXED, p.file, 0) == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    p.was_mapped = true;
    p.users++;
    mappings[address] = {bytes, handle};
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    // The range is whole mappings, without a gap.
    CUdeviceptr at = address;
    while (at < address + bytes) {
        const auto it = mappings.find(at);
        if (it == mappings.end() || it->second.bytes > address + bytes - at)
            return CUDA_ERROR_INVALID_VALUE;
        at += it->second.bytes;
    }
    for (auto it = mappings.find(address); it != mappings.end() && it->first < address + bytes;) {
        if (mmap(pointer(it->first), it->second.bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            return CUDA_ERROR_OPERATING_SYSTEM;
        c.d.memory.remove(it->first);
        drop(c.d, it->second.of);
        it = mappings.erase(it);
    }
    return bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions,
                        size_t count) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (descriptions == nullptr || count != 1 || descriptions->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        descriptions->location.id != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdeviceptr at = address;
    while (at < address + bytes) {
        const auto it = mappings.find(at);
        if (it == mappings.end() || it->second.bytes > address + bytes - at)
            return CUDA_ERROR_INVALID_VALUE;
        at += it->second.bytes;
    }
    const int protection = (descriptions->flags & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0) |
                           (descriptions->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);
    for (auto it = mappings.find(address); it != mappings.end() && it->first < address + bytes; ++it) {
        if (mprotect(pointer(it->first), it->second.bytes, protection) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        c.d.memory.remove(it->first);
        if (protection != 0)
            c.d.memory.add({it->first, it->first + it->second.bytes, (protection & PROT_WRITE) != 0});
    }
    return bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    auto it = mappings.upper_bound(address);
    if (flags == nullptr || location == nullptr || it == mappings.begin() ||
        address - std::prev(it)->first >= std::prev(it)->second.bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* range = c.d.memory.find(address);
    const bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == 0;
    *flags = !own || range == nullptr ? CU_MEM_ACCESS_FLAGS_PROT_NONE
             : range->writable        ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                      : CU_MEM_ACCESS_FLAGS_PROT_READ;
    return CUDA_SUCCESS;
}
