// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which pages the adaptive mode opens, keeps open and closes.
#include "tracer/core/policy.h"

#include <gtest/gtest.h>
#include <vector>

namespace {

struct page {
    kvt_heat heat{};
    kvt_habit habit{};
    u32 interval = 1;

    bool store() { // as the module does: true if the page is opened
        if (!heat.opened && kvt_heat_store(&heat, &habit, interval))
            kvt_heat_open(&heat, interval);
        return heat.opened;
    }
    bool flush(bool changed = true) { // true: stays open
        const bool stays = kvt_heat_flush(&heat, changed);
        ++interval;
        return stays;
    }
};

TEST(policy, single_stores_are_carried_out) {
    page p;
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(p.store());
        EXPECT_FALSE(p.flush());
    }
}

TEST(policy, several_stores_open_the_page_and_the_next_interval_opens_it_at_once) {
    page p;
    EXPECT_FALSE(p.store());
    EXPECT_TRUE(p.store());
    EXPECT_FALSE(p.flush());
    EXPECT_TRUE(p.store());
}

TEST(policy, a_page_that_was_quiet_for_an_interval_is_cold_again) {
    page p;
    p.store();
    EXPECT_TRUE(p.store());
    p.flush();
    ++p.interval; // a flush that other pages were dirty for
    EXPECT_FALSE(p.store());
    // also when the counter of intervals wraps
    p.interval = 255;
    p.flush();
    p.store();
    EXPECT_TRUE(p.store());
    p.flush();
    EXPECT_TRUE(p.store());
}

TEST(policy, a_page_that_is_always_dirty_becomes_hot_and_cools_down) {
    page p;
    p.store();
    p.store();
    for (u32 i = 1; i < KVT_INTERVALS_UNTIL_HOT; ++i) {
        EXPECT_FALSE(p.flush());
        EXPECT_TRUE(p.store());
    }
    for (int i = 0; i < 1000; ++i)
        ASSERT_TRUE(p.flush()); // without any fault
    for (u32 i = 1; i < KVT_INTERVALS_UNTIL_COLD; ++i)
        EXPECT_TRUE(p.flush(false));
    EXPECT_TRUE(p.flush(true)); // once more, so it starts again
    for (u32 i = 1; i < KVT_INTERVALS_UNTIL_COLD; ++i)
        EXPECT_TRUE(p.flush(false));
    EXPECT_FALSE(p.flush(false));
    EXPECT_FALSE(p.store());
}

TEST(policy, a_page_that_is_opened_for_nothing_does_not_heat_up) {
    page p;
    p.store();
    p.store();
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(p.flush(false));
        p.store();
        p.store();
    }
}

// `pages` pages get a store each, `again` of them a second one. How many stores were carried out.
u32 interval_of(std::vector<kvt_heat>& pages, kvt_habit& habit, u32 interval, u32 again) {
    u32 carried_out = 0;
    for (u32 i = 0; i < pages.size(); ++i)
        for (u32 store = 0; store < (i < again ? 2 : 1) && !pages[i].opened; ++store)
            if (kvt_heat_store(&pages[i], &habit, interval))
                kvt_heat_open(&pages[i], interval);
            else
                ++carried_out;
    for (kvt_heat& page : pages)
        kvt_heat_flush(&page, true);
    kvt_habit_flush(&habit);
    return carried_out;
}

TEST(policy, where_pages_get_several_stores_the_first_one_opens_them) {
    kvt_habit habit{};
    u32 interval = 1;
    // other pages each time, so that none is warm
    const auto next = [&](u32 again) {
        std::vector<kvt_heat> pages(100);
        return interval_of(pages, habit, interval++, again);
    };
    EXPECT_EQ(next(60), 100u);
    for (u32 i = 1; i < KVT_INTERVALS_UNTIL_PROBE; ++i)
        EXPECT_EQ(next(60), 0u);
    EXPECT_EQ(next(5), 100u); // looked again, and it is not so any more
    for (u32 i = 0; i < 2 * KVT_INTERVALS_UNTIL_PROBE; ++i)
        EXPECT_EQ(next(5), 100u);
}

TEST(policy, single_stores_are_no_habit) {
    std::vector<kvt_heat> pages(100);
    kvt_habit habit{};
    for (u32 interval = 1; interval < 100; ++interval)
        EXPECT_EQ(interval_of(pages, habit, interval, 0), 100u);
}

TEST(policy, pages_in_order_are_opened_ahead) {
    kvt_ahead ahead{};
    EXPECT_FALSE(kvt_ahead_follows(&ahead, 0));
    EXPECT_EQ(kvt_ahead_open(&ahead, 0, 1000), 1u);
    EXPECT_TRUE(kvt_ahead_follows(&ahead, 1));
    EXPECT_EQ(kvt_ahead_open(&ahead, 1, 1000), 2u);
    EXPECT_EQ(kvt_ahead_open(&ahead, 3, 1000), 4u);
    EXPECT_EQ(kvt_ahead_open(&ahead, 100, 1000), 1u); // elsewhere
    u32 next = 101;
    for (u32 i = 0; i < 20; ++i) {
        const u32 count = kvt_ahead_open(&ahead, next, 100000);
        EXPECT_LE(count, KVT_MAX_AHEAD);
        next += count;
    }
    EXPECT_EQ(kvt_ahead_open(&ahead, next, 5), 5u); // the end of the range
    kvt_ahead_stored(&ahead, 7);
    EXPECT_TRUE(kvt_ahead_follows(&ahead, 8));
    EXPECT_EQ(kvt_ahead_open(&ahead, 8, 1000), 2u);
}

} // namespace
