// SPDX-License-Identifier: GPL-2.0-or-later
//
// The ranges of the VRAM window that a process has mapped through one open file of the device: which offset
// of the window a pointer of the program means, and the ioctls around it.
//
// A pointer into the window can't be pinned like other memory, so a payload that lies there is named by its
// offset. That happens when a program reads from the GPU into a mapped buffer, or writes from one.
#pragma once

#include "transport.hpp"

#include <map>
#include <mutex>

namespace kagemusha::opencl {

class window_map {
public:
    // Null if the device has no window or no room in it; everything else works without.
    window_view map(int file, const window_request& wanted);

    // Nothing is sent to the buffer any more when it returns. Not in the child of a fork, which has no
    // mapping.
    void unmap(int file, std::byte* address) noexcept;

    void discard(int file, const std::byte* address, std::uint64_t bytes) noexcept;

    // See transport.hpp.
    void note_device_write(const void* address, std::uint64_t bytes) noexcept;
    bool wrote(const void* address) const noexcept;

    // False if the memory does not lie in the window as a whole.
    bool offset_of(const void* address, std::uint64_t bytes, std::uint64_t& offset) const;

private:
    struct entry {
        std::uint64_t offset;
        std::uint64_t bytes;
        bool device_wrote = false;
    };

    mutable std::mutex mutex_;
    std::map<std::uintptr_t, entry> entries_; // by address
};

} // namespace kagemusha::opencl
