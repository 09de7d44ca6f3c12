// SPDX-License-Identifier: GPL-2.0-or-later
// Queues, events, wait lists, order, failure, teardown, on every backend.
#include <CL/cl.h>

#include <algorithm>
#include <thread>

#include "gpu/conformance/session.hpp"

namespace kagemusha::gpu::conformance {
namespace {

using codec::stream_builder;

class queues : public backend_test {};

constexpr std::uint64_t out_of_order = CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;

TEST_P(queues, NothingBehindAUserEventRunsBeforeItIsSet) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 4096);
    const auto gate = s->user_event(context);
    const auto write = s->new_id(), read = s->new_id(), marker = s->new_id();
    stream_builder w;
    const auto data = w.payload(false, {{0, 2048, 0, 0}, {4096, 2048, 0, 0}});
    w.write_buffer({queue, write, {gate}}, buffer, 0, data);
    const auto write_token = s->submit_only(w); // answered when its bytes were taken, which may be now
    stream_builder r;
    const auto back = r.payload(true, 0, 8192, 4096);
    const auto read_token = s->submit_only(r.read_buffer({queue, read}, buffer, 0, back));
    s->ok(stream_builder().marker({queue, marker}));
    EXPECT_FALSE(s->sink.has_event(write));
    EXPECT_FALSE(s->sink.has_event(read));
    EXPECT_FALSE(s->sink.has_event(marker));
    EXPECT_FALSE(s->sink.has_done(read_token)) << "answered while the payload is still to be written";
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(write).status, 0);
    EXPECT_EQ(s->sink.wait_event(read).status, 0);
    EXPECT_EQ(s->sink.wait_event(marker).status, 0);
    EXPECT_EQ(s->sink.wait_done(write_token).status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
    EXPECT_EQ(s->sink.wait_done(read_token).status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
    // Set twice, or something that is no user event.
    EXPECT_EQ(s->submit(stream_builder().set_user_event(gate, 0)).result, CL_INVALID_OPERATION);
    EXPECT_EQ(s->submit(stream_builder().set_user_event(marker, 0)).result, CL_INVALID_EVENT);
}

TEST_P(queues, AFailedUserEventFailsWhatWaitsForItAndNothingElse) {
    // What else happens in the same queue is not defined: NVIDIA's runtime also fails what comes later in it.
    const auto context = s->context(), queue = s->queue(context, out_of_order), free = s->queue(context);
    const auto buffer = s->buffer(context, 64);
    const auto gate = s->user_event(context);
    const auto direct = s->new_id(), indirect = s->new_id(), later = s->new_id(), other = s->new_id();
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    s->ok(stream_builder().fill_buffer({queue, direct, {gate}}, buffer, 0, 64, pattern));
    s->ok(stream_builder().fill_buffer({queue, indirect, {direct}}, buffer, 0, 64, pattern));
    s->ok(stream_builder().fill_buffer({free, other}, buffer, 0, 64, pattern));
    s->ok(stream_builder().set_user_event(gate, -5));
    EXPECT_EQ(s->sink.wait_event(other).status, 0);
    // Between the failure and its report.
    const auto at_once = s->new_id();
    s->ok(stream_builder().fill_buffer({queue, at_once, {direct}}, buffer, 0, 64, pattern));
    EXPECT_LT(s->sink.wait_event(direct).status, 0);
    EXPECT_LT(s->sink.wait_event(indirect).status, 0);
    EXPECT_LT(s->sink.wait_event(at_once).status, 0);
    // After it is known to have failed.
    s->ok(stream_builder().fill_buffer({queue, later, {gate}}, buffer, 0, 64, pattern));
    EXPECT_EQ(s->sink.wait_event(later).status, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
}

TEST_P(queues, AnEventOfARefusedCommandIsAFailedEvent) {
    const auto context = s->context(), queue = s->queue(context);
    const auto refused = s->new_id(), dependent = s->new_id(), free = s->new_id();
    s->ok(stream_builder().marker({context, refused})); // a context is no queue
    EXPECT_EQ(s->sink.wait_event(refused).status, CL_INVALID_COMMAND_QUEUE);
    s->ok(stream_builder().marker({queue, dependent, {refused}}));
    EXPECT_EQ(s->sink.wait_event(dependent).status, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    s->ok(stream_builder().destroy(VGPU_OBJECT_EVENT, refused));
    s->ok(stream_builder().marker({queue, free}));
    EXPECT_EQ(s->sink.wait_event(free).status, 0);
    const auto unknown = s->new_id();
    s->ok(stream_builder().marker({queue, unknown, {refused}}));
    EXPECT_EQ(s->sink.wait_event(unknown).status, CL_INVALID_EVENT_WAIT_LIST);
}

TEST_P(queues, OutOfOrderGraph) {
    const auto context = s->context(), queue = s->queue(context, out_of_order);
    const auto gate = s->user_event(context);
    const auto a = s->buffer(context, 4096), b = s->buffer(context, 4096), c = s->buffer(context, 4096);
    const std::uint8_t one = 1, two = 2;
    const auto first = s->new_id(), second = s->new_id(), copy1 = s->new_id(), copy2 = s->new_id(),
               read = s->new_id();
    // Enqueued against the order of their dependencies' completion.
    stream_builder stream;
    stream.fill_buffer({queue, first, {gate}}, a, 0, 4096, std::as_bytes(std::span(&one, 1)));
    stream.fill_buffer({queue, second}, b, 0, 4096, std::as_bytes(std::span(&two, 1)));
    stream.copy_buffer({queue, copy1, {first}}, a, c, 0, 0, 2048);
    stream.copy_buffer({queue, copy2, {second, copy1}}, b, c, 0, 1024, 2048);
    s->ok(stream);
    EXPECT_FALSE(s->sink.has_event(copy1));
    stream_builder r;
    const auto back = r.payload(true, 0, 0, 3072);
    const auto token = s->submit_only(r.read_buffer({queue, read, {copy2}}, c, 0, back));
    s->ok(stream_builder().set_user_event(gate, 0));
    s->sink.wait_done(token);
    EXPECT_EQ(s->sink.wait_event(read).status, 0);
    EXPECT_EQ(s->sink.wait_event(second).status, 0);
    const auto order = s->sink.completion_order();
    const auto at = [&](std::uint64_t id) {
        return std::find(order.begin(), order.end(), id) - order.begin();
    };
    EXPECT_LT(at(first), at(copy1) + 1);
    KAGEMUSHA_NEEDS(moves_bytes);
    EXPECT_EQ(s->guest(1023)[0], std::byte{1});
    EXPECT_EQ(s->guest(1024)[0], std::byte{2});
    EXPECT_EQ(s->guest(3071)[0], std::byte{2});
}

TEST_P(queues, BarrierInAnOutOfOrderQueue) {
    const auto context = s->context(), queue = s->queue(context, out_of_order);
    const auto gate = s->user_event(context);
    const auto buffer = s->buffer(context, 64);
    const std::uint8_t one = 1;
    const auto before = s->new_id(), barrier = s->new_id(), after = s->new_id();
    s->ok(stream_builder().fill_buffer({queue, before, {gate}}, buffer, 0, 64,
                                       std::as_bytes(std::span(&one, 1))));
    s->ok(stream_builder().barrier({queue, barrier}));
    s->ok(stream_builder().fill_buffer({queue, after}, buffer, 0, 64, std::as_bytes(std::span(&one, 1))));
    EXPECT_FALSE(s->sink.has_event(barrier));
    EXPECT_FALSE(s->sink.has_event(after));
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(after).status, 0);
    EXPECT_EQ(s->sink.wait_event(barrier).status, 0);
}

TEST_P(queues, CommandsWithoutAnEventAreOverWhenALaterEventIs) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 4096);
    const auto gate = s->user_event(context), first = s->new_id();
    // Also while something in front of them is held up, and with the last ones in requests of their own.
    s->ok(stream_builder().marker({queue, first, {gate}}));
    for (std::uint8_t value = 1; value <= 3; ++value) {
        stream_builder b;
        for (std::uint64_t at = 0; at < 4096; at += 256)
            b.fill_buffer({queue}, buffer, at, 256, std::as_bytes(std::span(&value, 1)));
        s->ok(b);
    }
    const auto read = s->new_id();
    stream_builder r;
    const auto token = s->submit_only(r.read_buffer({queue, read}, buffer, 0, r.payload(true, 0, 0, 4096)));
    EXPECT_FALSE(s->sink.has_event(read));
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(read).status, 0);
    s->sink.wait_done(token);
    KAGEMUSHA_NEEDS(moves_bytes);
    for (std::uint64_t at = 0; at < 4096; ++at)
        ASSERT_EQ(s->guest(at)[0], std::byte{3});
}

TEST_P(queues, CommandsWithoutAnEventMakeProgress) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 64);
    const auto gate = s->user_event(context), first = s->new_id();
    const std::uint8_t one = 1;
    s->ok(stream_builder().marker({queue, first, {gate}}));
    s->ok(stream_builder().fill_buffer({queue}, buffer, 0, 64, std::as_bytes(std::span(&one, 1))));
    const auto before = s->under_test->progress();
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(first).status, 0);
    // Two for the request, one for the marker and one for what stands for the fill.
    while (s->under_test->progress() < before + 4)
        std::this_thread::yield();
}

TEST_P(queues, WhateverAFailureDoesToItsQueueTheRestOfTheQueueEnds) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 64);
    const auto gate = s->user_event(context), failing = s->new_id(), last = s->new_id();
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    s->ok(stream_builder().fill_buffer({queue, failing, {gate}}, buffer, 0, 64, pattern));
    s->ok(stream_builder().fill_buffer({queue}, buffer, 0, 64, pattern));
    s->ok(stream_builder().fill_buffer({queue}, buffer, 0, 64, pattern).marker({queue, last}));
    s->ok(stream_builder().set_user_event(gate, -5));
    EXPECT_LT(s->sink.wait_event(failing).status, 0);
    EXPECT_LE(s->sink.wait_event(last).status, 0);
}

TEST_P(queues, AFailureWithoutAnEventIsToldBeforeWhatComesAfterIt) {
    const auto context = s->context();
    const auto buffer = s->buffer(context, 64);
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    // A failure is found in another way than a success, and both by threads that race.
    for (int round = 0; round < 8; ++round) {
        const auto in_order = s->queue(context), graph = s->queue(context, out_of_order);
        const auto gate = s->user_event(context), gate2 = s->user_event(context);
        const auto last = s->new_id(), marker = s->new_id(), behind = s->new_id();
        s->ok(stream_builder().fill_buffer({in_order, 0, {gate}}, buffer, 0, 64, pattern));
        s->ok(stream_builder().marker({in_order, last}));
        s->ok(stream_builder().fill_buffer({graph, 0, {gate2}}, buffer, 0, 64, pattern));
        s->ok(stream_builder()
                  .marker({graph, marker})
                  .barrier({graph})
                  .fill_buffer({graph, behind}, buffer, 0, 64, pattern));
        s->ok(stream_builder().set_user_event(gate, -5));
        s->sink.wait_event(last);
        EXPECT_GE(s->sink.queue_errors_before(last, in_order), 1u) << "in order, round " << round;
        s->ok(stream_builder().set_user_event(gate2, -5));
        s->sink.wait_event(marker);
        s->sink.wait_event(behind);
        EXPECT_GE(s->sink.queue_errors_before(marker, graph), 1u) << "marker, round " << round;
        EXPECT_GE(s->sink.queue_errors_before(behind, graph), 1u) << "behind a barrier, round " << round;
    }
}

TEST_P(queues, InOrderCompletionsAreToldInOrder) {
    const auto context = s->context(), queue = s->queue(context);
    const auto buffer = s->buffer(context, 4096);
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    std::vector<std::uint64_t> events;
    for (int i = 0; i < 500; ++i) {
        stream_builder b;
        for (int k = 0; k < 4; ++k) {
            events.push_back(s->new_id());
            b.fill_buffer({queue, events.back()}, buffer, 0, 4096, pattern);
        }
        s->ok(b);
    }
    s->sink.wait_event(events.back());
    EXPECT_EQ(s->sink.completion_order(), events);
}

TEST_P(queues, ABarrierThatNamesFinishedEventsWaitsForNothingElse) {
    const auto context = s->context(), queue = s->queue(context, out_of_order);
    const auto buffer = s->buffer(context, 64);
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    const auto gate = s->user_event(context);
    const auto finished = s->new_id(), held = s->new_id(), marker = s->new_id(), barrier = s->new_id();
    // PoCL 3.1's own markers wait for everything, also when they name finished events.
    const bool markers_too = !GetParam().images; // not PoCL
    s->ok(stream_builder().fill_buffer({queue, finished}, buffer, 0, 64, pattern));
    EXPECT_EQ(s->sink.wait_event(finished).status, 0);
    s->ok(stream_builder().fill_buffer({queue, held, {gate}}, buffer, 0, 64, pattern));
    if (markers_too) {
        s->ok(stream_builder().marker({queue, marker, {finished}}));
        EXPECT_EQ(s->sink.wait_event(marker).status, 0);
    }
    s->ok(stream_builder().barrier({queue, barrier, {finished}}));
    EXPECT_EQ(s->sink.wait_event(barrier).status, 0);
    EXPECT_FALSE(s->sink.has_event(held));
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(held).status, 0);
}

TEST_P(queues, EventsAcrossQueues) {
    const auto context = s->context(), one = s->queue(context), two = s->queue(context);
    const auto gate = s->user_event(context);
    const auto a = s->new_id(), b = s->new_id();
    s->ok(stream_builder().marker({one, a, {gate}}));
    s->ok(stream_builder().marker({two, b, {a}}));
    EXPECT_FALSE(s->sink.has_event(b));
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(b).status, 0);
    EXPECT_TRUE(s->sink.has_event(a)) << "told before what it waited for";
}

// The guest may use the memory of a read when it hears of anything that comes after it, while the request is
// open; so that the memory was written is told first.
TEST_P(queues, WhatWasWrittenIsToldBeforeWhatComesAfterIt) {
    const auto context = s->context();
    const auto buffer = s->buffer(context, 4096), gate = s->user_event(context);
    std::vector<std::uint64_t> tokens;
    for (int round = 0; round < 100; ++round) {
        const auto from = s->queue(context), to = s->queue(context), behind = s->queue(context);
        const auto first = s->new_id(), start = s->new_id(), other = s->new_id(), end = s->new_id();
        s->ok(stream_builder().create_user_event(start, context));
        stream_builder b;
        b.read_buffer({from, 0, {start}}, buffer, 0, b.payload(true, 0, 0, 4096));
        b.read_buffer({from, first}, buffer, 0, b.payload(true, 0, 4096, 4096));
        b.marker({to, other, {first}});
        b.read_buffer({behind, end, {gate}}, buffer, 0, b.payload(true, 0, 8192, 4096));
        const auto token = tokens.emplace_back(s->submit_only(b));
        s->ok(stream_builder().set_user_event(start, 0));
        EXPECT_EQ(s->sink.wait_event(other).status, 0);
        EXPECT_FALSE(s->sink.has_done(token));
        EXPECT_EQ(s->sink.written_before(other, token), (std::vector<std::uint32_t>{0, 1}));
        EXPECT_EQ(s->sink.written_before(first, token), (std::vector<std::uint32_t>{0, 1}));
    }
    s->ok(stream_builder().set_user_event(gate, 0));
    for (const std::uint64_t token : tokens) // the runtime uses their memory until then
        s->sink.wait_done(token);
}

TEST_P(queues, ProfilingTimesDoNotGoBack) {
    const auto context = s->context(), queue = s->queue(context, CL_QUEUE_PROFILING_ENABLE);
    const auto plain = s->queue(context);
    const auto buffer = s->buffer(context, 1 << 20);
    std::uint64_t last_end = 0;
    for (int i = 0; i < 3; ++i) {
        const auto event = s->new_id();
        stream_builder b;
        const auto data = b.payload(false, {{0, 1 << 19, 0, 0}, {1 << 20, 1 << 19, 0, 0}});
        s->ok(b.write_buffer({queue, event}, buffer, 0, data));
        const auto done = s->sink.wait_event(event);
        EXPECT_EQ(done.status, 0);
        EXPECT_GT(done.queued_ns, 0u);
        EXPECT_LE(done.queued_ns, done.submit_ns);
        EXPECT_LE(done.submit_ns, done.start_ns);
        EXPECT_LE(done.start_ns, done.end_ns);
        EXPECT_LE(last_end, done.end_ns);
        last_end = done.end_ns;
    }
    const auto event = s->new_id();
    s->ok(stream_builder().marker({plain, event}));
    EXPECT_EQ(s->sink.wait_event(event).end_ns, 0u);
}

TEST_P(queues, MigrateAndFlush) {
    const auto context = s->context(), queue = s->queue(context);
    const std::uint64_t list[] = {s->buffer(context, 64), s->buffer(context, 128)};
    const auto event = s->new_id();
    s->ok(stream_builder().migrate({queue, event}, list).flush(queue));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
}

TEST_P(queues, IdsNameOneObjectOfOneKind) {
    const auto context = s->context(), queue = s->queue(context);
    EXPECT_EQ(s->submit(stream_builder().create_context(queue)).result, CL_INVALID_VALUE);
    EXPECT_EQ(s->submit(stream_builder().create_buffer(context, context, 64)).result, CL_INVALID_VALUE);
    EXPECT_EQ(s->submit(stream_builder().create_buffer(s->new_id(), queue, 64)).result, CL_INVALID_CONTEXT);
    EXPECT_EQ(s->submit(stream_builder().destroy(VGPU_OBJECT_KERNEL, queue)).result, CL_INVALID_KERNEL);
    s->ok(stream_builder().destroy(VGPU_OBJECT_QUEUE, queue));
    EXPECT_EQ(s->submit(stream_builder().destroy(VGPU_OBJECT_QUEUE, queue)).result, CL_INVALID_COMMAND_QUEUE);
    s->ok(stream_builder().create_queue(queue, context));
    // An event that is in use is refused, and the command with it.
    const auto event = s->new_id();
    s->ok(stream_builder().marker({queue, event}));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
    s->ok(stream_builder().destroy(VGPU_OBJECT_EVENT, event));
}

TEST_P(queues, DestroyingEverythingWhileItIsInUse) {
    const auto context = s->context(), queue = s->queue(context);
    const auto gate = s->user_event(context);
    const auto buffer = s->buffer(context, 1 << 20);
    const auto event = s->new_id(), copy = s->new_id();
    stream_builder b;
    const auto data = b.payload(false, {{4096, 1 << 19, 0, 0}, {2 << 20, 1 << 19, 0, 0}});
    b.write_buffer({queue, event, {gate}}, buffer, 0, data);
    const auto token = s->submit_only(b);
    s->ok(stream_builder().copy_buffer({queue, copy}, buffer, buffer, 0, 1 << 19, 1 << 19));
    s->ok(stream_builder()
              .destroy(VGPU_OBJECT_MEMORY, buffer)
              .destroy(VGPU_OBJECT_EVENT, event)
              .destroy(VGPU_OBJECT_EVENT, copy)
              .set_user_event(gate, 0)
              .destroy(VGPU_OBJECT_EVENT, gate));
    s->sink.wait_done(token);
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
    EXPECT_EQ(s->sink.wait_event(copy).status, 0);
    s->ok(stream_builder().destroy(VGPU_OBJECT_QUEUE, queue).destroy(VGPU_OBJECT_CONTEXT, context));
}

TEST_P(queues, AUserEventThatIsDestroyedUnsetFailsItsDependents) {
    const auto context = s->context(), queue = s->queue(context);
    const auto gate = s->user_event(context), event = s->new_id();
    s->ok(stream_builder().marker({queue, event, {gate}}));
    s->ok(stream_builder().destroy(VGPU_OBJECT_EVENT, gate));
    EXPECT_LT(s->sink.wait_event(event).status, 0);
}

TEST_P(queues, TheExecutorGoesWithWorkInFlight) {
    const auto context = s->context(), queue = s->queue(context);
    const auto gate = s->user_event(context);
    const auto buffer = s->buffer(context, 1 << 20);
    stream_builder b;
    const auto back = b.payload(true, {{0, 1 << 19, 0, 0}, {1 << 20, 1 << 19, 0, 0}});
    b.read_buffer({queue, s->new_id(), {gate}}, buffer, 0, back);
    s->submit_only(b);
    s->submit_only(stream_builder().marker({queue, s->new_id()}));
    s->under_test.reset();
    s->sink.fail_if_called("after the executor was destroyed");
    // Guest memory stays as it is from now on, so it can be taken away.
    std::memset(s->guest(), 0x3c, 1 << 19);
    for (std::uint64_t i = 0; i < 1 << 19; ++i)
        ASSERT_EQ(s->guest(i)[0], std::byte{0x3c});
}

TEST_P(queues, ManyPendingCommandsBehindOneEvent) {
    const auto context = s->context(), queue = s->queue(context);
    const auto gate = s->user_event(context);
    const auto first = s->new_id();
    s->ok(stream_builder().marker({queue, first, {gate}}));
    constexpr int count = 2000;
    stream_builder b;
    std::uint64_t last = 0;
    for (int i = 0; i < count; ++i)
        b.marker({queue, last = s->new_id()});
    s->ok(b);
    s->ok(stream_builder().set_user_event(gate, 0));
    EXPECT_EQ(s->sink.wait_event(last).status, 0);
}

// PoCL 3.1 aborted when somebody let go of the event of a failed command too early (pending_events). Nobody
// but the executor holds the events here, and failures follow each other so fast that one is looked for while
// the next comes.
TEST_P(queues, ManyFailuresWhoseEventsTheGuestHasDestroyed) {
    const auto context = s->context(), queue = s->queue(context), buffer = s->buffer(context, 64);
    const std::uint8_t one = 1;
    const auto pattern = std::as_bytes(std::span(&one, 1));
    for (int round = 0; round < 300; ++round) {
        const auto gate = s->user_event(context);
        std::vector<std::uint64_t> events;
        stream_builder b;
        for (int i = 0; i < 16; ++i) {
            events.push_back(s->new_id());
            b.fill_buffer({queue, events.back(), {gate}}, buffer, 0, 64, pattern);
        }
        for (const auto event : events)
            b.destroy(VGPU_OBJECT_EVENT, event);
        s->ok(b);
        s->ok(stream_builder().set_user_event(gate, -5).destroy(VGPU_OBJECT_EVENT, gate));
        if (round % 50 == 49)
            for (const auto event : events)
                EXPECT_LT(s->sink.wait_event(event).status, 0);
    }
}

// The same, and something else that the failed command waited for ends after it.
TEST_P(queues, WhatAFailedCommandWaitedForEndsLater) {
    const auto context = s->context(), queue = s->queue(context, out_of_order), other = s->queue(context);
    for (int round = 0; round < 100; ++round) {
        const auto failing = s->user_event(context), late = s->user_event(context), marker = s->new_id();
        s->ok(stream_builder().marker({queue, marker, {failing, late}}).destroy(VGPU_OBJECT_EVENT, marker));
        s->ok(stream_builder().set_user_event(failing, -5).destroy(VGPU_OBJECT_EVENT, failing));
        s->finish(other); // time to let go of the marker's event
        s->ok(stream_builder().set_user_event(late, 0).destroy(VGPU_OBJECT_EVENT, late));
        EXPECT_LT(s->sink.wait_event(marker).status, 0);
    }
}

TEST_P(queues, TwoExecutorsAtOnce) {
    const auto work = [this] {
        const auto mine = open();
        const auto context = mine->context(), queue = mine->queue(context);
        const auto buffer = mine->buffer(context, 65536);
        for (int i = 0; i < 50; ++i) {
            std::memset(mine->guest(), i + 1, 65536);
            ASSERT_EQ(mine->write(queue, buffer, 0, 65536), 0);
            ASSERT_EQ(mine->read(queue, buffer, 65536, 65536), 0);
            if (GetParam().moves_bytes)
                ASSERT_EQ(std::memcmp(mine->guest(), mine->guest(65536), 65536), 0);
        }
    };
    std::thread other(work);
    work();
    other.join();
}

TEST_P(queues, ProgressGrows) {
    const auto context = s->context(), queue = s->queue(context);
    const auto before = s->under_test->progress();
    s->finish(queue);
    EXPECT_GT(s->under_test->progress(), before);
}

INSTANTIATE_TEST_SUITE_P(backends, queues, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::gpu::conformance
