// SPDX-License-Identifier: GPL-2.0-or-later
// op_pick: which instance of a run_function belongs to a type. Null: the operation does not exist for it.
#pragma once

#include "assembler.hpp"
#include "warp.hpp"

#include <algorithm>

namespace kagemusha::machine {

// Calls f with a value of the C++ type that belongs to an integer type; bits are unsigned.
template <class F>
run_function with_integer(type t, F f) {
    switch (t) {
    case type::b8:
    case type::u8:
        return f(std::uint8_t{});
    case type::b16:
    case type::u16:
        return f(std::uint16_t{});
    case type::b32:
    case type::u32:
        return f(std::uint32_t{});
    case type::b64:
    case type::u64:
        return f(std::uint64_t{});
    case type::s8:
        return f(std::int8_t{});
    case type::s16:
        return f(std::int16_t{});
    case type::s32:
        return f(std::int32_t{});
    case type::s64:
        return f(std::int64_t{});
    default:
        return nullptr;
    }
}

template <auto F>
run_function unary_integer(type t) {
    return with_integer(t, []<class T>(T) -> run_function { return &unary<T, F>; });
}
template <auto F>
run_function binary_integer(type t) {
    return with_integer(t, []<class T>(T) -> run_function { return &binary<T, T, F>; });
}
template <auto F>
run_function ternary_integer(type t) {
    return with_integer(t, []<class T>(T) -> run_function { return &ternary<T, T, T, F>; });
}

// Emits `run` with the operands d, a, b, … all of one type.
inline instruction& emit_same(assembler& a, run_function run, type t, std::size_t sources) {
    a.want(sources + 1);
    if (run == nullptr)
        a.fail_type(t);
    slot from[4];
    for (std::size_t k = 0; k < sources; k++)
        from[k] = a.from(a.arg(k + 1), t);
    const slot to = a.to(a.arg(0), t);
    instruction& i = a.emit(run);
    i.to[0] = to;
    std::copy(from, from + 4, i.from);
    return i;
}

// Twice as wide an integer, of the same sign.
template <class T>
struct wide;
template <>
struct wide<std::uint16_t> {
    using type = std::uint32_t;
};
template <>
struct wide<std::int16_t> {
    using type = std::int32_t;
};
template <>
struct wide<std::uint32_t> {
    using type = std::uint64_t;
};
template <>
struct wide<std::int32_t> {
    using type = std::int64_t;
};
template <>
struct wide<std::uint64_t> {
    using type = unsigned __int128;
};
template <>
struct wide<std::int64_t> {
    using type = __int128;
};

// What several files declare and opcode_table.cpp lists.
void op_fadd(assembler& a);
void op_fsub(assembler& a);
void op_fmul(assembler& a);
void op_fdiv(assembler& a);
void op_fma(assembler& a);
void op_fminmax(assembler& a);
void op_fabs_neg(assembler& a);

} // namespace kagemusha::machine
