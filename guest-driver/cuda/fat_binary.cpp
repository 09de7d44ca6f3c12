// SPDX-License-Identifier: GPL-2.0-or-later
// The layout is that which clang's and GCC's own tools write.
#include "fat_binary.hpp"
#include "variables.hpp"

#include "proto/abi/vgpu_protocol.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr std::uint32_t fat_binary_magic = 0xba55ed50;
constexpr std::uint16_t kind_ptx = 1, kind_machine_code = 2;
constexpr std::uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;
constexpr std::uint64_t most_dense = 1024; // what claims to be packed better is a bomb

struct fat_header {
    std::uint32_t magic;
    std::uint16_t version, header_bytes;
    std::uint64_t bytes; // behind the header
};
struct fat_member {
    std::uint16_t kind, version;
    std::uint32_t header_bytes;
    std::uint64_t bytes; // behind the member's header
    std::uint32_t packed_bytes, unknown;
    std::uint16_t minor, major;
    std::uint32_t architecture, name_offset, name_bytes;
    std::uint64_t flags;
    // And in a longer header:
    std::uint64_t more_unknown, unpacked_bytes;
};
constexpr std::size_t short_header = offsetof(fat_member, more_unknown);

using bytes = std::span<const std::byte>;

struct found_member {
    fat_member header{};
    bytes payload;
};

// False: the lengths contradict each other.
bool list(bytes image, std::vector<found_member>& members) {
    fat_header header{};
    if (image.size() < sizeof header)
        return false;
    std::memcpy(&header, image.data(), sizeof header);
    if (header.magic != fat_binary_magic || header.header_bytes < sizeof header ||
        header.header_bytes > image.size() || header.bytes > image.size() - header.header_bytes)
        return false;
    bytes left = image.subspan(header.header_bytes, header.bytes);
    while (left.size() >= short_header) {
        found_member one;
        std::memcpy(&one.header, left.data(), std::min(left.size(), sizeof one.header));
        const fat_member& h = one.header;
        if (h.header_bytes < short_header || h.header_bytes > left.size() ||
            h.bytes > left.size() - h.header_bytes)
            return false;
        one.payload = left.subspan(h.header_bytes, h.bytes);
        members.push_back(one);
        left = left.subspan(h.header_bytes + h.bytes);
    }
    return true;
}

bool unpack(const found_member& from, std::vector<std::byte>& image) {
    const fat_member& h = from.header;
    if ((h.flags & (flag_lz4 | flag_zstd)) == 0) {
        image.assign(from.payload.begin(), from.payload.end());
        return true;
    }
    if (h.header_bytes < sizeof h || h.packed_bytes > from.payload.size() || h.unpacked_bytes == 0 ||
        h.unpacked_bytes > VGPU_MAX_PROGRAM_BYTES || h.unpacked_bytes / most_dense > h.packed_bytes)
        return false;
    image.resize(h.unpacked_bytes);
    if (h.flags & flag_zstd)
        return ZSTD_decompress(image.data(), image.size(), from.payload.data(), h.packed_bytes) ==
               image.size();
    return LZ4_decompress_safe(reinterpret_cast<const char*>(from.payload.data()),
                               reinterpret_cast<char*>(image.data()), static_cast<int>(h.packed_bytes),
                               static_cast<int>(image.size())) == static_cast<int>(image.size());
}

bool is_for(const found_member& one, std::uint16_t kind, unsigned architecture) {
    return one.header.kind == kind && one.header.architecture <= architecture &&
           (kind == kind_ptx || one.header.architecture / 10 == architecture / 10);
}

} // namespace

std::optional<std::vector<std::string>> variables_in_fat_binary(bytes image, unsigned architecture) {
    static_assert(VGPU_MAX_PROGRAM_BYTES <= LZ4_MAX_INPUT_SIZE);
    std::vector<found_member> members;
    if (!list(image, members))
        return std::nullopt;
    for (const std::uint16_t kind : {kind_machine_code, kind_ptx}) {
        std::vector<std::string> names;
        bool any = false;
        for (const found_member& one : members) {
            if (!is_for(one, kind, architecture))
                continue;
            std::vector<std::byte> content;
            if (!unpack(one, content))
                return std::nullopt;
            any = true;
            for (std::string& name : variables_in(content))
                if (std::ranges::find(names, name) == names.end())
                    names.push_back(std::move(name));
        }
        if (any)
            return names;
    }
    return std::nullopt;
}

} // namespace kagemusha::cuda
