// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // Linux 5.14
#endif

namespace kagemusha::pair {

namespace {

// Blocks begin on a cache line of their own; GPU drivers like page-aligned memory, but thousands of small
// payloads would not.
constexpr std::uint64_t alignment = 64;

// Less than this stays resident when the arena is empty.
constexpr std::uint64_t kept_bytes = std::uint64_t{16} << 20;

// What trim() gives back at once: 2 to 4 ms. Whoever wants a block waits for that, and so does the end of a
// process that is killed meanwhile.
constexpr std::uint64_t piece_bytes = std::uint64_t{8} << 20;

} // namespace

struct arena::state {
    int fd = -1;
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;

    std::mutex mutex; // everything below
    std::map<std::uint64_t, std::uint64_t> free_ranges;
    std::set<std::pair<std::uint64_t, std::uint64_t>> by_size; // (bytes, offset) of the same ranges
    std::uint64_t used = 0;
    std::uint64_t high_water = 0;              // end of the last block since the memory was given back
    std::uint64_t empty_since_ms = UINT64_MAX; // as far as trim() has seen

    ~state() {
        if (base)
            munmap(base, bytes);
        if (fd >= 0)
            close(fd);
    }

    void insert(std::uint64_t offset, std::uint64_t length) {
        free_ranges.emplace(offset, length);
        by_size.emplace(length, offset);
    }
    void erase(std::map<std::uint64_t, std::uint64_t>::iterator at) {
        by_size.erase({at->second, at->first});
        free_ranges.erase(at);
    }

    bool take(std::uint64_t length, std::uint64_t& offset) {
        const std::lock_guard lock(mutex);
        const auto best = by_size.lower_bound({length, 0});
        if (best == by_size.end())
            return false;
        const auto [found, at] = *best;
        erase(free_ranges.find(at));
        if (found > length)
            insert(at + length, found - length);
        used += length;
        high_water = std::max(high_water, at + length);
        empty_since_ms = UINT64_MAX;
        offset = at;
        return true;
    }

    void give_back(std::uint64_t offset, std::uint64_t length) {
        const std::lock_guard lock(mutex);
        used -= length;
        auto next = free_ranges.lower_bound(offset);
        if (next != free_ranges.end() && offset + length == next->first) {
            length += next->second;
            erase(next++);
        }
        if (next != free_ranges.begin()) {
            const auto previous = std::prev(next);
            if (previous->first + previous->second == offset) {
                offset = previous->first;
                length += previous->second;
                erase(previous);
            }
        }
        insert(offset, length);
    }

    bool can_trim() const { return used == 0 && high_water > kept_bytes; }
};

std::unique_ptr<arena> arena::create(const std::string& name, std::uint64_t bytes, std::uint32_t region,
                                     std::string& error) {
    auto s = std::make_shared<state>();
    s->fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void* at = MAP_FAILED;
    // Sealed like a worker's rings: whoever gets hold of the file can't cut it and make this process fault.
    if (s->fd >= 0 && ftruncate(s->fd, static_cast<off_t>(bytes)) == 0 &&
        fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, 0);
    }
    return finish(std::move(s), at, bytes, region, error);
}

std::unique_ptr<arena> arena::create_private(std::uint64_t bytes, std::string& error) {
    void* at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED)
        (void)madvise(at, bytes, MADV_HUGEPAGE); // a failure costs time, nothing else
    return finish(std::make_shared<state>(), at, bytes, 0, error);
}

std::unique_ptr<arena> arena::finish(std::shared_ptr<state> s, void* at, std::uint64_t bytes,
                                     std::uint32_t region, std::string& error) {
    if (at == MAP_FAILED) {
        error = "no memory of " + std::to_string(bytes >> 20) +
                " MiB for replicated content: " + std::strerror(errno);
        return nullptr;
    }
    s->bytes = bytes;
    s->base = static_cast<std::byte*>(at);
    s->insert(0, bytes);
    return std::unique_ptr<arena>(new arena(std::move(s), region));
}

arena::arena(std::shared_ptr<state> s, std::uint32_t region) : state_(std::move(s)), region_(region) {}
arena::~arena() = default;

bool arena::allocate(std::uint64_t bytes, block& out) {
    if (bytes == 0 || bytes > state_->bytes)
        return false;
    const std::uint64_t length = (bytes + alignment - 1) & ~(alignment - 1);
    std::uint64_t offset = 0;
    if (!state_->take(length, offset))
        return false;
    out.segment = {offset, bytes, region_, 0};
    out.bytes = {state_->base + offset, static_cast<std::size_t>(bytes)};
    out.keep = std::shared_ptr<const void>(
        out.bytes.data(), [s = state_, offset, length](const void*) { s->give_back(offset, length); });
    return true;
}

std::uint64_t arena::capacity() const {
    return state_->bytes;
}

std::uint64_t arena::used() const {
    const std::lock_guard lock(state_->mutex);
    return state_->used;
}

std::uint64_t arena::touched() const {
    const std::lock_guard lock(state_->mutex);
    return state_->high_water;
}

void arena::trim(std::uint64_t now_ms) {
    state& s = *state_;
    const std::lock_guard lock(s.mutex);
    if (!s.can_trim())
        return;
    if (s.empty_since_ms == UINT64_MAX)
        s.empty_since_ms = now_ms;
    if (now_ms >= s.empty_since_ms + keep_ms) {
        const std::uint64_t from = (s.high_water - 1) / piece_bytes * piece_bytes;
        const std::uint64_t length = s.high_water - from;
        // A failure costs memory, nothing else.
        if (s.fd >= 0) {
            (void)fallocate(s.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                            static_cast<off_t>(length));
        } else {
            (void)madvise(s.base + from, length, MADV_DONTNEED);
        }
        s.high_water = from;
    }
}

void arena::populate(std::uint64_t from, std::uint64_t bytes) {
    state& s = *state_;
    from = std::min(from, s.bytes);
    bytes = std::min(bytes, s.bytes - from);
    {
        const std::lock_guard lock(s.mutex);
        s.high_water = std::max(s.high_water, from + bytes);
    }
    (void)madvise(s.base + from, bytes, MADV_POPULATE_WRITE);
}

std::uint64_t arena::trim_at_ms() const {
    const std::lock_guard lock(state_->mutex);
    if (!state_->can_trim())
        return UINT64_MAX;
    return state_->empty_since_ms == UINT64_MAX ? 0 : state_->empty_since_ms + keep_ms;
}

int arena::fd() const {
    return state_->fd;
}

std::byte* arena::base() const {
    return state_->base;
}

} // namespace kagemusha::pair
