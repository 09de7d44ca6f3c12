// SPDX-License-Identifier: GPL-2.0-or-later
// Single instructions at the edges of what they take, and what build() refuses.
#include "kernel_bed.hpp"

#include <bit>
#include <limits>

namespace kagemusha::machine {
namespace {

// Results of a list of instructions with 32-bit registers %a0, %a1, …; each writes %d, which goes out.
std::vector<std::uint32_t> results(const std::vector<std::string>& instructions,
                                   const std::string& registers = "") {
    std::string body = ".visible .entry k(.param .u64 out)\n{\n\t.reg .b64 %out;\n\t.reg .b32 %d;\n" +
                       registers + "\n\tld.param.u64 %out, [out];\n";
    for (std::size_t k = 0; k < instructions.size(); k++)
        body += "\t" + instructions[k] + "\n\tst.global.b32 [%out+" + std::to_string(4 * k) + "], %d;\n";
    kernel_bed bed(body + "\tret;\n}\n");
    auto* out = bed.memory(std::vector<std::uint32_t>(instructions.size()));
    EXPECT_EQ(bed.run("k", 1, 1, out).fault, fault_kind::none);
    return {out, out + instructions.size()};
}

using words = std::vector<std::uint32_t>;
std::uint32_t f(float v) {
    return std::bit_cast<std::uint32_t>(v);
}

TEST(Instructions, Integers) {
    EXPECT_EQ(results({
                  "mul.hi.u32 %d, 0xffffffff, 0xffffffff;",
                  "mul.hi.s32 %d, -1, -1;",
                  "mul24.lo.s32 %d, 0xffffff, 3;",
                  "add.sat.s32 %d, 0x7fffffff, 5;",
                  "sub.sat.s32 %d, 0x80000000, 5;",
                  "div.s32 %d, -7, 2;",
                  "rem.s32 %d, -7, 2;",
                  "div.s32 %d, 0x80000000, -1;",
                  "div.u32 %d, 7, 0;",
                  "shl.b32 %d, 1, 32;",
                  "shr.s32 %d, -8, 40;",
                  "shr.u32 %d, -8, 28;",
                  "shf.l.wrap.b32 %d, 0x80000000, 1, 33;",
                  "shf.r.clamp.b32 %d, 5, 9, 40;",
                  "sad.u32 %d, 3, 10, 100;",
                  "vsub.u32.u32.u32.sat %d, 3, 10;",
              }),
              (words{0xfffffffe, 0, 0xfffffffd, 0x7fffffff, 0x80000000, 0xfffffffd, 0xffffffff, 0x80000000,
                     0xffffffff, 0, 0xffffffff, 15, 3, 9, 107, 0}));
}

TEST(Instructions, Bits) {
    EXPECT_EQ(
        results({
            "bfe.u32 %d, 0xabcd1234, 8, 12;",
            "bfe.s32 %d, 0xabcd1234, 20, 8;",
            "bfe.u32 %d, 0xffffffff, 4, 0;",
            "bfi.b32 %d, 0xff, 0x12345678, 8, 4;",
            "bfind.u32 %d, 0x00010000;",
            "bfind.s32 %d, -1;",
            "bfind.shiftamt.u32 %d, 1;",
            "brev.b32 %d, 0x1;",
            "popc.b32 %d, 0xf0f0;",
            "clz.b32 %d, 0;",
            "prmt.b32 %d, 0x83020100, 0x07060504, 0xb073;",
            "lop3.b32 %d, 0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0xe8;",
            "cnot.b32 %d, 0;",
            "prmt.b32.b4e %d, 0x83020100, 0x07060504, 1;",
        }),
        (words{0xcd12 & 0xfff, 0xffffffbc, 0, 0x12345f78, 16, 0xffffffff, 31, 0x80000000, 8, 32, 0xff000783,
               (0xff00ff00 & 0xf0f0f0f0) | (0xff00ff00 & 0xcccccccc) | (0xf0f0f0f0 & 0xcccccccc), 1,
               0x06070001}));
}

TEST(Instructions, CarriesChain) {
    EXPECT_EQ(results({
                  "add.cc.u32 %d, 0xffffffff, 2;",
                  "addc.cc.u32 %d, 0xffffffff, 0;",
                  "addc.u32 %d, 5, 6;",
                  "sub.cc.u32 %d, 1, 2;",
                  "subc.u32 %d, 10, 3;",
                  "mad.lo.cc.u32 %d, 0x10000, 0x10000, 0xffffffff;",
                  "madc.hi.u32 %d, 0x10000, 0x10000, 7;",
              }),
              (words{1, 0, 12, 0xffffffff, 6, 0xffffffff, 8}));
}

TEST(Instructions, Floats) {
    const float tiny = std::bit_cast<float>(1u);
    const float inf = std::numeric_limits<float>::infinity();
    (void)tiny;
    EXPECT_EQ(results({
                  "add.rz.f32 %d, 0f3F800000, 0f33FFFFFF;",
                  "add.rp.f32 %d, 0f3F800000, 0f00000001;",
                  "add.rn.ftz.f32 %d, 0f00000001, 0f00000001;",
                  "add.sat.f32 %d, 0f3F800000, 0f3F800000;",
                  "mul.f32 %d, 0f7F800000, 0f00000000;",
                  "min.f32 %d, 0f7FC00000, 0f3F800000;",
                  "min.f32 %d, 0f00000000, 0f80000000;",
                  "max.NaN.f32 %d, 0f7FC00000, 0f3F800000;",
                  "neg.f32 %d, 0f00000000;",
                  "rcp.rn.f32 %d, 0f00000000;",
                  "sqrt.rn.f32 %d, 0fBF800000;",
                  "fma.rn.f32 %d, 0f3F800001, 0f3F800001, 0fBF800002;",
                  "ex2.approx.f32 %d, 0f40400000;",
                  "lg2.approx.f32 %d, 0f41000000;",
                  "rsqrt.approx.f32 %d, 0f40800000;",
              }),
              (words{0x3f800000, 0x3f800001, 0, f(1), 0x7fffffff, f(1), 0x80000000, 0x7fffffff, 0x80000000,
                     f(inf), 0x7fffffff, 0x28800000, f(8), f(3), f(0.5)}));
}

TEST(Instructions, Conversions) {
    const std::string registers = "\t.reg .f32 %f;\n\t.reg .f64 %fd;\n\t.reg .b16 %h;\n\t.reg .b64 %rd;\n";
    EXPECT_EQ(results(
                  {
                      "cvt.rni.s32.f32 %d, 0f40200000;", // 2.5
                      "cvt.rpi.s32.f32 %d, 0f40200000;",
                      "cvt.rzi.u32.f32 %d, 0fC0200000;", // −2.5
                      "cvt.rzi.s32.f32 %d, 0f7FC00000;",
                      "cvt.rzi.s32.f32 %d, 0f7F800000;",
                      "cvt.sat.u8.s32 %d, 300;",
                      "cvt.sat.s8.s32 %d, -300;",
                      "cvt.s8.s32 %d, 0x1ff;",
                      "cvt.u8.u32 %d, 0x1ff;",
                      "cvt.rn.f32.u32 %f, 0x1000001; mov.b32 %d, %f;",
                      "cvt.rz.f32.u32 %f, 0x1000003; mov.b32 %d, %f;",
                      "cvt.rn.f32.s64 %f, -3; mov.b32 %d, %f;",
                      "cvt.rn.f16.f32 %h, 0f3F801000; cvt.u32.u16 %d, %h;",      // 1 + 2^-11: to even
                      "cvt.rn.f16.f32 %h, 0f477FF000; cvt.u32.u16 %d, %h;",      // 65520: beyond
                      "mov.b16 %h, 0x0001; cvt.f32.f16 %f, %h; mov.b32 %d, %f;", // the least one
                      "cvt.rn.f32.f64 %f, 0d3FF0000010000000; mov.b32 %d, %f;",
                      "mov.b64 %rd, {0x11223344, 0x55667788}; cvt.u32.u64 %d, %rd;",
                      "cvt.rzi.f32.f32 %f, 0fC0200000; mov.b32 %d, %f;",
                  },
                  registers),
              (words{2, 3, 0, 0, 0x7fffffff, 255, 0xffffff80, 0xffffffff, 0xff, f(16777216), f(16777218),
                     f(-3), 0x3c00, 0x7c00, f(0x1p-24f), 0x3f800000, 0x11223344, f(-2)}));
}

TEST(Instructions, ComparisonsWithNaN) {
    const std::string registers = "\t.reg .pred %p, %q, %c;\n";
    const auto one = [](const std::string& setp) { return setp + " selp.u32 %d, 1, 0, %p;"; };
    EXPECT_EQ(results(
                  {
                      one("setp.ne.f32 %p, 0f7FC00000, 0f3F800000;"),
                      one("setp.neu.f32 %p, 0f7FC00000, 0f3F800000;"),
                      one("setp.nan.f32 %p, 0f7FC00000, 0f3F800000;"),
                      one("setp.lo.u32 %p, 1, 0xffffffff;"),
                      one("setp.lt.s32 %p, 1, 0xffffffff;"),
                      one("setp.eq.s32 %c, 0, 0; setp.eq.and.s32 %p|%q, 1, 1, !%c;"),
                      "setp.eq.s32 %c, 0, 0; setp.eq.and.s32 %p|%q, 1, 2, %c; selp.u32 %d, 1, 0, %q;",
                      "set.gt.u32.s32 %d, 2, 1;",
                      "slct.u32.s32 %d, 5, 6, -1;",
                  },
                  registers),
              (words{0, 1, 1, 1, 0, 0, 1, 0xffffffff, 6}));
}

TEST(Instructions, CallsThroughTablesAndAddresses) {
    kernel_bed bed(R"(
.func (.param .b32 r) twice(.param .b32 a)
{
	.reg .b32 %r<2>;
	ld.param.b32 %r0, [a];
	add.u32 %r0, %r0, %r0;
	st.param.b32 [r], %r0;
	ret;
}
.func (.reg .b32 %r) plus(.reg .b32 %a, .reg .b32 %b)
{
	add.u32 %r, %a, %b;
	ret;
}
.global .u64 table[1] = {twice};
.visible .entry k(.param .u64 out)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r0, %tid.x;
	mad.wide.u32 %rd4, %r0, 4, %rd1;
targets: .branchtargets $a, $b;
	and.b32 %r1, %r0, 1;
	brx.idx %r1, targets;
$a:
	call (%r2), plus, (%r0, 100);
	bra $store;
$b:
	ld.global.u64 %rd2, [table];
	{
	.param .b32 in;
	.param .b32 back;
	st.param.b32 [in], %r0;
proto: .callprototype (.param .b32 _) _ (.param .b32 _);
	call (back), %rd2, (in), proto;
	ld.param.b32 %r2, [back];
	}
$store:
	st.global.u32 [%rd4], %r2;
	ret;
}
)");
    auto* out = bed.memory(std::vector<std::uint32_t>(40));
    const auto r = bed.run("k", 1, 40, out);
    ASSERT_EQ(r.fault, fault_kind::none) << r.line;
    for (std::uint32_t i = 0; i < 40; i++)
        EXPECT_EQ(out[i], i % 2 == 0 ? i + 100 : i * 2);
}

TEST(Instructions, EndlessRecursionEnds) {
    kernel_bed bed(R"(
.func deep() { call deep; ret; }
.visible .entry k() { call deep; trap; }
)");
    EXPECT_EQ(bed.run("k", 1, 32).fault, fault_kind::stack);
}

TEST(Instructions, RefusedWithASentence) {
    const std::pair<const char*, const char*> cases[] = {
        {"add.f32 %r, %r, %r;", "'%r' is a register of .u32, .f32 is wanted"},
        {"add.u32 %r, %r;", "has 2 operands, wants 3"},
        {"add.u32 %r, %x, 1;", "there is no '%x'"},
        {"add.u32.foo %r, %r, 1;", "the modifier .foo is not supported here"},
        {"add.pred %p, %p, %p;", "does not take .pred"},
        {"add.f32 %f, %f, 1;", "an integer stands where a float is wanted"},
        {"bra nowhere;", "there is no label 'nowhere'"},
        {"ld.global.u32 %r, [%f];", "cannot be an address"},
        {"call k;", "a kernel cannot be called"},
        {"st.global.v2.u32 [%rd], {%r};", "has not as many values as its type"},
        {"cvt.u32.f32 %r, %f;", "a float becomes an integer"},
        {"tex.3d.v4.f32.f32 {%f, %f, %f, %f}, [%rd, {%f, %f}];", "as its geometry has them"},
        {"tex.cube.v4.f32.f32 {%f, %f, %f, %f}, [%rd, {%f, %f, %f, %f}];", "wants .1d, .2d"},
        {"sust.p.2d.b32.trap [%rd, {%r, %r}], %r;", "wants .b"},
        {"wmma.load.a.sync %r, [%rd];", "the instruction is not supported"},
    };
    for (const auto& [line, what] : cases) {
        const std::string text =
            std::string(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n"
                        "\t.reg .u32 %r; .reg .f32 %f; .reg .pred %p; .reg .u64 %rd;\n\t") +
            line + "\n\tret;\n}\n";
        auto parsed = ptx::parse(text);
        ASSERT_TRUE(parsed.ok) << line << parsed.why.text();
        const ptx::module modules[] = {std::move(parsed.value)};
        const auto built = build(modules, [](std::uint64_t, std::uint64_t) { return std::uint64_t{0}; });
        EXPECT_FALSE(built.ok) << line;
        EXPECT_EQ(built.why.line, 7u) << line;
        EXPECT_NE(built.why.what.find(what), std::string::npos) << line << " → " << built.why.what;
    }
}

} // namespace
} // namespace kagemusha::machine
