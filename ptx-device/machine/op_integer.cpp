// SPDX-License-Identifier: GPL-2.0-or-later
// Integer arithmetic. Where an opcode also has floats, the float's function is in op_float.cpp.
#include "op_pick.hpp"

#include <limits>

namespace kagemusha::machine {

namespace {

template <class T>
using unsigned_of = std::make_unsigned_t<T>;

constexpr auto plus = []<class T>(T a, T b) {
    return static_cast<T>(static_cast<unsigned_of<T>>(a) + static_cast<unsigned_of<T>>(b));
};
constexpr auto minus = []<class T>(T a, T b) {
    return static_cast<T>(static_cast<unsigned_of<T>>(a) - static_cast<unsigned_of<T>>(b));
};
constexpr auto times = []<class T>(T a, T b) {
    return static_cast<T>(std::uint64_t{static_cast<unsigned_of<T>>(a)} *
                          std::uint64_t{static_cast<unsigned_of<T>>(b)});
};
constexpr auto times_high = []<class T>(T a, T b) {
    if constexpr (sizeof(T) == 1) {
        return T{};
    } else {
        using W = typename wide<T>::type;
        return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
    }
};
constexpr auto times_wide = []<class T>(T a, T b) {
    if constexpr (sizeof(T) == 1 || sizeof(T) == 8) {
        return T{};
    } else {
        using W = typename wide<T>::type;
        return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
    }
};
// 24 bits of each: the low or high 32 bits of the 48 of the product.
template <class T>
std::int64_t product24(T a, T b) {
    if constexpr (std::is_signed_v<T>) {
        return (static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << 40) >> 40) *
               (static_cast<std::int64_t>(static_cast<std::uint64_t>(b) << 40) >> 40);
    } else {
        return static_cast<std::int64_t>((a & 0xffffffu) * std::uint64_t{b & 0xffffffu});
    }
}
constexpr auto times24 = []<class T>(T a, T b) { return static_cast<T>(product24(a, b)); };
constexpr auto times24_high = []<class T>(T a, T b) { return static_cast<T>(product24(a, b) >> 16); };
constexpr auto quotient = []<class T>(T a, T b) {
    if (b == 0)
        return static_cast<T>(~T{0}); // not defined; what NVIDIA's devices give
    if constexpr (std::is_signed_v<T>) {
        if (b == T{-1})
            return static_cast<T>(0 - static_cast<unsigned_of<T>>(a));
    }
    return static_cast<T>(a / b);
};
constexpr auto remainder = []<class T>(T a, T b) {
    if (b == 0)
        return a;
    if constexpr (std::is_signed_v<T>) {
        if (b == T{-1})
            return T{0};
    }
    return static_cast<T>(a % b);
};
constexpr auto least = []<class T>(T a, T b) { return a < b ? a : b; };
constexpr auto most = []<class T>(T a, T b) { return a > b ? a : b; };
constexpr auto negative = []<class T>(T a) { return static_cast<T>(0 - static_cast<unsigned_of<T>>(a)); };
constexpr auto magnitude = []<class T>(T a) {
    return a < 0 ? static_cast<T>(0 - static_cast<unsigned_of<T>>(a)) : a;
};
template <class T>
T saturated(__int128 v) {
    return static_cast<T>(
        std::clamp<__int128>(v, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
constexpr auto plus_sat = [](std::int32_t a, std::int32_t b) {
    return saturated<std::int32_t>(std::int64_t{a} + b);
};
constexpr auto minus_sat = [](std::int32_t a, std::int32_t b) {
    return saturated<std::int32_t>(std::int64_t{a} - b);
};
constexpr auto difference = []<class T>(T a, T b, T c) {
    const T d = a < b ? minus(b, a) : minus(a, b);
    return plus(c, d);
};

// ---- with the carry, which is slot 0 of the frame

// option: 1: gives a carry, 2: takes one, 4: subtracts
template <class T>
void add_carry(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    std::uint64_t* d = w.set(i.to[0]);
    std::uint64_t* carry = w.set(slot{0});
    for_lanes(m, [&](std::uint32_t l) {
        const T x = static_cast<T>(a[l]);
        const T y = static_cast<T>(b[l]);
        const T c = (i.option & 2) != 0 ? static_cast<T>(carry[l]) : T{0};
        T first = 0;
        T sum = 0;
        const bool subtract = (i.option & 4) != 0;
        const bool one =
            subtract ? __builtin_sub_overflow(x, y, &first) : __builtin_add_overflow(x, y, &first);
        const bool two =
            subtract ? __builtin_sub_overflow(first, c, &sum) : __builtin_add_overflow(first, c, &sum);
        d[l] = sum;
        carry[l] = (i.option & 1) != 0 ? (one || two) : carry[l];
    });
}

// mad.lo/hi with the carry; option: 8: the high half
template <class T>
void mad_carry(warp& w, const instruction& i, mask m) {
    using U = unsigned_of<T>;
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    std::uint64_t* carry = w.set(slot{0});
    for_lanes(m, [&](std::uint32_t l) {
        const T x = static_cast<T>(a[l]);
        const T y = static_cast<T>(b[l]);
        const U part = static_cast<U>((i.option & 8) != 0 ? times_high(x, y) : times(x, y));
        U first = 0;
        U sum = 0;
        const bool one = __builtin_add_overflow(part, static_cast<U>(c[l]), &first);
        const bool two =
            __builtin_add_overflow(first, static_cast<U>((i.option & 2) != 0 ? carry[l] : 0), &sum);
        d[l] = sum;
        carry[l] = (i.option & 1) != 0 ? (one || two) : carry[l];
    });
}

void with_carry(assembler& a, std::uint8_t option) {
    const type t = a.type_at(0);
    run_function run = ptx::size_of(t) == 4 && !ptx::is_float(t)   ? &add_carry<std::uint32_t>
                       : ptx::size_of(t) == 8 && !ptx::is_float(t) ? &add_carry<std::uint64_t>
                                                                   : nullptr;
    emit_same(a, run, t, 2).option = option | (a.has("cc") ? 1 : 0);
}

bool floats(assembler& a) {
    return ptx::is_float(a.type_at(0));
}

// Two halves of a word; `run16` on each would be .u16x2 (PTX 8.0), which is not here.

} // namespace

void op_add(assembler& a) {
    if (floats(a))
        return op_fadd(a);
    const type t = a.type_at(0);
    if (a.has("cc"))
        return with_carry(a, 0);
    if (a.has("sat")) {
        emit_same(a, t == type::s32 ? &binary<std::int32_t, std::int32_t, plus_sat> : nullptr, t, 2);
        return;
    }
    emit_same(a, binary_integer<plus>(t), t, 2);
}

void op_sub(assembler& a) {
    if (floats(a))
        return op_fsub(a);
    const type t = a.type_at(0);
    if (a.has("cc"))
        return with_carry(a, 4);
    if (a.has("sat")) {
        emit_same(a, t == type::s32 ? &binary<std::int32_t, std::int32_t, minus_sat> : nullptr, t, 2);
        return;
    }
    emit_same(a, binary_integer<minus>(t), t, 2);
}

void op_addc(assembler& a) {
    with_carry(a, 2);
}
void op_subc(assembler& a) {
    with_carry(a, 2 | 4);
}

namespace {

// The type of a wide product: 16 → 32 bits, 32 → 64.
type wide_type(assembler& a, type t) {
    switch (t) {
    case type::u16:
        return type::u32;
    case type::s16:
        return type::s32;
    case type::u32:
        return type::u64;
    case type::s32:
        return type::s64;
    default:
        a.fail_type(t);
    }
}

} // namespace

void op_mul(assembler& a) {
    if (floats(a))
        return op_fmul(a);
    const type t = a.type_at(0);
    if (ptx::size_of(t) < 2)
        a.fail_type(t);
    if (a.has("wide")) {
        a.want(3);
        const type w = wide_type(a, t);
        const slot x = a.from(a.arg(1), t);
        const slot y = a.from(a.arg(2), t);
        const slot d = a.to(a.arg(0), w);
        instruction& i = a.emit(binary_integer<times_wide>(t));
        i.to[0] = d;
        i.from[0] = x;
        i.from[1] = y;
    } else if (a.has("hi")) {
        emit_same(a, binary_integer<times_high>(t), t, 2);
    } else if (a.has("lo")) {
        emit_same(a, binary_integer<times>(t), t, 2);
    } else {
        a.fail("wants .lo, .hi or .wide");
    }
}

void op_mul24(assembler& a) {
    const type t = a.type_at(0);
    const bool high = a.has("hi");
    a.ignore({"lo"});
    const bool sign = ptx::is_signed(t);
    run_function run = high ? (sign ? &binary<std::int32_t, std::int32_t, times24_high>
                                    : &binary<std::uint32_t, std::uint32_t, times24_high>)
                            : (sign ? &binary<std::int32_t, std::int32_t, times24>
                                    : &binary<std::uint32_t, std::uint32_t, times24>);
    emit_same(a, t == type::u32 || t == type::s32 ? run : nullptr, t, 2);
}

namespace {

constexpr auto mad_low = []<class T>(T a, T b, T c) { return plus(times(a, b), c); };
constexpr auto mad_high = []<class T>(T a, T b, T c) { return plus(times_high(a, b), c); };
constexpr auto mad_high_sat = [](std::int32_t a, std::int32_t b, std::int32_t c) {
    return saturated<std::int32_t>(std::int64_t{times_high(a, b)} + c);
};
constexpr auto mad24_low = []<class T>(T a, T b, T c) { return plus(times24(a, b), c); };
constexpr auto mad24_high = []<class T>(T a, T b, T c) { return plus(times24_high(a, b), c); };

template <class T>
void mad_wide(warp& w, const instruction& i, mask m) {
    using W = typename wide<T>::type;
    ternary<T, T, W, [](T a, T b, W c) { return plus(static_cast<W>(times_wide(a, b)), c); }>(w, i, m);
}

run_function mad_wide_of(type t) {
    switch (t) {
    case type::u16:
        return &mad_wide<std::uint16_t>;
    case type::s16:
        return &mad_wide<std::int16_t>;
    case type::u32:
        return &mad_wide<std::uint32_t>;
    case type::s32:
        return &mad_wide<std::int32_t>;
    default:
        return nullptr;
    }
}

void carry_mad(assembler& a, std::uint8_t option) {
    const type t = a.type_at(0);
    run_function run = t == type::u32   ? &mad_carry<std::uint32_t>
                       : t == type::s32 ? &mad_carry<std::int32_t>
                       : t == type::u64 ? &mad_carry<std::uint64_t>
                       : t == type::s64 ? &mad_carry<std::int64_t>
                                        : nullptr;
    option |= a.has("hi") ? 8 : 0;
    a.ignore({"lo"});
    emit_same(a, run, t, 3).option = option | (a.has("cc") ? 1 : 0);
}

} // namespace

void op_mad(assembler& a) {
    if (floats(a))
        return op_fma(a);
    const type t = a.type_at(0);
    if (ptx::size_of(t) < 2)
        a.fail_type(t);
    if (a.has("cc"))
        return carry_mad(a, 0);
    if (a.has("wide")) {
        a.want(4);
        const type w = wide_type(a, t);
        const slot x = a.from(a.arg(1), t);
        const slot y = a.from(a.arg(2), t);
        const slot z = a.from(a.arg(3), w);
        const slot d = a.to(a.arg(0), w);
        instruction& i = a.emit(mad_wide_of(t));
        i.to[0] = d;
        i.from[0] = x;
        i.from[1] = y;
        i.from[2] = z;
    } else if (a.has("hi")) {
        const bool sat = a.has("sat");
        if (sat && t != type::s32)
            a.fail_type(t);
        emit_same(a,
                  sat ? &ternary<std::int32_t, std::int32_t, std::int32_t, mad_high_sat>
                      : ternary_integer<mad_high>(t),
                  t, 3);
    } else if (a.has("lo")) {
        emit_same(a, ternary_integer<mad_low>(t), t, 3);
    } else {
        a.fail("wants .lo, .hi or .wide");
    }
}

void op_madc(assembler& a) {
    carry_mad(a, 2);
}

void op_mad24(assembler& a) {
    const type t = a.type_at(0);
    const bool high = a.has("hi");
    a.ignore({"lo"});
    if (t != type::u32 && t != type::s32)
        a.fail_type(t);
    const bool sign = t == type::s32;
    using s = std::int32_t;
    using u = std::uint32_t;
    emit_same(a,
              high ? (sign ? &ternary<s, s, s, mad24_high> : &ternary<u, u, u, mad24_high>)
                   : (sign ? &ternary<s, s, s, mad24_low> : &ternary<u, u, u, mad24_low>),
              t, 3);
}

void op_div(assembler& a) {
    if (floats(a))
        return op_fdiv(a);
    emit_same(a, binary_integer<quotient>(a.type_at(0)), a.type_at(0), 2);
}
void op_rem(assembler& a) {
    emit_same(a, binary_integer<remainder>(a.type_at(0)), a.type_at(0), 2);
}
void op_min(assembler& a) {
    if (floats(a))
        return op_fminmax(a);
    emit_same(a, binary_integer<least>(a.type_at(0)), a.type_at(0), 2);
}
void op_max(assembler& a) {
    if (floats(a))
        return op_fminmax(a);
    emit_same(a, binary_integer<most>(a.type_at(0)), a.type_at(0), 2);
}
void op_neg(assembler& a) {
    if (floats(a))
        return op_fabs_neg(a);
    emit_same(a, unary_integer<negative>(a.type_at(0)), a.type_at(0), 1);
}
void op_abs(assembler& a) {
    if (floats(a))
        return op_fabs_neg(a);
    emit_same(a, unary_integer<magnitude>(a.type_at(0)), a.type_at(0), 1);
}
void op_sad(assembler& a) {
    emit_same(a, ternary_integer<difference>(a.type_at(0)), a.type_at(0), 3);
}

// Video instructions, the plain 32-bit form: vadd, vsub, vabsdiff, vmin, vmax of whole words, with a second
// operation (.add, .min, .max) or not, with or without
// .sat.
namespace {

template <class D, class A, class B>
void video(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = i.from[2].none() ? nullptr : w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        const std::int64_t x = static_cast<A>(a[l]);
        const std::int64_t y = static_cast<B>(b[l]);
        const std::int64_t results[] = {x + y, x - y, x > y ? x - y : y - x, std::min(x, y), std::max(x, y)};
        const std::int64_t r = results[i.option & 7];
        const D first = (i.option & 8) != 0 ? saturated<D>(r) : static_cast<D>(r);
        const auto third = static_cast<D>(c != nullptr ? c[l] : 0);
        switch (i.option >> 4) { // the second operation
        case 1:
            d[l] = bits_of(
                static_cast<D>(static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(third)));
            break;
        case 2:
            d[l] = bits_of(std::min(first, third));
            break;
        case 3:
            d[l] = bits_of(std::max(first, third));
            break;
        default:
            d[l] = bits_of(first);
        }
    });
}

template <class D>
run_function video_of(bool sign_a, bool sign_b) {
    using s = std::int32_t;
    using u = std::uint32_t;
    return sign_a ? (sign_b ? &video<D, s, s> : &video<D, s, u>)
                  : (sign_b ? &video<D, u, s> : &video<D, u, u>);
}

void video_op(assembler& a, std::uint8_t option) {
    const bool add = a.has("add"), min = a.has("min"), max = a.has("max");
    const std::uint8_t second = add ? 1 : min ? 2 : max ? 3 : 0;
    a.want(second != 0 ? 4 : 3);
    const type d = a.type_at(0);
    const type x = a.type_at(1);
    const type y = a.type_at(2);
    for (type t : {d, x, y})
        if (t != type::u32 && t != type::s32)
            a.fail_type(t);
    const slot p = a.from(a.arg(1), x);
    const slot q = a.from(a.arg(2), y);
    const slot r = a.to(a.arg(0), d);
    const slot s = second != 0 ? a.from(a.arg(3), d) : slot{};
    option |= (a.has("sat") ? 8 : 0) | second << 4;
    instruction& i = a.emit(d == type::s32 ? video_of<std::int32_t>(ptx::is_signed(x), ptx::is_signed(y))
                                           : video_of<std::uint32_t>(ptx::is_signed(x), ptx::is_signed(y)));
    i.to[0] = r;
    i.from[0] = p;
    i.from[1] = q;
    i.from[2] = s;
    i.option = option;
}

} // namespace

void op_vadd(assembler& a) {
    video_op(a, 0);
}
void op_vsub(assembler& a) {
    video_op(a, 1);
}
void op_vabsdiff(assembler& a) {
    video_op(a, 2);
}
void op_vmin(assembler& a) {
    video_op(a, 3);
}
void op_vmax(assembler& a) {
    video_op(a, 4);
}

} // namespace kagemusha::machine
