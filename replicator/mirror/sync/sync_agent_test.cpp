// SPDX-License-Identifier: GPL-2.0-or-later
// The agent between two real executors: what the standby's GPU holds is compared with what the primary's
// holds. KAGEMUSHA_TEST_GPU chooses the OpenCL device. What fails: sync_agent_failures_test.cpp; images, memory
// that is busy, and several queues: sync_agent_kinds_test.cpp.
#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "mirror/sync/sync_test_program.hpp"

namespace kagemusha::mirror::testing {
namespace {

TEST(sync_agent, AttachesToAnEmptyFile) {
    executing_pair p;
    p.attach();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    expect_same(p, g.in_order, buffer, 4096);
    const agent_counters c = p.digest();
    EXPECT_EQ(c.chunks_compared, 1u);
    EXPECT_EQ(c.chunks_different, 0u);
}

TEST(sync_agent, ContentCrossesWhenAStandbyAttaches) {
    executing_pair p;
    const guest_program g(p);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> buffers;
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{4096}, 3 * mib + 5, 9 * mib}) {
        buffers.emplace_back(p.buffer(g.context, bytes), bytes);
        p.fill(g.in_order, buffers.back().first, 0, bytes, static_cast<std::uint32_t>(bytes));
    }
    const auto part = p.new_id();
    p.ok(stream_builder().create_sub_buffer(part, buffers[3].first, mib, mib));
    p.fill(g.any_order, part, 16, 1000, 99);
    p.attach();
    for (const auto& [buffer, bytes] : buffers)
        expect_same(p, g.in_order, buffer, bytes);
    EXPECT_GE(p.mirror->counters().content_bytes, 12 * mib);
    // From now on commands cross, on both queues and through the sub-buffer.
    g.add(p, g.in_order, buffers[4].first, part, 5, mib / 4);
    p.finish(g.in_order);
    g.add(p, g.any_order, part, buffers[2].first, 6, 1024);
    p.finish(g.any_order);
    const agent_counters c = p.digest();
    EXPECT_GT(c.chunks_compared, 12 * mib / (256 << 10));
    EXPECT_EQ(c.chunks_different, 0u);
    expect_same(p, g.in_order, buffers[4].first, mib);
}

TEST(sync_agent, AttachesWhileKernelsRun) {
    pair_options o;
    o.agent.content_chunk_bytes = 64 << 10;
    o.agent.final_round_bytes = 256 << 10;
    executing_pair p(o);
    const guest_program g(p);
    constexpr std::uint64_t bytes = mib;
    const auto a = p.buffer(g.context, bytes), b = p.buffer(g.context, bytes), c = p.buffer(g.context, bytes);
    for (const auto buffer : {a, b, c})
        p.fill(g.in_order, buffer, 0, bytes, static_cast<std::uint32_t>(buffer));
    std::uint32_t value = 0;
    std::deque<std::uint64_t> running;
    const auto compute = [&] {
        if (running.size() >= 4) {
            p.complete(running.front());
            running.pop_front();
        }
        running.push_back(p.new_id());
        ++value;
        // `a` changes all the time, `b` now and then, `c` never.
        g.add(p, value % 2 ? g.in_order : g.in_order, value % 16 == 0 ? b : a, c, value, bytes / 4,
              running.back());
    };
    for (int i = 0; i < 10; ++i)
        compute();
    p.mirror->start_sync();
    while (!p.is_synced() && p.failed_why().empty())
        compute();
    ASSERT_EQ(p.failed_why(), "");
    const std::uint32_t at_sync = value;
    while (value < at_sync + 20)
        compute();
    for (const auto buffer : {a, b, c})
        expect_same(p, g.in_order, buffer, bytes);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

TEST(sync_agent, ANewContextHasTheKernelOfDigestsBeforeOneIsTaken) {
    pair_options o;
    o.digest_interval_ms = ~0u; // as good as never
    executing_pair p(o);
    p.attach();
    const guest_program g(p);
    p.wait([&] {
        const core::object_table* table = p.standby.device->objects(the_file);
        for (std::uint64_t n = 0; table && n < 64; ++n)
            if (table->find(agent_id_bit | n, VGPU_OBJECT_KERNEL))
                return true;
        return false;
    });
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    EXPECT_EQ(p.digest().chunks_compared, 1u);
}

TEST(sync_agent, AContextMayEndBeforeItIsPrepared) {
    pair_options o;
    o.digest_interval_ms = ~0u;
    executing_pair p(o);
    p.attach();
    for (int i = 0; i < 20; ++i) {
        const auto context = p.context();
        for (int steps = 0; steps < i; ++steps) // the agent is a step further each time
            p.step();
        p.ok(stream_builder().destroy(VGPU_OBJECT_CONTEXT, context));
    }
    p.settle();
    EXPECT_EQ(p.failed_why(), "");
}

TEST(sync_agent, ADifferenceIsFoundAtItsChunkAndRepaired) {
    executing_pair p;
    const guest_program g(p);
    constexpr std::uint64_t chunk = 256 << 10, bytes = 5 * chunk + 13;
    const auto small = p.buffer(g.context, 100), large = p.buffer(g.context, bytes);
    p.fill(g.in_order, small, 0, 100, 1);
    p.fill(g.in_order, large, 0, bytes, 2);
    p.attach();
    EXPECT_EQ(p.digest().chunks_different, 0u);
    p.corrupt(g.in_order, large, 3 * chunk + 77, 0xa5);
    p.corrupt(g.in_order, large, 5 * chunk + 12, 0x5a);
    p.differences.clear();
    const agent_counters c = p.digest();
    EXPECT_EQ(c.chunks_different, 2u);
    EXPECT_EQ(c.chunks_repaired, 2u);
    ASSERT_EQ(p.differences.size(), 1u);
    EXPECT_EQ(p.differences.begin()->second, (std::vector<std::uint64_t>{1 + 3, 1 + 5}));
    expect_same(p, g.in_order, large, bytes);
    EXPECT_EQ(p.digest().chunks_different, 2u) << "nothing new";
}

TEST(sync_agent, OnlyWhatWasWrittenIsComparedUnlessAskedForEverything) {
    executing_pair p;
    const guest_program g(p);
    const auto a = p.buffer(g.context, 4096), b = p.buffer(g.context, 4096);
    p.fill(g.in_order, a, 0, 4096, 1);
    p.fill(g.in_order, b, 0, 4096, 2);
    p.attach();
    EXPECT_EQ(p.digest().chunks_compared, 2u);
    EXPECT_EQ(p.digest(false).chunks_compared, 2u);
    p.fill(g.in_order, b, 0, 10, 3);
    EXPECT_EQ(p.digest(false).chunks_compared, 3u);
}

TEST(sync_agent, WhatWasRepairedIsComparedAgain) {
    executing_pair p;
    const guest_program g(p);
    const auto a = p.buffer(g.context, 4096), b = p.buffer(g.context, 4096);
    p.fill(g.in_order, a, 0, 4096, 1);
    p.fill(g.in_order, b, 0, 4096, 2);
    p.attach();
    p.corrupt(g.in_order, a, 100, 0xa5);
    EXPECT_EQ(p.digest().chunks_repaired, 1u);
    p.corrupt(g.in_order, a, 200, 0xa5); // what a standby with broken memory would do
    EXPECT_EQ(p.digest(false).chunks_compared, 3u);
    EXPECT_EQ(p.mirror->counters().chunks_repaired, 2u);
    expect_same(p, g.in_order, a, 4096);
    EXPECT_EQ(p.digest(false).chunks_compared, 4u);
    EXPECT_EQ(p.digest(false).chunks_compared, 4u) << "it agreed, and was not written since";
    const std::vector<std::string> notes = p.mirror->take_notes();
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_NE(notes[0].find("4096 bytes) differs on the standby in 1 of 1"), std::string::npos) << notes[0];
    EXPECT_NE(notes[1].find("may be faulty"), std::string::npos) << notes[1];
}

TEST(sync_agent, DifferencesBeyondWhatCanBeRepairedAtOnceAreFoundAgain) {
    pair_options o;
    o.agent.max_repairs = 1;
    executing_pair p(o);
    const guest_program g(p);
    std::vector<std::uint64_t> buffers;
    for (std::uint32_t i = 0; i < 3; ++i) {
        buffers.push_back(p.buffer(g.context, 4096));
        p.fill(g.in_order, buffers.back(), 0, 4096, i);
    }
    p.attach();
    for (const auto buffer : buffers)
        p.corrupt(g.in_order, buffer, 100, 0xa5);
    EXPECT_EQ(p.digest().chunks_repaired, 1u);
    for (std::uint64_t repaired = 2; repaired <= 3; ++repaired)
        EXPECT_EQ(p.digest(false).chunks_repaired, repaired);
    for (const auto buffer : buffers)
        expect_same(p, g.in_order, buffer, 4096);
}

TEST(sync_agent, ARepairWhoseReadFailsIsFoundAgain) {
    pair_options o;
    o.backend = "faulty";
    // Read 1 is of the state transfer, 2 of the digest kernel's trial, 3 of hashes; the repair has three.
    o.options = "backend=opencl,on=read:4,do=error:-5,on=read:5,do=error:-5,on=read:6,do=error:-5";
    executing_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    p.attach();
    p.corrupt(g.in_order, buffer, 100, 0xa5);
    EXPECT_EQ(p.digest().chunks_repaired, 0u);
    EXPECT_EQ(p.mirror->counters().chunks_different, 1u);
    EXPECT_EQ(p.digest(false).chunks_repaired, 1u);
    expect_same(p, g.in_order, buffer, 4096);
}

// Memory that is read for a comparison crosses in parts, each of a later point of the order.
TEST(sync_agent, WhatIsWrittenBetweenTwoPartsOfADigestIsComparedByTheNext) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=launch:*,do=error:-5"; // no kernels: the host hashes
    o.agent_bytes = 64 << 10;
    o.agent.content_chunk_bytes = 16 << 10;
    o.agent.digest_chunk_bytes = 16 << 10;
    executing_pair p(o);
    const auto context = p.context(), queue = p.queue(context);
    const auto buffer = p.buffer(context, 512 << 10);
    p.fill(queue, buffer, 0, 512 << 10, 1);
    p.attach();
    EXPECT_EQ(p.digest().chunks_compared, 32u);
    p.mirror->request_digest(true);
    p.fill(queue, buffer, 0, 16, 2);
    p.wait([&] { return p.mirror->counters().digests == 2; });
    p.corrupt(queue, buffer, 8, 0xa5);
    EXPECT_EQ(p.digest(false).chunks_repaired, 1u);
    expect_same(p, queue, buffer, 4096);
}

// Addresses differ between the two sides, so this kernel never gives the same.
constexpr std::string_view address_source = R"(
kernel void address(global ulong* to) {
    to[get_global_id(0)] = (ulong)to + get_global_id(0);
})";

TEST(sync_agent, WhatDiffersAgainAndAgainIsShippedInstead) {
    pair_options o;
    o.agent.differences_before_shipping = 2;
    executing_pair p(o);
    const guest_program g(p);
    const auto kernel = p.kernel(g.context, address_source, "address");
    const auto buffer = p.buffer(g.context, 64 << 10);
    p.fill(g.in_order, buffer, 0, 64 << 10, 1);
    p.attach();
    codec::launch_size size;
    size.global[0] = 8192;
    const auto launch = [&] {
        p.ok(stream_builder().launch({g.in_order}, kernel, size, argument_builder().memory(0, buffer)));
    };
    for (std::uint64_t i = 1; i <= 2; ++i) {
        launch();
        const agent_counters c = p.digest();
        EXPECT_EQ(c.chunks_different, i);
        EXPECT_EQ(c.chunks_repaired, i);
        // That the repair holds says nothing about the kernel.
        EXPECT_EQ(p.digest(false).chunks_different, i);
    }
    EXPECT_EQ(p.mirror->counters().memory_shipped, 1u);
    for (int i = 0; i < 3; ++i) {
        launch();
        expect_same(p, g.in_order, buffer, 64 << 10);
    }
    EXPECT_EQ(p.digest().chunks_different, 2u);
}

// The order in which work-items add is not the same twice, and with floats neither is the sum.
constexpr std::string_view float_source = R"(
kernel void accumulate(volatile global uint* sums, uint rounds) {
    size_t i = get_global_id(0);
    for (uint r = 0; r < rounds; ++r) {
        volatile global uint* at = sums + (i + r) % 16;
        uint before, after;
        do {
            before = *at;
            after = as_uint(as_float(before) + 1.0f / (float)(1 + i * 7 + r));
        } while (atomic_cmpxchg(at, before, after) != before);
    }
})";

TEST(sync_agent, SumsOfFloatsWithAtomicsDifferAndAreShipped) {
    if (std::thread::hardware_concurrency() < 2)
        GTEST_SKIP() << "the one thread of PoCL's device always adds in the same order";
    pair_options o;
    o.agent.differences_before_shipping = 2;
    executing_pair p(o);
    const guest_program g(p);
    const auto kernel = p.kernel(g.context, float_source, "accumulate");
    const auto sums = p.buffer(g.context, 64);
    const std::uint32_t zero = 0;
    p.ok(stream_builder().fill_buffer({g.in_order}, sums, 0, 64, std::as_bytes(std::span(&zero, 1))));
    p.attach();
    codec::launch_size size;
    size.global[0] = 65536;
    size.local[0] = 64; // many groups, so that they run beside each other
    size.local[1] = size.local[2] = 1;
    const auto launch = [&](std::uint32_t rounds) {
        p.ok(stream_builder().launch({g.in_order}, kernel, size,
                                     argument_builder().memory(0, sums).scalar(1, rounds)));
    };
    // Two differences in a row are wanted. A kernel that runs longer is interrupted at more places.
    std::uint32_t rounds = 256;
    for (int i = 0; i < 20 && p.mirror->counters().memory_shipped == 0; ++i) {
        const auto before = p.mirror->counters().chunks_different;
        launch(rounds);
        if (p.digest().chunks_different == before)
            rounds = std::min(rounds * 2, 2048u);
        expect_same(p, g.in_order, sums, 64);
    }
    const agent_counters c = p.mirror->counters();
    EXPECT_GE(c.chunks_different, 2u);
    EXPECT_EQ(c.chunks_different, c.chunks_repaired);
    EXPECT_EQ(c.memory_shipped, 1u);
    for (int i = 0; i < 2; ++i) {
        launch(rounds);
        expect_same(p, g.in_order, sums, 64);
    }
    EXPECT_EQ(p.digest().chunks_different, c.chunks_different) << "what is shipped does not differ";
}

} // namespace
} // namespace kagemusha::mirror::testing
