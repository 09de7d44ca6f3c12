// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels whose threads work together: shared memory, barriers, atomics, shuffles, votes, locks.
#include "kernel_bed.hpp"

#include <array>
#include <numeric>

namespace kagemusha::machine {
namespace {

TEST(Blocks, ReduceInSharedMemory) {
    kernel_bed bed(R"(
.visible .entry sum(.param .u64 in, .param .u64 out)
{
	.shared .align 4 .b8 part[1024];
	.reg .pred %p<3>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mad.lo.u32 %r4, %r2, %r3, %r1;
	mad.wide.u32 %rd3, %r4, 4, %rd1;
	ld.global.u32 %r5, [%rd3];
	mov.u32 %r6, part;
	mad.lo.u32 %r7, %r1, 4, %r6;
	st.shared.u32 [%r7], %r5;
	shr.u32 %r8, %r3, 1;
$loop:
	bar.sync 0;
	setp.ge.u32 %p1, %r1, %r8;
	@%p1 bra $skip;
	shl.b32 %r9, %r8, 2;
	add.u32 %r9, %r9, %r7;
	ld.shared.u32 %r10, [%r9];
	ld.shared.u32 %r11, [%r7];
	add.u32 %r11, %r11, %r10;
	st.shared.u32 [%r7], %r11;
$skip:
	shr.u32 %r8, %r8, 1;
	setp.ne.u32 %p2, %r8, 0;
	@%p2 bra $loop;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra $done;
	ld.shared.u32 %r11, [part];
	red.global.add.u32 [%rd2], %r11;
$done:
	ret;
}
)");
    std::vector<std::uint32_t> in(1024);
    std::iota(in.begin(), in.end(), 17u);
    auto* from = bed.memory(in);
    auto* out = bed.memory(std::vector<std::uint32_t>{0});
    ASSERT_EQ(bed.run("sum", 4, 256, from, out).fault, fault_kind::none);
    EXPECT_EQ(*out, std::accumulate(in.begin(), in.end(), 0u));
}

TEST(Blocks, HistogramByAtomics) {
    kernel_bed bed(R"(
.visible .entry count(.param .u64 in, .param .u64 bins, .param .u64 order)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [bins];
	ld.param.u64 %rd3, [order];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mad.lo.u32 %r1, %r2, %r3, %r1;
	cvt.u64.u32 %rd4, %r1;
	add.u64 %rd5, %rd1, %rd4;
	ld.global.u8 %r4, [%rd5];
	and.b32 %r4, %r4, 15;
	mad.wide.u32 %rd6, %r4, 4, %rd2;
	atom.global.add.u32 %r5, [%rd6], 1;
	mad.wide.u32 %rd7, %r1, 4, %rd3;
	st.global.u32 [%rd7], %r5;
	ret;
}
)");
    std::vector<std::uint8_t> in(768);
    std::array<std::uint32_t, 16> wanted{};
    for (std::size_t i = 0; i < in.size(); i++) {
        in[i] = static_cast<std::uint8_t>(i * i * 7 + i);
        wanted[in[i] & 15]++;
    }
    auto* from = bed.memory(in);
    auto* bins = bed.memory(std::vector<std::uint32_t>(16));
    auto* order = bed.memory(std::vector<std::uint32_t>(768));
    ASSERT_EQ(bed.run("count", 6, 128, from, bins, order).fault, fault_kind::none);
    std::array<std::vector<bool>, 16> seen;
    for (std::size_t b = 0; b < 16; b++) {
        EXPECT_EQ(bins[b], wanted[b]);
        seen[b].resize(wanted[b]);
    }
    for (std::size_t i = 0; i < in.size(); i++) { // each old value was given once
        ASSERT_LT(order[i], seen[in[i] & 15].size());
        EXPECT_FALSE(seen[in[i] & 15][order[i]]);
        seen[in[i] & 15][order[i]] = true;
    }
}

TEST(Blocks, TransposeInDynamicSharedMemory) {
    kernel_bed bed(R"(
.extern .shared .align 16 .b8 tile[];
.visible .entry turn(.param .u64 in, .param .u64 out)
{
	.reg .b32 %r<10>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %tid.y;
	mad.lo.u32 %r3, %r2, 16, %r1;
	mad.lo.u32 %r4, %r1, 16, %r2;
	mad.wide.u32 %rd3, %r3, 8, %rd1;
	ld.global.v2.u32 {%r5, %r6}, [%rd3];
	mov.u32 %r7, tile;
	mad.lo.u32 %r8, %r4, 8, %r7;
	st.shared.v2.b32 [%r8], {%r5, %r6};
	barrier.sync 1;
	mad.lo.u32 %r8, %r3, 8, %r7;
	ld.shared.u64 %rd4, [%r8];
	mad.wide.u32 %rd3, %r3, 8, %rd2;
	st.global.u64 [%rd3], %rd4;
	ret;
}
)");
    std::vector<std::uint64_t> in(256);
    std::iota(in.begin(), in.end(), 0x100000000ull);
    auto* from = bed.memory(in);
    auto* out = bed.memory(std::vector<std::uint64_t>(256));
    launch_request r;
    r.threads[0] = 16;
    r.threads[1] = 16;
    r.dynamic_shared = 2048;
    ASSERT_EQ(bed.launch(r, "turn", from, out).fault, fault_kind::none);
    for (std::size_t y = 0; y < 16; y++)
        for (std::size_t x = 0; x < 16; x++)
            EXPECT_EQ(out[y * 16 + x], in[x * 16 + y]);
    r.dynamic_shared = 2040; // eight bytes too few
    EXPECT_EQ(bed.launch(r, "turn", from, out).fault, fault_kind::illegal_address);
}

TEST(Blocks, ShufflesAndVotesOfPartedLanes) {
    kernel_bed bed(R"(
.visible .entry talk(.param .u64 out)
{
	.reg .pred %p<4>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %laneid;
	mad.wide.u32 %rd2, %r1, 16, %rd1;
	mul.lo.u32 %r2, %r1, 10;
	and.b32 %r3, %r1, 1;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 bra $even;
	add.u32 %r2, %r2, 1;
	add.u32 %r2, %r2, 0;
$even:
	shfl.sync.bfly.b32 %r4, %r2, 1, 31, 0xffffffff;
	shfl.sync.up.b32 %r5|%p2, %r2, 2, 0, 0xffffffff;
	selp.u32 %r5, %r5, 7777, %p2;
	shfl.sync.idx.b32 %r6, %r2, 3, 0x181f, 0xffffffff;
	vote.sync.ballot.b32 %r7, %p1, 0xffffffff;
	st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};
	ret;
}
)");
    auto* out = bed.memory(std::vector<std::uint32_t>(128));
    ASSERT_EQ(bed.run("talk", 1, 32, out).fault, fault_kind::none);
    for (std::uint32_t l = 0; l < 32; l++) {
        const auto value = [](std::uint32_t lane) { return lane * 10 + (lane & 1); };
        EXPECT_EQ(out[l * 4], value(l ^ 1));
        EXPECT_EQ(out[l * 4 + 1], l >= 2 ? value(l - 2) : 7777u);
        EXPECT_EQ(out[l * 4 + 2], value((l & 24) | 3));
        EXPECT_EQ(out[l * 4 + 3], 0x55555555u);
    }
}

// A lock that lanes of one warp want: those that wait must not keep the one that has it from going on.
TEST(Blocks, LanesOfAWarpTakeALockInTurn) {
    kernel_bed bed(R"(
.visible .entry lock(.param .u64 word, .param .u64 count)
{
	.reg .pred %p;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [word];
	ld.param.u64 %rd2, [count];
$wait:
	atom.global.cas.b32 %r1, [%rd1], 0, 1;
	setp.ne.u32 %p, %r1, 0;
	@%p bra $wait;
	ld.volatile.global.u32 %r2, [%rd2];
	add.u32 %r2, %r2, 1;
	st.volatile.global.u32 [%rd2], %r2;
	membar.gl;
	atom.global.exch.b32 %r1, [%rd1], 0;
	ret;
}
)");
    auto* word = bed.memory(std::vector<std::uint32_t>{0});
    auto* count = bed.memory(std::vector<std::uint32_t>{0});
    launch_request r;
    r.grid[0] = 3;
    r.threads[0] = 70;
    r.max_steps = 50'000'000;
    ASSERT_EQ(bed.launch(r, "lock", word, count).fault, fault_kind::none);
    EXPECT_EQ(*count, 210u);
}

TEST(Blocks, BarrierCountsPredicatesAndOutlivesExits) {
    kernel_bed bed(R"(
.visible .entry count(.param .u64 out)
{
	.reg .pred %p<3>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	setp.ge.u32 %p1, %r1, 90;
	@%p1 exit;
	setp.lt.u32 %p2, %r1, 40;
	bar.red.popc.u32 %r2, 0, %p2;
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	st.global.u32 [%rd2], %r2;
	ret;
}
)");
    auto* out = bed.memory(std::vector<std::uint32_t>(100, 1));
    ASSERT_EQ(bed.run("count", 1, 100, out).fault, fault_kind::none);
    for (std::uint32_t i = 0; i < 100; i++)
        EXPECT_EQ(out[i], i < 90 ? 40u : 1u);
}

TEST(Blocks, ABarrierThatNobodyElseReachesIsADeadlock) {
    kernel_bed bed(R"(
.visible .entry k()
{
	.reg .pred %p;
	.reg .b32 %r;
	mov.u32 %r, %tid.x;
	setp.eq.u32 %p, %r, 0;
	@%p bar.sync 0, 64;
	ret;
}
)");
    EXPECT_EQ(bed.run("k", 1, 32).fault, fault_kind::deadlock);
}

} // namespace
} // namespace kagemusha::machine
