// SPDX-License-Identifier: GPL-2.0-or-later
// Operations on bits: logic, shifts, counting, fields, permutation.
#include "op_pick.hpp"

namespace kagemusha::machine {

namespace {

constexpr auto both = []<class T>(T a, T b) { return static_cast<T>(a & b); };
constexpr auto either = []<class T>(T a, T b) { return static_cast<T>(a | b); };
constexpr auto differ = []<class T>(T a, T b) { return static_cast<T>(a ^ b); };
constexpr auto inverse = []<class T>(T a) { return static_cast<T>(~a); };
constexpr auto is_zero = []<class T>(T a) { return static_cast<T>(a == 0); };
constexpr auto not_predicate = [](std::uint64_t a) { return std::uint64_t{(a & 1) == 0}; };

run_function logic_of(type t, run_function (*integers)(type), run_function predicates) {
    return t == type::pred ? predicates : ptx::is_bits(t) && t != type::b8 ? integers(t) : nullptr;
}

// A shift's count has 32 bits; beyond the width everything is gone.
template <class T>
void shift_left(warp& w, const instruction& i, mask m) {
    binary<T, std::uint32_t,
           [](T a, std::uint32_t n) { return static_cast<T>(n < 8 * sizeof(T) ? a << n : 0); }>(w, i, m);
}
template <class T>
void shift_right(warp& w, const instruction& i, mask m) {
    binary<T, std::uint32_t, [](T a, std::uint32_t n) {
        constexpr std::uint32_t bits = 8 * sizeof(T);
        if constexpr (std::is_signed_v<T>)
            return static_cast<T>(a >> (n < bits ? n : bits - 1));
        else
            return static_cast<T>(n < bits ? a >> n : 0);
    }>(w, i, m);
}

void shift(assembler& a, run_function run) {
    a.want(3);
    const type t = a.type_at(0);
    if (run == nullptr || ptx::size_of(t) < 2)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot n = a.from(a.arg(2), type::u32);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(run);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = n;
}

// a is the low word, b the high one.
template <bool left, bool wrap>
std::uint32_t funnel(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t n = wrap ? c & 31 : std::min(c, 32u);
    const std::uint64_t both_words = std::uint64_t{b} << 32 | a;
    return static_cast<std::uint32_t>(left ? (both_words << n) >> 32 : both_words >> n);
}

constexpr auto ones = []<class T>(T a) { return static_cast<std::uint32_t>(__builtin_popcountll(a)); };
constexpr auto zeros32 = [](std::uint32_t a) {
    return static_cast<std::uint32_t>(a != 0 ? __builtin_clz(a) : 32);
};
constexpr auto zeros64 = [](std::uint64_t a) {
    return static_cast<std::uint32_t>(a != 0 ? __builtin_clzll(a) : 64);
};

template <class T>
T reversed(T a) {
    T r = 0;
    for (std::size_t k = 0; k < 8 * sizeof(T); k++)
        r = static_cast<T>(r << 1 | (a >> k & 1));
    return r;
}

// The highest bit that differs from the sign; shift: how far it is from the top.
template <class T, bool amount>
std::uint32_t leading(T a) {
    std::uint64_t v = static_cast<std::make_unsigned_t<T>>(std::is_signed_v<T> && a < 0 ? ~a : a);
    if (v == 0)
        return ~0u;
    const auto at = static_cast<std::uint32_t>(63 - __builtin_clzll(v));
    return amount ? static_cast<std::uint32_t>(8 * sizeof(T)) - 1 - at : at;
}

template <class T>
T field(T a, std::uint32_t b, std::uint32_t c) {
    constexpr std::uint32_t top = 8 * sizeof(T) - 1;
    const std::uint32_t at = b & 0xff;
    const std::uint32_t length = c & 0xff;
    bool sign = false;
    if (std::is_signed_v<T> && length != 0)
        sign = (static_cast<std::make_unsigned_t<T>>(a) >> std::min(at + length - 1, top) & 1) != 0;
    std::make_unsigned_t<T> r = 0;
    for (std::uint32_t k = 0; k <= top; k++) {
        const bool bit = k < length && at + k <= top ? (a >> (at + k) & 1) != 0 : sign;
        r |= static_cast<std::make_unsigned_t<T>>(bit) << k;
    }
    return static_cast<T>(r);
}

template <class T>
void insert(warp& w, const instruction& i, mask m) {
    const std::uint64_t* from = w.get(i.from[0]);
    const std::uint64_t* into = w.get(i.from[1]);
    const std::uint64_t* at = w.get(i.from[2]);
    const std::uint64_t* length = w.get(i.from[3]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint32_t begin = at[l] & 0xff;
        const std::uint32_t n = length[l] & 0xff;
        const T ones_below = n >= 8 * sizeof(T) ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << n) - 1);
        const T taken = begin >= 8 * sizeof(T) ? T{0} : static_cast<T>(ones_below << begin);
        const T moved = begin >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<T>(from[l]) << begin);
        d[l] = static_cast<T>((static_cast<T>(into[l]) & ~taken) | (moved & taken));
    });
}

// Bytes of two words, chosen by four selectors; with its high bit a selector gives the byte's sign.
std::uint32_t permuted(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint8_t mode) {
    const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
    std::uint32_t selectors[4];
    const std::uint32_t s = c & 3;
    for (std::uint32_t k = 0; k < 4; k++) {
        switch (mode) {
        case 1:
            selectors[k] = s + k;
            break; // f4e
        case 2:
            selectors[k] = (8 + s - k) & 7;
            break; // b4e
        case 3:
            selectors[k] = s;
            break; // rc8
        case 4:
            selectors[k] = std::max(k, s);
            break; // ecl
        case 5:
            selectors[k] = std::min(k, s);
            break; // ecr
        case 6:
            selectors[k] = (s & 1) * 2 + (k & 1);
            break; // rc16
        default:
            selectors[k] = c >> (4 * k) & 15;
            break;
        }
    }
    std::uint32_t r = 0;
    for (std::uint32_t k = 0; k < 4; k++) {
        std::uint32_t byte = bytes >> (8 * (selectors[k] & 7)) & 0xff;
        if ((selectors[k] & 8) != 0)
            byte = (byte & 0x80) != 0 ? 0xff : 0;
        r |= byte << (8 * k);
    }
    return r;
}

void permute(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = permuted(static_cast<std::uint32_t>(a[l]), static_cast<std::uint32_t>(b[l]),
                        static_cast<std::uint32_t>(c[l]), i.option);
    });
}

// bits has the truth table of lop3.
void logic3(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        std::uint64_t r = 0;
        for (std::uint32_t k = 0; k < 8; k++) {
            if ((i.bits >> k & 1) != 0) {
                r |= ((k & 4) != 0 ? a[l] : ~a[l]) & ((k & 2) != 0 ? b[l] : ~b[l]) &
                     ((k & 1) != 0 ? c[l] : ~c[l]);
            }
        }
        d[l] = r & 0xffffffffu;
    });
}

// A result of 32 bits from a value of type t.
void counting(assembler& a, run_function run, type t) {
    a.want(2);
    if (run == nullptr)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot d = a.to(a.arg(0), type::u32);
    instruction& i = a.emit(run);
    i.to[0] = d;
    i.from[0] = x;
}

template <auto F32, auto F64>
run_function of_bits(type t) {
    return t == type::b32   ? &unary<std::uint32_t, F32>
           : t == type::b64 ? &unary<std::uint64_t, F64>
                            : static_cast<run_function>(nullptr);
}

} // namespace

void op_and(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, logic_of(t, &binary_integer<both>, &binary<std::uint64_t, std::uint64_t, both>), t, 2);
}
void op_or(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, logic_of(t, &binary_integer<either>, &binary<std::uint64_t, std::uint64_t, either>), t, 2);
}
void op_xor(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, logic_of(t, &binary_integer<differ>, &binary<std::uint64_t, std::uint64_t, differ>), t, 2);
}
void op_not(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, logic_of(t, &unary_integer<inverse>, &unary<std::uint64_t, not_predicate>), t, 1);
}
void op_cnot(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, logic_of(t, &unary_integer<is_zero>, nullptr), t, 1);
}
void op_shl(assembler& a) {
    shift(a, with_integer(a.type_at(0),
                          []<class T>(T) -> run_function { return &shift_left<std::make_unsigned_t<T>>; }));
}
void op_shr(assembler& a) {
    shift(a, with_integer(a.type_at(0), []<class T>(T) -> run_function { return &shift_right<T>; }));
}
void op_shf(assembler& a) {
    const bool left = a.has("l");
    if (!left && !a.has("r"))
        a.fail("wants .l or .r");
    const bool wrap = a.has("wrap");
    if (!wrap && !a.has("clamp"))
        a.fail("wants .wrap or .clamp");
    using u = std::uint32_t;
    run_function run =
        left ? (wrap ? &ternary<u, u, u, &funnel<true, true>> : &ternary<u, u, u, &funnel<true, false>>)
             : (wrap ? &ternary<u, u, u, &funnel<false, true>> : &ternary<u, u, u, &funnel<false, false>>);
    emit_same(a, a.type_at(0) == type::b32 ? run : nullptr, a.type_at(0), 3);
}
void op_popc(assembler& a) {
    counting(a, of_bits<ones, ones>(a.type_at(0)), a.type_at(0));
}
void op_clz(assembler& a) {
    counting(a, of_bits<zeros32, zeros64>(a.type_at(0)), a.type_at(0));
}
void op_brev(assembler& a) {
    const type t = a.type_at(0);
    emit_same(a, of_bits<&reversed<std::uint32_t>, &reversed<std::uint64_t>>(t), t, 1);
}
void op_bfind(assembler& a) {
    const bool amount = a.has("shiftamt");
    const type t = a.type_at(0);
    run_function run = with_integer(t, [&]<class T>(T) -> run_function {
        if constexpr (sizeof(T) < 4)
            return nullptr;
        else
            return amount ? &unary<T, &leading<T, true>> : &unary<T, &leading<T, false>>;
    });
    counting(a, run, t);
}
void op_bfe(assembler& a) {
    a.want(4);
    const type t = a.type_at(0);
    run_function run = with_integer(t, []<class T>(T) -> run_function {
        if constexpr (sizeof(T) < 4)
            return nullptr;
        else
            return &ternary<T, std::uint32_t, std::uint32_t, &field<T>>;
    });
    if (run == nullptr)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot b = a.from(a.arg(2), type::u32);
    const slot c = a.from(a.arg(3), type::u32);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(run);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = b;
    i.from[2] = c;
}
void op_bfi(assembler& a) {
    a.want(5);
    const type t = a.type_at(0);
    if (t != type::b32 && t != type::b64)
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot y = a.from(a.arg(2), t);
    const slot b = a.from(a.arg(3), type::u32);
    const slot c = a.from(a.arg(4), type::u32);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(t == type::b32 ? &insert<std::uint32_t> : &insert<std::uint64_t>);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = b;
    i.from[3] = c;
}
void op_prmt(assembler& a) {
    std::uint8_t mode = 0;
    std::uint8_t number = 1;
    for (std::string_view name : {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}) {
        if (a.has(name))
            mode = number;
        number++;
    }
    emit_same(a, a.type_at(0) == type::b32 ? &permute : nullptr, a.type_at(0), 3).option = mode;
}
void op_lop3(assembler& a) {
    a.want(5);
    if (a.arg(4).what != operand::kind::integer || a.arg(4).bits > 255 || a.type_at(0) != type::b32)
        a.fail("wants .b32 and a truth table of 8 bits");
    const slot x = a.from(a.arg(1), type::b32);
    const slot y = a.from(a.arg(2), type::b32);
    const slot z = a.from(a.arg(3), type::b32);
    const slot d = a.to(a.arg(0), type::b32);
    instruction& i = a.emit(&logic3);
    i.to[0] = d;
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = z;
    i.bits = a.arg(4).bits;
}

} // namespace kagemusha::machine
