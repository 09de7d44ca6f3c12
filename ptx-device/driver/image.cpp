// SPDX-License-Identifier: GPL-2.0-or-later
// image: see image.hpp. The layout of fat binaries is that which clang's and GCC's own tools write.
#include "image.hpp"

#include "ptx-device/ptx/parser.hpp"

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace kagemusha::ptx_driver {

namespace {

constexpr std::uint32_t wrapper_magic = 0x466243b1;
constexpr std::uint32_t fat_magic = 0xba55ed50;
constexpr std::uint64_t image_limit = 1ull << 30;
constexpr std::uint16_t kind_ptx = 1;
constexpr std::uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;
constexpr std::uint64_t most_dense = 1024;  // a text that claims to be packed better is a bomb
constexpr std::uint16_t cuda_machine = 190; // of an ELF file
constexpr char section_name[] = ".kagemusha.ptx";

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
    // and in a longer header:
    std::uint64_t more_unknown;
    std::uint64_t uncompressed_size;
};
constexpr std::size_t short_entry = offsetof(fat_entry, more_unknown);

template <class T>
T read(const std::uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// The text of an entry; its bytes are all there.
bool unpack(const fat_entry& entry, const std::uint8_t* payload, std::string& text) {
    if ((entry.flags & (flag_lz4 | flag_zstd)) == 0) {
        const char* const first = reinterpret_cast<const char*>(payload);
        text.assign(first, strnlen(first, entry.size));
        return true;
    }
    if (entry.header_size < sizeof entry || entry.compressed_size > entry.size ||
        entry.uncompressed_size == 0 || entry.uncompressed_size > ptx::limits::text ||
        entry.uncompressed_size / most_dense > entry.compressed_size) {
        return false;
    }
    text.resize(entry.uncompressed_size);
    bool whole = false;
    if ((entry.flags & flag_zstd) != 0) {
        whole = ZSTD_decompress(text.data(), text.size(), payload, entry.compressed_size) == text.size();
    } else {
        whole = LZ4_decompress_safe(reinterpret_cast<const char*>(payload), text.data(),
                                    static_cast<int>(entry.compressed_size),
                                    static_cast<int>(text.size())) == static_cast<int>(text.size());
    }
    text.resize(whole ? strnlen(text.data(), text.size()) : 0);
    return whole;
}

CUresult text_of_fat(const std::uint8_t* at, std::uint64_t bytes, std::string& text) {
    if (bytes < sizeof(fat_header))
        return CUDA_ERROR_INVALID_IMAGE;
    const auto header = read<fat_header>(at);
    if (header.header_size < sizeof header || header.size > image_limit || header.header_size > bytes ||
        header.size > bytes - header.header_size) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    at += header.header_size;
    std::uint64_t left = header.size;
    const std::uint8_t* best_payload = nullptr;
    fat_entry best{};
    while (left >= short_entry) {
        fat_entry entry{};
        std::memcpy(&entry, at, std::min<std::uint64_t>(left, sizeof entry));
        if (entry.header_size < short_entry || entry.header_size > left ||
            entry.size > left - entry.header_size) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
        if (entry.kind == kind_ptx && (best_payload == nullptr || entry.architecture > best.architecture)) {
            best = entry;
            best_payload = at + entry.header_size;
        }
        at += entry.header_size + entry.size;
        left -= entry.header_size + entry.size;
    }
    if (best_payload == nullptr)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return unpack(best, best_payload, text) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

// Of an ELF file that linked_image() made.
CUresult texts_of_elf(const std::uint8_t* at, std::uint64_t bytes, std::vector<std::string>& texts) {
    if (bytes < sizeof(Elf64_Ehdr))
        return CUDA_ERROR_INVALID_IMAGE;
    const auto header = read<Elf64_Ehdr>(at);
    const std::uint64_t table = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_shoff > image_limit || header.e_shoff > bytes || table > bytes - header.e_shoff ||
        header.e_shstrndx >= header.e_shnum) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const auto section = [&](unsigned k) {
        return read<Elf64_Shdr>(at + header.e_shoff + std::uint64_t{k} * sizeof(Elf64_Shdr));
    };
    const auto inside = [&](const Elf64_Shdr& s) {
        return s.sh_offset <= image_limit && s.sh_size <= image_limit && s.sh_offset <= bytes &&
               s.sh_size <= bytes - s.sh_offset;
    };
    const Elf64_Shdr names = section(header.e_shstrndx);
    if (!inside(names))
        return CUDA_ERROR_INVALID_IMAGE;
    bool found = false;
    for (unsigned k = 1; k < header.e_shnum; k++) {
        const Elf64_Shdr s = section(k);
        if (s.sh_name > names.sh_size || names.sh_size - s.sh_name < sizeof section_name ||
            std::memcmp(at + names.sh_offset + s.sh_name, section_name, sizeof section_name) != 0) {
            continue;
        }
        if (!inside(s))
            return CUDA_ERROR_INVALID_IMAGE;
        texts.emplace_back(reinterpret_cast<const char*>(at + s.sh_offset), s.sh_size);
        found = true;
    }
    return found ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU; // the machine code of a GPU
}

} // namespace

CUresult texts_of(const void* image, std::size_t bytes, std::vector<std::string>& texts) {
    const auto* at = static_cast<const std::uint8_t*>(image);
    // A text may be shorter than a magic number: look at one byte after the other.
    const auto begins = [&](const void* magic, std::size_t n) {
        for (std::size_t k = 0; k < n; k++)
            if (k >= bytes || at[k] != static_cast<const std::uint8_t*>(magic)[k])
                return false;
        return true;
    };
    if (begins(&wrapper_magic, sizeof wrapper_magic)) {
        if (bytes != unknown_length)
            return CUDA_ERROR_INVALID_IMAGE; // a pointer is no content
        at = static_cast<const std::uint8_t*>(read<wrapper>(at).data);
        if (at == nullptr || !begins(&fat_magic, sizeof fat_magic))
            return CUDA_ERROR_INVALID_IMAGE;
    }
    if (begins(&fat_magic, sizeof fat_magic))
        return text_of_fat(at, bytes, texts.emplace_back());
    if (begins(ELFMAG, SELFMAG))
        return texts_of_elf(at, bytes, texts);
    const char* const first = reinterpret_cast<const char*>(at);
    texts.emplace_back(first, strnlen(first, std::min(bytes, ptx::limits::text)));
    return texts.back().empty() ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

std::vector<std::uint8_t> linked_image(const std::vector<std::string>& texts) {
    std::vector<std::uint8_t> image(sizeof(Elf64_Ehdr));
    std::vector<Elf64_Shdr> sections(1);
    const auto append = [&](std::string_view content, std::uint32_t name, std::uint32_t type) {
        Elf64_Shdr s{};
        s.sh_name = name;
        s.sh_type = type;
        s.sh_offset = image.size();
        s.sh_size = content.size();
        s.sh_addralign = 1;
        image.insert(image.end(), content.begin(), content.end());
        sections.push_back(s);
    };
    using namespace std::string_view_literals;
    constexpr std::string_view names = "\0.shstrtab\0.kagemusha.ptx\0"sv;
    append(names, 1, SHT_STRTAB);
    for (const std::string& text : texts)
        append(text, 11, SHT_PROGBITS);
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_EXEC;
    header.e_machine = cuda_machine;
    header.e_version = EV_CURRENT;
    header.e_ehsize = sizeof header;
    header.e_shoff = image.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<std::uint16_t>(sections.size());
    header.e_shstrndx = 1;
    std::memcpy(image.data(), &header, sizeof header);
    const auto* const first = reinterpret_cast<const std::uint8_t*>(sections.data());
    image.insert(image.end(), first, first + sections.size() * sizeof sections[0]);
    return image;
}

} // namespace kagemusha::ptx_driver
