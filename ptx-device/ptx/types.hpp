// SPDX-License-Identifier: GPL-2.0-or-later
// types: PTX's scalar types and state spaces, their names and sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kagemusha::ptx {

enum class type : std::uint8_t {
    b8,
    b16,
    b32,
    b64,
    u8,
    u16,
    u32,
    u64,
    s8,
    s16,
    s32,
    s64,
    f16,
    f16x2,
    bf16,
    bf16x2,
    f32,
    f64,
    pred,
};

enum class space : std::uint8_t { reg, generic, global, shared, local, constant, param };

// "u32" → type::u32. Nothing: no type of this name that the front end knows.
std::optional<type> type_of_name(std::string_view name);
std::string_view name_of(type t);

// "global" → space::global, of variables and of ld, st, atom.
std::optional<space> space_of_name(std::string_view name);
std::string_view name_of(space s);

std::uint32_t size_of(type t); // bytes; a predicate has 1
bool is_float(type t);         // f16, f32, …
bool is_signed(type t);        // s8 … s64
bool is_bits(type t);          // b8 … b64

// Whether an instruction of type `wanted` takes a register of type `given`: the same size; and bits are
// anything, and signed and unsigned integers are the same. (PTX ISA, "Operand Size Exceeding Instruction-Type
// Size", is for ld, st and cvt, which check by themselves.)
bool takes(type wanted, type given);

} // namespace kagemusha::ptx
