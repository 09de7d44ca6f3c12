// SPDX-License-Identifier: GPL-2.0-or-later
// Less common ways through the agent: much that is dirty, memory that the guest's program may not use, images,
// and queues that come meanwhile.
#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "mirror/sync/sync_test_program.hpp"

namespace kagemusha::mirror::testing {
namespace {

TEST(sync_agent, MuchThatIsDirtyIsCopiedOnTheGpuFirst) {
    // With copies that work and with copies that fail, which means reading in place while the guest is held.
    for (const std::string faults : {"", "on=copy:*,do=error:-5"}) {
        pair_options o;
        o.backend = "faulty";
        o.options = "backend=opencl" + (faults.empty() ? "" : "," + faults);
        o.agent_bytes = 256 << 10; // less than what is dirty
        o.agent.max_sync_rounds = 1;
        o.agent.final_round_bytes = 64 << 10;
        o.agent.now_ns = [] {
            return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
        };
        executing_pair p(o);
        const guest_program g(p);
        constexpr std::uint64_t bytes = 2 * mib;
        const auto a = p.buffer(g.context, bytes), b = p.buffer(g.context, 1000);
        p.fill(g.in_order, a, 0, bytes, 1);
        p.fill(g.in_order, b, 0, 1000, 2);
        p.mirror->start_sync();
        std::uint32_t value = 0;
        while (!p.is_synced() && p.failed_why().empty()) {
            g.add(p, g.in_order, a, a, ++value, bytes / 4);
            g.add(p, g.any_order, b, b, value, 250);
            p.finish(g.any_order);
        }
        ASSERT_EQ(p.failed_why(), "");
        p.wait([&] { return p.mirror->counters().final_round_ns != 0; }); // the last barrier has let go
        RecordProperty(faults.empty() ? "held_us" : "held_us_in_place",
                       std::to_string(p.mirror->counters().final_round_ns / 1000));
        g.add(p, g.in_order, a, a, 77, bytes / 4);
        expect_same(p, g.in_order, a, bytes);
        expect_same(p, g.any_order, b, 1000);
        EXPECT_EQ(p.digest().chunks_different, 0u);
    }
}

TEST(sync_agent, RoundsThatLeaveAsMuchDirtyAsTheySendEnd) {
    pair_options o;
    o.agent.content_chunk_bytes = 64 << 10;
    o.agent.final_round_bytes = 64 << 10;
    executing_pair p(o);
    const guest_program g(p);
    constexpr std::uint64_t bytes = 2 * mib;
    const auto a = p.buffer(g.context, bytes);
    p.fill(g.in_order, a, 0, bytes, 1);
    p.mirror->start_sync();
    for (std::uint32_t value = 0; !p.is_synced() && p.failed_why().empty(); ++value)
        g.add(p, g.in_order, a, a, value, bytes / 4); // nothing that a round sends is of use
    ASSERT_EQ(p.failed_why(), "");
    expect_same(p, g.in_order, a, bytes);
    EXPECT_LE(p.mirror->counters().content_bytes, 3 * bytes); // two rounds and the last one
}

TEST(sync_agent, MemoryThatTheGuestsProgramMayNotReadOrWriteCrossesToo) {
    executing_pair p;
    const guest_program g(p);
    const auto seed = p.buffer(g.context, 4096);
    p.fill(g.in_order, seed, 0, 4096, 3);
    std::vector<std::uint64_t> buffers;
    for (const std::uint64_t flags : {128u, 256u, 512u}) { // CL_MEM_HOST_WRITE_ONLY, READ_ONLY, NO_ACCESS
        buffers.push_back(p.buffer(g.context, 4096, 1 | flags));
        g.add(p, g.in_order, buffers.back(), seed, 9, 1024);
    }
    p.finish(g.in_order);
    p.attach();
    for (const auto buffer : buffers)
        expect_same(p, g.in_order, buffer, 4096);
    p.corrupt(g.in_order, buffers[2], 100, 0xee);
    EXPECT_EQ(p.digest().chunks_repaired, 1u);
    expect_same(p, g.in_order, buffers[2], 4096);
}

struct test_image {
    vgpu_cmd_create_image create;
    codec::box whole;
    std::uint64_t bytes;
};

test_image image(executing_pair& p, std::uint64_t context, std::uint32_t type, codec::box sides) {
    test_image i{};
    i.create.id = p.new_id();
    i.create.context = context;
    i.create.flags = 1;
    i.create.channel_order = 0x10B5; // CL_RGBA
    i.create.channel_type = 0x10DA;  // CL_UNSIGNED_INT8
    i.create.image_type = type;
    i.create.width = sides.side[0];
    const bool array = type == 0x10F3 || type == 0x10F5; // 2D and 1D arrays
    if (type != 0x10F4 && type != 0x10F5)
        i.create.height = sides.side[1];
    if (type == 0x10F2)
        i.create.depth = sides.side[2];
    if (array)
        i.create.array_size = type == 0x10F5 ? sides.side[1] : sides.side[2];
    i.create.content = codec::no_payload;
    i.whole = sides;
    i.bytes = sides.side[0] * sides.side[1] * sides.side[2] * 4;
    p.ok(stream_builder().create_image(i.create));
    return i;
}

TEST(sync_agent, ImagesCrossAndAreComparedAndRepaired) {
    pair_options o;
    o.agent.content_chunk_bytes = 16 << 10; // several pieces for each
    o.agent.digest_chunk_bytes = 8 << 10;
    executing_pair p(o);
    const auto context = p.context(), queue = p.queue(context);
    const auto linear = p.buffer(context, mib);
    std::vector<test_image> images;
    images.push_back(image(p, context, 0x10F1, {{100, 77, 1}})); // CL_MEM_OBJECT_IMAGE2D
    images.push_back(image(p, context, 0x10F2, {{16, 24, 20}})); // 3D
    images.push_back(image(p, context, 0x10F3, {{40, 30, 6}}));  // 2D array
    images.push_back(image(p, context, 0x10F4, {{1000, 1, 1}})); // 1D
    for (const test_image& i : images) {
        p.fill(queue, linear, 0, i.bytes, static_cast<std::uint32_t>(i.bytes));
        p.ok(
            stream_builder().copy_image_buffer(false, {queue}, i.create.id, linear, {{0, 0, 0}}, i.whole, 0));
    }
    p.finish(queue);
    p.attach();
    const auto expect_same_image = [&](const test_image& i) {
        p.ok(stream_builder().copy_image_buffer(true, {queue}, i.create.id, linear, {{0, 0, 0}}, i.whole, 0));
        p.finish(queue);
        EXPECT_TRUE(p.on_primary(queue, linear, i.bytes) == p.on_standby(queue, linear, i.bytes))
            << i.create.image_type;
    };
    for (const test_image& i : images)
        expect_same_image(i);
    EXPECT_EQ(p.digest().chunks_different, 0u);
    std::uint64_t different = 0;
    for (const test_image& i : images) {
        const auto event = p.new_id();
        p.settle();
        p.run_on_standby(stream_builder().fill_image({queue, event}, i.create.id, {{3, 0, 0}}, {{1, 1, 1}}),
                         event);
        const agent_counters c = p.digest();
        EXPECT_EQ(c.chunks_different, ++different) << i.create.image_type;
        expect_same_image(i);
    }
    EXPECT_EQ(p.digest().chunks_different, different);
}

TEST(sync_agent, AQueueThatIsMadeWhileTheGuestIsHeldIsHeldToo) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:*,do=delay:20"; // the last round's reads take long
    executing_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    p.mirror->start_sync();
    std::uint32_t value = 0;
    while (!p.is_synced() && p.failed_why().empty()) {
        const auto fresh = p.queue(g.context);
        const auto event = p.new_id();
        g.add(p, fresh, buffer, buffer, ++value, 1024, event);
        // Once synced the launch is in the log: it must run on what was there before it, on both sides. The
        // next one is on another queue, and only this wait orders the two.
        EXPECT_EQ(p.complete(event), 0);
        if (!p.is_synced())
            p.ok(stream_builder().destroy(VGPU_OBJECT_QUEUE, fresh));
    }
    ASSERT_EQ(p.failed_why(), "");
    for (int i = 0; i < 3; ++i) {
        const auto fresh = p.queue(g.context), event = p.new_id();
        g.add(p, fresh, buffer, buffer, ++value, 1024, event);
        EXPECT_EQ(p.complete(event), 0);
    }
    expect_same(p, g.in_order, buffer, 4096);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

// Nothing but the program, which waits, puts its commands on different queues in an order.
TEST(sync_agent, WhatTheHostWaitedForHasRunOnTheStandbyToo) {
    executing_pair p;
    p.attach();
    const guest_program g(p);
    const auto slow = p.kernel(g.context, R"(
kernel void slow(global uint* to, uint value) {
    size_t i = get_global_id(0);
    uint x = to[i] * 5 + value;
    for (int n = 0; n < 2000000; ++n)
        x = x * 1664525 + 1013904223;
    to[i] = x;
})",
                               "slow");
    const auto other_queue = p.queue(g.context);
    constexpr std::uint64_t count = 4;
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    for (std::uint32_t round = 0; round < 6; ++round) {
        // Between two in-order queues; after and before a command of a queue without an order; through a user
        // event that is set because the slow command is over.
        const std::uint64_t first = round % 3 == 1 ? g.any_order : g.in_order;
        const std::uint64_t second = round % 3 == 2 ? g.any_order : other_queue;
        const auto done = p.new_id(), gate = p.new_id(), after = p.new_id();
        if (round >= 3) {
            p.ok(stream_builder().create_user_event(gate, g.context));
            codec::launch_size one;
            one.global[0] = count;
            p.ok(stream_builder().launch(
                {second, after, {gate}}, g.kernel, one,
                argument_builder().memory(0, buffer).memory(1, buffer).scalar(2, round)));
        }
        codec::launch_size size;
        size.global[0] = count;
        p.ok(stream_builder().launch({first, done}, slow, size,
                                     argument_builder().memory(0, buffer).scalar(1, round)));
        EXPECT_EQ(p.complete(done), 0);
        p.ok(stream_builder().destroy(VGPU_OBJECT_EVENT, done));
        if (round >= 3)
            p.ok(stream_builder().set_user_event(gate, 0));
        else
            g.add(p, second, buffer, buffer, round, count, after);
        EXPECT_EQ(p.complete(after), 0);
    }
    expect_same(p, g.in_order, buffer, 4096);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

} // namespace
} // namespace kagemusha::mirror::testing
