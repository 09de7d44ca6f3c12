// SPDX-License-Identifier: GPL-2.0-or-later
// A guest and its checkpoints on two devices: the first one dies at some moment, the guest goes on with the
// second one from the last checkpoint, and its program, which keeps several commands in flight, ends with the
// results of a run without a failure. Each request is answered once, each completion told once (guest.cpp).
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <random>

#include "codec/cl_numbers.hpp"
#include "tests/support/protected_guest.hpp"

namespace kagemusha::test {
namespace {

const backend_case cases[] = {
    {"null", "null", "memory=1", true, false},
    {"pocl", "opencl", "", false, true},
};

constexpr const char* source = R"(
    kernel void proceed(global uint* state, uint add) {
        size_t i = get_global_id(0);
        state[i] = state[i] * 1664525u + add;
    })";

constexpr std::uint64_t count = 4096, bytes = count * 4;
constexpr std::uint32_t depth = 6; // steps in flight
constexpr std::uint32_t steps_per_queue = 15;
constexpr std::uint64_t slots_at = 1 << 20, inputs_at = 2 << 20;

// What the programs have on the GPU.
struct objects {
    std::uint64_t context = 0, queues[2] = {}, state = 0, kernel = 0;

    void begin(guest& g, bool executes) {
        context = g.context();
        for (std::uint64_t& queue : queues)
            queue = g.queue(context);
        state = g.buffer(context, bytes);
        if (executes)
            kernel = g.kernel(context, source, "proceed");
        std::memset(g.memory(), 0, bytes);
        g.write(queues[0], state, 0, bytes);
    }
};

// A program of the guest's. Each step writes an input, changes a state on the GPU and reads it back; results
// are checked in order. After some steps it waits for all of them and goes on with another queue: nothing but
// this wait orders the commands of the two. What it remembers is here, as a program's memory is.
struct program : objects {
    std::uint64_t input = 0;
    std::uint32_t begun = 0, checked = 0;
    struct flight {
        std::uint64_t read_event = 0, step_event = 0;
    };
    std::vector<flight> flights = std::vector<flight>(depth);
    std::uint32_t expected_state = 0;

    void begin(guest& g, bool executes) {
        objects::begin(g, executes);
        input = g.buffer(context, bytes);
    }
    bool may_begin() const {
        return begun - checked < depth && (begun % steps_per_queue != 0 || begun == checked);
    }
    static std::uint32_t input_of(std::uint32_t step) { return step * 2654435761u + 1; }

    // One step in one request, or in two.
    void step(guest& g) {
        const std::uint32_t n = begun++;
        const std::uint32_t slot = n % depth;
        const std::uint64_t queue = queues[n / steps_per_queue % 2];
        auto* in = g.memory_as<std::uint32_t>(inputs_at + slot * bytes);
        std::fill(in, in + count, input_of(n));
        flights[slot] = {g.new_id(), g.new_id()};
        codec::stream_builder b;
        b.write_buffer({queue, 0, {}}, input, 0, b.payload(false, 0, inputs_at + slot * bytes, bytes));
        if (kernel != 0) {
            codec::launch_size size;
            size.global[0] = count;
            b.launch({queue, flights[slot].step_event, {}}, kernel, size,
                     codec::argument_builder{}.memory(0, state).scalar(1, input_of(n)));
        } else {
            b.copy_buffer({queue, flights[slot].step_event, {}}, input, state, 0, 0, bytes);
        }
        if (n % 3 == 0) { // its own request
            g.submit(b);
            b = {};
        }
        b.read_buffer({queue, flights[slot].read_event, {}}, state, 0,
                      b.payload(true, 0, slots_at + slot * bytes, bytes));
        g.submit(b);
    }
    bool next_is_complete(const guest& g) const {
        return checked < begun && g.completed(flights[checked % depth].read_event);
    }
    void check(guest& g) {
        const std::uint32_t n = checked++;
        const std::uint32_t slot = n % depth;
        expected_state = kernel != 0 ? expected_state * 1664525u + input_of(n) : input_of(n);
        const auto* out = g.memory_as<std::uint32_t>(slots_at + slot * bytes);
        for (const std::uint64_t i : {std::uint64_t{0}, count / 2, count - 1})
            ASSERT_EQ(out[i], expected_state) << "step " << n << ", word " << i;
        // Both are the guest's again.
        std::memset(g.memory(slots_at + slot * bytes), 0xee, bytes);
        std::memset(g.memory(inputs_at + slot * bytes), 0xdd, bytes);
        g.complete(flights[slot].step_event);
        codec::stream_builder b;
        b.destroy(VGPU_OBJECT_EVENT, flights[slot].read_event);
        b.destroy(VGPU_OBJECT_EVENT, flights[slot].step_event);
        g.submit(b);
    }
    // Some progress.
    void run(guest& g) {
        while (next_is_complete(g))
            check(g);
        if (may_begin())
            step(g);
        host::pump();
    }
    void finish(guest& g, std::uint32_t steps) {
        while (checked < steps && !testing::Test::HasFailure()) {
            if (begun < steps && may_begin()) {
                step(g);
            } else {
                host::wait([&] { return next_is_complete(g); }, "a step");
                check(g);
            }
        }
    }
};

class takeover : public testing::TestWithParam<backend_case>, protected protected_guest {
protected:
    takeover() : protected_guest(GetParam(), 4u << 20) {}

    // With checkpoints nothing else makes room. Between two steps, because a program does not know half of
    // one.
    void run(program& p) {
        if (kagemusha_device_congested(primary->device()))
            take_next(p);
        p.run(*primary);
    }
    bool take(const program& p) {
        const bool good = protected_guest::take();
        if (good)
            program_at_last_ = p;
        return good;
    }
    void take_next(const program& p) {
        protected_guest::take_next();
        program_at_last_ = p;
    }
    // The guest's program goes on from the last checkpoint.
    void fail_over(program& p) {
        protected_guest::fail_over();
        p = program_at_last_;
    }

private:
    program program_at_last_;
};

TEST_P(takeover, a_program_goes_on_from_the_last_checkpoint) {
    for (const unsigned seed : {1u, 2u, 3u, 4u}) {
        std::mt19937 random(seed);
        start();
        program p;
        p.begin(*primary, GetParam().executes);
        taken = 0;
        const unsigned checkpoints = 2 + random() % 6;
        std::size_t open = 0;
        while (taken < checkpoints && !HasFailure()) {
            for (unsigned i = random() % 12; i != 0; --i) {
                run(p);
                if (random() % 4 == 0)
                    primary->send_ahead();
            }
            take_next(p);
            open = last.open.size();
        }
        for (unsigned i = random() % 12; i != 0; --i) // is taken back
            p.run(*primary);
        RecordProperty("open_requests_" + std::to_string(seed), static_cast<int>(open));
        fail_over(p);
        p.finish(*primary, p.begun + 20);
        host::wait([this] { return primary->open_requests() == 0; }, "every answer");
        const auto status = primary->status();
        EXPECT_EQ(status.takeovers, 1u);
        EXPECT_GT(status.committed_at_ns, 0u);
        EXPECT_GE(status.took_over_at_ns, status.committed_at_ns);
        EXPECT_GE(status.first_completion_at_ns, status.took_over_at_ns);
        EXPECT_EQ(primary->stats().workers_lost, 0u);
        primary.reset();
        standby.reset();
    }
}

// A program that enqueues many small commands, each behind the one before it and on the other one of two queues,
// and lets go of their events when the last one is over.
struct many_commands : objects {
    static constexpr std::uint32_t length = 24;
    std::uint64_t read_event = 0;
    std::uint64_t events[length] = {};
    std::uint32_t begun = 0; // of this round
    std::uint32_t value = 0, expected = 0, rounds = 0;

    void run(guest& g) {
        if (begun < length)
            return enqueue(g);
        if (read_event == 0) {
            read_event = g.new_id();
            codec::stream_builder b;
            b.read_buffer({queues[(length - 1) % 2], read_event, {}}, state, 0,
                          b.payload(true, 0, slots_at, bytes));
            g.submit(b);
        }
        if (g.completed(read_event))
            end_round(g);
    }
    void enqueue(guest& g) {
        const std::uint32_t i = begun++;
        events[i] = g.new_id();
        codec::stream_builder b;
        codec::enqueue_ref e{queues[i % 2], events[i], {}};
        if (i != 0)
            e.waits.push_back(events[i - 1]);
        ++value;
        if (kernel != 0) {
            codec::launch_size size;
            size.global[0] = count;
            b.launch(e, kernel, size, codec::argument_builder{}.memory(0, state).scalar(1, value));
            expected = expected * 1664525u + value;
        } else {
            b.fill_buffer(e, state, 0, bytes, std::as_bytes(std::span(&value, 1)));
            expected = value;
        }
        g.submit(b);
    }
    void end_round(guest& g) {
        const auto* out = g.memory_as<std::uint32_t>(slots_at);
        for (const std::uint64_t i : {std::uint64_t{0}, count - 1})
            ASSERT_EQ(out[i], expected) << "round " << rounds << ", word " << i;
        codec::stream_builder b;
        for (const std::uint64_t event : events)
            b.destroy(VGPU_OBJECT_EVENT, event);
        b.destroy(VGPU_OBJECT_EVENT, read_event);
        g.submit(b);
        read_event = 0;
        begun = 0;
        ++rounds;
    }
};

TEST_P(takeover, chain_of_many_commands) {
    std::mt19937 random(3);
    start();
    many_commands p, at_last;
    p.begin(*primary, GetParam().executes);
    const auto some = [&](unsigned most) {
        for (unsigned i = random() % most; i != 0; --i) {
            p.run(*primary);
            if (random() % 4 == 0)
                host::pump();
        }
    };
    for (int lives = 0; lives < 6 && !HasFailure(); ++lives) {
        for (unsigned i = 1 + random() % 4; i != 0 && !HasFailure(); --i) {
            some(40);
            protected_guest::take_next();
            at_last = p;
        }
        some(20); // is taken back
        protected_guest::fail_over();
        p = at_last;
        some(40);
        add_standby();
        while (!primary->is(KAGEMUSHA_REPLICATION_PROTECTING) && !HasFailure())
            some(2);
        protect();
    }
    while (p.rounds < 3 && !HasFailure()) {
        some(40);
        protected_guest::take_next();
    }
}

// A GPU that is slower than the one before: the guest knows that a command is over which still runs here, also when
// this VM gets a standby and dies, too.
TEST_P(takeover, what_the_guest_knows_is_told_by_no_survivor) {
    if (!GetParam().executes)
        GTEST_SKIP() << "commands take no time there";
    start();
    const std::uint64_t context = primary->context(), queue = primary->queue(context);
    const std::uint64_t slow = primary->kernel(context, R"(
        kernel void slow(uint times) {
            volatile uint x = 0;
            for (uint i = 0; i < times; i++)
                x = x * 1664525u + i;
        })",
                                               "slow");
    const std::uint64_t event = primary->new_id();
    codec::stream_builder b;
    b.launch({queue, event, {}}, slow, {}, codec::argument_builder{}.scalar(0, std::uint32_t{600'000'000}));
    primary->submit(b);
    ASSERT_EQ(primary->complete(event), 0);
    protected_guest::take_next(); // the standby begins with it
    for (int lives = 0; lives < 2; ++lives) {
        protected_guest::fail_over();
        add_standby();
        protect();
        protected_guest::take_next();
    }
    primary->finish(queue); // the guest is told each thing once (guest.cpp)
}

// Each survivor gets a new standby while the program runs, and dies.
TEST_P(takeover, chain) {
    std::mt19937 random(7);
    start();
    program p;
    p.begin(*primary, GetParam().executes);
    for (int n = 0; n < 3 && !HasFailure(); ++n) {
        taken = 0;
        while (taken < 3 && !HasFailure()) {
            for (unsigned i = random() % 8; i != 0; --i)
                run(p);
            take_next(p);
        }
        fail_over(p);
        add_standby();
        while (!primary->is(KAGEMUSHA_REPLICATION_PROTECTING) && !HasFailure())
            p.run(*primary); // a state transfer does not stop it
        protect();
    }
    p.finish(*primary, p.begun + 20);
    ASSERT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
    while (primary->status().digests_compared == 0 && !HasFailure()) {
        host::pump();
        take(p); // what is compared belongs to an epoch, too
    }
    EXPECT_EQ(primary->status().digests_different, 0u);
}

// The next standby of that host may have the same address, while this VM runs.
TEST_P(takeover, leaves_its_address_to_the_next_standby) {
    start();
    program p;
    p.begin(*primary, GetParam().executes);
    take_next(p);
    const std::string at = kagemusha_device_standby_address(standby->device());
    fail_over(p);
    const std::string file = at.substr(std::string("unix:").size());
    ASSERT_TRUE(host::wait([&] { return !std::filesystem::exists(file); }, "an address that nobody has"));
    add_standby(at);
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    EXPECT_TRUE(std::filesystem::exists(file));
    primary.reset(); // it had that address once, and takes it from nobody
    EXPECT_TRUE(std::filesystem::exists(file));
}

// Its VM has a state then that this copy of the GPU does not belong to: going on would be silently wrong.
TEST_P(takeover, after_a_checkpoint_that_does_not_fit_everything_is_lost) {
    start();
    program p;
    p.begin(*primary, GetParam().executes);
    ASSERT_TRUE(take(p));
    char error[512] = "";
    EXPECT_EQ(
        kagemusha_device_check_state(standby->device(), gpu.data(), gpu.size() - 1, error, sizeof error),
        -EPROTO);
    EXPECT_EQ(kagemusha_device_take_over(standby->device(), error, sizeof error), -ENODATA);
    EXPECT_NE(std::strstr(error, "does not fit"), nullptr) << error;
    const std::string at = kagemusha_device_standby_address(standby->device());
    EXPECT_TRUE(host::wait([&] { return !std::filesystem::exists(at.substr(std::string("unix:").size())); },
                           "an address that nobody has"));
    standby->use(1);
    codec::stream_builder b;
    EXPECT_EQ(standby->run(b.marker({p.queues[0], 0, {}})).status, std::uint32_t{VGPU_STATUS_LOST});
}

TEST_P(takeover, without_a_checkpoint_the_guest_is_told_that_everything_is_lost) {
    start();
    program p;
    p.begin(*primary, GetParam().executes);
    const void* state = nullptr;
    std::size_t size = 0;
    kagemusha_device_save_state(primary->device(), &state, &size);
    char error[512] = "";
    EXPECT_EQ(kagemusha_device_check_state(standby->device(), state, size, error, sizeof error), -EPROTO);
    EXPECT_NE(std::strstr(error, "nobody can go on"), nullptr) << error;
    EXPECT_EQ(kagemusha_device_take_over(standby->device(), error, sizeof error), -ENODATA);
    EXPECT_NE(std::strstr(error, "no checkpoint"), nullptr) << error;
    standby->use(1);
    codec::stream_builder b;
    EXPECT_EQ(standby->run(b.marker({p.queues[0], 0, {}})).status, std::uint32_t{VGPU_STATUS_LOST});
    EXPECT_TRUE(standby->lost());
    standby->close(1);
    standby->open(2);
    EXPECT_NE(standby->context(), 0u) << "it is a device like any other";
}

INSTANTIATE_TEST_SUITE_P(backends, takeover, testing::ValuesIn(cases),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::test
