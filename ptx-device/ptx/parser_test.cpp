// SPDX-License-Identifier: GPL-2.0-or-later
// The front end: what it reads, and how it refuses.
#include "parser.hpp"

#include <gtest/gtest.h>

namespace kagemusha::ptx {
namespace {

const std::string head = ".version 7.4\n.target sm_70, debug\n.address_size 64\n";

TEST(Parser, ReadsHeaderVariablesAndFunctions) {
    const std::string text = head + R"(
// a comment
.visible .const .align 4 .f32 table[3] = {0f3F800000, -2.5, 1e2};
.global .u64 where[] = {table, table+8, generic(table)};
.visible .entry k(.param .u64 a, .param .align 8 .b8 s[24]) .maxntid 128, 2, 1
{
	.reg .b32 	%r<8>;
	.loc 1 2 3
	@!%p1 bra $L1;
	ld.global.v2.u32 {%r1, %r2}, [%rd1+-16];
$L1:
	mov.u32 %r0, %tid.x; /* and
	another line */ setp.lt.s32 %p1|%p2, %r1, -4;
	ret;
}
)";
    const auto r = parse(text);
    ASSERT_TRUE(r.ok) << r.why.text();
    const module& m = r.value;
    EXPECT_EQ(m.version, 704u);
    EXPECT_EQ(m.target, 70u);
    ASSERT_EQ(m.variables.size(), 2u);
    EXPECT_EQ(m.variables[0].content[1].bits, 0xc004000000000000u);
    EXPECT_EQ(m.variables[1].count, 3u);
    EXPECT_EQ(m.variables[1].content[1].bits, 8u);
    EXPECT_TRUE(m.variables[1].content[2].generic);
    ASSERT_EQ(m.functions.size(), 1u);
    const function& f = m.functions[0];
    EXPECT_EQ(f.max_threads[1], 2u);
    EXPECT_EQ(f.interface.params[1].bytes(), 24u);
    ASSERT_EQ(f.instructions.size(), 5u);
    EXPECT_TRUE(f.instructions[0].guard_negated);
    EXPECT_EQ(f.instructions[1].operands[1].offset, -16);
    EXPECT_EQ(f.instructions[2].operands[1].suffix, "x");
    EXPECT_EQ(f.instructions[3].operands[0].second, "%p2");
    EXPECT_EQ(f.instructions[3].line, 16u);
    EXPECT_EQ(f.instructions[3].operands[2].bits, static_cast<std::uint64_t>(-4));
}

struct refused {
    std::string body;
    std::uint32_t line;
    std::string what;
};

TEST(Parser, RefusesWithLineAndSentence) {
    const refused cases[] = {
        {".global .u32 a[5000000000];", 4, "more than 4 GiB"},
        {".global .u32 a = {1, 2};", 4, "more content than elements"},
        {".visible .entry k()\n{\n add.u32 %r1, %r2", 6, "expected ';'"},
        {".visible .entry k()\n{\n ret;\n", 7, "does not end"},
        {"/* no end", 4, "comment does not end"},
        {".global .align 3 .u32 a;", 4, "power of two"},
        {".global .pred p;", 4, "lies in .reg"},
        {".visible .entry k() .maxntid 4096 { ret; }", 4, "1 to 1024"},
        {".global .u32 \x01;", 4, "byte"},
        {".alias a, b;", 4, ".alias"},
    };
    for (const refused& c : cases) {
        const std::string text = head + c.body;
        const auto r = parse(text);
        EXPECT_FALSE(r.ok) << c.body;
        EXPECT_EQ(r.why.line, c.line) << c.body;
        EXPECT_NE(r.why.what.find(c.what), std::string::npos) << c.body << ": " << r.why.what;
    }
    EXPECT_FALSE(parse("").ok);
    EXPECT_FALSE(parse("\x7f"
                       "ELF")
                     .ok);
    EXPECT_FALSE(parse(".version 7.0\n.target sm_70\n.address_size 32\n").ok);
}

} // namespace
} // namespace kagemusha::ptx
