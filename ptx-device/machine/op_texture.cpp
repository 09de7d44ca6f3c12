// SPDX-License-Identifier: GPL-2.0-or-later
// tex of texture objects, in one to three dimensions and of layers, as the CUDA programming guide describes
// fetching: the nearest texel, or a mean of its neighbours with weights of eight bits.
#include "op_texture.hpp"

#include <cmath>

namespace kagemusha::machine {

namespace {

struct texel_value {
    std::uint32_t integer[4] = {};
    float real[4] = {};
};

float of_half(std::uint32_t bits) {
    const std::uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 0 ? std::ldexp(static_cast<double>(fraction), -24)
                             : exponent == 31
                                 ? (fraction != 0 ? std::nan("") : HUGE_VAL)
                                 : std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25);
    return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

// Which texel of `size` a place is; −1: beyond the border.
std::int64_t placed(double at, std::uint32_t size, beyond mode) {
    if (std::isnan(at))
        at = 0;
    if (mode == beyond::border || mode == beyond::zero)
        return at >= 0 && at < size ? static_cast<std::int64_t>(at) : -1;
    if (mode == beyond::clamp)
        return static_cast<std::int64_t>(std::clamp(std::floor(at), 0.0, static_cast<double>(size - 1)));
    const double turns = std::floor(at / size);
    auto inside = static_cast<std::int64_t>(
        std::clamp(std::floor(at - turns * size), 0.0, static_cast<double>(size - 1)));
    const bool odd = mode == beyond::mirror && std::fmod(turns, 2) != 0;
    return odd ? std::int64_t{size} - 1 - inside : inside;
}

void decode(const std::uint8_t* p, const texture& t, std::uint32_t channel, texel_value& v) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, p, bytes_of(t.format));
    const auto sign8 = static_cast<std::int8_t>(bits);
    const auto sign16 = static_cast<std::int16_t>(bits);
    float& real = v.real[channel];
    switch (t.format) {
    case texel::u8:
        real = static_cast<float>(bits) / 255.0f;
        break;
    case texel::u16:
        real = static_cast<float>(bits) / 65535.0f;
        break;
    case texel::s8:
        bits = static_cast<std::uint32_t>(sign8);
        real = std::max(static_cast<float>(sign8) / 127.0f, -1.0f);
        break;
    case texel::s16:
        bits = static_cast<std::uint32_t>(sign16);
        real = std::max(static_cast<float>(sign16) / 32767.0f, -1.0f);
        break;
    case texel::f16:
        real = of_half(bits);
        break;
    default:
        real = std::bit_cast<float>(bits);
        break; // of .u32 and .s32 the bits, as they are
    }
    v.integer[channel] = bits;
}

struct place {
    double at[3] = {0, 0, 0};
    std::uint32_t layer = 0;
};

// False: the memory may not be read, and the launch has failed.
bool fetch(warp& w, const instruction& i, std::uint32_t lane, const texture& t, const place& p,
           texel_value& v) {
    std::int64_t index[3] = {0, 0, 0};
    v = texel_value{};
    for (std::uint32_t d = 0; d < t.dimensions; d++) {
        index[d] = placed(p.at[d], t.size[d], t.outside[d]);
        if (index[d] < 0) {
            if (t.outside[d] == beyond::border)
                std::copy(t.border, t.border + 4, v.real);
            return true;
        }
    }
    if (t.layered) {
        const std::uint32_t last = t.dimensions == 1 ? 1 : 2;
        index[last] = std::min(p.layer, t.size[last] - 1);
    }
    const std::uint32_t bytes = bytes_of(t.format);
    const std::uint64_t slice = t.layered && t.dimensions == 1 ? t.slice : t.pitch;
    const std::uint64_t begin = t.base + static_cast<std::uint64_t>(index[2]) * t.slice +
                                static_cast<std::uint64_t>(index[1]) * slice +
                                static_cast<std::uint64_t>(index[0]) * bytes * t.channels;
    v.real[3] = 1;
    v.integer[3] = 1;
    for (std::uint32_t c = 0; c < t.channels; c++) {
        const std::uint8_t* const at = w.memory(i, lane, begin + std::uint64_t{c} * bytes, bytes, false);
        if (at == nullptr)
            return false;
        decode(at, t, c, v);
    }
    return true;
}

bool sample(warp& w, const instruction& i, std::uint32_t lane, const texture& t, place p, texel_value& v) {
    for (std::uint32_t d = 0; d < t.dimensions; d++)
        p.at[d] = t.normalized ? p.at[d] * t.size[d] : p.at[d];
    if (!t.linear || t.as_integer)
        return fetch(w, i, lane, t, p, v);
    double begin[3] = {}, far[3] = {};
    for (std::uint32_t d = 0; d < t.dimensions; d++) {
        begin[d] = std::floor(p.at[d] - 0.5);
        far[d] = std::floor((p.at[d] - 0.5 - begin[d]) * 256 + 0.5) / 256;
    }
    texel_value corner;
    double sum[4] = {};
    for (std::uint32_t k = 0; k < 1u << t.dimensions; k++) {
        double weight = 1;
        for (std::uint32_t d = 0; d < t.dimensions; d++) {
            const bool second = (k >> d & 1) != 0;
            weight *= second ? far[d] : 1 - far[d];
            p.at[d] = begin[d] + (second ? 1 : 0);
        }
        if (!fetch(w, i, lane, t, p, corner))
            return false;
        for (std::uint32_t c = 0; c < 4; c++)
            sum[c] += weight * static_cast<double>(corner.real[c]);
    }
    for (std::uint32_t c = 0; c < 4; c++)
        v.real[c] = static_cast<float>(sum[c]);
    return true;
}

// from: the texture's number, the layer if there are layers, the coordinates. option: see texture_geometry;
// bit 0: coordinates are integers.
void run_tex(warp& w, const instruction& i, mask m) {
    for_lanes(m, [&](std::uint32_t l) {
        const texture* const t = texture_of(w, i, l, false);
        if (t == nullptr)
            return;
        place p;
        const std::uint32_t first = t->layered ? 2 : 1;
        p.layer = t->layered ? static_cast<std::uint32_t>(w.get(i.from[1])[l]) : 0;
        for (std::uint32_t d = 0; d < t->dimensions; d++) {
            const std::uint64_t bits = w.get(i.from[first + d])[l];
            p.at[d] = (i.option & 1) != 0 ? static_cast<double>(value_of<std::int32_t>(bits))
                                          : static_cast<double>(value_of<float>(bits));
        }
        texel_value v;
        if (!sample(w, i, l, *t, p, v))
            return;
        for (std::uint32_t c = 0; c < 4; c++)
            w.set(i.to[c])[l] = t->as_integer ? v.integer[c] : std::bit_cast<std::uint32_t>(v.real[c]);
    });
}

} // namespace

const texture* texture_of(warp& w, const instruction& i, std::uint32_t lane, bool surface) {
    const texture_table* const table = w.of->request->textures;
    const std::uint64_t number = w.get(i.from[0])[lane];
    if (table != nullptr) {
        const auto it = table->find(number);
        if (it != table->end() && it->second.surface == surface &&
            it->second.dimensions == (i.option >> 1 & 3u) &&
            it->second.layered == ((i.option >> 3 & 1) != 0)) {
            return &it->second;
        }
    }
    w.fail(fault_kind::illegal_address, i, number);
    return nullptr;
}

std::optional<texture_geometry> texture_geometry::take(assembler& a) {
    constexpr std::pair<std::string_view, texture_geometry> known[] = {
        {"1d", {1, false}}, {"2d", {2, false}}, {"3d", {3, false}}, {"a1d", {1, true}}, {"a2d", {2, true}}};
    for (const auto& [name, geometry] : known)
        if (a.has(name))
            return geometry;
    return std::nullopt;
}

void texture_geometry::read(assembler& a, const operand& where, type by, slot (&from)[4]) const {
    const std::uint32_t wanted = dimensions + (layered ? 1 : 0);
    const bool is_group = where.parts.size() == 1 && where.parts[0].what == operand::kind::vector;
    const std::size_t given = is_group ? where.parts[0].parts.size() : where.parts.size();
    // Three coordinates come with a fourth that nobody reads.
    if (where.offset != 0 || where.parts.size() != 1 || (given != wanted && !(wanted == 3 && given == 4)))
        a.fail("wants [object, {coordinates}] as its geometry has them");
    std::optional<ptx::space> named;
    from[0] = a.base_of(where, named);
    for (std::uint32_t k = 0; k < wanted; k++) {
        const operand& o = is_group ? where.parts[0].parts[k] : where.parts[0];
        from[1 + k] = a.from(o, layered && k == 0 ? type::u32 : by);
    }
}

// tex.geometry.v4.type.coordinates {a, b, c, d}, [object, {x, …}];
void op_tex(assembler& a) {
    a.want(2);
    const auto geometry = texture_geometry::take(a);
    const type t = a.type_at(0);
    const type by = a.type_at(1);
    if (!geometry || !a.has("v4") || (t != type::f32 && t != type::u32 && t != type::s32) ||
        (by != type::f32 && by != type::s32)) {
        a.fail("wants .1d, .2d, .3d, .a1d or .a2d, .v4, results of .f32, .u32 or .s32, and coordinates of "
               ".f32 or .s32");
    }
    if (a.arg(0).what != operand::kind::vector || a.arg(0).parts.size() != 4)
        a.fail("wants {a, b, c, d} for its results");
    slot from[4];
    geometry->read(a, a.arg(1), by, from);
    slot to[4];
    for (std::size_t k = 0; k < 4; k++)
        to[k] = a.to(a.arg(0).parts[k], t);
    instruction& i = a.emit(&run_tex);
    std::copy(to, to + 4, i.to);
    std::copy(from, from + 4, i.from);
    i.option = static_cast<std::uint8_t>(geometry->option() | (by == type::s32 ? 1 : 0));
}

} // namespace kagemusha::machine
