// SPDX-License-Identifier: GPL-2.0-or-later
// What fails under the agent: reads, objects that a GPU does not make, commands of the guest, files that are lost,
// and a stop at any step.
#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "mirror/sync/sync_test_program.hpp"

namespace kagemusha::mirror::testing {
namespace {

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
