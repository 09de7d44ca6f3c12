// SPDX-License-Identifier: GPL-2.0-or-later
// texture: memory that kernels read, or as a surface write, by coordinates.
#pragma once

#include <cstdint>
#include <map>

namespace kagemusha::machine {

enum class texel : std::uint8_t { u8, u16, u32, s8, s16, s32, f16, f32 };
enum class beyond : std::uint8_t { wrap, clamp, mirror, border, zero };

struct texture {
    std::uint64_t base = 0;
    std::uint64_t pitch = 0;           // bytes of a row
    std::uint64_t slice = 0;           // bytes of a slice or layer
    std::uint32_t dimensions = 2;      // without layers
    bool layered = false;              // the last size counts layers
    std::uint32_t size[3] = {1, 1, 1}; // in texels: width, height, depth or layers
    std::uint32_t channels = 1;        // 1, 2, 4
    texel format = texel::u8;
    beyond outside[3] = {beyond::clamp, beyond::clamp, beyond::clamp}; // where a coordinate lies outside
    bool surface = false;
    bool linear = false;     // between texels; else the nearest
    bool as_integer = false; // else a float: 0 to 1, −1 to 1
    bool normalized = false; // coordinates from 0 to 1
    float border[4] = {0, 0, 0, 0};
};

constexpr std::uint32_t bytes_of(texel t) {
    return t == texel::u8 || t == texel::s8                        ? 1
           : t == texel::u16 || t == texel::s16 || t == texel::f16 ? 2
                                                                   : 4;
}

// By the number that kernels are given; textures and surfaces share the numbers.
using texture_table = std::map<std::uint64_t, texture>;

} // namespace kagemusha::machine
