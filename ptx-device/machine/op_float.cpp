// SPDX-License-Identifier: GPL-2.0-or-later
// Arithmetic of .f32 and .f64, as the PTX ISA describes it: rounding modes, .ftz, .sat, NaN. The
// approximations (.approx, .full) are computed in double and rounded: they are as exact as the standard
// wants or more so, and the same each time.
//
// This file is compiled with -frounding-math, and without contraction: a·b+c is two roundings unless fma is
// written.
#include "op_pick.hpp"
#include "op_rounding.hpp"

#include <cmath>
#include <limits>

namespace kagemusha::machine {

namespace {

// instruction::option, above the bits of `rounding`
constexpr std::uint8_t flush = 4, saturate = 8;

template <class T>
T flushed(T v) {
    return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(T{0}, v) : v;
}

template <class T>
std::uint64_t finished(T v, std::uint8_t option) {
    if (std::isnan(v)) {
        if ((option & saturate) != 0)
            return 0;
        return std::is_same_v<T, float> ? 0x7fffffffu : 0x7fffffffffffffffu & bits_of(v);
    }
    if ((option & saturate) != 0)
        v = v < 0 ? T{0} : v > 1 ? T{1} : v == 0 ? T{0} : v;
    return bits_of((option & flush) != 0 ? flushed(v) : v);
}

template <class T>
T argument(std::uint64_t bits, std::uint8_t option) {
    const T v = value_of<T>(bits);
    return (option & flush) != 0 ? flushed(v) : v;
}

template <class T, auto F>
void one_float(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const rounding r(i.option);
    for_lanes(m, [&](std::uint32_t l) { d[l] = finished(F(argument<T>(a[l], i.option)), i.option); });
}
template <class T, auto F>
void two_floats(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    std::uint64_t* d = w.set(i.to[0]);
    const rounding r(i.option);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = finished(F(argument<T>(a[l], i.option), argument<T>(b[l], i.option)), i.option);
    });
}
template <class T>
void three_floats(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    const rounding r(i.option);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = finished(
            std::fma(argument<T>(a[l], i.option), argument<T>(b[l], i.option), argument<T>(c[l], i.option)),
            i.option);
    });
}

constexpr auto plus = [](auto a, auto b) { return a + b; };
constexpr auto minus = [](auto a, auto b) { return a - b; };
constexpr auto times = [](auto a, auto b) { return a * b; };
constexpr auto over = [](auto a, auto b) { return a / b; };
constexpr auto inverse = [](auto a) { return decltype(a){1} / a; };
constexpr auto root = [](auto a) { return std::sqrt(a); };
constexpr auto inverse_root = [](auto a) {
    if (a == 0)
        return std::copysign(std::numeric_limits<decltype(a)>::infinity(), a);
    return static_cast<decltype(a)>(1 / std::sqrt(static_cast<double>(a)));
};
constexpr auto sine = [](float a) { return static_cast<float>(std::sin(static_cast<double>(a))); };
constexpr auto cosine = [](float a) { return static_cast<float>(std::cos(static_cast<double>(a))); };
constexpr auto power2 = [](float a) { return static_cast<float>(std::exp2(static_cast<double>(a))); };
constexpr auto log2 = [](float a) { return static_cast<float>(std::log2(static_cast<double>(a))); };
constexpr auto hyperbolic = [](float a) { return static_cast<float>(std::tanh(static_cast<double>(a))); };

// A NaN loses against a number, and −0 is less than +0.
template <bool greater, class T>
T chosen(T a, T b) {
    if (std::isnan(a))
        return b;
    if (std::isnan(b))
        return a;
    if (a == b)
        return std::signbit(a) != greater ? a : b;
    return (a > b) == greater ? a : b;
}
constexpr auto lesser_of = [](auto a, auto b) { return chosen<false>(a, b); };
constexpr auto greater_of = [](auto a, auto b) { return chosen<true>(a, b); };
constexpr auto lesser_nan = [](auto a, auto b) {
    return std::isnan(a) ? a : std::isnan(b) ? b : chosen<false>(a, b);
};
constexpr auto greater_nan = [](auto a, auto b) {
    return std::isnan(a) ? a : std::isnan(b) ? b : chosen<true>(a, b);
};

std::uint8_t options_of(assembler& a, type t) {
    std::uint8_t option = 0;
    std::uint8_t mode = 0;
    for (std::string_view name : {"rn", "rz", "rm", "rp"}) {
        if (a.has(name))
            option |= mode;
        mode++;
    }
    if (a.has("ftz"))
        option |= t == type::f32 ? flush : 0;
    if (a.has("sat"))
        option |= saturate;
    return option;
}

template <auto F>
run_function one_of(type t) {
    return t == type::f32 ? &one_float<float, F> : t == type::f64 ? &one_float<double, F> : nullptr;
}
template <auto F>
run_function two_of(type t) {
    return t == type::f32 ? &two_floats<float, F> : t == type::f64 ? &two_floats<double, F> : nullptr;
}

void same(assembler& a, run_function run, std::size_t sources) {
    const type t = a.type_at(0);
    const std::uint8_t option = options_of(a, t);
    emit_same(a, run, t, sources).option = option;
}

// Of .f32 alone, and always approximated.
template <auto F>
void function32(assembler& a) {
    if (!a.has("approx"))
        a.fail("wants .approx");
    same(a, a.type_at(0) == type::f32 ? &one_float<float, F> : nullptr, 1);
}

// The sign alone changes, of a NaN, too.
template <bool negate>
void sign_only(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    const std::uint64_t sign = 1ull << (8 * i.width - 1);
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint64_t v = negate ? a[l] ^ sign : a[l] & ~sign;
        d[l] = (i.option & flush) != 0 ? finished(argument<float>(v, flush), flush) : v;
    });
}

void copy_sign(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    std::uint64_t* d = w.set(i.to[0]);
    const std::uint64_t sign = 1ull << (8 * i.width - 1);
    for_lanes(m, [&](std::uint32_t l) { d[l] = (b[l] & ~sign) | (a[l] & sign); });
}

template <class T>
void test_property(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        const T v = value_of<T>(a[l]);
        const bool results[] = {std::isfinite(v),
                                std::isinf(v),
                                !std::isnan(v),
                                std::isnan(v),
                                std::isnormal(v) || v == 0,
                                std::fpclassify(v) == FP_SUBNORMAL};
        d[l] = results[i.option];
    });
}

} // namespace

void op_fadd(assembler& a) {
    same(a, two_of<plus>(a.type_at(0)), 2);
}
void op_fsub(assembler& a) {
    same(a, two_of<minus>(a.type_at(0)), 2);
}
void op_fmul(assembler& a) {
    same(a, two_of<times>(a.type_at(0)), 2);
}
void op_fdiv(assembler& a) {
    a.ignore({"approx", "full"});
    same(a, two_of<over>(a.type_at(0)), 2);
}
void op_fma(assembler& a) {
    const type t = a.type_at(0);
    same(a, t == type::f32 ? &three_floats<float> : t == type::f64 ? &three_floats<double> : nullptr, 3);
}
void op_fminmax(assembler& a) {
    const type t = a.type_at(0);
    const bool nan = a.has("NaN");
    const bool least = a.in().opcode == "min";
    same(a,
         nan ? (least ? two_of<lesser_nan>(t) : two_of<greater_nan>(t))
             : (least ? two_of<lesser_of>(t) : two_of<greater_of>(t)),
         2);
}
void op_fabs_neg(assembler& a) {
    const type t = a.type_at(0);
    const std::uint8_t option = options_of(a, t);
    const bool known = t == type::f32 || t == type::f64 || t == type::f16 || t == type::bf16;
    run_function run = a.in().opcode == "neg" ? &sign_only<true> : &sign_only<false>;
    instruction& i = emit_same(a, known ? run : nullptr, t, 1);
    i.option = option;
    i.width = static_cast<std::uint8_t>(ptx::size_of(t));
}
void op_rcp(assembler& a) {
    a.ignore({"approx"});
    same(a, one_of<inverse>(a.type_at(0)), 1);
}
void op_sqrt(assembler& a) {
    a.ignore({"approx"});
    same(a, one_of<root>(a.type_at(0)), 1);
}
void op_rsqrt(assembler& a) {
    a.ignore({"approx"});
    same(a, one_of<inverse_root>(a.type_at(0)), 1);
}
void op_sin(assembler& a) {
    function32<sine>(a);
}
void op_cos(assembler& a) {
    function32<cosine>(a);
}
void op_ex2(assembler& a) {
    function32<power2>(a);
}
void op_lg2(assembler& a) {
    function32<log2>(a);
}
void op_tanh(assembler& a) {
    function32<hyperbolic>(a);
}

void op_copysign(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, t == type::f32 || t == type::f64 ? &copy_sign : nullptr, t, 2).width =
        static_cast<std::uint8_t>(ptx::size_of(t));
}

void op_testp(assembler& a) {
    a.want(2);
    const type t = a.type_at(0);
    std::uint8_t option = 0xff;
    std::uint8_t number = 0;
    for (std::string_view name : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}) {
        option = a.has(name) ? number : option;
        number++;
    }
    if (option == 0xff || (t != type::f32 && t != type::f64))
        a.fail("wants a property and .f32 or .f64");
    const slot x = a.from(a.arg(1), t);
    const slot d = a.to(a.arg(0), type::pred);
    instruction& i = a.emit(t == type::f32 ? &test_property<float> : &test_property<double>);
    i.to[0] = d;
    i.from[0] = x;
    i.option = option;
}

} // namespace kagemusha::machine
