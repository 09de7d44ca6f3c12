// SPDX-License-Identifier: GPL-2.0-or-later
// syntax: a PTX module as it was written: variables, functions, statements. Nothing is looked up yet; what
// the names mean is build's affair (machine/build). All texts view the module's source.
#pragma once

#include "types.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kagemusha::ptx {

enum class linkage : std::uint8_t { own, visible, external, weak, common };

struct operand {
    enum class kind : std::uint8_t {
        name,    // %r1, %tid.x, a variable, a label; with `second`: %p1|%p2
        integer, // bits
        real32,
        real64,
        sink,    // _
        address, // [name + offset], [integer]; of a texture [name, {…}]: then parts has the coordinates
        vector,  // {a, b}
        list,    // (a, b) of a call
    };
    kind what = kind::sink;
    bool negated = false; // !%p1
    std::uint32_t line = 0;
    std::string_view name;
    std::string_view suffix; // x of %tid.x, of a vector register's element
    std::string_view second;
    std::uint64_t bits = 0;
    std::int64_t offset = 0;
    std::vector<operand> parts;
};

struct initial {
    std::uint64_t bits = 0; // of an integer or float (`real` says which)
    enum class kind : std::uint8_t { integer, real32, real64, symbol } what = kind::integer;
    std::string_view symbol; // its address + bits
    bool generic = false;    // generic(symbol)
    std::uint32_t shift = 0; // mask(symbol): one byte of the address, this many bits up
    bool one_byte = false;
};

struct variable {
    std::uint32_t line = 0;
    space where = space::reg;
    type of = type::b32;
    std::uint32_t vector = 1; // .v2: 2
    std::uint32_t align = 0;  // 0: the type's own
    linkage link = linkage::own;
    std::string_view name;
    std::uint64_t count = 1;    // elements of an array
    bool array = false;         // and count 0: [] without a length
    std::uint32_t numbered = 0; // %r<8>: names %r0 … %r7
    std::vector<initial> content;

    std::uint64_t element() const { return std::uint64_t{size_of(of)} * vector; }
    std::uint64_t bytes() const { return element() * count; } // the parser bounds both
    std::uint64_t alignment() const { return align != 0 ? align : element(); }
};

struct instruction {
    std::uint32_t line = 0;
    std::string_view guard; // the predicate's name; empty: none
    bool guard_negated = false;
    std::string_view opcode;
    std::vector<std::string_view> modifiers;
    std::vector<operand> operands;
};

struct prototype {
    std::vector<variable> returns;
    std::vector<variable> params;
    bool noreturn = false;
};

struct statement {
    enum class kind : std::uint8_t { instruction, label, variable, open, close, targets, prototype };
    kind what = kind::instruction;
    std::uint32_t line = 0;
    std::string_view label;  // of label, targets and prototype
    std::uint32_t index = 0; // into the function's list of that kind
};

struct function {
    std::uint32_t line = 0;
    bool entry = false;
    bool has_body = false;
    linkage link = linkage::own;
    std::string_view name;
    prototype interface;
    std::uint32_t max_threads[3] = {0, 1, 1}; // .maxntid; 0: not said
    bool exact_threads = false;               // .reqntid
    std::vector<statement> body;
    std::vector<instruction> instructions;
    std::vector<variable> variables;
    std::vector<std::vector<std::string_view>> targets; // .branchtargets, .calltargets
    std::vector<prototype> prototypes;                  // .callprototype
};

struct module {
    std::uint32_t version = 0; // 805: 8.5
    std::uint32_t target = 0;  // 70: sm_70
    std::uint32_t address_size = 32;
    std::vector<variable> variables;
    std::vector<function> functions;
};

} // namespace kagemusha::ptx
