// SPDX-License-Identifier: GPL-2.0-or-later
// shared_pages: pages of the program that are the arena's own, so that a worker sees what the program writes
// without a copy, as it sees the pinned pages of a guest. They replace the program's at the same address.
//
// Not for every program: a child shares these pages with its parent, and memory that realloc makes larger in
// its place would reach into the arena. A program that gives its memory back and gets other memory at the same
// address is noticed, because the kernel names the mapping of an address (/proc/self/map_files).
#pragma once

#include "range_allocator.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace kagemusha::opencl {

// Not thread-safe: the transport's lock.
class shared_pages {
public:
    static constexpr std::uint64_t page_bytes = 4096;

    // Where in the arena a payload is, and which bytes of it, [begin, end), are the program's own. The others, of
    // pages that hold more than the payload, the caller copies.
    struct place {
        std::uint64_t offset, begin, end;
    };

    // `fd` is a memfd with the name `name`, of which no other one has it; `arena` is the mapping of all of it;
    // `ranges` says what of it is free. All are the caller's. A payload of less than `smallest_bytes` is not
    // shared: to copy it is cheaper.
    shared_pages(int fd, const std::string& name, std::byte* arena, range_allocator& ranges,
                 std::uint64_t smallest_bytes)
        : fd_(fd)
        , file_("/memfd:" + name + " (deleted)")
        , arena_(arena)
        , ranges_(ranges)
        , smallest_bytes_(smallest_bytes) {}

    // Makes the whole pages of the payload shared. Nothing if it is small, or if they can't be.
    std::optional<place> share(void* address, std::uint64_t bytes) {
        if (bytes < smallest_bytes_)
            return {};
        const auto at = reinterpret_cast<std::uint64_t>(address);
        const std::uint64_t first = (at + page_bytes - 1) / page_bytes * page_bytes;
        const std::uint64_t last = (at + bytes) / page_bytes * page_bytes;
        if (first >= last)
            return {};
        forget_lost(first, last);
        auto found = all_.upper_bound(first);
        if (found != all_.begin() && std::prev(found)->second.last > first)
            --found;
        if (found == all_.end() || found->first >= last) {
            const std::optional<std::uint64_t> offset = replace(first, last);
            if (!offset)
                return {};
            found = all_.emplace(first, range{last, *offset}).first;
        }
        const auto& [begin, all] = *found;
        const std::uint64_t offset = all.offset + at - begin;
        if (begin <= at && at + bytes <= all.last)
            return place{offset, 0, bytes};
        if (begin == first && all.last == last)
            return place{offset, first - at, last - at};
        return {}; // a part of it is shared, and what is in flight may write there
    }

private:
    struct range {
        std::uint64_t last;   // the end of the program's pages
        std::uint64_t offset; // of the first one in the arena
    };

    // The arena's range has a page more on either side, for the bytes of a payload that are not in whole pages.
    // So no two ranges are neighbours for the kernel, which would make one mapping of them.
    static std::uint64_t room_of(std::uint64_t first, std::uint64_t last) {
        return last - first + 2 * page_bytes;
    }

    std::optional<std::uint64_t> replace(std::uint64_t first, std::uint64_t last) {
        std::uint64_t offset = 0;
        if (!ranges_.allocate(room_of(first, last), offset))
            return {};
        void* const pages = reinterpret_cast<void*>(first);
        std::memcpy(arena_ + offset + page_bytes, pages, last - first);
        if (::mmap(pages, last - first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
                   static_cast<off_t>(offset + page_bytes)) == MAP_FAILED) {
            ranges_.release(offset, room_of(first, last));
            return {};
        }
        return offset + page_bytes;
    }

    // Ranges in [first, last) at whose place the program has something else now.
    void forget_lost(std::uint64_t first, std::uint64_t last) {
        for (auto one = all_.begin(); one != all_.end();) {
            if (one->first >= last || one->second.last <= first || is_there(one->first, one->second.last)) {
                ++one;
                continue;
            }
            const std::uint64_t offset = one->second.offset - page_bytes;
            const std::uint64_t bytes = room_of(one->first, one->second.last);
            // A range of which a part is still the program's is never free again.
            if (!is_mapped(offset, offset + bytes)) {
                ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                            static_cast<off_t>(bytes));
                ranges_.release(offset, bytes);
            }
            one = all_.erase(one);
        }
    }

    // Whether [first, last) is one mapping of the arena: only the range made for it has these borders.
    bool is_there(std::uint64_t first, std::uint64_t last) const {
        char link[64], name[128];
        std::snprintf(link, sizeof link, "/proc/self/map_files/%" PRIx64 "-%" PRIx64, first, last);
        const ssize_t length = ::readlink(link, name, sizeof name);
        return length > 0 && std::string(name, static_cast<std::size_t>(length)) == file_;
    }

    // Whether the program has a part of [begin, end) of the arena mapped, beside the mapping of all of it.
    bool is_mapped(std::uint64_t begin, std::uint64_t end) const {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            std::istringstream fields(line); // 7f00-7f80 rw-s 1000 ...
            std::uint64_t first = 0, last = 0, offset = 0;
            char dash = 0;
            std::string access;
            fields >> std::hex >> first >> dash >> last >> access >> offset;
            if (fields && line.ends_with(file_) && first != reinterpret_cast<std::uint64_t>(arena_) &&
                offset < end && begin < offset + (last - first))
                return true;
        }
        return false;
    }

    int fd_;
    std::string file_;
    std::byte* arena_;
    range_allocator& ranges_;
    std::uint64_t smallest_bytes_;
    std::map<std::uint64_t, range> all_; // by the begin of the program's pages
};

} // namespace kagemusha::opencl
