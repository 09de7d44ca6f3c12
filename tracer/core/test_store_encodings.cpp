// SPDX-License-Identifier: GPL-2.0-or-later
//
// The lists of stores, and how their bytes are put together.
#include "tracer/core/test_store_encodings.hpp"

#include <cstdint>
#include <iterator>
#include <utility>

namespace tracer_test {

u8 any(generator& random, u32 below) {
    return static_cast<u8>(random() % below);
}

namespace {

// ModRM, SIB and displacement for [rbx + disp32], [rbx + 2*rsi + disp32] or, without a base, [rip + disp32].
void add_memory(std::vector<u8>& bytes, generator& random, u8 reg, bool with_index, s64 displacement) {
    (void)random;
    bytes.push_back(static_cast<u8>(0x80 | (reg & 7) << 3 | (with_index ? 4 : 3)));
    if (with_index)
        bytes.push_back(0x40 | 6 << 3 | 3);
    const auto value = static_cast<std::int32_t>(displacement);
    for (int i = 0; i < 4; ++i)
        bytes.push_back(static_cast<u8>(static_cast<u32>(value) >> (8 * i)));
}

} // namespace

std::vector<form> general_forms() {
    std::vector<form> all;
    const auto both = [&](u8 narrow, bool lockable) { // 8 bits, and 16, 32 or 64
        all.push_back({{}, {narrow}, 0, -1, false, false, lockable});
        all.push_back({{}, {static_cast<u8>(narrow + 1)}, 0, -1, true, true, lockable});
    };
    both(0x88, false);                                        // MOV
    both(0x86, true);                                         // XCHG
    for (u8 alu : {0x00, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30}) // ADD OR ADC SBB AND SUB XOR
        both(alu, true);
    for (int extension = 0; extension < 7; ++extension) { // the same with an immediate
        all.push_back({{}, {0x80}, 1, extension, false, false, true});
        all.push_back({{}, {0x81}, -1, extension, true, true, true});
        all.push_back({{}, {0x83}, 1, extension, true, true, true});
    }
    all.push_back({{}, {0xc6}, 1, 0, false, false, false});
    all.push_back({{}, {0xc7}, -1, 0, true, true, false});
    for (int extension : {0, 1}) { // INC DEC
        all.push_back({{}, {0xfe}, 0, extension, false, false, true});
        all.push_back({{}, {0xff}, 0, extension, true, true, true});
    }
    for (int extension : {2, 3}) { // NOT NEG
        all.push_back({{}, {0xf6}, 0, extension, false, false, true});
        all.push_back({{}, {0xf7}, 0, extension, true, true, true});
    }
    all.push_back({{}, {0x0f, 0xc0}, 0, -1, false, false, true}); // XADD
    all.push_back({{}, {0x0f, 0xc1}, 0, -1, true, true, true});
    all.push_back({{}, {0x0f, 0xb0}, 0, -1, false, false, true}); // CMPXCHG
    all.push_back({{}, {0x0f, 0xb1}, 0, -1, true, true, true});
    all.push_back({{}, {0x0f, 0xc3}, 0, -1, true, false, false}); // MOVNTI
    for (u8 condition = 0; condition < 16; ++condition)
        all.push_back({{}, {0x0f, static_cast<u8>(0x90 + condition)}, 0, -1, false, false, false});
    return all;
}

std::vector<form> vector_forms() {
    std::vector<form> all;
    const auto add = [&](std::vector<u8> prefixes, u8 opcode, bool rex_w = false) {
        all.push_back({std::move(prefixes), {0x0f, opcode}, 0, -1, rex_w, false, false});
    };
    for (u8 opcode : {0x11, 0x13, 0x17, 0x29, 0x2b}) { // MOVUPS MOVLPS MOVHPS MOVAPS MOVNTPS, and PD
        add({}, opcode);
        add({0x66}, opcode);
    }
    add({0xf3}, 0x11);       // MOVSS
    add({0xf2}, 0x11);       // MOVSD
    add({0x66}, 0x7f);       // MOVDQA
    add({0xf3}, 0x7f);       // MOVDQU
    add({0x66}, 0xe7);       // MOVNTDQ
    add({0x66}, 0xd6);       // MOVQ
    add({0x66}, 0x7e, true); // MOVD, MOVQ
    return all;
}

std::vector<u8> encode(const form& f, generator& random, s64 displacement, bool with_index, bool vector) {
    std::vector<u8> bytes;
    const bool operand16 = f.operand16 && random() % 4 == 0;
    const bool rex_w = f.rex_w && random() % 2;
    u8 reg = f.extension >= 0 ? static_cast<u8>(f.extension) : any(random, 16);
    if (!vector && f.extension < 0 && reg == 4)
        reg = 5;
    if (f.lockable && random() % 3 == 0)
        bytes.push_back(0xf0);
    if (operand16)
        bytes.push_back(0x66);
    bytes.insert(bytes.end(), f.prefixes.begin(), f.prefixes.end());
    const u8 rex = static_cast<u8>(0x40 | (rex_w ? 8 : 0) | (reg >= 8 ? 4 : 0));
    if (rex != 0x40 || random() % 2) // without REX the numbers 5 … 7 of a byte are CH, DH, BH
        bytes.push_back(rex);
    bytes.insert(bytes.end(), f.opcode.begin(), f.opcode.end());
    add_memory(bytes, random, reg, with_index, displacement);
    int immediate = f.immediate;
    if (immediate < 0)
        immediate = operand16 && !rex_w ? 2 : 4;
    for (int i = 0; i < immediate; ++i)
        bytes.push_back(any(random, 256));
    return bytes;
}

std::vector<u8> encode_vex(generator& random, s64 displacement) {
    struct vex_form {
        u8 prefix; // 0 none, 1 66, 2 f3, 3 f2
        u8 opcode;
        bool wide; // may be 256 bits
    };
    static constexpr vex_form forms[] = {
        {0, 0x11, true},  {1, 0x11, true},  {2, 0x11, false}, {3, 0x11, false}, {0, 0x13, false},
        {1, 0x13, false}, {0, 0x17, false}, {1, 0x17, false}, {0, 0x29, true},  {1, 0x29, true},
        {0, 0x2b, true},  {1, 0x2b, true},  {1, 0x7f, true},  {2, 0x7f, true},  {1, 0xe7, true},
        {1, 0xd6, false}, {1, 0x7e, false}};
    const vex_form& f = forms[random() % std::size(forms)];
    const u8 reg = any(random, 16);
    const bool wide = f.wide && random() % 2;
    const u8 tail = static_cast<u8>(0x78 | (wide ? 4 : 0) | f.prefix);
    std::vector<u8> bytes;
    if (random() % 2) {
        bytes = {0xc5, static_cast<u8>((reg >= 8 ? 0 : 0x80) | tail)};
    } else {
        const u8 w = f.opcode == 0x7e && random() % 2 ? 0x80 : 0;
        bytes = {0xc4, static_cast<u8>((reg >= 8 ? 0x60 : 0xe0) | 1), static_cast<u8>(w | tail)};
    }
    bytes.push_back(f.opcode);
    add_memory(bytes, random, reg, false, displacement);
    return bytes;
}

std::vector<u8> encode_evex(generator& random, s64 displacement) {
    enum : u8 { w0, w1, either };
    struct evex_form {
        u8 prefix; // as for VEX
        u8 opcode;
        u8 w;
        bool wide; // may be 256 and 512 bits
    };
    static constexpr evex_form forms[] = {
        {0, 0x11, w0, true},     {1, 0x11, w1, true},     {2, 0x11, w0, false},    {3, 0x11, w1, false},
        {0, 0x13, w0, false},    {1, 0x13, w1, false},    {0, 0x17, w0, false},    {1, 0x17, w1, false},
        {0, 0x29, w0, true},     {1, 0x29, w1, true},     {0, 0x2b, w0, true},     {1, 0x2b, w1, true},
        {1, 0x7f, either, true}, {2, 0x7f, either, true}, {3, 0x7f, either, true}, {1, 0xe7, w0, true},
        {1, 0xd6, w1, false},    {1, 0x7e, either, false}};
    const evex_form& f = forms[random() % std::size(forms)];
    const u8 reg = any(random, 32);
    const u8 w = f.w == either ? any(random, 2) : f.w;
    const u8 length = f.wide ? any(random, 3) : u8{0};
    std::vector<u8> bytes{0x62, static_cast<u8>(0x61 | (reg & 8 ? 0 : 0x80) | (reg & 16 ? 0 : 0x10)),
                          static_cast<u8>(w << 7 | 0x7c | f.prefix), static_cast<u8>(length << 5 | 0x08),
                          f.opcode};
    add_memory(bytes, random, reg, false, displacement);
    return bytes;
}

std::vector<u8> encode_string(generator& random) {
    static constexpr u8 opcodes[] = {0xaa, 0xab, 0xa4, 0xa5};
    std::vector<u8> bytes;
    if (random() % 2)
        bytes.push_back(random() % 4 ? 0xf3 : 0xf2);
    const u8 opcode = opcodes[random() % 4];
    if (opcode & 1) {
        if (random() % 4 == 0)
            bytes.insert(bytes.begin(), 0x66);
        if (random() % 2)
            bytes.push_back(0x48);
    }
    bytes.push_back(opcode);
    return bytes;
}

} // namespace tracer_test
