// SPDX-License-Identifier: GPL-2.0-or-later
//
// Ranges of the VRAM window; window_map.hpp has the idea.
#include "window_map.hpp"

#include "guest-driver/kernel/uapi/linux/kagemusha_vgpu.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/mman.h>

namespace kagemusha::opencl {
namespace {

// KAGEMUSHA_TRACE: a mode of the tracer, or "none" for no use of the window at all.
struct choice {
    bool use_window = true;
    std::uint32_t mode = KAGEMUSHA_VGPU_TRACE_DEFAULT;
};

choice read_choice() {
    constexpr std::array names{std::string_view{"default"},  std::string_view{"off"},
                               std::string_view{"page"},     std::string_view{"emulate"},
                               std::string_view{"adaptive"}, std::string_view{"step"},
                               std::string_view{"host"}};
    static_assert(names.size() == KAGEMUSHA_VGPU_TRACE_MODE_COUNT);
    const char* const text = std::getenv("KAGEMUSHA_TRACE");
    if (!text)
        return {};
    if (std::string_view(text) == "none")
        return {false, 0};
    for (std::size_t i = 0; i < names.size(); ++i)
        if (names[i] == text)
            return {true, static_cast<std::uint32_t>(i)};
    std::fprintf(stderr, "kagemusha: KAGEMUSHA_TRACE=%s is not one of: none", text);
    for (const std::string_view name : names)
        std::fprintf(stderr, " %.*s", static_cast<int>(name.size()), name.data());
    std::fputs("; the default is used\n", stderr);
    return {};
}

void free_range(int file, std::uint64_t offset) noexcept {
    kagemusha_vgpu_window_free argument{};
    argument.offset = offset;
    while (ioctl(file, KAGEMUSHA_VGPU_WINDOW_FREE, &argument) < 0 && errno == EINTR) {
    }
}

} // namespace

window_view window_map::map(int file, const window_request& wanted) {
    static const choice chosen = read_choice();
    if (!chosen.use_window)
        return {};
    kagemusha_vgpu_window_alloc range{};
    range.bytes = wanted.bytes;
    if (ioctl(file, KAGEMUSHA_VGPU_WINDOW_ALLOC, &range) < 0)
        return {};
    void* const address = mmap(nullptr, wanted.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                               static_cast<off_t>(range.offset));
    kagemusha_vgpu_window_trace trace{};
    trace.offset = range.offset;
    trace.bytes = wanted.bytes;
    trace.memory = wanted.memory;
    trace.group = wanted.context;
    trace.mode = chosen.mode;
    if (address == MAP_FAILED || ioctl(file, KAGEMUSHA_VGPU_WINDOW_TRACE, &trace) < 0) {
        if (address != MAP_FAILED)
            munmap(address, wanted.bytes);
        free_range(file, range.offset);
        return {};
    }
    const std::lock_guard held(mutex_);
    entries_[reinterpret_cast<std::uintptr_t>(address)] = {range.offset, wanted.bytes, false};
    return {static_cast<std::byte*>(address), trace.mode != KAGEMUSHA_VGPU_TRACE_OFF};
}

void window_map::unmap(int file, std::byte* address) noexcept {
    entry gone;
    {
        const std::lock_guard held(mutex_);
        const auto found = entries_.find(reinterpret_cast<std::uintptr_t>(address));
        if (found == entries_.end())
            return;
        gone = found->second;
        entries_.erase(found);
    }
    munmap(address, gone.bytes);
    free_range(file, gone.offset);
}

void window_map::discard(int file, const std::byte* address, std::uint64_t bytes) noexcept {
    std::uint64_t offset = 0;
    if (!offset_of(address, bytes, offset))
        return;
    kagemusha_vgpu_window_discard argument{};
    argument.offset = offset;
    argument.bytes = bytes;
    if (ioctl(file, KAGEMUSHA_VGPU_WINDOW_DISCARD, &argument) < 0 && errno != ENODEV)
        std::fprintf(stderr, "kagemusha: a mapped region could not be marked as new: %s\n",
                     std::strerror(errno));
}

void window_map::note_device_write(const void* address, std::uint64_t bytes) noexcept {
    const auto from = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard held(mutex_);
    auto found = entries_.upper_bound(from);
    if (found != entries_.begin() && from - std::prev(found)->first < std::prev(found)->second.bytes)
        --found;
    for (; found != entries_.end() && (found->first < from || found->first - from < bytes); ++found)
        found->second.device_wrote = true;
}

bool window_map::wrote(const void* address) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard held(mutex_);
    auto found = entries_.upper_bound(at);
    if (found == entries_.begin())
        return false;
    --found;
    return at - found->first < found->second.bytes && found->second.device_wrote;
}

bool window_map::offset_of(const void* address, std::uint64_t bytes, std::uint64_t& offset) const {
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard held(mutex_);
    auto found = entries_.upper_bound(wanted);
    if (found == entries_.begin())
        return false;
    --found;
    const std::uint64_t within = wanted - found->first;
    if (within >= found->second.bytes || bytes > found->second.bytes - within)
        return false;
    offset = found->second.offset + within;
    return true;
}

} // namespace kagemusha::opencl
