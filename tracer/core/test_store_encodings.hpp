// SPDX-License-Identifier: GPL-2.0-or-later
//
// Encodings of instructions that store, with random operands, for the decoder's test. The ModRM byte is made for
// memory at rbx + disp32, or with an index.
#pragma once

#include "tracer/core/types.h"

#include <random>
#include <vector>

namespace tracer_test {

using generator = std::mt19937_64;

u8 any(generator& random, u32 below);

struct form {
    std::vector<u8> prefixes; // mandatory ones
    std::vector<u8> opcode;
    int immediate;  // bytes; -1: as wide as the operand, at most 4
    int extension;  // of the opcode in ModRM's reg field; -1: a register
    bool rex_w;     // may have it
    bool operand16; // may have 66
    bool lockable;
};

std::vector<form> general_forms();
std::vector<form> vector_forms();

// `vector`: the register is one of xmm0 … xmm15. Else rsp and its parts are left out: the stack is the
// test's.
std::vector<u8> encode(const form& f, generator& random, s64 displacement, bool with_index, bool vector);
// VEX, two or three bytes, of the vector moves.
std::vector<u8> encode_vex(generator& random, s64 displacement);
// EVEX of the vector moves, without a mask: registers 0 … 31, of 16, 32 or 64 bytes.
std::vector<u8> encode_evex(generator& random, s64 displacement);
std::vector<u8> encode_string(generator& random);

} // namespace tracer_test
