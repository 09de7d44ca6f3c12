// SPDX-License-Identifier: GPL-2.0-or-later
// The agent between two real executors: what the standby's GPU holds is compared with what the primary's
// holds. KAGEMUSHA_TEST_GPU chooses the OpenCL device.
#include "mirror/mirrored_pair.hpp"

namespace kagemusha::mirror::testing {
namespace {

constexpr std::uint64_t out_of_order = 1;
constexpr std::uint64_t mib = 1 << 20;

constexpr std::string_view add_source = R"(
kernel void add(global uint* to, global const uint* from, uint value) {
    size_t i = get_global_id(0);
    to[i] = to[i] * 3 + from[i] + value;
})";

struct guest_program {
    explicit guest_program(mirrored_pair& p)
        : context(p.context())
        , in_order(p.queue(context))
        , any_order(p.queue(context, out_of_order))
        , kernel(p.kernel(context, add_source, "add")) {}
    std::uint64_t context, in_order, any_order, kernel;

    void add(mirrored_pair& p, std::uint64_t queue, std::uint64_t to, std::uint64_t from, std::uint32_t value,
             std::uint64_t count, std::uint64_t event = 0) const {
        codec::launch_size size;
        size.global[0] = count;
        p.ok(stream_builder().launch({queue, event}, kernel, size,
                                     argument_builder().memory(0, to).memory(1, from).scalar(2, value)));
    }
};

void expect_same(mirrored_pair& p, std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
    p.finish(queue);
    EXPECT_TRUE(p.on_primary(queue, buffer, bytes) == p.on_standby(queue, buffer, bytes)) << buffer;
}

TEST(mirror_agent, AttachesToAnEmptyFile) {
    mirrored_pair p;
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

TEST(mirror_agent, ContentCrossesWhenAStandbyAttaches) {
    mirrored_pair p;
    const guest_program g(p);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> buffers;
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{4096}, 3 * mib + 5, 9 * mib}) {
        buffers.emplace_back(p.buffer(g.context, bytes), bytes);
        p.fill(g.in_order, buffers.back().first, 0, bytes, static_cast<std::uint32_t>(bytes));
    }
    const auto part = p.id();
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

TEST(mirror_agent, AttachesWhileKernelsRun) {
    pair_options o;
    o.agent.content_chunk_bytes = 64 << 10;
    o.agent.final_round_bytes = 256 << 10;
    mirrored_pair p(o);
    const guest_program g(p);
    constexpr std::uint64_t bytes = mib;
    const auto a = p.buffer(g.context, bytes), b = p.buffer(g.context, bytes), c = p.buffer(g.context, bytes);
    for (const auto buffer : {a, b, c})
        p.fill(g.in_order, buffer, 0, bytes, static_cast<std::uint32_t>(buffer));
    std::uint32_t value = 0;
    std::deque<std::uint64_t> running;
    const auto compute = [&] {
        if (running.size() >= 4) {
            p.wait_event(running.front());
            running.pop_front();
        }
        running.push_back(p.id());
        ++value;
        // `a` changes all the time, `b` now and then, `c` never.
        g.add(p, value % 2 ? g.in_order : g.in_order, value % 16 == 0 ? b : a, c, value, bytes / 4,
              running.back());
    };
    for (int i = 0; i < 10; ++i)
        compute();
    p.mirror->start_sync();
    while (!p.is_synced && p.failed_why.empty())
        compute();
    ASSERT_EQ(p.failed_why, "");
    const std::uint32_t at_sync = value;
    while (value < at_sync + 20)
        compute();
    for (const auto buffer : {a, b, c})
        expect_same(p, g.in_order, buffer, bytes);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

TEST(mirror_agent, ADifferenceIsFoundAtItsChunkAndRepaired) {
    mirrored_pair p;
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

TEST(mirror_agent, OnlyWhatWasWrittenIsComparedUnlessAskedForEverything) {
    mirrored_pair p;
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

// Addresses differ between the two sides, so this kernel never gives the same.
constexpr std::string_view address_source = R"(
kernel void address(global ulong* to) {
    to[get_global_id(0)] = (ulong)to + get_global_id(0);
})";

TEST(mirror_agent, WhatDiffersAgainAndAgainIsShippedInstead) {
    pair_options o;
    o.agent.differences_before_shipping = 2;
    mirrored_pair p(o);
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
    }
    EXPECT_EQ(p.mirror->counters().memory_shipped, 1u);
    for (int i = 0; i < 3; ++i) {
        launch();
        expect_same(p, g.in_order, buffer, 64 << 10);
    }
    EXPECT_EQ(p.digest().chunks_different, 2u);
}

TEST(mirror_agent, ReadsThatFailAreRepeated) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:1,do=error:-5,on=read:3,do=error:-5";
    o.agent.content_chunk_bytes = 64 << 10;
    mirrored_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, mib);
    p.fill(g.in_order, buffer, 0, mib, 1);
    p.attach();
    expect_same(p, g.in_order, buffer, mib);
}

TEST(mirror_agent, ReadsThatNeverSucceedEndTheTransferWithASentence) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:*,do=error:-5";
    mirrored_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 1000);
    p.fill(g.in_order, buffer, 0, 1000, 1);
    p.mirror->start_sync();
    p.wait([&] { return !p.failed_why.empty(); });
    EXPECT_EQ(p.failed_why,
              "the content of a memory object of 1000 bytes could not be read (OpenCL error -5)");
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    p.finish(g.in_order); // the guest goes on
}

TEST(mirror_agent, AUserEventHoldsTheLastRoundUpAndSaysSo) {
    mirrored_pair p;
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096), gate = p.id(), late = p.id();
    p.fill(g.in_order, buffer, 0, 4096, 1);
    p.ok(stream_builder().create_user_event(gate, g.context));
    const std::uint8_t one = 1;
    p.ok(stream_builder().fill_buffer({g.in_order, late, {gate}}, buffer, 0, 100,
                                      std::as_bytes(std::span(&one, 1))));
    p.mirror->start_sync();
    p.wait([&] { return !p.mirror->waiting().empty(); });
    EXPECT_EQ(p.mirror->waiting(), "a user event of the guest is not set");
    for (int i = 0; i < 50; ++i)
        p.step();
    EXPECT_FALSE(p.is_synced);
    p.ok(stream_builder().set_user_event(gate, 0));
    p.wait([&] { return p.is_synced; });
    EXPECT_EQ(p.wait_event(late), 0);
    expect_same(p, g.in_order, buffer, 4096);
}

TEST(mirror_agent, WithoutKernelsContentIsReadAndHashedOnTheHost) {
    pair_options o;
    o.backend = o.standby_backend = "null";
    o.options = o.standby_options = "memory=1";
    o.agent.digest_chunk_bytes = 64 << 10;
    mirrored_pair p(o);
    const auto context = p.context(), queue = p.queue(context);
    const auto buffer = p.buffer(context, 9 * mib + 3);
    p.fill(queue, buffer, 0, 9 * mib + 3, 1);
    p.attach();
    expect_same(p, queue, buffer, 9 * mib + 3);
    EXPECT_EQ(p.digest().chunks_different, 0u);
    p.corrupt(queue, buffer, 9 * mib + 2, 0x77);
    p.corrupt(queue, buffer, 12345, 0x77);
    const agent_counters c = p.digest();
    EXPECT_EQ(c.chunks_compared, 2 * 145u);
    EXPECT_EQ(c.chunks_different, 2u);
    EXPECT_EQ(c.chunks_repaired, 2u);
    expect_same(p, queue, buffer, 9 * mib + 3);
}

TEST(mirror_agent, StoppedAtAnyStepItLeavesNothingBehindAndCanBeginAgain) {
    for (int steps = 0; steps < 40; ++steps) {
        pair_options o;
        o.agent.content_chunk_bytes = 32 << 10;
        mirrored_pair p(o);
        const guest_program g(p);
        const auto buffer = p.buffer(g.context, 300 << 10);
        p.fill(g.in_order, buffer, 0, 300 << 10, 1);
        p.mirror->start_sync();
        for (int i = 0; i < steps; ++i) {
            p.step();
            if (i == steps / 2)
                p.mirror->request_digest(true);
        }
        p.mirror->stop();
        p.finish(g.in_order); // nothing holds it
        p.finish(g.any_order);
        p.drop_log();
        p.wait([&] { return p.memory.blocks() == 0; });
        g.add(p, g.in_order, buffer, buffer, 3, 1000);
        p.attach();
        expect_same(p, g.in_order, buffer, 300 << 10);
        EXPECT_EQ(p.digest().chunks_different, 0u);
    }
}

} // namespace
} // namespace kagemusha::mirror::testing
