// SPDX-License-Identifier: GPL-2.0-or-later
// texture: memory of rows that kernels read by coordinates.
#ifndef KAGEMUSHA_PTX_TEXTURE_HPP
#define KAGEMUSHA_PTX_TEXTURE_HPP

#include <cstdint>
#include <map>

namespace kagemusha::machine {

enum class texel : std::uint8_t { u8, u16, u32, s8, s16, s32, f32 };
enum class beyond : std::uint8_t { wrap, clamp, mirror, border };

struct texture {
    std::uint64_t base = 0;
    std::uint64_t pitch = 0; // bytes of a row
    std::uint32_t width = 0;
    std::uint32_t height = 0;
    std::uint32_t channels = 1; // 1, 2, 4
    texel format = texel::u8;
    beyond x = beyond::clamp; // where a coordinate lies outside
    beyond y = beyond::clamp;
    bool linear = false;     // of four texels; else the nearest
    bool as_integer = false; // else a float: 0 to 1, −1 to 1
    bool normalized = false; // coordinates from 0 to 1
    float border[4] = {0, 0, 0, 0};
};

using texture_table = std::map<std::uint64_t, texture>;

} // namespace kagemusha::machine

#endif
