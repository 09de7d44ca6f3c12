// SPDX-License-Identifier: GPL-2.0-or-later
// op_texture: what textures and surfaces have in common: geometry, coordinates, the number of an object.
#pragma once

#include "op_pick.hpp"
#include "texture.hpp"

#include <optional>

namespace kagemusha::machine {

// .1d, .2d, .3d, .a1d, .a2d
struct texture_geometry {
    std::uint32_t dimensions = 0;
    bool layered = false;

    static std::optional<texture_geometry> take(assembler& a); // from the modifiers
    // [object, {layer, x, …}]: from[0] is the object, the others follow.
    void read(assembler& a, const operand& where, type by, slot (&from)[4]) const;
    // Bits 1 to 3 of instruction::option.
    std::uint32_t option() const { return dimensions << 1 | (layered ? 8 : 0); }
};

// The object that from[0] names, of the instruction's geometry; null: the launch has failed.
const texture* texture_of(warp& w, const instruction& i, std::uint32_t lane, bool surface);

} // namespace kagemusha::machine
