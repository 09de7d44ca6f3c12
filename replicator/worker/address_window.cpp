// SPDX-License-Identifier: GPL-2.0-or-later
// address_window: see address_window.hpp.
#include "worker/address_window.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>

namespace kagemusha::worker {

namespace {

constexpr std::uint64_t user_end =
    0x7fffffff0000; // of 47 bits, without what a kernel keeps back at their end
constexpr std::uint64_t stack_room = 64u << 20;

// "BEGIN-END ..."
bool read_range(std::string_view line, address_range& range) {
    const char* const end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), end, range.begin, 16);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-')
        return false;
    return std::from_chars(first.ptr + 1, end, range.end, 16).ec == std::errc() && range.begin < range.end;
}

} // namespace

std::vector<address_range> free_ranges(std::string_view maps, std::uint64_t base, std::uint64_t top,
                                       std::uint64_t stack_room) {
    std::vector<address_range> free;
    std::uint64_t at = base;
    const auto add = [&](std::uint64_t end) {
        if (end > at)
            free.push_back({at, end});
    };
    while (!maps.empty()) {
        const std::size_t length = std::min(maps.find('\n'), maps.size());
        const std::string_view line = maps.substr(0, length);
        maps.remove_prefix(std::min(length + 1, maps.size()));
        address_range taken{};
        if (!read_range(line, taken) || taken.end <= at)
            continue;
        if (taken.begin >= top)
            break;
        add(line.ends_with("[stack]") ? taken.begin - std::min(stack_room, taken.begin) : taken.begin);
        at = taken.end;
    }
    add(top);
    return free;
}

std::string close_addresses_above(std::uint64_t base) {
    std::ifstream file("/proc/self/maps");
    const std::string maps((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (maps.empty())
        return "/proc/self/maps can't be read";
    for (const address_range& one : free_ranges(maps, base, user_end, stack_room)) {
        void* const wanted = reinterpret_cast<void*>(one.begin);
        void* const got = mmap(wanted, one.end - one.begin, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == MAP_FAILED && errno == EEXIST)
            continue; // reading the file took memory there
        if (got != wanted)
            return std::string("addresses can't be kept back: ") + std::strerror(errno);
    }
    return "";
}

} // namespace kagemusha::worker
