// SPDX-License-Identifier: GPL-2.0-or-later
// tex.2d.v4 of a texture object, as the CUDA programming guide describes fetching: nearest texel, or four
// with weights of eight bits.
#include "op_pick.hpp"
#include "texture.hpp"

#include <cmath>

namespace kagemusha::machine {

namespace {

struct texel_value {
    std::uint32_t integer[4] = {};
    float real[4] = {};
};

std::uint32_t size_of(texel t) {
    return t == texel::u8 || t == texel::s8 ? 1 : t == texel::u16 || t == texel::s16 ? 2 : 4;
}

// Which texel of `size` a place is; −1: the border.
std::int64_t placed(double at, std::uint32_t size, beyond mode) {
    if (std::isnan(at)) {
        at = 0;
    }
    if (mode == beyond::border) {
        return at >= 0 && at < size ? static_cast<std::int64_t>(at) : -1;
    }
    if (mode == beyond::clamp) {
        return static_cast<std::int64_t>(std::clamp(std::floor(at), 0.0, static_cast<double>(size - 1)));
    }
    const double turns = std::floor(at / size);
    auto inside = static_cast<std::int64_t>(
        std::clamp(std::floor(at - turns * size), 0.0, static_cast<double>(size - 1)));
    const bool odd = mode == beyond::mirror && std::fmod(turns, 2) != 0;
    return odd ? std::int64_t{size} - 1 - inside : inside;
}

// False: the memory may not be read, and the launch has failed.
bool fetch(warp& w, const instruction& i, std::uint32_t lane, const texture& t, double x, double y,
           texel_value& v) {
    const std::int64_t column = placed(x, t.width, t.x);
    const std::int64_t row = placed(y, t.height, t.y);
    v = texel_value{};
    if (column < 0 || row < 0) {
        std::copy(t.border, t.border + 4, v.real);
        return true;
    }
    const std::uint32_t bytes = size_of(t.format);
    const std::uint64_t begin = t.base + static_cast<std::uint64_t>(row) * t.pitch +
                                static_cast<std::uint64_t>(column) * bytes * t.channels;
    v.real[3] = 1;
    v.integer[3] = 1;
    for (std::uint32_t c = 0; c < t.channels; c++) {
        const std::uint8_t* p = w.memory(i, lane, begin + c * bytes, bytes, false);
        if (p == nullptr) {
            return false;
        }
        std::uint32_t bits = 0;
        std::memcpy(&bits, p, bytes);
        const auto sign8 = static_cast<std::int8_t>(bits);
        const auto sign16 = static_cast<std::int16_t>(bits);
        switch (t.format) {
        case texel::u8:
            v.real[c] = static_cast<float>(bits) / 255.0f;
            break;
        case texel::u16:
            v.real[c] = static_cast<float>(bits) / 65535.0f;
            break;
        case texel::s8:
            bits = static_cast<std::uint32_t>(sign8);
            v.real[c] = std::max(static_cast<float>(sign8) / 127.0f, -1.0f);
            break;
        case texel::s16:
            bits = static_cast<std::uint32_t>(sign16);
            v.real[c] = std::max(static_cast<float>(sign16) / 32767.0f, -1.0f);
            break;
        default:
            v.real[c] = std::bit_cast<float>(bits);
            break; // of .u32 and .s32 the bits, as they are
        }
        v.integer[c] = bits;
    }
    return true;
}

bool sample(warp& w, const instruction& i, std::uint32_t lane, const texture& t, double x, double y,
            texel_value& v) {
    x = t.normalized ? x * t.width : x;
    y = t.normalized ? y * t.height : y;
    if (!t.linear || t.as_integer) {
        return fetch(w, i, lane, t, x, y, v);
    }
    const double left = std::floor(x - 0.5);
    const double top = std::floor(y - 0.5);
    const double a = std::floor((x - 0.5 - left) * 256 + 0.5) / 256;
    const double b = std::floor((y - 0.5 - top) * 256 + 0.5) / 256;
    texel_value corner;
    double sum[4] = {};
    for (std::uint32_t k = 0; k < 4; k++) {
        const double weight = ((k & 1) != 0 ? a : 1 - a) * ((k & 2) != 0 ? b : 1 - b);
        if (!fetch(w, i, lane, t, left + (k & 1), top + (k >> 1), corner)) {
            return false;
        }
        for (std::uint32_t c = 0; c < 4; c++) {
            sum[c] += weight * static_cast<double>(corner.real[c]);
        }
    }
    for (std::uint32_t c = 0; c < 4; c++) {
        v.real[c] = static_cast<float>(sum[c]);
    }
    return true;
}

// from: the texture's handle, x, y. option: coordinates are integers.
void sample_2d(warp& w, const instruction& i, mask m) {
    const texture_table* table = w.of->request->textures;
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint64_t handle = w.get(i.from[0])[l];
        const auto it = table != nullptr ? table->find(handle) : texture_table::const_iterator{};
        if (table == nullptr || it == table->end()) {
            w.fail(fault_kind::illegal_address, i, handle);
            return;
        }
        const auto coordinate = [&](std::uint32_t k) {
            const std::uint64_t bits = w.get(i.from[k])[l];
            return i.option != 0 ? static_cast<double>(value_of<std::int32_t>(bits))
                                 : static_cast<double>(value_of<float>(bits));
        };
        texel_value v;
        if (!sample(w, i, l, it->second, coordinate(1), coordinate(2), v)) {
            return;
        }
        for (std::uint32_t c = 0; c < 4; c++) {
            w.set(i.to[c])[l] =
                it->second.as_integer ? v.integer[c] : std::bit_cast<std::uint32_t>(v.real[c]);
        }
    });
}

} // namespace

// tex.2d.v4.type.coordinates {a, b, c, d}, [object, {x, y}];
void op_tex(assembler& a) {
    a.want(2);
    const type t = a.type_at(0);
    const type by = a.type_at(1);
    if (!a.has("2d") || !a.has("v4") || (t != type::f32 && t != type::u32 && t != type::s32) ||
        (by != type::f32 && by != type::s32)) {
        a.fail("wants .2d.v4, results of .f32, .u32 or .s32, and coordinates of .f32 or .s32");
    }
    const operand& where = a.arg(1);
    if (a.arg(0).what != operand::kind::vector || a.arg(0).parts.size() != 4 || where.offset != 0 ||
        where.parts.size() != 1 || where.parts[0].what != operand::kind::vector ||
        where.parts[0].parts.size() != 2) {
        a.fail("wants {a, b, c, d}, [object, {x, y}]");
    }
    std::optional<ptx::space> named;
    const slot object = a.base_of(where, named);
    const slot x = a.from(where.parts[0].parts[0], by);
    const slot y = a.from(where.parts[0].parts[1], by);
    slot to[4];
    for (std::size_t k = 0; k < 4; k++) {
        to[k] = a.to(a.arg(0).parts[k], t);
    }
    instruction& i = a.emit(&sample_2d);
    std::copy(to, to + 4, i.to);
    i.from[0] = object;
    i.from[1] = x;
    i.from[2] = y;
    i.option = by == type::s32 ? 1 : 0;
}

} // namespace kagemusha::machine
