// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/happens_before.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kagemusha::mirror {
namespace {

using ids = std::vector<guest_id>;

enum : guest_id { a = 1, b, c, any_order };

ids take(happens_before& o, guest_id only_queue) {
    ids out;
    const bool holds = o.holds(only_queue);
    o.take(only_queue, out);
    EXPECT_EQ(holds, !out.empty());
    std::sort(out.begin(), out.end());
    return out;
}

struct started : happens_before {
    started() : happens_before(7) { start(); }
    void run(guest_id queue, guest_id event) {
        enqueued(queue, event);
        completed(event, false);
    }
};

TEST(happens_before, OneQueueKeepsItsOwnOrder) {
    started o;
    o.queue_made(a, false);
    EXPECT_FALSE(o.tracks());
    o.completed(10, false);
    o.completed(11, false);
    EXPECT_EQ(take(o, a), ids{});
    o.queue_made(b, false);
    EXPECT_TRUE(o.tracks());
    EXPECT_EQ(take(o, b), ids{11}) << "what completed before there was another queue";
}

TEST(happens_before, TheNewestOfAnInOrderQueueStandsForAll) {
    started o;
    o.queue_made(a, false);
    o.queue_made(b, false);
    o.enqueued(a, 10);
    o.enqueued(a, 11);
    o.enqueued(a, 12);
    EXPECT_EQ(take(o, b), ids{}) << "nothing has completed";
    o.completed(10, false);
    o.completed(11, false);
    EXPECT_EQ(take(o, a), ids{}) << "its own";
    EXPECT_EQ(take(o, b), ids{11});
    EXPECT_EQ(take(o, b), ids{}) << "once";
    o.completed(12, false);
    EXPECT_EQ(take(o, 0), ids{12}) << "a user event is set: whoever waits for it may be anywhere";
}

TEST(happens_before, EveryEventOfAnUnorderedQueueCountsAlsoForItself) {
    started o;
    o.queue_made(any_order, true);
    EXPECT_TRUE(o.tracks());
    for (guest_id event = 10; event < 15; ++event)
        o.run(any_order, event);
    EXPECT_EQ(take(o, any_order), (ids{10, 11, 12, 13, 14}));
    EXPECT_EQ(take(o, any_order), ids{});
}

TEST(happens_before, WhatAQueueLeavesBehindIsStillWaitedFor) {
    started o;
    o.queue_made(a, false);
    o.queue_made(b, false);
    o.run(a, 10);
    o.enqueued(a, 11);
    o.queue_gone(a);
    o.completed(11, false);
    o.completed(99, false); // of a command that was enqueued before start()
    o.queue_made(a, false);
    EXPECT_EQ(take(o, a), (ids{10, 11, 99})) << "another queue with the same id";
}

TEST(happens_before, AQueueThatCouldNotBeMadeIsReplaced) {
    started o;
    o.queue_made(a, false);
    o.queue_made(any_order, false);
    o.queue_made(any_order, true);
    o.run(any_order, 10);
    o.run(any_order, 11);
    EXPECT_EQ(take(o, any_order), (ids{10, 11}));
}

TEST(happens_before, FailedCommandsAreNotAwaited) {
    started o;
    o.queue_made(a, false);
    o.completed(10, false);
    o.completed(11, true);
    o.queue_made(b, false); // from here on the queues' commands are told apart
    EXPECT_EQ(take(o, b), ids{10});
    o.enqueued(a, 12);
    o.enqueued(a, 13);
    o.completed(12, false);
    o.completed(13, true);
    EXPECT_EQ(take(o, b), ids{12});
    o.completed(99, true);
    EXPECT_FALSE(o.holds(b));
}

TEST(happens_before, StoppedItKnowsNothing) {
    started o;
    o.queue_made(a, false);
    o.queue_made(b, false);
    o.run(a, 10);
    o.stop();
    o.completed(11, false);
    o.queue_made(c, true);
    EXPECT_FALSE(o.tracks());
    EXPECT_FALSE(o.holds(b));
    o.start();
    o.queue_made(a, false);
    o.queue_made(b, false);
    EXPECT_EQ(take(o, b), ids{});
}

} // namespace
} // namespace kagemusha::mirror
