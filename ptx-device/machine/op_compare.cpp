// SPDX-License-Identifier: GPL-2.0-or-later
// Comparison and choice: setp, set, selp, slct.
#include "op_pick.hpp"

#include <cmath>

namespace kagemusha::machine {

namespace {

// instruction::option: what a NaN gives; how the result meets the predicate c; the kind of result; .ftz.
constexpr std::uint8_t nan_true = 1, with_and = 2, with_or = 4, with_xor = 6, combine = 6, flush = 8,
                       c_negated = 16, gives_float = 32, gives_ones = 64;

struct relation {
    std::string_view name;
    char what; // = ! < { > } for ≤ ≥, 1 always, 0 never
    bool nan;
    bool integers; // exists for them
};
constexpr relation relations[] = {
    {"eq", '=', false, true},  {"ne", '!', false, true},   {"lt", '<', false, true},
    {"le", '{', false, true},  {"gt", '>', false, true},   {"ge", '}', false, true},
    {"lo", '<', false, true},  {"ls", '{', false, true},   {"hi", '>', false, true},
    {"hs", '}', false, true},  {"equ", '=', true, false},  {"neu", '!', true, false},
    {"ltu", '<', true, false}, {"leu", '{', true, false},  {"gtu", '>', true, false},
    {"geu", '}', true, false}, {"num", '1', false, false}, {"nan", '0', true, false},
};

template <char what, class T>
bool related(T a, T b) {
    switch (what) {
    case '=':
        return a == b;
    case '!':
        return a != b;
    case '<':
        return a < b;
    case '{':
        return a <= b;
    case '>':
        return a > b;
    case '}':
        return a >= b;
    default:
        return what == '1';
    }
}

template <class T>
T argument(std::uint64_t bits, std::uint8_t option) {
    const T v = value_of<T>(bits);
    if constexpr (std::is_same_v<T, float>)
        return (option & flush) != 0 && std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v;
    (void)option;
    return v;
}

std::uint64_t combined(bool r, std::uint64_t c, std::uint8_t option) {
    const bool other = ((c & 1) != 0) != ((option & c_negated) != 0);
    switch (option & combine) {
    case with_and:
        r = r && other;
        break;
    case with_or:
        r = r || other;
        break;
    case with_xor:
        r = r != other;
        break;
    default:
        break;
    }
    if ((option & gives_float) != 0)
        return r ? std::bit_cast<std::uint32_t>(1.0f) : 0;
    return r ? ((option & gives_ones) != 0 ? 0xffffffffu : 1) : 0;
}

template <class T, char what>
void compare(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = i.from[2].none() ? a : w.get(i.from[2]);
    std::uint64_t* p = w.set(i.to[0]);
    std::uint64_t* q = i.to[1].none() ? nullptr : w.set(i.to[1]);
    for_lanes(m, [&](std::uint32_t l) {
        const T x = argument<T>(a[l], i.option);
        const T y = argument<T>(b[l], i.option);
        bool r = related<what>(x, y);
        if constexpr (std::is_floating_point_v<T>)
            r = std::isnan(x) || std::isnan(y) ? (i.option & nan_true) != 0 : r;
        const std::uint64_t other = c[l];
        p[l] = combined(r, other, i.option);
        if (q != nullptr)
            q[l] = combined(!r, other, i.option);
    });
}

template <class T>
run_function compare_as(char what) {
    switch (what) {
    case '=':
        return &compare<T, '='>;
    case '!':
        return &compare<T, '!'>;
    case '<':
        return &compare<T, '<'>;
    case '{':
        return &compare<T, '{'>;
    case '>':
        return &compare<T, '>'>;
    case '}':
        return &compare<T, '}'>;
    case '1':
        return &compare<T, '1'>;
    default:
        return &compare<T, '0'>;
    }
}

// The comparison of a setp or set; t is the type compared.
instruction& comparison(assembler& a, type t, type result) {
    const relation* found = nullptr;
    for (const relation& r : relations)
        if (a.has(r.name))
            found = &r;
    if (found == nullptr)
        a.fail("wants a comparison");
    a.want(3, 4);
    std::uint8_t option = found->nan ? nan_true : 0;
    option |= a.has("ftz") ? flush : 0;
    option |= a.has("and") ? with_and : a.has("or") ? with_or : a.has("xor") ? with_xor : 0;
    if (((option & combine) != 0) != (a.count() == 4))
        a.fail("a third source belongs to .and, .or or .xor");
    run_function run = t == type::f32   ? compare_as<float>(found->what)
                       : t == type::f64 ? compare_as<double>(found->what)
                       : found->integers && ptx::size_of(t) > 1
                           ? with_integer(t, [&]<class T>(T) { return compare_as<T>(found->what); })
                           : nullptr;
    if (run == nullptr || t == type::pred)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot y = a.from(a.arg(2), t);
    slot c;
    if (a.count() == 4) {
        c = a.from(a.arg(3), type::pred);
        option |= a.arg(3).negated ? c_negated : 0;
    }
    const slot d = a.to(a.arg(0), result);
    slot q;
    if (!a.arg(0).second.empty()) {
        operand second;
        second.what = a.arg(0).second == "_" ? operand::kind::sink : operand::kind::name;
        second.name = a.arg(0).second;
        q = a.to(second, result);
    }
    instruction& i = a.emit(run);
    i.to[0] = d;
    i.to[1] = q;
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = c;
    i.option = option;
    return i;
}

void choose(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = ((c[l] & 1) != 0) != (i.option != 0) ? a[l] : b[l]; });
}

template <class T>
void choose_by_sign(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = argument<T>(c[l], i.option) >= 0 ? a[l] : b[l]; });
}

} // namespace

void op_setp(assembler& a) {
    comparison(a, a.type_at(0), type::pred);
}

void op_set(assembler& a) {
    const type d = a.type_at(0);
    if (d != type::u32 && d != type::s32 && d != type::f32)
        a.fail_type(d);
    comparison(a, a.type_at(1), d).option |= d == type::f32 ? gives_float : gives_ones;
}

void op_selp(assembler& a) {
    a.want(4);
    const type t = a.type_at(0);
    if (t == type::pred || ptx::size_of(t) < 2)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot y = a.from(a.arg(2), t);
    const slot c = a.from(a.arg(3), type::pred);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(&choose);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = c;
    i.option = a.arg(3).negated ? 1 : 0;
}

void op_slct(assembler& a) {
    a.want(4);
    const type t = a.type_at(0);
    const type by = a.type_at(1);
    if (t == type::pred || (by != type::s32 && by != type::f32))
        a.fail("chooses by a sign of .s32 or .f32");
    const std::uint8_t option = a.has("ftz") ? flush : 0;
    const slot x = a.from(a.arg(1), t);
    const slot y = a.from(a.arg(2), t);
    const slot c = a.from(a.arg(3), by);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(by == type::s32 ? &choose_by_sign<std::int32_t> : &choose_by_sign<float>);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = c;
    i.option = option;
}

} // namespace kagemusha::machine
