// SPDX-License-Identifier: GPL-2.0-or-later
// Values that change their type or place: mov, cvt, cvta, isspacep.
#include "op_pick.hpp"
#include "op_rounding.hpp"

#include <cfenv>
#include <cmath>
#include <limits>

namespace kagemusha::machine {

namespace {

// instruction::option, above the bits of `rounding`
constexpr std::uint8_t to_integral = 4, saturate = 8, flush = 16;

// A float of 16 bits: its fraction's bits, and its least exponent.
struct half_format {
    int fraction;
    int least;
};
constexpr half_format f16_format{10, -14};
constexpr half_format bf16_format{7, -126};

double widened(std::uint64_t bits, half_format f) {
    const int exponent = static_cast<int>(bits >> f.fraction & ((1u << (15 - f.fraction)) - 1));
    const int top = (1 << (15 - f.fraction)) - 1;
    const double fraction = static_cast<double>(bits & ((1u << f.fraction) - 1));
    double v = 0;
    if (exponent == top) {
        v = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
    } else if (exponent == 0) {
        v = std::ldexp(fraction, f.least - f.fraction);
    } else {
        v = std::ldexp(fraction + (1 << f.fraction), exponent - 1 + f.least - f.fraction);
    }
    return (bits & 0x8000) != 0 ? -v : v;
}

// In the rounding mode that is set.
std::uint64_t narrowed(double v, half_format f) {
    const std::uint64_t sign = std::signbit(v) ? 0x8000 : 0;
    const std::uint64_t infinite = ((1u << (15 - f.fraction)) - 1) << f.fraction;
    if (std::isnan(v))
        return 0x7fff;
    if (std::isinf(v) || v == 0)
        return sign | (v == 0 ? 0 : infinite);
    const int exponent = std::max(std::ilogb(v), f.least);
    const double units = std::abs(std::nearbyint(std::ldexp(v, f.fraction - exponent)));
    const auto whole = static_cast<std::uint64_t>(units); // up to 2 << fraction
    std::uint64_t bits = (static_cast<std::uint64_t>(exponent - f.least) << f.fraction) + whole;
    if (bits >= infinite) { // beyond the largest: what the mode says
        const int mode = std::fegetround();
        const bool stays =
            mode == FE_TOWARDZERO || (mode == FE_DOWNWARD && sign == 0) || (mode == FE_UPWARD && sign != 0);
        bits = stays ? infinite - 1 : infinite;
    }
    return sign | bits;
}

double read_float(type t, std::uint64_t bits) {
    switch (t) {
    case type::f16:
        return widened(bits, f16_format);
    case type::bf16:
        return widened(bits, bf16_format);
    case type::f32:
        return static_cast<double>(value_of<float>(bits));
    default:
        return value_of<double>(bits);
    }
}

std::uint64_t write_float(type t, double v) {
    switch (t) {
    case type::f16:
        return narrowed(v, f16_format);
    case type::bf16:
        return narrowed(v, bf16_format);
    case type::f32:
        return std::isnan(v) ? 0x7fffffffu : bits_of(static_cast<float>(v));
    default:
        return bits_of(v);
    }
}

std::uint64_t low_bits(std::uint64_t v, std::uint32_t bytes) {
    return bytes >= 8 ? v : v & ((1ull << (8 * bytes)) - 1);
}

// The value of an integer, with its sign.
__int128 read_integer(type t, std::uint64_t bits) {
    switch (t) {
    case type::s8:
        return static_cast<std::int8_t>(bits);
    case type::s16:
        return static_cast<std::int16_t>(bits);
    case type::s32:
        return static_cast<std::int32_t>(bits);
    case type::s64:
        return static_cast<std::int64_t>(bits);
    default:
        return low_bits(bits, ptx::size_of(t));
    }
}

__int128 least_of(type t) {
    return ptx::is_signed(t) ? -(__int128{1} << (8 * ptx::size_of(t) - 1)) : 0;
}
__int128 greatest_of(type t) {
    return (__int128{1} << (8 * ptx::size_of(t) - (ptx::is_signed(t) ? 1 : 0))) - 1;
}

// Types are in bits: the destination's, the source's.
type destination_of(const instruction& i) {
    return static_cast<type>(i.bits & 0xff);
}
type source_of(const instruction& i) {
    return static_cast<type>(i.bits >> 8 & 0xff);
}

void integer_to_integer(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const type to = destination_of(i);
    const type from = source_of(i);
    for_lanes(m, [&](std::uint32_t l) {
        __int128 v = read_integer(from, a[l]);
        if ((i.option & saturate) != 0)
            v = std::clamp(v, least_of(to), greatest_of(to));
        // A narrow result fills its register with its own sign.
        v = read_integer(to, static_cast<std::uint64_t>(v));
        d[l] = low_bits(static_cast<std::uint64_t>(v), i.width);
    });
}

void float_to_integer(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const type to = destination_of(i);
    const type from = source_of(i);
    const rounding mode(i.option);
    for_lanes(m, [&](std::uint32_t l) {
        double v = read_float(from, a[l]);
        if ((i.option & flush) != 0 && std::abs(v) < 0x1p-126)
            v = 0;
        __int128 r = 0;
        if (std::isnan(v)) {
            const bool wide = from == type::f64 || ptx::size_of(to) == 8;
            r = wide && ptx::size_of(to) >= 4 ? __int128{1} << (8 * ptx::size_of(to) - 1) : 0;
        } else {
            v = std::nearbyint(v);
            r = v >= 0x1p64    ? greatest_of(to)
                : v <= -0x1p64 ? least_of(to)
                               : std::clamp(static_cast<__int128>(v), least_of(to), greatest_of(to));
        }
        r = read_integer(to, static_cast<std::uint64_t>(r));
        d[l] = low_bits(static_cast<std::uint64_t>(r), i.width);
    });
}

void integer_to_float(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const type to = destination_of(i);
    const type from = source_of(i);
    const rounding mode(i.option);
    for_lanes(m, [&](std::uint32_t l) {
        // One rounding, so straight to the result's type; 16 bits come from 32 that fit into a double.
        if (ptx::is_signed(from)) {
            const auto v = static_cast<std::int64_t>(read_integer(from, a[l]));
            d[l] = to == type::f32 ? bits_of(static_cast<float>(v)) : write_float(to, static_cast<double>(v));
        } else {
            const std::uint64_t v = low_bits(a[l], ptx::size_of(from));
            d[l] = to == type::f32 ? bits_of(static_cast<float>(v)) : write_float(to, static_cast<double>(v));
        }
        if ((i.option & saturate) != 0) {
            const double v = read_float(to, d[l]);
            d[l] = write_float(to, v < 0 ? 0 : v > 1 ? 1 : v);
        }
    });
}

void float_to_float(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const type to = destination_of(i);
    const type from = source_of(i);
    const rounding mode(i.option);
    const auto flushed = [&](type t, double v) {
        return (i.option & flush) != 0 && t == type::f32 && std::abs(v) < 0x1p-126 ? std::copysign(0.0, v)
                                                                                   : v;
    };
    for_lanes(m, [&](std::uint32_t l) {
        double v = flushed(from, read_float(from, a[l]));
        if ((i.option & to_integral) != 0)
            v = std::nearbyint(v);
        if ((i.option & saturate) != 0)
            v = std::isnan(v) || v <= 0 ? 0 : v > 1 ? 1 : v;
        const std::uint64_t bits = write_float(to, v);
        d[l] = to == type::f32 ? write_float(to, flushed(to, read_float(to, bits))) : bits;
    });
}

// cvt.rn.f16x2.f32 d, a, b: a is the high half.
void pack_halves(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    std::uint64_t* d = w.set(i.to[0]);
    const type to = destination_of(i) == type::f16x2 ? type::f16 : type::bf16;
    const rounding mode(i.option);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] =
            write_float(to, read_float(type::f32, a[l])) << 16 | write_float(to, read_float(type::f32, b[l]));
    });
}

void copy(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = a[l]; });
}

// {a, b, …} → d: `count` parts of `width` bytes
void pack(warp& w, const instruction& i, mask m) {
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        std::uint64_t v = 0;
        for (std::uint32_t k = 0; k < i.count; k++)
            v |= low_bits(w.get(i.from[k])[l], i.width) << (8 * i.width * k);
        d[l] = v;
    });
}
void unpack(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint64_t v = a[l]; // a part may be the source itself
        for (std::uint32_t k = 0; k < i.count; k++)
            w.set(i.to[k])[l] = low_bits(v >> (8 * i.width * k), i.width);
    });
}

// Clocks count instructions: they grow, and are the same each time.
void read_clock(warp& w, const instruction& i, mask m) {
    std::uint64_t* d = w.set(i.to[0]);
    const std::uint64_t now = ++w.of->clock;
    for_lanes(m, [&](std::uint32_t l) { d[l] = low_bits(now + w.of->steps, i.width); });
}

// bits: a window's base, added or taken away
void add_base(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = low_bits(a[l] + i.bits, i.width); });
}

void in_window(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = (a[l] & window::where) == i.bits; });
}

std::uint64_t base_of_space(assembler& a, ptx::space s) {
    switch (s) {
    case ptx::space::shared:
        return window::shared;
    case ptx::space::local:
        return window::local;
    case ptx::space::param:
        return window::param;
    case ptx::space::global:
    case ptx::space::constant:
        return 0;
    default:
        a.fail("wants a state space");
    }
}

void move_vector(assembler& a, type t) {
    const bool packs = a.arg(1).what == operand::kind::vector;
    const std::vector<operand>& parts = a.arg(packs ? 1 : 0).parts;
    const std::uint32_t bytes = ptx::size_of(t);
    if ((parts.size() != 2 && parts.size() != 4) || bytes / parts.size() == 0 || !ptx::is_bits(t))
        a.fail("a vector here has 2 or 4 parts of a .b type");
    const type part = bits_type(bytes / static_cast<std::uint32_t>(parts.size()));
    instruction made;
    for (std::size_t k = 0; k < parts.size(); k++)
        (packs ? made.from : made.to)[k] = packs ? a.from(parts[k], part) : a.to(parts[k], part);
    (packs ? made.to : made.from)[0] = packs ? a.to(a.arg(0), t) : a.from(a.arg(1), t);
    instruction& i = a.emit(packs ? &pack : &unpack);
    std::copy(made.to, made.to + 4, i.to);
    std::copy(made.from, made.from + 4, i.from);
    i.count = static_cast<std::uint8_t>(parts.size());
    i.width = static_cast<std::uint8_t>(ptx::size_of(part));
}

// mov.v2.u32 {a, b}, {c, d}: element by element, all read before one is written.
void move_elements(assembler& a, type t) {
    const std::size_t count = a.arg(0).parts.size();
    if (a.arg(0).what != operand::kind::vector || a.arg(1).what != operand::kind::vector || count > 4 ||
        a.arg(1).parts.size() != count) {
        a.fail("wants two vectors of the same length");
    }
    slot kept[4];
    const auto copied = [&](slot from, slot to) {
        instruction& i = a.emit(&copy);
        i.to[0] = to;
        i.from[0] = from;
    };
    for (std::size_t k = 0; k < count; k++) {
        kept[k] = a.scratch();
        copied(a.from(a.arg(1).parts[k], t), kept[k]);
    }
    for (std::size_t k = 0; k < count; k++)
        copied(kept[k], a.to(a.arg(0).parts[k], t));
}

} // namespace

void op_mov(assembler& a) {
    a.want(2);
    const type t = a.type_at(0);
    if (a.has("v2") || a.has("v4"))
        return move_elements(a, t);
    if (a.arg(0).what == operand::kind::vector || a.arg(1).what == operand::kind::vector)
        return move_vector(a, t);
    const std::string_view name = a.arg(1).name;
    if (name == "%clock" || name == "%clock64" || name == "%clock_hi" || name.starts_with("%globaltimer")) {
        const slot d = a.to(a.arg(0), t);
        instruction& i = a.emit(&read_clock);
        i.to[0] = d;
        i.width = static_cast<std::uint8_t>(ptx::size_of(t));
        return;
    }
    const slot x = a.from(a.arg(1), t);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(&copy);
    i.to[0] = d;
    i.from[0] = x;
}

void op_cvt(assembler& a) {
    const type to = a.type_at(0);
    const type from = a.type_at(1);
    std::uint8_t option = 0;
    constexpr std::string_view roundings[] = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"};
    bool rounds = false;
    for (std::uint8_t k = 0; k < 8; k++) {
        if (a.has(roundings[k])) {
            option |= k;
            rounds = true;
        }
    }
    option |= a.has("sat") ? saturate : 0;
    option |= a.has("ftz") ? flush : 0;
    if (to == type::pred || from == type::pred || from == type::f16x2 || from == type::bf16x2)
        a.fail_type(from);
    if (to == type::f16x2 || to == type::bf16x2) {
        a.want(3);
        const slot x = a.from(a.arg(1), type::f32);
        const slot y = a.from(a.arg(2), type::f32);
        const slot d = a.to(a.arg(0), type::b32);
        if (from != type::f32)
            a.fail_type(from);
        instruction& i = a.emit(&pack_halves);
        i.to[0] = d;
        i.from[0] = x;
        i.from[1] = y;
        i.bits = static_cast<std::uint64_t>(to);
        i.option = option;
        return;
    }
    a.want(2);
    const slot x = a.from(a.arg(1), from, true);
    const slot d = a.to(a.arg(0), to, true);
    const bool to_float = ptx::is_float(to);
    const bool from_float = ptx::is_float(from);
    if (from_float && !to_float && !rounds)
        a.fail("a float becomes an integer with .rni, .rzi, .rmi or .rpi");
    const std::uint8_t width = a.width_of(a.arg(0), to);
    instruction& i = a.emit(to_float ? (from_float ? &float_to_float : &integer_to_float)
                                     : (from_float ? &float_to_integer : &integer_to_integer));
    i.to[0] = d;
    i.from[0] = x;
    i.bits = static_cast<std::uint64_t>(to) | static_cast<std::uint64_t>(from) << 8;
    i.width = width;
    i.option = option;
}

void op_cvta(assembler& a) {
    a.want(2);
    const bool back = a.has("to");
    const auto where = a.take_space();
    if (!where)
        a.fail("wants a state space");
    const std::uint64_t base = base_of_space(a, *where);
    const type t = a.type_at(0);
    if (t != type::u64 && (t != type::u32 || base != 0))
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(&add_base);
    i.to[0] = d;
    i.from[0] = x;
    i.bits = back ? 0 - base : base;
    i.width = static_cast<std::uint8_t>(ptx::size_of(t));
}

void op_isspacep(assembler& a) {
    a.want(2);
    const auto where = a.take_space();
    if (!where)
        a.fail("wants a state space");
    const std::uint64_t base = base_of_space(a, *where);
    const slot x = a.from(a.arg(1), type::u64);
    const slot d = a.to(a.arg(0), type::pred);
    instruction& i = a.emit(&in_window);
    i.to[0] = d;
    i.from[0] = x;
    i.bits = base;
}

} // namespace kagemusha::machine
