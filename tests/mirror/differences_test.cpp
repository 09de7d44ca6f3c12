// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels that give something else on each host, and a primary that dies: what the guest was told of their
// results is what the survivor goes on from (differences = ship), at whatever moment the checkpoint falls.
//
// The kernel adds the address of its memory, which no two workers have alike. Each step begins with the
// result of the step before it; so from two results that the guest was told one after the other follows the
// address that the kernel saw. All steps of one host give one address, unless a step began with something
// else than the guest was told before.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <utility>

#include "tests/support/protected_guest.hpp"

namespace kagemusha::test {
namespace {

constexpr const char* source = R"(
    kernel void proceed(global ulong* state, ulong add) {
        size_t i = get_global_id(0);
        state[i] = state[i] * 6364136223846793005UL + (ulong)state + add;
    })";
constexpr const char* follow_source = R"(
    kernel void follow(global const ulong* state, global ulong* sums) {
        size_t i = get_global_id(0);
        sums[i] = sums[i] * 6364136223846793005UL + state[i];
    })";
constexpr const char* slow_source = R"(
    kernel void slow(global uint* to) {
        uint x = to[0];
        for (uint n = 0; n < 300000000; ++n)
            x = x * 1664525 + n;
        to[0] = x;
    })";
constexpr std::uint64_t factor = 6364136223846793005u;
constexpr std::uint64_t count = 512, bytes = count * 8, slots = 64;
constexpr std::uint64_t slots_at = 1 << 20;

// A program of the guest's, with up to `depth` steps in flight. How the steps lie in requests is random: a
// launch and its read in one request, in two, and several steps in one.
struct program {
    explicit program(unsigned steps_in_flight, bool with_sums = false)
        : depth(steps_in_flight), has_sums(with_sums) {}

    unsigned depth;
    // Another kernel, which gives the same each time, makes sums of the states, and only those are read.
    bool has_sums;
    std::uint64_t context = 0, queue = 0, state = 0, kernel = 0, sums = 0, follow = 0;
    std::uint32_t begun = 0, checked = 0;
    std::array<std::uint64_t, slots> read_events{};
    std::array<std::uint64_t, count> told{};         // the state after the step before `checked`
    std::array<std::uint64_t, count> sum_reported{}; // and the sum
    std::set<std::uint64_t> addresses;

    void begin(guest& g) {
        context = g.context();
        queue = g.queue(context);
        state = g.buffer(context, bytes);
        kernel = g.kernel(context, source, "proceed");
        std::memset(g.memory(), 0, bytes);
        g.write(queue, state, 0, bytes);
        if (has_sums) {
            sums = g.buffer(context, bytes);
            follow = g.kernel(context, follow_source, "follow");
            g.write(queue, sums, 0, bytes);
        }
    }
    void add_launch(codec::stream_builder& b, std::uint32_t step) const {
        codec::launch_size size;
        size.global[0] = count;
        b.launch({queue}, kernel, size,
                 codec::argument_builder{}.memory(0, state).scalar(1, std::uint64_t{step} * 977));
        if (has_sums)
            b.launch({queue}, follow, size, codec::argument_builder{}.memory(0, state).memory(1, sums));
    }
    void add_read(guest& g, codec::stream_builder& b, std::uint32_t step) {
        read_events[step % slots] = g.new_id();
        b.read_buffer({queue, read_events[step % slots], {}}, has_sums ? sums : state, 0,
                      b.payload(true, 0, slots_at + step % slots * bytes, bytes));
    }
    void submit_some(guest& g, std::mt19937& random) {
        codec::stream_builder b;
        const unsigned steps = 1 + random() % std::min(depth - (begun - checked), 3u);
        for (unsigned i = 0; i < steps; ++i) {
            add_launch(b, begun);
            if (random() % 3 == 0) {
                g.submit(b);
                b = {};
            }
            add_read(g, b, begun++);
        }
        g.submit(b);
    }
    void check(guest& g) {
        const std::uint32_t n = checked++;
        std::array<std::uint64_t, count> now;
        std::memcpy(now.data(), g.memory(slots_at + n % slots * bytes), bytes);
        for (std::uint64_t i = 0; has_sums && i < count; ++i)
            now[i] -= std::exchange(sum_reported[i], now[i]) * factor; // the state that was added to the sum
        for (std::uint64_t i = 0; i < count; ++i)
            addresses.insert(now[i] - told[i] * factor - std::uint64_t{n} * 977);
        told = now;
        codec::stream_builder b;
        b.destroy(VGPU_OBJECT_EVENT, read_events[n % slots]);
        g.submit(b);
    }
    void run(guest& g, std::mt19937& random) {
        while (checked < begun && g.completed(read_events[checked % slots]))
            check(g);
        if (begun - checked < depth && random() % 2 == 0)
            submit_some(g, random);
        host::pump();
    }
    void finish(guest& g, std::mt19937& random, std::uint32_t steps) {
        while (checked < steps && !testing::Test::HasFailure()) {
            if (begun == checked)
                submit_some(g, random);
            host::wait([&] { return g.completed(read_events[checked % slots]); }, "a step");
            check(g);
        }
    }
};

class differences : public testing::Test, protected protected_guest {
protected:
    differences() : protected_guest({"pocl", "opencl", "", false, true}, 4u << 20, 0, 64 << 20) {}

    // Addresses that the kernels of `deaths` + 1 hosts seemed to see.
    std::size_t addresses_seen(unsigned seed, unsigned depth, unsigned deaths, bool with_sums = false) {
        std::mt19937 random(seed);
        start();
        program p(depth, with_sums), at_last = p;
        p.begin(*primary);
        for (unsigned death = 0; death < deaths && !HasFailure(); ++death) {
            taken = 0;
            const unsigned checkpoints = 2 + random() % 4;
            while (taken < checkpoints && !HasFailure()) {
                for (unsigned i = random() % 20; i != 0; --i)
                    run(p, random);
                take_next();
                at_last = p;
            }
            for (unsigned i = random() % 12; i != 0; --i) // is taken back
                p.run(*primary, random);
            fail_over();
            p = at_last;
            p.finish(*primary, random, p.begun + 3);
            if (death + 1 < deaths) {
                add_standby();
                while (!primary->is(KAGEMUSHA_REPLICATION_PROTECTING) && !HasFailure())
                    p.run(*primary, random);
                protect();
            }
        }
        host::wait([this] { return primary->open_requests() == 0; }, "every answer");
        EXPECT_EQ(primary->stats().workers_lost, 0u);
        return p.addresses.size();
    }

private:
    void run(program& p, std::mt19937& random) {
        if (!kagemusha_device_congested(primary->device()))
            p.run(*primary, random);
        else
            host::pump();
    }
};

TEST_F(differences, what_the_guest_was_told_of_is_what_the_survivor_goes_on_from) {
    protected_guest::differences = KAGEMUSHA_DIFFERENCES_SHIP;
    for (const unsigned depth : {1u, 2u, 6u})
        for (unsigned seed = 1; seed <= 3 && !HasFailure(); ++seed)
            EXPECT_LE(addresses_seen(seed, depth, 1), 2u) << "seed " << seed << ", depth " << depth;
}

// The checkpoint falls between a read of a request and its answer, which waits for a slow kernel.
TEST_F(differences, nothing_is_told_of_a_request_that_has_no_answer) {
    protected_guest::differences = KAGEMUSHA_DIFFERENCES_SHIP;
    start();
    program p(8);
    p.begin(*primary);
    const std::uint64_t slow = primary->kernel(p.context, slow_source, "slow");
    const std::uint64_t other = primary->buffer(p.context, 4);
    take_next();
    codec::stream_builder b;
    p.add_launch(b, 0);
    p.add_read(*primary, b, 0);
    codec::launch_size one;
    one.global[0] = 1;
    b.launch({p.queue}, slow, one, codec::argument_builder{}.memory(0, other));
    p.add_launch(b, 1);
    p.add_read(*primary, b, 1);
    p.begun = 2;
    primary->submit(b);
    host::wait([&] { return primary->completed(p.read_events[0]); }, "the first read");
    p.check(*primary);
    take_next();
    const program at_last = p;
    fail_over();
    p = at_last;
    std::mt19937 random(1);
    p.finish(*primary, random, 5);
    EXPECT_LE(p.addresses.size(), 2u);
}

TEST_F(differences, survivors_of_survivors_go_on_from_it_too) {
    protected_guest::differences = KAGEMUSHA_DIFFERENCES_SHIP;
    EXPECT_LE(addresses_seen(11, 3, 3), 4u);
}

TEST_F(differences, named_kernels_are_shipped_from_their_first_launch_on) {
    ship_kernels = "another,proceed";
    for (unsigned seed = 21; seed <= 24 && !HasFailure(); ++seed)
        EXPECT_LE(addresses_seen(seed, seed % 2 != 0 ? 1 : 6, 1), 2u) << "seed " << seed;
    EXPECT_LE(addresses_seen(31, 3, 3), 4u);
}

TEST_F(differences, what_other_kernels_made_of_a_named_ones_results_is_shipped_too) {
    ship_kernels = "proceed";
    for (unsigned seed = 41; seed <= 44 && !HasFailure(); ++seed)
        EXPECT_LE(addresses_seen(seed, seed % 2 != 0 ? 1 : 6, 1, true), 2u) << "seed " << seed;
}

// Shipping begins while a request is open that has nothing to do with it. What is shipped behind that one is
// worth nothing to a survivor, so nothing behind it may be told before it is answered.
TEST_F(differences, what_is_open_when_shipping_begins_is_answered_first) {
    ship_kernels = "proceed";
    start();
    program p(8);
    p.begin(*primary);
    const std::uint64_t slow = primary->kernel(p.context, slow_source, "slow");
    const std::uint64_t other = primary->buffer(p.context, 4), other_queue = primary->queue(p.context);
    take_next();
    codec::stream_builder b;
    codec::launch_size one;
    one.global[0] = 1;
    b.launch({other_queue}, slow, one, codec::argument_builder{}.memory(0, other));
    b.read_buffer({other_queue}, other, 0, b.payload(true, 0, slots_at - 64, 4));
    primary->submit(b);
    std::mt19937 random(1);
    p.finish(*primary, random, 2);
    take_next();
    const program at_last = p;
    fail_over();
    p = at_last;
    p.finish(*primary, random, 5);
    EXPECT_LE(p.addresses.size(), 2u);
}

// Why there is no policy that holds the guest's output until both GPUs agree (docs/spec/replication.md,
// section 7). The standby executes nothing before the checkpoint that has it, and from then on the guest in
// that checkpoint, which has read the primary's result, is the only one there is. Nobody else has heard of
// it, and yet the survivor's guest and its GPU contradict each other.
TEST_F(differences, holding_the_guests_output_does_not_help_a_guest_that_has_read) {
    const auto status_of = [](const guest& g) {
        kagemusha_replication_status s{};
        s.struct_bytes = sizeof s;
        kagemusha_device_get_replication_status(g.device(), &s);
        return s;
    };
    start();
    program p(1);
    p.begin(*primary);
    take_next();
    host::wait([&] { return status_of(*standby).executed == status_of(*primary).appended; }, "the standby");
    codec::stream_builder b;
    p.add_launch(b, p.begun);
    p.add_read(*primary, b, p.begun++);
    primary->submit(b);
    host::wait([&] { return primary->completed(p.read_events[0]); }, "the read");
    host::wait([&] { return status_of(*standby).received == status_of(*primary).appended; }, "the log");
    EXPECT_LT(status_of(*standby).executed, status_of(*primary).appended) << "before its checkpoint";
    take_next();
    fail_over();
    EXPECT_TRUE(primary->completed(p.read_events[0])) << "the guest knows";
    std::array<std::uint64_t, count> read, now;
    std::memcpy(read.data(), primary->memory(slots_at), bytes);
    primary->read(p.queue, p.state, slots_at + bytes, bytes);
    std::memcpy(now.data(), primary->memory(slots_at + bytes), bytes);
    EXPECT_NE(read, now);
}

// Else the tests above could not fail. The first few seeds show it, more of them where others have the processors:
// eight were once not enough.
TEST_F(differences, without_shipping_the_survivor_goes_on_from_something_else) {
    bool differs = false;
    for (unsigned seed = 1; seed <= 40 && !differs && !HasFailure(); ++seed)
        differs = addresses_seen(seed, 2, 1) > 2;
    EXPECT_TRUE(differs);
}

} // namespace
} // namespace kagemusha::test
