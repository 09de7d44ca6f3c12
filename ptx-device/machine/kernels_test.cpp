// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels written in PTX against the same computation in C++.
#include "kernel_bed.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kagemusha::machine {
namespace {

std::vector<float> floats(std::size_t n, float first) {
    std::vector<float> v(n);
    for (std::size_t i = 0; i < n; i++)
        v[i] = first + static_cast<float>(i) * 0.37f - static_cast<float>(i % 7);
    return v;
}

TEST(Kernels, VectorAddLeavesTheRestAlone) {
    kernel_bed bed(R"(
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .f32 %f<4>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [a];
	ld.param.u64 %rd2, [b];
	ld.param.u64 %rd3, [c];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra $done;
	cvta.to.global.u64 %rd1, %rd1;
	mul.wide.u32 %rd4, %r5, 4;
	add.s64 %rd5, %rd1, %rd4;
	add.s64 %rd6, %rd2, %rd4;
	add.s64 %rd7, %rd3, %rd4;
	ld.global.f32 %f1, [%rd5];
	ld.global.nc.f32 %f2, [%rd6];
	add.rn.f32 %f3, %f1, %f2;
	st.global.f32 [%rd7], %f3;
$done:
	ret;
}
)");
    const auto a = floats(1000, 1);
    const auto b = floats(1000, -3);
    float* pa = bed.memory(a);
    float* pb = bed.memory(b);
    float* pc = bed.memory(std::vector<float>(1000, -1));
    const auto r = bed.run("add", 8, 128, pa, pb, pc, std::uint32_t{990});
    ASSERT_EQ(r.fault, fault_kind::none) << r.line;
    for (std::size_t i = 0; i < 1000; i++)
        EXPECT_EQ(pc[i], i < 990 ? a[i] + b[i] : -1.0f) << i;
}

TEST(Kernels, AccessBeyondMemoryNamesItsLine) {
    kernel_bed bed(R"(
.visible .entry k(.param .u64 a)
{
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [a];
	st.u32 [%rd1+16], 7;
	ret;
}
)");
    auto* p = bed.memory(std::vector<std::uint32_t>(4));
    const auto r = bed.run("k", 1, 1, p);
    EXPECT_EQ(r.fault, fault_kind::illegal_address);
    EXPECT_EQ(r.line, 9u);
    EXPECT_EQ(r.address, reinterpret_cast<std::uint64_t>(p) + 16);
    EXPECT_EQ(r.function, "k");
    const auto misaligned = bed.run("k", 1, 1, reinterpret_cast<std::uint64_t>(p) - 14);
    EXPECT_EQ(misaligned.fault, fault_kind::misaligned);
}

} // namespace
} // namespace kagemusha::machine
