// SPDX-License-Identifier: GPL-2.0-or-later
// The agent where the GPU speaks CUDA: on the PTX device, in buffers without a chosen address, because both
// ends are in this process; and on the null device with arenas. tests/mirror has both ends in processes.
#include <algorithm>
#include <cstring>
#include <string>

#include "mirror/sync/digest.hpp"
#include "proto/abi/vgpu_cuda.h"
#include "tests/support/executing_pair.hpp"

namespace kagemusha::mirror::testing {
namespace {

constexpr std::uint64_t mib = 1 << 20;

// to[i] = to[i] * 3 + from[i] + value
constexpr std::string_view add_ptx = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from, .param .u32 value)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [from];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r2, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r4, [%d1];
    ld.global.u32 %r5, [%d2];
    mad.lo.s32 %r4, %r4, 3, %r5;
    add.s32 %r4, %r4, %r1;
    st.global.u32 [%d1], %r4;
    ret;
}
)";

pair_options on_ptx() {
    pair_options o;
    o.backend = o.standby_backend = "cuda";
    o.options = o.standby_options = "driver=" KAGEMUSHA_PTX_DRIVER;
    o.agent.cuda = true;
    return o;
}

std::uint64_t ptx_kernel(executing_pair& p, std::uint64_t context, std::string_view ptx,
                         std::string_view name) {
    const auto program = p.new_id(), kernel = p.new_id();
    p.ok(stream_builder()
             .create_program(program, context, VGPU_PROGRAM_BINARY, {ptx.size(), VGPU_PAYLOAD_INLINE, 0})
             .text(ptx));
    p.ok(stream_builder().create_kernel(kernel, program, name));
    return kernel;
}

codec::launch_size blocks(std::uint64_t count, std::uint64_t threads) {
    codec::launch_size size;
    size.work_dim = 3;
    size.global[0] = count * threads;
    size.local[0] = threads;
    size.local[1] = size.local[2] = 1;
    return size;
}

void add(executing_pair& p, std::uint64_t queue, std::uint64_t kernel, std::uint64_t to, std::uint64_t from,
         std::uint32_t value, std::uint64_t bytes) {
    p.ok(stream_builder().launch({queue, 0}, kernel, blocks(bytes / 4 / 64, 64),
                                 argument_builder().memory(0, to).memory(1, from).scalar(2, value)));
}

void expect_same(executing_pair& p, std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
    p.finish(queue);
    EXPECT_TRUE(p.on_primary(queue, buffer, bytes) == p.on_standby(queue, buffer, bytes)) << buffer;
}

TEST(sync_agent_cuda, TheKernelInPtxGivesTheReferencesHash) {
    executing_pair p(on_ptx());
    const auto context = p.context(), queue = p.queue(context);
    const auto kernel = ptx_kernel(p, context, digest_kernel_ptx(), digest_kernel_name);
    const auto hashes = p.buffer(context, 4096 * 8);
    for (const std::uint64_t bytes : {1ull, 7ull, 8ull, 9ull, 257ull, 4096ull, 65539ull}) {
        const auto data = p.buffer(context, bytes);
        p.fill(queue, data, 0, bytes, static_cast<std::uint32_t>(bytes));
        const std::vector<std::byte> content(p.guest(), p.guest() + bytes);
        for (const std::uint64_t chunk : {24ull, 4096ull}) {
            for (const std::uint64_t local : {1ull, 3ull, 64ull, 256ull}) {
                const std::uint64_t chunks = (bytes + chunk - 1) / chunk, first = 5;
                p.ok(stream_builder().launch({queue, 0}, kernel, blocks(chunks, local),
                                             argument_builder()
                                                 .memory(0, data)
                                                 .scalar(1, bytes)
                                                 .scalar(2, chunk)
                                                 .memory(3, hashes)
                                                 .scalar(4, first)));
                p.finish(queue);
                const auto got = p.on_primary(queue, hashes, (first + chunks) * 8);
                for (std::uint64_t i = 0; i < chunks; ++i) {
                    std::uint64_t hash = 0;
                    std::memcpy(&hash, got.data() + (first + i) * 8, 8);
                    const auto part =
                        std::span(content).subspan(i * chunk, std::min(chunk, bytes - i * chunk));
                    ASSERT_EQ(hash, chunk_hash(part)) << bytes << " bytes, chunk " << i << " of " << chunk;
                }
            }
        }
    }
}

TEST(sync_agent_cuda, AStandbyThatAttachesLaterHasWhatKernelsComputed) {
    executing_pair p(on_ptx());
    const auto context = p.context(), queue = p.queue(context, VGPU_QUEUE_LEGACY), other = p.queue(context);
    const auto kernel = ptx_kernel(p, context, add_ptx, "add");
    const std::uint64_t bytes = mib;
    const auto a = p.buffer(context, bytes), b = p.buffer(context, bytes), small = p.buffer(context, 100);
    p.fill(queue, a, 0, bytes, 1);
    p.fill(queue, b, 0, bytes, 2);
    p.fill(other, small, 0, 100, 3);
    add(p, queue, kernel, a, b, 7, bytes);
    p.attach();
    ASSERT_EQ(p.failed_why(), "");
    for (std::uint32_t i = 0; i < 5; ++i) {
        add(p, queue, kernel, a, b, i, bytes);
        add(p, other, kernel, b, a, i, bytes);
    }
    p.finish(queue);
    p.finish(other);
    const agent_counters c = p.digest();
    EXPECT_EQ(c.chunks_compared, 9u) << "the kernel hashes 4 chunks of each large one";
    EXPECT_EQ(c.chunks_different, 0u);
    expect_same(p, queue, a, bytes);
    expect_same(p, queue, b, bytes);
    expect_same(p, queue, small, 100);
}

TEST(sync_agent_cuda, ARoundThatALaunchMadeFutileIsNotSentToItsEnd) {
    pair_options o = on_ptx();
    o.agent.content_chunk_bytes = 64 << 10;
    o.agent.final_round_bytes = 64 << 10;
    executing_pair p(o);
    const auto context = p.context(), queue = p.queue(context);
    const auto kernel = ptx_kernel(p, context, add_ptx, "add");
    const std::uint64_t bytes = 4 * mib;
    const auto a = p.buffer(context, bytes), b = p.buffer(context, bytes);
    p.fill(queue, a, 0, bytes, 1);
    p.fill(queue, b, 0, bytes, 2);
    p.mirror->start_sync();
    for (std::uint32_t value = 0; !p.is_synced() && p.failed_why().empty(); ++value)
        add(p, queue, kernel, a, b, value, mib);
    ASSERT_EQ(p.failed_why(), "");
    EXPECT_LE(p.mirror->counters().content_bytes, 3 * bytes) << "the last round has 2 * bytes";
    expect_same(p, queue, a, bytes);
    expect_same(p, queue, b, bytes);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

TEST(sync_agent_cuda, WhatDiffersIsFoundAndRepairedWhileTheGuestGoesOn) {
    executing_pair p(on_ptx());
    const auto context = p.context(), queue = p.queue(context);
    const auto kernel = ptx_kernel(p, context, add_ptx, "add");
    const auto a = p.buffer(context, mib), b = p.buffer(context, mib);
    p.fill(queue, a, 0, mib, 1);
    p.fill(queue, b, 0, mib, 2);
    p.attach();
    ASSERT_EQ(p.failed_why(), "");
    p.corrupt(queue, b, 300 << 10, 0x77);
    EXPECT_EQ(p.digest().chunks_different, 1u);
    for (std::uint32_t i = 0; i < 5; ++i)
        add(p, queue, kernel, a, b, i, mib);
    p.finish(queue);
    p.settle();
    p.digest(); // `a` took something from `b` before that was repaired, perhaps
    p.settle();
    const auto before = p.mirror->counters().chunks_different;
    EXPECT_EQ(p.digest().chunks_different, before);
    expect_same(p, queue, a, mib);
    expect_same(p, queue, b, mib);
}

TEST(sync_agent_cuda, AVariableThatLiesElsewhereIsNone) {
    executing_pair p(on_ptx());
    const auto context = p.context(), program = p.new_id();
    constexpr std::string_view ptx = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                     ".visible .global .align 8 .u64 total = 3;\n";
    p.ok(stream_builder()
             .create_program(program, context, VGPU_PROGRAM_BINARY, {ptx.size(), VGPU_PAYLOAD_INLINE, 0})
             .text(ptx));
    const auto made = [&](std::string_view name, std::uint64_t address, std::uint64_t bytes) {
        stream_builder b;
        b.begin(VGPU_CMD_CREATE_VARIABLE,
                vgpu_cmd_create_variable{
                    {}, p.new_id(), program, address, bytes, static_cast<std::uint32_t>(name.size()), 0})
            .text(name);
        return p.run(b).result;
    };
    EXPECT_EQ(made("total", 4096, 8), VGPU_CUDA_OTHER_ADDRESS);
    EXPECT_EQ(made("nothing", 4096, 8), VGPU_CUDA_ERROR_BASE - 500) << "CUDA_ERROR_NOT_FOUND";

    std::uint64_t answer[2] = {};
    stream_builder b;
    constexpr std::string_view name = "total";
    vgpu_cmd_info ask{};
    ask.subject = VGPU_INFO_PROGRAM;
    ask.name = VGPU_CUDA_VARIABLE;
    ask.object = program;
    ask.result = b.payload(true, 0, 0, sizeof answer);
    ask.input = {name.size(), VGPU_PAYLOAD_INLINE, 0};
    ASSERT_EQ(p.run(b.begin(VGPU_CMD_INFO, ask).text(name)).result, 0);
    std::memcpy(answer, p.guest(), sizeof answer);
    EXPECT_EQ(answer[1], 8u);
    EXPECT_EQ(made("total", answer[0], 4), VGPU_CUDA_OTHER_ADDRESS);
    EXPECT_EQ(made("total", answer[0], 8), 0);
}

// Nothing runs there that could write an arena behind the log's back, so its content is what commands wrote.
TEST(sync_agent_cuda, ArenasCrossWithTheirContent) {
    pair_options o;
    o.backend = o.standby_backend = "null";
    o.options = o.standby_options = "memory=1";
    o.agent.cuda = true;
    executing_pair p(o);
    const auto context = p.context(), queue = p.queue(context);
    const std::uint64_t bytes = 2 * VGPU_ARENA_ALIGNMENT;
    const auto arena = [&](std::uint64_t number) {
        const auto id = p.new_id();
        p.ok(stream_builder().begin(
            VGPU_CMD_CREATE_ARENA,
            vgpu_cmd_create_arena{{}, id, context, VGPU_ARENA_BASE + number * bytes, bytes}));
        return id;
    };
    const auto first = arena(0);
    p.fill(queue, first, 0, bytes, 1);
    p.attach();
    ASSERT_EQ(p.failed_why(), "");
    expect_same(p, queue, first, bytes);
    const auto second = arena(1);
    p.fill(queue, second, 4096, mib, 2);
    p.ok(stream_builder().copy_buffer({queue}, second, first, 4096, 8192, mib));
    expect_same(p, queue, first, bytes);
    p.destroy(VGPU_OBJECT_MEMORY, second);
    const agent_counters c = p.digest();
    EXPECT_EQ(c.chunks_compared, bytes / (256 << 10));
    EXPECT_EQ(c.chunks_different, 0u);
}

} // namespace
} // namespace kagemusha::mirror::testing
