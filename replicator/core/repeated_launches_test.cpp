// SPDX-License-Identifier: GPL-2.0-or-later
// What is known of launches that repeat others changes no decision. Every stream here goes to two files, of
// which one looks at every launch; whatever they say and whatever they remember has to be the same.
#include "core/repeated_launches.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "codec/cl_numbers.hpp"
#include "core/session_fsm.hpp"
#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::file_harness;

enum : std::uint64_t {
    context = 1,
    other_context,
    queue,
    second_queue,
    other_queue,
    program,
    other_program,
    kernel,
    second_kernel,
    other_kernel,
    first_memory,
    last_memory = first_memory + 4,
    other_memory,
    sampler,
    user_event,
    unknown,
    first_event = 100,
    event_ids = 24,
};
constexpr std::uint64_t event_quota = 20;

using words = std::vector<std::uint64_t>;

const vgpu_cmd_launch& launch_at(const words& stream, std::size_t at) {
    return *reinterpret_cast<const vgpu_cmd_launch*>(&stream[at]);
}

// Which words of a launch are ids of memory objects, found the slow way.
std::set<std::size_t> memory_words(const words& stream, std::size_t at) {
    std::set<std::size_t> out;
    const vgpu_cmd_launch& c = launch_at(stream, at);
    std::size_t word = sizeof(c) / 8 + c.enqueue.wait_count;
    for (std::uint32_t i = 0; i < c.argument_count; ++i) {
        const auto& a = *reinterpret_cast<const vgpu_argument*>(&stream[at + word]);
        word += 2;
        if (a.kind == VGPU_ARGUMENT_MEMORY)
            out.insert(word);
        word += a.kind == VGPU_ARGUMENT_LOCAL ? 0 : (a.bytes + 7) / 8;
    }
    return out;
}

// The two files.
struct twins {
    file_harness one, every;
    std::uint64_t repeated = 0, runs = 0, longest = 0;

    explicit twins(const file_limits& limits = testing::generous) : one(limits), every(limits) {
        every.fsm.look_at_every_launch();
        call([](auto& b) { b.create_context(context); });
        call([](auto& b) { b.create_context(other_context); });
        call([](auto& b) { b.create_queue(queue, context); });
        call([](auto& b) { b.create_queue(second_queue, context); });
        call([](auto& b) { b.create_queue(other_queue, other_context); });
        call([](auto& b) { b.create_program(program, context, "x"); });
        call([](auto& b) { b.create_program(other_program, other_context, "x"); });
        call([](auto& b) { b.create_kernel(kernel, program, "k"); });
        call([](auto& b) { b.create_kernel(second_kernel, program, "l"); });
        call([](auto& b) { b.create_kernel(other_kernel, other_program, "k"); });
        for (std::uint64_t id = first_memory; id <= last_memory; ++id)
            call([id](auto& b) { b.create_buffer(id, context, 64); });
        call([](auto& b) { b.create_buffer(other_memory, other_context, 64); });
        call([](auto& b) { b.create_sampler(sampler, context); });
        call([](auto& b) { b.create_user_event(user_event, context); });
    }

    static auto objects(const file_harness& h) {
        std::map<guest_id, std::tuple<int, int, bool, std::int64_t, std::uint64_t, std::uint64_t>> out;
        h.fsm.objects().for_each([&](guest_id id, const object& o) {
            out[id] = {o.kind, static_cast<int>(o.event), o.destroyed, o.status, o.context, o.serial};
        });
        return out;
    }

    template <class F>
    void call(F&& build) {
        stream_builder b;
        build(b);
        ASSERT_EQ(submit(b).status, VGPU_STATUS_OK);
    }

    vgpu_response submit(const stream_builder& b) {
        words stream(b.stream().size() / 8);
        std::memcpy(stream.data(), b.stream().data(), b.stream().size());
        return submit(stream, b.completion_count());
    }
    vgpu_response submit(const words& stream, std::uint32_t completion_count) {
        kagemusha_request r{};
        r.file = 7;
        r.token = one.next_token++;
        r.stream = stream.data();
        r.stream_bytes = static_cast<std::uint32_t>(stream.size() * 8);
        r.completion_count = completion_count;
        const submit_decision a = one.fsm.on_submit(r, testing::regions);
        const submit_decision b = every.fsm.on_submit(r, testing::regions);
        EXPECT_EQ(a.what, b.what);
        EXPECT_EQ(a.response.status, b.response.status);
        EXPECT_EQ(a.response.result, b.response.result);
        EXPECT_EQ(a.response.failed_offset, b.response.failed_offset);
        EXPECT_STREQ(a.broken_rule, b.broken_rule);
        EXPECT_EQ(a.request.token, b.request.token);
        EXPECT_TRUE(std::ranges::equal(a.request.stream, b.request.stream));
        EXPECT_EQ(a.work.commands, b.work.commands);
        EXPECT_EQ(a.work.launches, b.work.launches);
        EXPECT_EQ(a.work.calls, b.work.calls);
        EXPECT_TRUE(b.repeats.empty());
        if (a.what == submit_decision::action::forward) {
            check_runs(a.request.stream.size() == stream.size() * 8, stream, a.repeats);
            one.fsm.on_done(a.request.token, testing::ok_response());
            every.fsm.on_done(b.request.token, testing::ok_response());
        } else {
            EXPECT_TRUE(a.repeats.empty());
        }
        EXPECT_EQ(one.take_records(), every.take_records());
        EXPECT_EQ(objects(one), objects(every));
        EXPECT_EQ(one.usage.objects, every.usage.objects);
        return a.response;
    }

    void complete(guest_id event) {
        const record_decision a = one.fsm.on_record(testing::completion(event));
        const record_decision b = every.fsm.on_record(testing::completion(event));
        EXPECT_STREQ(a.broken_rule, b.broken_rule);
        EXPECT_EQ(one.take_records(), every.take_records());
    }

    void check_runs(bool whole, const words& stream, launch_runs repeats) {
        EXPECT_TRUE(whole || repeats.empty()) << "something was cut out of the stream";
        std::size_t end = 0;
        for (const launch_run& run : repeats) {
            ASSERT_GE(run.at, end);
            end = run.end();
            ASSERT_LE(end, stream.size());
            ASSERT_NE(run.count, 0u);
            ASSERT_LE(run.back, run.at);
            for (std::size_t at = run.at; at < end; at += run.words) {
                ASSERT_EQ(launch_at(stream, at).cmd.bytes, run.words * 8);
                ASSERT_EQ(launch_at(stream, at).cmd.opcode, VGPU_CMD_LAUNCH);
                ASSERT_EQ(launch_at(stream, at - run.back).kernel, launch_at(stream, at).kernel);
                ASSERT_EQ(launch_at(stream, at - run.back).enqueue.queue,
                          launch_at(stream, at).enqueue.queue);
                const std::set<std::size_t> memory = memory_words(stream, at);
                EXPECT_EQ(memory, memory_words(stream, at - run.back));
                for (std::size_t w = 0; w < run.words; ++w) {
                    if (stream[at + w] != stream[at + w - run.back]) {
                        EXPECT_TRUE(run.differs.has(w));
                        EXPECT_EQ(run.objects.has(w), memory.contains(w));
                    }
                    EXPECT_TRUE(!run.objects.has(w) || memory.contains(w));
                }
            }
            repeated += run.count;
            longest = std::max<std::uint64_t>(longest, run.count);
        }
        runs += repeats.size();
    }
};

launch_size one_dimension(std::uint64_t n = 64) {
    launch_size size;
    size.global[0] = n;
    return size;
}

argument_builder arguments(std::uint64_t a = first_memory, std::uint64_t b = first_memory + 1,
                           std::uint32_t n = 0) {
    return argument_builder{}.memory(0, a).memory(1, b).scalar(2, 1.5).scalar(3, n);
}

// ---- one rule each

TEST(repeated_launches, launches_that_differ_in_a_value_are_one_run) {
    twins t;
    stream_builder b;
    for (std::uint32_t n = 0; n < 64; ++n)
        b.launch({queue, 0, {}}, kernel, one_dimension(), arguments(first_memory, last_memory, n));
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.runs, 1u);
    EXPECT_EQ(t.repeated, 63u);
}

TEST(repeated_launches, events_waits_sizes_and_memory_may_differ) {
    twins t;
    stream_builder b;
    b.launch({queue, first_event, {user_event}}, kernel, one_dimension(), arguments());
    for (std::uint64_t n = 1; n < 16; ++n) {
        b.launch({queue, first_event + n, {first_event + n - 1}}, kernel, one_dimension(n),
                 arguments(first_memory + n % 4, first_memory + n % 3));
    }
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.repeated, 15u);
    EXPECT_EQ(t.one.fsm.objects().pending_events(), 16u);
}

TEST(repeated_launches, kernels_in_turn_repeat_their_own) {
    twins t;
    stream_builder b;
    for (std::uint32_t n = 0; n < 10; ++n) {
        b.launch({queue, 0, {}}, kernel, one_dimension(), arguments(first_memory, last_memory, n));
        b.launch({second_queue, 0, {}}, kernel, one_dimension(), arguments(first_memory, last_memory, n));
        b.launch({queue, 0, {}}, second_kernel, one_dimension(), argument_builder{}.local(0, 64));
    }
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.repeated, 27u);
}

// Each is a launch, the same again, and the same with something wrong.
TEST(repeated_launches, what_is_wrong_is_found) {
    const auto status = [](const enqueue_ref& e, std::uint64_t k, const launch_size& size,
                           const argument_builder& a) {
        twins t;
        stream_builder b;
        b.launch({queue, 0, {user_event}}, kernel, one_dimension(), arguments());
        b.launch({queue, 0, {user_event}}, kernel, one_dimension(), arguments());
        b.launch(e, k, size, a);
        const vgpu_response r = t.submit(b);
        EXPECT_TRUE(r.status == VGPU_STATUS_MALFORMED || t.repeated == 0) << "nothing may be cut out";
        return r.status;
    };
    const enqueue_ref e{queue, 0, {user_event}};
    const launch_size size = one_dimension();
    EXPECT_EQ(status(e, kernel, size, arguments(unknown)), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(e, kernel, size, arguments(queue)), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(e, kernel, size, arguments(other_memory)), VGPU_STATUS_OK) << "an OpenCL error";
    EXPECT_EQ(status(e, unknown, size, arguments()), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(e, other_kernel, size, arguments()), VGPU_STATUS_OK) << "an OpenCL error";
    EXPECT_EQ(status({unknown, 0, {user_event}}, kernel, size, arguments()), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status({queue, 0, {unknown}}, kernel, size, arguments()), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status({queue, 0, {queue}}, kernel, size, arguments()), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status({queue, user_event, {user_event}}, kernel, size, arguments()), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status({queue, VGPU_HOST_ID_BIT | 1, {user_event}}, kernel, size, arguments()),
              VGPU_STATUS_MALFORMED);
    launch_size overflowing = size;
    overflowing.offset[0] = UINT64_MAX;
    EXPECT_EQ(status(e, kernel, overflowing, arguments()), VGPU_STATUS_MALFORMED);
    launch_size unused = size;
    unused.global[2] = 2;
    EXPECT_EQ(status(e, kernel, unused, arguments()), VGPU_STATUS_MALFORMED);
}

TEST(repeated_launches, padding_of_a_value_is_looked_at) {
    twins t;
    stream_builder b;
    for (std::uint32_t n = 0; n < 3; ++n)
        b.launch({queue, 0, {}}, kernel, one_dimension(), argument_builder{}.scalar(0, n));
    b.mutable_stream().back() = std::byte{1};
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_MALFORMED);
    b.mutable_stream().back() = std::byte{0};
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.repeated, 2u);
}

TEST(repeated_launches, an_object_that_is_destroyed_ends_what_was_known) {
    const auto status = [](vgpu_object_kind kind, std::uint64_t id) {
        twins t;
        stream_builder b;
        const argument_builder a =
            argument_builder{}.memory(0, first_memory).sampler(1, sampler).scalar(2, 1);
        b.launch({queue, first_event, {user_event}}, kernel, one_dimension(), a);
        b.launch({queue, first_event + 1, {user_event}}, kernel, one_dimension(), a);
        b.destroy(kind, id);
        b.launch({queue, first_event + 2, {user_event}}, kernel, one_dimension(), a);
        return t.submit(b).status;
    };
    EXPECT_EQ(status(VGPU_OBJECT_MEMORY, first_memory), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(VGPU_OBJECT_SAMPLER, sampler), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(VGPU_OBJECT_KERNEL, kernel), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(VGPU_OBJECT_QUEUE, queue), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(VGPU_OBJECT_EVENT, user_event), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status(VGPU_OBJECT_EVENT, first_event), VGPU_STATUS_OK);
    EXPECT_EQ(status(VGPU_OBJECT_MEMORY, last_memory), VGPU_STATUS_OK);
}

TEST(repeated_launches, events_that_are_released_at_once_are_no_hindrance) {
    twins t;
    stream_builder b;
    for (std::uint64_t n = 0; n < 10; ++n) {
        b.launch({queue, first_event + n, {}}, kernel, one_dimension(), arguments());
        b.destroy(VGPU_OBJECT_EVENT, first_event + n);
    }
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.repeated, 9u);
}

TEST(repeated_launches, an_event_again_is_refused) {
    twins t;
    stream_builder b;
    for (int n = 0; n < 3; ++n) {
        b.launch({queue, n == 0 ? first_event + 1 : std::uint64_t{first_event}, {}}, kernel, one_dimension(),
                 arguments());
    }
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_MALFORMED);
}

TEST(repeated_launches, a_launch_behind_a_call_is_refused) {
    twins t;
    stream_builder b;
    b.launch({queue, 0, {}}, kernel, one_dimension(), arguments());
    b.create_user_event(unknown, context);
    b.launch({queue, 0, {}}, kernel, one_dimension(), arguments());
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_MALFORMED);
}

TEST(repeated_launches, the_last_one_is_not_longer_than_the_stream) {
    twins t;
    stream_builder b;
    for (std::uint32_t n = 0; n < 3; ++n)
        b.launch({queue, 0, {}}, kernel, one_dimension(), arguments(first_memory, last_memory, n));
    words stream(b.stream().size() / 8);
    std::memcpy(stream.data(), b.stream().data(), b.stream().size());
    const std::size_t two = stream.size() / 3 * 2;
    for (std::size_t left = stream.size() - 1; left > two; --left) {
        stream.resize(left); // what is read beyond it, a sanitizer sees
        stream.shrink_to_fit();
        EXPECT_EQ(t.submit(stream, 0).status, VGPU_STATUS_MALFORMED);
    }
}

TEST(repeated_launches, quotas_of_events_hold) {
    twins t({512, 8, 1u << 18, std::uint64_t{1} << 40});
    stream_builder b;
    for (std::uint64_t n = 0; n < 12; ++n)
        b.launch({queue, first_event + n, {}}, kernel, one_dimension(), arguments());
    EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
    EXPECT_EQ(t.one.fsm.objects().pending_events(), 8u);
}

TEST(repeated_launches, long_launches_are_looked_at_one_by_one) {
    twins t;
    for (const std::uint32_t count : {37u, 38u}) {
        stream_builder b;
        for (int n = 0; n < 4; ++n) {
            argument_builder a;
            for (std::uint32_t i = 0; i < count; ++i)
                a.scalar(i, i == 36 ? n : 5);
            b.launch({queue, 0, {}}, kernel, one_dimension(), a);
        }
        EXPECT_EQ(t.submit(b).status, VGPU_STATUS_OK);
        EXPECT_EQ(t.repeated, 3u) << count;
    }
}

// ---- anything

class random_streams {
public:
    explicit random_streams(std::uint64_t seed) : random_(seed), t({512, event_quota, 60, 4096}) {}

    void step() {
        words stream;
        std::vector<std::size_t> launches; // where they begin
        bool broken = false;
        for (std::uint64_t n = 1 + below(14); n != 0; --n) {
            if (!launches.empty() && below(5) != 0) {
                const std::size_t like =
                    launches[launches.size() - 1 - below(std::min<std::size_t>(launches.size(), 3))];
                const words copy(stream.begin() + static_cast<std::ptrdiff_t>(like),
                                 stream.begin() + static_cast<std::ptrdiff_t>(
                                                      like + launch_at(stream, like).cmd.bytes / 8));
                launches.push_back(stream.size());
                stream.insert(stream.end(), copy.begin(), copy.end());
                for (std::uint64_t changes = below(4); changes != 0; --changes)
                    change(stream, launches.back());
                if (below(60) == 0) {
                    stream[launches.back() + below(copy.size())] ^= std::uint64_t{1} << below(64);
                    broken = true;
                    break;
                }
                continue;
            }
            stream_builder b;
            if (below(3) != 0) {
                launches.push_back(stream.size());
                fresh(b);
            } else {
                between(b);
            }
            append(stream, b);
        }
        std::uint32_t completions = 0;
        stream_decoder decoder(std::as_bytes(std::span(stream)), {});
        op o;
        while (decoder.next(o) == decode_status::op) {
            const vgpu_enqueue* e = enqueue_of(o);
            completions += e && e->event != 0;
        }
        ++statuses[t.submit(stream, completions).status];
        for (std::uint64_t n = below(broken ? 2 : 12); n != 0; --n) {
            if (const std::uint64_t e = first_event + below(event_ids);
                t.one.fsm.objects().pending_serial(e) != 0) {
                t.complete(e);
            }
        }
        if (below(4) == 0) { // what was destroyed comes back
            const std::uint64_t id = first_memory + below(5);
            if (!t.one.fsm.objects().taken(id))
                t.call([id](auto& b) { b.create_buffer(id, context, 64); });
            if (!t.one.fsm.objects().taken(user_event))
                t.call([](auto& b) { b.create_user_event(user_event, context); });
        }
    }

    std::map<std::uint32_t, std::uint64_t> statuses;

private:
    std::mt19937_64 random_;

public:
    twins t;

private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    std::uint64_t memory() {
        switch (below(40)) {
        case 0:
            return unknown;
        case 1:
            return 0;
        case 2:
            return other_memory;
        default:
            return first_memory + below(5);
        }
    }
    std::uint64_t event() { return first_event + below(event_ids); }
    static void append(words& stream, const stream_builder& b) {
        const std::size_t at = stream.size();
        stream.resize(at + b.stream().size() / 8);
        std::memcpy(&stream[at], b.stream().data(), b.stream().size());
    }

    void fresh(stream_builder& b) {
        enqueue_ref e{below(3) ? std::uint64_t{queue} : second_queue, below(3) ? 0 : event(), {}};
        for (std::uint64_t n = below(8) ? 0 : 1 + below(2); n != 0; --n)
            e.waits.push_back(below(2) ? std::uint64_t{user_event} : event());
        argument_builder a;
        a.memory(0, memory()).scalar(1, below(100)).scalar(2, static_cast<std::uint32_t>(below(100)));
        std::uint32_t i = 3;
        if (below(3) == 0)
            a.memory(i++, memory());
        if (below(6) == 0) {
            a.sampler(i, sampler).local(i + 1, 64);
            i += 2;
        }
        if (below(10) == 0)
            for (const std::uint32_t end = i + 33; i < end; ++i)
                a.scalar(i, i);
        launch_size size = one_dimension();
        size.work_dim = static_cast<std::uint32_t>(1 + below(3));
        b.launch(e, below(4) ? std::uint64_t{kernel} : second_kernel, size, a);
    }
    // What a guest changes between two launches, or an attacker.
    void change(words& stream, std::size_t at) {
        auto& c = *reinterpret_cast<vgpu_cmd_launch*>(&stream[at]);
        const std::size_t lists = at + sizeof(c) / 8, arguments = lists + c.enqueue.wait_count;
        switch (below(8)) {
        case 0:
            c.enqueue.event = below(3) ? event() : 0;
            break;
        case 1:
            c.global[below(3)] = below(12) ? 1 + below(9) * (below(2)) : UINT64_MAX;
            break;
        case 2:
            if (c.enqueue.wait_count != 0)
                stream[lists] = below(2) ? std::uint64_t{user_event} : event();
            break;
        case 3:
            stream[arguments + 2] = memory(); // the first argument
            break;
        case 4:
        case 5:
            stream[arguments + 5] = random_(); // the second: 8 bytes
            break;
        case 6:
            stream[arguments + 8] = below(30) ? below(UINT32_MAX) : random_(); // the third: 4 and padding
            break;
        default:
            c.enqueue.queue = below(30) ? std::uint64_t{queue} : other_queue;
        }
    }
    void between(stream_builder& b) {
        switch (below(8)) {
        case 0:
            b.destroy(VGPU_OBJECT_MEMORY, first_memory + below(5));
            break;
        case 1:
        case 2:
            b.destroy(VGPU_OBJECT_EVENT, event());
            break;
        case 3:
            b.destroy(VGPU_OBJECT_EVENT, user_event);
            break;
        case 4:
            b.create_user_event(unknown + 1, context);
            break;
        case 5:
            b.set_user_event(user_event, below(2) ? 0 : -5);
            break;
        case 6:
            b.flush(queue);
            break;
        default:
            b.marker({queue, below(2) ? event() : 0, {}});
        }
    }
};

TEST(repeated_launches, random_streams_are_decided_as_without) {
    std::uint64_t repeated = 0, runs = 0, longest = 0;
    std::map<std::uint32_t, std::uint64_t> statuses;
    for (std::uint64_t seed = 1; seed <= 200 && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        random_streams r(seed);
        for (int n = 0; n < 200 && !::testing::Test::HasFailure(); ++n) {
            SCOPED_TRACE("stream " + std::to_string(n));
            r.step();
        }
        repeated += r.t.repeated;
        runs += r.t.runs;
        longest = std::max(longest, r.t.longest);
        for (const auto& [status, count] : r.statuses)
            statuses[status] += count;
    }
    // Else it shows nothing.
    EXPECT_GT(repeated, 15'000u);
    EXPECT_GT(repeated, runs * 5 / 4);
    EXPECT_GT(longest, 4u);
    EXPECT_GT(statuses[VGPU_STATUS_OK], 5'000u);
    EXPECT_GT(statuses[VGPU_STATUS_MALFORMED], 5'000u);
}

} // namespace
} // namespace kagemusha::core
