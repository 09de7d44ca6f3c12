// SPDX-License-Identifier: GPL-2.0-or-later
// The agent between two real executors: what the standby's GPU holds is compared with what the primary's
// holds. KAGEMUSHA_TEST_GPU chooses the OpenCL device.
#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "tests/support/executing_pair.hpp"

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
    explicit guest_program(executing_pair& p)
        : context(p.context())
        , in_order(p.queue(context))
        , any_order(p.queue(context, out_of_order))
        , kernel(p.kernel(context, add_source, "add")) {}
    std::uint64_t context, in_order, any_order, kernel;

    void add(executing_pair& p, std::uint64_t queue, std::uint64_t to, std::uint64_t from,
             std::uint32_t value, std::uint64_t count, std::uint64_t event = 0) const {
        codec::launch_size size;
        size.global[0] = count;
        p.ok(stream_builder().launch({queue, event}, kernel, size,
                                     argument_builder().memory(0, to).memory(1, from).scalar(2, value)));
    }
};

void expect_same(executing_pair& p, std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
    p.finish(queue);
    EXPECT_TRUE(p.on_primary(queue, buffer, bytes) == p.on_standby(queue, buffer, bytes)) << buffer;
}

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

TEST(sync_agent, ReadsThatFailAreRepeated) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:1,do=error:-5,on=read:3,do=error:-5";
    o.agent.content_chunk_bytes = 64 << 10;
    executing_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, mib);
    p.fill(g.in_order, buffer, 0, mib, 1);
    p.attach();
    expect_same(p, g.in_order, buffer, mib);
}

TEST(sync_agent, ReadsThatNeverSucceedEndTheTransferWithASentence) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:*,do=error:-5";
    executing_pair p(o);
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 1000);
    p.fill(g.in_order, buffer, 0, 1000, 1);
    p.mirror->start_sync();
    p.wait([&] { return !p.failed_why().empty(); });
    EXPECT_EQ(p.failed_why(),
              "the content of a memory object of 1000 bytes could not be read (OpenCL error -5)");
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    p.finish(g.in_order); // the guest goes on
}

// A GPU that makes no more objects from the n-th on (PoCL's device without threads has no user events at
// all): whatever the agent lacks, it ends with a sentence, or both sides are compared.
TEST(sync_agent, WithoutTheObjectsThatItNeedsItEndsWithASentence) {
    std::set<std::string> why;
    bool compared = false;
    for (int first = 4; !compared && first < 50; ++first) { // the guest makes three
        pair_options o;
        o.backend = "faulty";
        o.options = "backend=opencl,on=create:" + std::to_string(first) + "+,do=error:-5";
        executing_pair p(o);
        const auto context = p.context(), queue = p.queue(context), buffer = p.buffer(context, 4096);
        p.fill(queue, buffer, 0, 4096, 1);
        p.mirror->start_sync();
        p.wait([&] { return p.is_synced() || !p.failed_why().empty(); });
        if (p.failed_why().empty()) {
            p.mirror->request_digest(true);
            p.wait([&] { return p.mirror->counters().digests != 0 || !p.failed_why().empty(); });
        }
        compared = p.failed_why().empty() && p.mirror->counters().chunks_compared != 0;
        why.insert(p.failed_why());
        p.finish(queue); // the guest goes on
    }
    EXPECT_TRUE(compared);
    EXPECT_TRUE(why.contains("the guest's queues could not be held for a comparison"));
}

TEST(sync_agent, AUserEventHoldsTheLastRoundUpAndSaysSo) {
    executing_pair p;
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096), gate = p.new_id(), late = p.new_id();
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
    EXPECT_FALSE(p.is_synced());
    p.ok(stream_builder().set_user_event(gate, 0));
    p.wait([&] { return p.is_synced(); });
    EXPECT_EQ(p.complete(late), 0);
    expect_same(p, g.in_order, buffer, 4096);
}

TEST(sync_agent, WithoutKernelsContentIsReadAndHashedOnTheHost) {
    pair_options o;
    o.backend = o.standby_backend = "null";
    o.options = o.standby_options = "memory=1";
    o.agent.digest_chunk_bytes = 64 << 10;
    executing_pair p(o);
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

TEST(sync_agent, StoppedAtAnyStepItLeavesNothingBehindAndCanBeginAgain) {
    for (const int steps : {0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 40}) {
        pair_options o;
        o.agent.content_chunk_bytes = 32 << 10;
        executing_pair p(o);
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

// ---- less common ways

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

TEST(sync_agent, CommandsThatFailAreNoneOfTheAgentsBusiness) {
    executing_pair p;
    const guest_program g(p);
    const auto buffer = p.buffer(g.context, 4096);
    p.fill(g.in_order, buffer, 0, 4096, 1);
    p.attach();
    const std::uint8_t one = 1;
    for (int round = 0; round < 3; ++round) {
        for (const auto queue : {g.in_order, g.any_order}) {
            const auto gate = p.new_id(), failed = p.new_id();
            p.ok(stream_builder().create_user_event(gate, g.context));
            p.ok(stream_builder().fill_buffer({queue, failed, {gate}}, buffer, 0, 64,
                                              std::as_bytes(std::span(&one, 1))));
            p.ok(stream_builder().set_user_event(gate, -7));
            EXPECT_LT(p.complete(failed), 0);
        }
        p.corrupt(g.in_order, buffer, 1000, static_cast<std::uint8_t>(0x40 + round));
        p.digest();
        EXPECT_EQ(p.digest().chunks_repaired, static_cast<std::uint64_t>(round) + 1);
        expect_same(p, g.in_order, buffer, 4096);
    }
}

TEST(sync_agent, ObjectsThatEndMeanwhileAreLeftOut) {
    pair_options o;
    o.backend = "faulty";
    o.options = "backend=opencl,on=read:*,do=delay:2";
    o.agent.content_chunk_bytes = 16 << 10;
    o.agent.max_reads_in_flight = 2;
    executing_pair p(o);
    const guest_program g(p);
    const auto kept = p.buffer(g.context, 256 << 10);
    p.fill(g.in_order, kept, 0, 256 << 10, 1);
    std::vector<std::uint64_t> buffers;
    for (int i = 0; i < 8; ++i) {
        buffers.push_back(p.buffer(g.context, 64 << 10));
        p.fill(g.in_order, buffers.back(), 0, 64 << 10, 2);
    }
    const guest_program other(p); // another context, which goes as well
    const auto there = p.buffer(other.context, 64 << 10);
    p.fill(other.in_order, there, 0, 64 << 10, 3);
    p.mirror->start_sync();
    for (const auto buffer : buffers) {
        p.step();
        p.ok(stream_builder().destroy(VGPU_OBJECT_MEMORY, buffer));
    }
    p.ok(stream_builder().destroy(VGPU_OBJECT_MEMORY, there));
    for (const auto queue : {other.in_order, other.any_order})
        p.ok(stream_builder().destroy(VGPU_OBJECT_QUEUE, queue));
    p.ok(stream_builder().destroy(VGPU_OBJECT_KERNEL, other.kernel));
    p.ok(stream_builder().destroy(VGPU_OBJECT_CONTEXT, other.context));
    p.wait([&] { return p.is_synced() || !p.failed_why().empty(); });
    EXPECT_EQ(p.failed_why(), "");
    expect_same(p, g.in_order, kept, 256 << 10);
    EXPECT_EQ(p.digest().chunks_different, 0u);
}

TEST(sync_agent, ALostFileIsOver) {
    for (const char* when :
         {"on=read:1,do=lost", "on=read:4,do=lost", "on=sync:3,do=lost", "on=launch:1,do=lost"}) {
        pair_options o;
        o.backend = "faulty";
        o.options = std::string("backend=opencl,") + when;
        o.agent.content_chunk_bytes = 16 << 10;
        executing_pair p(o);
        const guest_program g(p);
        const auto buffer = p.buffer(g.context, 128 << 10);
        p.fill(g.in_order, buffer, 0, 128 << 10, 1);
        p.mirror->start_sync();
        p.wait([&] { return p.is_synced() || !p.failed_why().empty() || !p.primary.failures.empty(); });
        for (int i = 0; i < 100 && p.primary.failures.empty(); ++i) {
            p.mirror->request_digest(true);
            p.step();
        }
        p.wait([&] { return !p.primary.failures.empty(); });
        EXPECT_EQ(p.primary.failures, std::vector<std::string>{"the file was lost"}) << when;
        EXPECT_EQ(p.failed_why(), "") << when;
        p.wait([&] { return p.memory.blocks() == 0; });
    }
}

} // namespace
} // namespace kagemusha::mirror::testing
