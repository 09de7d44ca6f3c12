// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory and reference counts of the objects behind OpenCL handles; object.hpp has the idea.
#include "object.hpp"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace kagemusha::opencl {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{64} << 10;     // also the alignment of a chunk
constexpr std::size_t chunk_table_size = std::size_t{1} << 16; // 2 GiB of objects at half load
constexpr std::size_t max_chunks = chunk_table_size / 2;
constexpr std::size_t slot_alignment = 64;

struct chunk_header {
    object_kind kind;
    std::uint32_t slot_bytes;
    std::uint32_t slot_count;
};

struct slot_pool {
    std::mutex mutex;
    std::vector<void*> free;
};

constexpr std::uint32_t live_mark(object_kind kind) {
    return 0x4b670000u | static_cast<std::uint32_t>(kind);
}

// Addresses of all chunks: open addressing, entries are only ever added, so that a reader needs no lock.
std::atomic<std::uintptr_t> chunk_table[chunk_table_size];
std::mutex chunk_table_mutex;
std::size_t chunk_count;

std::size_t chunk_hash(std::uintptr_t chunk) {
    return (chunk / chunk_bytes * 0x9e3779b97f4a7c15u) >> 48;
}
static_assert(std::size_t{1} << (64 - 48) == chunk_table_size);

bool is_chunk(std::uintptr_t address) {
    for (std::size_t i = chunk_hash(address);; i = (i + 1) % chunk_table_size) {
        const std::uintptr_t entry = chunk_table[i].load(std::memory_order_acquire);
        if (entry == address)
            return true;
        if (entry == 0)
            return false;
    }
}

bool add_chunk(std::uintptr_t address) {
    const std::lock_guard lock(chunk_table_mutex);
    if (chunk_count == max_chunks)
        return false;
    ++chunk_count;
    std::size_t i = chunk_hash(address);
    while (chunk_table[i].load(std::memory_order_relaxed) != 0)
        i = (i + 1) % chunk_table_size;
    chunk_table[i].store(address, std::memory_order_release);
    return true;
}

constexpr std::size_t header_bytes = slot_alignment;
static_assert(sizeof(chunk_header) <= header_bytes);

// Zeroed memory at a multiple of its size, or 0. From the heap, where a leak checker looks for what objects
// hold.
std::uintptr_t allocate_chunk() {
    void* const raw = std::aligned_alloc(chunk_bytes, chunk_bytes);
    if (raw)
        std::memset(raw, 0, chunk_bytes);
    return reinterpret_cast<std::uintptr_t>(raw);
}

// The pools outlive every static object of the program that may still hold handles at exit.
slot_pool& pool_of(object_kind kind) {
    static auto* const pools = new slot_pool[static_cast<std::size_t>(object_kind::count)];
    return pools[static_cast<std::size_t>(kind)];
}

} // namespace

object::object(object_kind object_kind) noexcept
    : dispatch(&dispatch_table), state(live_mark(object_kind)), kind(object_kind) {}

object::~object() {
    state.store(0, std::memory_order_release);
}

void object::release() noexcept {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1)
        destroy_object(this);
}

void object::retain_for_user() noexcept {
    // A query may have given out a handle of an object that only the driver still holds.
    if (user_references.fetch_add(1, std::memory_order_relaxed) == 0)
        retain();
}

bool object::release_for_user() noexcept {
    std::uint32_t count = user_references.load(std::memory_order_relaxed);
    do {
        if (count == 0)
            return false;
    } while (!user_references.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel));
    if (count == 1)
        release();
    return true;
}

void* allocate_slot(object_kind kind, std::size_t bytes) noexcept {
    slot_pool& pool = pool_of(kind);
    const std::lock_guard lock(pool.mutex);
    if (pool.free.empty()) {
        const std::uintptr_t chunk = allocate_chunk();
        if (chunk == 0)
            return nullptr;
        auto* const header = reinterpret_cast<chunk_header*>(chunk);
        header->kind = kind;
        header->slot_bytes =
            static_cast<std::uint32_t>((bytes + slot_alignment - 1) / slot_alignment * slot_alignment);
        header->slot_count = static_cast<std::uint32_t>((chunk_bytes - header_bytes) / header->slot_bytes);
        try {
            // Room for every slot that will ever come back, so that free_slot() cannot fail.
            pool.free.reserve(pool.free.capacity() + header->slot_count);
        } catch (...) {
            std::free(reinterpret_cast<void*>(chunk));
            return nullptr;
        }
        for (std::uint32_t i = header->slot_count; i-- > 0;)
            pool.free.push_back(
                reinterpret_cast<void*>(chunk + header_bytes + std::size_t{i} * header->slot_bytes));
        if (!add_chunk(chunk)) {
            pool.free.clear();
            std::free(reinterpret_cast<void*>(chunk));
            return nullptr;
        }
    }
    void* const slot = pool.free.back();
    pool.free.pop_back();
    return slot;
}

void free_slot(object_kind kind, void* slot) noexcept {
    slot_pool& pool = pool_of(kind);
    const std::lock_guard lock(pool.mutex);
    pool.free.push_back(slot);
}

bool is_live(const void* handle, object_kind kind) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(handle);
    const std::uintptr_t chunk = address & ~(chunk_bytes - 1);
    if (chunk == 0 || !is_chunk(chunk))
        return false;
    const auto* const header = reinterpret_cast<const chunk_header*>(chunk);
    const std::size_t offset = address - chunk;
    if (header->kind != kind || offset < header_bytes)
        return false;
    const std::size_t slot = (offset - header_bytes) / header->slot_bytes;
    if (slot >= header->slot_count || (offset - header_bytes) % header->slot_bytes != 0)
        return false;
    return static_cast<const object*>(handle)->state.load(std::memory_order_acquire) == live_mark(kind);
}

} // namespace kagemusha::opencl
