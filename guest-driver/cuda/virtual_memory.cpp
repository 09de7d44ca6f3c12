// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory in four steps: addresses are reserved, memory is made, mapped there, and opened. What is mapped is an
// arena of its own at that address, made when it is mapped. A host cannot show one arena at two addresses, so a
// second mapping of the same memory is refused. Memory that is unmapped keeps its content as the standard wants:
// its arena stays where it is until it is released, mapped again (and copied, if that is elsewhere), or until
// its addresses are wanted for something else (and it is copied to addresses of its own).
#include "driver.hpp"
#include "lasting.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

struct physical {
    device* gpu = nullptr;
    std::uint64_t bytes = 0;
    CUmemAllocationProp properties{};
    unsigned handles = 1;      // the program's: cuMemCreate's, and those that were retained
    context* home = nullptr;   // where its arena is; null: there is none yet
    std::uint64_t address = 0; // of the arena
    bool mapped = false;
    bool own_addresses = false; // the arena has some that no program reserved
};

std::mutex mutex; // before context::mutex
auto& reservations =
    lasting<std::map<std::uint64_t, std::pair<device*, std::uint64_t>>>(); // by address: bytes
auto& all = lasting<std::map<CUmemGenericAllocationHandle, physical>>();
CUmemGenericAllocationHandle last_handle = 0;

bool whole(std::uint64_t bytes) {
    return bytes != 0 && bytes % VGPU_ARENA_ALIGNMENT == 0;
}

bool reserved(const device& gpu, std::uint64_t address, std::uint64_t bytes) {
    auto found = reservations.upper_bound(address);
    if (found == reservations.begin())
        return false;
    found = std::prev(found);
    const std::uint64_t offset = address - found->first;
    return found->second.first == &gpu && offset < found->second.second &&
           bytes <= found->second.second - offset;
}

bool overlaps(const physical& one, std::uint64_t address, std::uint64_t bytes) {
    return one.home && address < one.address + one.bytes && one.address < address + bytes;
}

// The arena goes, with its content.
void drop_arena(physical& one) {
    if (!one.home)
        return;
    {
        const std::lock_guard held(one.home->mutex);
        end_arena(*one.home, one.address);
    }
    if (one.own_addresses)
        one.gpu->unreserve(one.address);
    one.home = nullptr;
    one.own_addresses = false;
}

// Makes its arena at this address, with the content that it had.
CUresult move_to(physical& one, context& where, std::uint64_t address, bool own_addresses) {
    if (one.home && one.home != &where)
        return CUDA_ERROR_NOT_SUPPORTED; // an arena is its context's
    {
        const std::lock_guard held(where.mutex);
        if (const CUresult error = make_arena(where, address, one.bytes))
            return error;
    }
    if (one.home) {
        if (const CUresult error = copy_on_device(where, address, one.address, one.bytes)) {
            const std::lock_guard held(where.mutex);
            end_arena(where, address);
            return error;
        }
        drop_arena(one);
    }
    one.home = &where;
    one.address = address;
    one.own_addresses = own_addresses;
    return CUDA_SUCCESS;
}

void set_mapped(physical& one, bool mapped) {
    one.mapped = mapped;
    const std::lock_guard held(one.home->mutex);
    if (mapped)
        one.home->mapped[one.address] = one.bytes;
    else
        one.home->mapped.erase(one.address);
}

// Memory that nothing maps leaves these addresses. An error if something is mapped there.
CUresult clear(std::uint64_t address, std::uint64_t bytes) {
    for (auto& [handle, one] : all) {
        if (!overlaps(one, address, bytes))
            continue;
        if (one.mapped)
            return CUDA_ERROR_INVALID_VALUE;
        const auto elsewhere = one.gpu->reserve(one.bytes + VGPU_ARENA_ALIGNMENT);
        if (!elsewhere)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (const CUresult error = move_to(one, *one.home, *elsewhere, true)) {
            one.gpu->unreserve(*elsewhere);
            return error;
        }
    }
    return CUDA_SUCCESS;
}

// The mappings that a range consists of; none if it has a gap or ends inside one.
std::vector<CUmemGenericAllocationHandle> mapped_in(std::uint64_t address, std::uint64_t bytes) {
    std::map<std::uint64_t, CUmemGenericAllocationHandle> found;
    std::uint64_t sum = 0;
    for (const auto& [handle, one] : all)
        if (one.mapped && overlaps(one, address, bytes)) {
            if (one.address < address || one.address + one.bytes > address + bytes)
                return {};
            found[one.address] = handle;
            sum += one.bytes;
        }
    std::vector<CUmemGenericAllocationHandle> list;
    if (sum == bytes)
        for (const auto& [at, handle] : found)
            list.push_back(handle);
    return list;
}

template <class Body>
CUresult with_mappings(Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        const std::lock_guard held(mutex);
        return body();
    });
}

// The same in the current context, because an arena belongs to one.
template <class Body>
CUresult with_mappings_here(Body&& body) noexcept {
    return in_context([&](context& where) {
        const std::lock_guard held(mutex);
        return body(where);
    });
}

bool is_plain(const CUmemAllocationProp& p) {
    return p.type == CU_MEM_ALLOCATION_TYPE_PINNED && p.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

} // namespace

std::optional<address_space::piece> context::find_mapping(std::uint64_t address) const {
    auto found = mapped.upper_bound(address);
    if (found == mapped.begin())
        return std::nullopt;
    found = std::prev(found);
    if (address - found->first >= found->second)
        return std::nullopt;
    return address_space::piece{found->first, found->second};
}

void end_mappings(context& dead) {
    const std::lock_guard held(mutex);
    for (auto& [handle, one] : all)
        if (one.home == &dead) {
            drop_arena(one);
            one.mapped = false; // as the context's other memory, it is gone
        }
    std::erase_if(all, [](const auto& one) { return one.second.handles == 0 && !one.second.home; });
}

KAGEMUSHA_ANSWERED CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                          const CUmemAllocationProp* properties,
                                                          CUmemAllocationGranularity_flags) {
    if (!the_driver().ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!granularity || !properties || !is_plain(*properties))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = VGPU_ARENA_ALIGNMENT;
    return CUDA_SUCCESS;
}

// The wanted address is a hint, and this side gives none but its own.
KAGEMUSHA_ANSWERED CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                                                CUdeviceptr, unsigned long long flags) {
    return with_mappings([&] {
        if (!address || !whole(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        CUdevice number = 0; // addresses of devices differ, and a range is the current one's
        if (cuCtxGetDevice(&number) != CUDA_SUCCESS)
            number = 0;
        device& gpu = *device_of(number);
        if (alignment > VGPU_ARENA_ALIGNMENT)
            return CUDA_ERROR_NOT_SUPPORTED;
        const auto made = gpu.reserve(bytes);
        if (!made)
            return CUDA_ERROR_OUT_OF_MEMORY;
        reservations[*made] = {&gpu, bytes};
        *address = *made;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return with_mappings([&] {
        const auto found = reservations.find(address);
        if (found == reservations.end() || found->second.second != bytes)
            return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult error = clear(address, bytes))
            return error;
        found->second.first->unreserve(address);
        reservations.erase(found);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                        const CUmemAllocationProp* properties, unsigned long long flags) {
    return with_mappings([&] {
        if (!handle || !properties || !whole(bytes) || flags != 0 ||
            properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
            return CUDA_ERROR_INVALID_VALUE;
        if (!is_plain(*properties) || properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)
            return CUDA_ERROR_NOT_SUPPORTED; // of the host, or for other processes
        device* const gpu = device_of(properties->location.id);
        if (!gpu)
            return CUDA_ERROR_INVALID_DEVICE;
        std::uint64_t promised = 0; // and not made yet
        for (const auto& [other, one] : all)
            promised += one.gpu == gpu && !one.home ? one.bytes : 0;
        {
            const std::lock_guard held(gpu->mutex);
            const std::uint64_t used = gpu->used_bytes + promised;
            if (bytes > gpu->known.memory_bytes - std::min<std::uint64_t>(gpu->known.memory_bytes, used))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        physical made;
        made.gpu = gpu;
        made.bytes = bytes;
        made.properties = *properties;
        *handle = ++last_handle;
        all[*handle] = made;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return with_mappings([&] {
        const auto found = all.find(handle);
        if (found == all.end() || found->second.handles == 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (--found->second.handles == 0 && !found->second.mapped) {
            drop_arena(found->second);
            all.erase(found);
        }
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                                   CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return with_mappings_here([&](context& where) {
        const auto found = all.find(handle);
        if (found == all.end() || found->second.handles == 0 || offset != 0 || flags != 0 ||
            bytes != found->second.bytes || address % VGPU_ARENA_ALIGNMENT != 0 ||
            !reserved(*where.gpu, address, bytes) || found->second.gpu != where.gpu)
            return CUDA_ERROR_INVALID_VALUE;
        physical& one = found->second;
        if (one.mapped)
            return CUDA_ERROR_NOT_SUPPORTED; // at two addresses
        if (one.home == &where && one.address == address) {
            set_mapped(one, true); // as it was before
            return CUDA_SUCCESS;
        }
        if (overlaps(one, address, bytes))
            return CUDA_ERROR_NOT_SUPPORTED; // a part of itself is in the way
        CUresult error = clear(address, bytes);
        if (!error)
            error = move_to(one, where, address, false);
        if (!error)
            set_mapped(one, true);
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return with_mappings([&] {
        const auto list = mapped_in(address, bytes);
        if (list.empty())
            return CUDA_ERROR_INVALID_VALUE;
        for (const auto handle : list) {
            physical& one = all[handle];
            one.home->synchronise(); // it may be in use
            set_mapped(one, false);
            if (one.handles == 0) {
                drop_arena(one);
                all.erase(handle);
            }
        }
        return CUDA_SUCCESS;
    });
}

// What is mapped can be read and written by its device, before this too: an error that only a wrong program
// would get is missing.
KAGEMUSHA_ANSWERED CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                           const CUmemAccessDesc* descriptions, size_t count) {
    return with_mappings([&] {
        if (!descriptions || count == 0)
            return CUDA_ERROR_INVALID_VALUE;
        const auto list = mapped_in(address, bytes);
        if (list.empty())
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i)
            if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                descriptions[i].location.id != all[list.front()].gpu->number)
                return CUDA_ERROR_NOT_SUPPORTED; // no device reaches another's memory
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                           CUdeviceptr address) {
    return with_mappings([&] {
        if (!flags || !location)
            return CUDA_ERROR_INVALID_VALUE;
        for (const auto& [handle, one] : all)
            if (one.mapped && overlaps(one, address, 1)) {
                const bool own =
                    location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == one.gpu->number;
                *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
                return CUDA_SUCCESS;
            }
        return CUDA_ERROR_INVALID_VALUE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                                   CUmemGenericAllocationHandle handle) {
    return with_mappings([&] {
        const auto found = all.find(handle);
        if (!properties || found == all.end())
            return CUDA_ERROR_INVALID_VALUE;
        *properties = found->second.properties;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    return with_mappings([&] {
        if (!handle)
            return CUDA_ERROR_INVALID_VALUE;
        for (auto& [number, one] : all)
            if (one.mapped && overlaps(one, reinterpret_cast<std::uint64_t>(address), 1)) {
                ++one.handles;
                *handle = number;
                return CUDA_SUCCESS;
            }
        return CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace kagemusha::cuda
