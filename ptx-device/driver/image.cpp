// SPDX-License-Identifier: GPL-2.0-or-later
// image: see image.hpp. The layout of fat binaries is that which clang's and GCC's own tools write.
#include "image.hpp"

#include <cstdint>
#include <cstring>

namespace kagemusha::ptx_driver {

namespace {

constexpr std::uint32_t wrapper_magic = 0x466243b1;
constexpr std::uint32_t fat_magic = 0xba55ed50;
constexpr std::uint64_t fat_limit = 1ull << 30;
constexpr std::uint16_t kind_ptx = 1;
constexpr std::uint64_t flag_compressed = 0x2000 | 0x8000; // LZ4, zstd

struct wrapper {
    std::uint32_t magic;
    std::uint32_t version;
    const void* data;
    const void* more;
};
struct fat_header {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t header_size;
    std::uint64_t size; // behind the header
};
struct fat_entry {
    std::uint16_t kind;
    std::uint16_t version;
    std::uint32_t header_size;
    std::uint64_t size; // behind the entry's header
    std::uint32_t compressed_size;
    std::uint32_t unknown;
    std::uint16_t minor;
    std::uint16_t major;
    std::uint32_t architecture;
    std::uint32_t name_offset;
    std::uint32_t name_length;
    std::uint64_t flags;
};

template <class T>
T read(const std::uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

CUresult ptx_of_fat(const std::uint8_t* at, std::string& text) {
    const auto header = read<fat_header>(at);
    if (header.header_size < sizeof header || header.size > fat_limit) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    at += header.header_size;
    std::uint64_t left = header.size;
    std::uint32_t best = 0;
    bool found = false;
    while (left >= sizeof(fat_entry)) {
        const auto entry = read<fat_entry>(at);
        if (entry.header_size < sizeof entry || entry.header_size > left ||
            entry.size > left - entry.header_size) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        if (entry.kind == kind_ptx && (entry.flags & flag_compressed) == 0 &&
            (!found || entry.architecture > best)) {
            const char* payload = reinterpret_cast<const char*>(at) + entry.header_size;
            text.assign(payload, strnlen(payload, entry.size));
            best = entry.architecture;
            found = true;
        }
        at += entry.header_size + entry.size;
        left -= entry.header_size + entry.size;
    }
    return found ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

} // namespace

CUresult ptx_of(const void* image, std::string& text) {
    const auto* at = static_cast<const std::uint8_t*>(image);
    // A text may be shorter than four bytes: look at one after the other.
    const auto begins = [&](const char* magic, std::size_t n) {
        for (std::size_t k = 0; k < n; k++) {
            if (at[k] != static_cast<std::uint8_t>(magic[k])) {
                return false;
            }
        }
        return true;
    };
    std::uint32_t magic = wrapper_magic;
    char bytes[4];
    std::memcpy(bytes, &magic, sizeof magic);
    if (begins(bytes, 4)) {
        at = static_cast<const std::uint8_t*>(read<wrapper>(at).data);
        if (at == nullptr) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    magic = fat_magic;
    std::memcpy(bytes, &magic, sizeof magic);
    if (begins(bytes, 4)) {
        return ptx_of_fat(at, text);
    }
    if (begins("\x7f"
               "ELF",
               4)) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    text = reinterpret_cast<const char*>(at);
    return text.empty() ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

} // namespace kagemusha::ptx_driver
