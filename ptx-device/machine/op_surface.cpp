// SPDX-License-Identifier: GPL-2.0-or-later
// suld.b and sust.b of surface objects: bytes at a place, the first coordinate in bytes.
#include "op_texture.hpp"

namespace kagemusha::machine {

namespace {

enum class clamping : std::uint8_t { trap, clamp, zero }; // bits 4 and 5 of instruction::option

// Where the bytes lie; 0: nowhere, and nothing is read or written.
std::uint64_t place_of(warp& w, const instruction& i, std::uint32_t lane, const texture& t,
                       std::uint32_t bytes, bool& failed) {
    const auto mode = static_cast<clamping>(i.option >> 4 & 3);
    const std::uint32_t first = t.layered ? 2 : 1;
    const std::uint64_t row = std::uint64_t{t.size[0]} * bytes_of(t.format) * t.channels;
    std::uint64_t at = t.base;
    const auto step = [&](std::int64_t place, std::uint64_t size, std::uint64_t reach, std::uint64_t pitch) {
        if (place < 0 || static_cast<std::uint64_t>(place) + reach > size) {
            if (mode != clamping::clamp)
                return false;
            place = place < 0 || size < reach ? 0 : static_cast<std::int64_t>(size - reach);
        }
        at += static_cast<std::uint64_t>(place) * pitch;
        return true;
    };
    const std::uint64_t pitches[] = {1, t.pitch, t.slice};
    bool inside = true;
    for (std::uint32_t d = 0; d < t.dimensions; d++) {
        const auto place = value_of<std::int32_t>(w.get(i.from[first + d])[lane]);
        inside = inside && step(place, d == 0 ? row : t.size[d], d == 0 ? bytes : 1, pitches[d]);
    }
    if (t.layered) {
        const auto layer = static_cast<std::uint32_t>(w.get(i.from[1])[lane]);
        inside = inside && step(layer, t.size[t.dimensions == 1 ? 1 : 2], 1, t.slice);
    }
    if (!inside && mode == clamping::trap) {
        w.fail(fault_kind::illegal_address, i, w.get(i.from[0])[lane]);
        failed = true;
    }
    return inside ? at : 0;
}

template <bool Write>
void run_surface(warp& w, const instruction& i, mask m) {
    const std::uint32_t bytes = std::uint32_t{i.width} * i.count;
    for_lanes(m, [&](std::uint32_t l) {
        const texture* const t = texture_of(w, i, l, true);
        bool failed = t == nullptr;
        const std::uint64_t at = failed ? 0 : place_of(w, i, l, *t, bytes, failed);
        if (failed || (at == 0 && Write))
            return;
        std::uint8_t* const p = at != 0 ? w.memory(i, l, at, bytes, Write) : nullptr;
        if (at != 0 && p == nullptr)
            return;
        for (std::uint32_t c = 0; c < i.count; c++) {
            if constexpr (Write) {
                std::memcpy(p + std::size_t{c} * i.width, &w.get(i.to[c])[l], i.width);
            } else {
                std::uint64_t bits = 0;
                if (p != nullptr)
                    std::memcpy(&bits, p + std::size_t{c} * i.width, i.width);
                w.set(i.to[c])[l] = bits;
            }
        }
    });
}

// The values, one or in braces, are in `to`, also those that a store reads: `from` has the coordinates.
void surface(assembler& a, bool write) {
    a.want(2);
    const operand& where = a.arg(write ? 0 : 1);
    const operand& values = a.arg(write ? 1 : 0);
    const auto geometry = texture_geometry::take(a);
    const bool by_bytes = a.has("b");
    const std::size_t count = a.has("v2") ? 2 : a.has("v4") ? 4 : 1;
    const clamping mode = a.has("clamp") ? clamping::clamp : a.has("zero") ? clamping::zero : clamping::trap;
    a.ignore({"trap", "ca", "cg", "cs", "cv", "wb", "wt"});
    const type t = a.type_at(0);
    if (!geometry || !by_bytes || !ptx::is_bits(t))
        a.fail("wants .b, .1d, .2d, .3d, .a1d or .a2d, and values of .b8, .b16, .b32 or .b64");
    const bool is_group = values.what == operand::kind::vector;
    if ((is_group ? values.parts.size() : 1) != count)
        a.fail("wants as many values as it says");
    slot from[4], value[4];
    geometry->read(a, where, type::b32, from);
    for (std::size_t k = 0; k < count; k++) {
        const operand& o = is_group ? values.parts[k] : values;
        value[k] = write ? a.from(o, t, true) : a.to(o, t, true);
    }
    instruction& i = a.emit(write ? &run_surface<true> : &run_surface<false>);
    std::copy(value, value + 4, i.to);
    std::copy(from, from + 4, i.from);
    i.count = static_cast<std::uint8_t>(count);
    i.width = static_cast<std::uint8_t>(ptx::size_of(t));
    i.option = static_cast<std::uint8_t>(geometry->option() | static_cast<unsigned>(mode) << 4);
}

} // namespace

void op_suld(assembler& a) {
    surface(a, false);
}

void op_sust(assembler& a) {
    surface(a, true);
}

} // namespace kagemusha::machine
