// SPDX-License-Identifier: GPL-2.0-or-later
// fat_image: makes fat binaries, for tests and fuzzers: a header, and entries with a text as it is or compressed.
#pragma once

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kagemusha::ptx_driver {

enum class packing : std::uint8_t { none, lz4, zstd };

class fat_image {
public:
    fat_image() {
        put<std::uint32_t>(0, 0xba55ed50);
        put<std::uint16_t>(4, 1);
        put<std::uint16_t>(6, header_bytes);
        put<std::uint64_t>(8, 0);
    }

    // kind 1 is PTX, 2 machine code.
    void add(const std::string& text, std::uint32_t architecture, packing how, std::uint16_t kind = 1) {
        std::vector<char> payload(text.begin(), text.end());
        if (how == packing::lz4) {
            payload.resize(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(text.size()))));
            payload.resize(static_cast<std::size_t>(LZ4_compress_default(text.data(), payload.data(),
                                                                         static_cast<int>(text.size()),
                                                                         static_cast<int>(payload.size()))));
        } else if (how == packing::zstd) {
            payload.resize(ZSTD_compressBound(text.size()));
            payload.resize(ZSTD_compress(payload.data(), payload.size(), text.data(), text.size(), 3));
        }
        const std::size_t at = bytes.size();
        const std::uint64_t padded = (payload.size() + 7) / 8 * 8;
        put<std::uint16_t>(at, kind);
        put<std::uint16_t>(at + 2, 0x101);
        put<std::uint32_t>(at + 4, entry_bytes);
        put<std::uint64_t>(at + 8, padded);
        put<std::uint32_t>(at + 16, how != packing::none ? static_cast<std::uint32_t>(payload.size()) : 0);
        put<std::uint32_t>(at + 28, architecture);
        put<std::uint64_t>(at + 40, 0x11 | (how == packing::lz4    ? 0x2000
                                            : how == packing::zstd ? 0x8000
                                                                   : 0));
        put<std::uint64_t>(at + 56, how != packing::none ? text.size() : 0);
        bytes.resize(at + entry_bytes + padded);
        std::memcpy(bytes.data() + at + entry_bytes, payload.data(), payload.size());
        put<std::uint64_t>(8, bytes.size() - header_bytes);
    }

    template <class T>
    void put(std::size_t at, T value) {
        bytes.resize(std::max(bytes.size(), at + sizeof value));
        std::memcpy(bytes.data() + at, &value, sizeof value);
    }

    static constexpr std::uint16_t header_bytes = 16;
    static constexpr std::uint32_t entry_bytes = 64;
    std::vector<std::uint8_t> bytes;
};

} // namespace kagemusha::ptx_driver
