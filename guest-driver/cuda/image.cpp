// SPDX-License-Identifier: GPL-2.0-or-later
#include "image.hpp"

#include "proto/abi/vgpu_protocol.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <elf.h>

namespace kagemusha::cuda {
namespace {

// A compiler's handle of a fat binary, and the fat binary itself; clang writes both (CodeGen/CGCUDANV.cpp).
constexpr std::uint32_t wrapper_magic = 0x466243b1, fat_binary_magic = 0xba55ed50;

struct wrapper {
    std::uint32_t magic, version;
    const void* data;
    const void* file_name;
};
struct fat_binary {
    std::uint32_t magic;
    std::uint16_t version, header_bytes;
    std::uint64_t bytes; // behind the header
};

template <class T>
T read(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

std::optional<std::span<const std::byte>> piece(const void* image, std::uint64_t bytes) {
    if (bytes == 0 || bytes > VGPU_MAX_PROGRAM_BYTES)
        return std::nullopt;
    return std::span(static_cast<const std::byte*>(image), bytes);
}

// Where the last of sections and segments ends.
std::optional<std::uint64_t> elf_bytes(const void* image) {
    const auto header = read<Elf64_Ehdr>(image);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
        return std::nullopt;
    const std::uint64_t sections = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
    const std::uint64_t segments = std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
    if ((header.e_shnum && header.e_shentsize != sizeof(Elf64_Shdr)) ||
        (header.e_phnum && header.e_phentsize != sizeof(Elf64_Phdr)) ||
        header.e_shoff > VGPU_MAX_PROGRAM_BYTES || header.e_phoff > VGPU_MAX_PROGRAM_BYTES)
        return std::nullopt;
    std::uint64_t end =
        std::max({std::uint64_t{sizeof header}, header.e_shoff + sections, header.e_phoff + segments});
    const auto* const bytes = static_cast<const std::byte*>(image);
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        const auto section = read<Elf64_Shdr>(bytes + header.e_shoff + i * sizeof(Elf64_Shdr));
        if (section.sh_type == SHT_NOBITS)
            continue;
        if (section.sh_offset > VGPU_MAX_PROGRAM_BYTES || section.sh_size > VGPU_MAX_PROGRAM_BYTES)
            return std::nullopt;
        end = std::max(end, section.sh_offset + section.sh_size);
    }
    return end;
}

} // namespace

std::optional<std::span<const std::byte>> image_at(const void* image) {
    const auto* const text = static_cast<const char*>(image);
    if (std::memcmp(text, ELFMAG, SELFMAG) == 0) {
        const auto bytes = elf_bytes(image);
        return bytes ? piece(image, *bytes) : std::nullopt;
    }
    if (const auto magic = read<std::uint32_t>(image); magic == wrapper_magic) {
        const void* const inner = read<wrapper>(image).data;
        return inner && read<std::uint32_t>(inner) == fat_binary_magic ? image_at(inner) : std::nullopt;
    } else if (magic == fat_binary_magic) {
        const auto header = read<fat_binary>(image);
        return header.bytes <= VGPU_MAX_PROGRAM_BYTES ? piece(image, header.header_bytes + header.bytes)
                                                      : std::nullopt;
    }
    return piece(image, strnlen(text, VGPU_MAX_PROGRAM_BYTES + 1));
}

} // namespace kagemusha::cuda
