// SPDX-License-Identifier: GPL-2.0-or-later
#include "variables.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <elf.h>
#include <string_view>

namespace kagemusha::cuda {
namespace {

using names = std::vector<std::string>;

names in(std::string_view ptx) {
    return variables_in(std::as_bytes(std::span(ptx)));
}

TEST(Variables, OfPtxAreThoseInGlobalAndConstantMemory) {
    EXPECT_EQ(in(R"(// .global .u32 no;
.version 7.0
.target sm_50, debug
.address_size 64
/* .global .u32 neither; */
.visible .global .align 4 .u32 count;
.global .align 16 .b8 table[2][64] = {1, 2, 3}, .align 8 .b8 other[8];
.const .f32 one = 0f3F800000;
.weak .const .align 8 .u64 pointer[1] = {generic(count)};
.extern .global .u32 elsewhere;
.extern .shared .align 4 .b8 room[];
.shared .u32 fast;
.global .texref picture;
.global .attribute(.managed) .v2 .f32 pair;
.visible .func (.param .b32 result) f(.param .b64 p) { .reg .b32 %r<2>; { ld.global.u32 %r1, [count]; } ret; }
.visible .entry k(.param .u64 p)
.maxntid 128, 1, 1
{
    .local .align 4 .b8 mine[4];
    ld.const.f32 %f1, [one];
    ret;
}
.global .u32 last;
)"),
              (names{"count", "table", "other", "one", "pointer", "pair", "last"}));
}

TEST(Variables, OfNonsenseThereAreNone) {
    for (const std::string_view text : {"", ";", ".global", ".global .u32", "}}}};", "((((", "\"", "/*",
                                        ".const ;;= , ,", ".global .align 4 = {", "this is no PTX"})
        EXPECT_EQ(in(text), names{}) << text;
}

TEST(Variables, AnUnfinishedDeclarationIsNone) {
    EXPECT_EQ(in(".global .u32 a; .global .u32 b"), names{"a"});
}

struct cubin {
    Elf64_Ehdr header{};
    Elf64_Shdr sections[4]{};
    Elf64_Sym symbols[3]{};
    char text[64] = "\0.nv.global\0.nv.info\0count\0other\0kernel";

    cubin() {
        std::memcpy(header.e_ident, ELFMAG, SELFMAG);
        header.e_shoff = offsetof(cubin, sections);
        header.e_shentsize = sizeof(Elf64_Shdr);
        header.e_shnum = 4;
        header.e_shstrndx = 1;
        sections[1].sh_offset = offsetof(cubin, text);
        sections[1].sh_size = sizeof text;
        sections[2].sh_name = 1; // .nv.global
        sections[3].sh_type = SHT_SYMTAB;
        sections[3].sh_link = 1;
        sections[3].sh_offset = offsetof(cubin, symbols);
        sections[3].sh_size = sizeof symbols;
        sections[3].sh_name = 12;                                             // .nv.info
        symbols[0] = {21, ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 0, 2, 0, 4}; // count
        symbols[1] = {27, ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 0, 3, 0, 4}; // other: not of that section
        symbols[2] = {33, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 2, 0, 4};   // kernel
    }
    names read() const { return variables_in(std::as_bytes(std::span(this, 1))); }
};

TEST(Variables, OfACubinAreTheObjectsOfItsGlobalSections) {
    EXPECT_EQ(cubin().read(), names{"count"});
}

TEST(Variables, ACubinsLengthsAreNotBelieved) {
    for (const std::uint64_t far : {std::uint64_t{1} << 20, ~std::uint64_t{0} - 8}) {
        cubin c;
        c.header.e_shoff = far;
        EXPECT_EQ(c.read(), names{});
        c = {};
        c.sections[3].sh_offset = far;
        EXPECT_EQ(c.read(), names{});
        c = {};
        c.sections[1].sh_offset = far;
        EXPECT_EQ(c.read(), names{});
        c = {};
        c.sections[3].sh_size = far;
        EXPECT_EQ(c.read(), names{"count"}) << "what is there counts";
    }
    cubin c;
    c.sections[3].sh_link = 9;
    EXPECT_EQ(c.read(), names{});
    c = {};
    c.symbols[0].st_shndx = 9;
    EXPECT_EQ(c.read(), names{});
}

TEST(Variables, AFatBinaryIsOneByItsFirstBytes) {
    const std::uint32_t fat[4] = {0xba55ed50, 0, 0, 0};
    EXPECT_TRUE(is_fat_binary(std::as_bytes(std::span(fat))));
    EXPECT_FALSE(is_fat_binary(std::as_bytes(std::span(".version 7.0"))));
    EXPECT_FALSE(is_fat_binary({}));
}

TEST(Variables, LiteralsAreNamedByCompilers) {
    EXPECT_TRUE(is_literal("$str$1"));
    EXPECT_TRUE(is_literal("__unnamed_1"));
    EXPECT_FALSE(is_literal("_ZL5count"));
}

} // namespace
} // namespace kagemusha::cuda
