// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/capture/reported_in_order.hpp"

#include <gtest/gtest.h>

namespace kagemusha::mirror {
namespace {

using tokens = std::vector<std::uint64_t>;

struct three_requests : testing::Test {
    three_requests() {
        for (std::uint64_t token = 1; token <= 3; ++token)
            told.submitted(token, {token * 10, token * 10 + 1}, true);
    }
    reported_in_order told;
};
using reported_in_order_test = three_requests;

TEST_F(reported_in_order_test, answers_come_in_the_order_of_the_requests) {
    EXPECT_FALSE(told.on_done(3));
    EXPECT_FALSE(told.on_done(2));
    EXPECT_TRUE(told.take_released().answers.empty());
    EXPECT_TRUE(told.on_done(1));
    EXPECT_EQ(told.take_released().answers, (tokens{2, 3}));
    EXPECT_TRUE(told.take_released().answers.empty()) << "once";
    EXPECT_TRUE(told.empty());
}

TEST_F(reported_in_order_test, only_what_is_done_follows_the_first) {
    EXPECT_FALSE(told.on_done(2));
    EXPECT_TRUE(told.on_done(1));
    EXPECT_EQ(told.take_released().answers, (tokens{2}));
    EXPECT_TRUE(told.on_done(3));
    EXPECT_TRUE(told.take_released().answers.empty());
}

TEST_F(reported_in_order_test, a_completion_waits_for_what_was_made_before_it) {
    EXPECT_FALSE(told.on_completion());
    told.submitted(4, {40, 41}, true); // it need not wait for this one
    EXPECT_TRUE(told.on_done(1));
    EXPECT_TRUE(told.on_done(2));
    EXPECT_FALSE(told.take_released().records);
    EXPECT_FALSE(told.on_completion()) << "what comes behind it waits, too";
    EXPECT_TRUE(told.on_done(3));
    EXPECT_TRUE(told.take_released().records);
    EXPECT_FALSE(told.on_completion()) << "for the fourth";
    EXPECT_TRUE(told.on_done(4));
    EXPECT_TRUE(told.take_released().records);
    EXPECT_TRUE(told.on_completion());
}

TEST_F(reported_in_order_test, requests_from_before_wait_for_nobody) {
    EXPECT_TRUE(told.on_done(77));
    EXPECT_FALSE(told.knows_nothing_of({770, 771}));
}

TEST_F(reported_in_order_test, the_guest_knows_nothing_of_what_has_no_answer) {
    EXPECT_FALSE(told.on_done(2));
    EXPECT_TRUE(told.knows_nothing_of({10, 11}));
    EXPECT_TRUE(told.knows_nothing_of({20, 21})) << "its answer is held back";
    EXPECT_TRUE(told.on_done(1));
    EXPECT_FALSE(told.knows_nothing_of({10, 11}));
    EXPECT_FALSE(told.knows_nothing_of({20, 21}));
    EXPECT_TRUE(told.knows_nothing_of({30, 31}));
}

// Shipping begins with the fourth request.
TEST(reported_in_order_begins, what_is_shipped_waits_for_requests_that_were_open_then) {
    reported_in_order told;
    for (std::uint64_t token = 1; token <= 3; ++token)
        told.submitted(token, {token * 10, token * 10 + 1}, false);
    EXPECT_TRUE(told.on_completion());
    EXPECT_TRUE(told.on_done(2)) << "in any order before";
    told.submitted(4, {40, 41}, true);
    EXPECT_FALSE(told.knows_nothing_of({10, 11})) << "something of it may have been told";
    EXPECT_TRUE(told.knows_nothing_of({40, 41}));
    EXPECT_FALSE(told.on_done(4));
    EXPECT_FALSE(told.on_completion());
    EXPECT_TRUE(told.on_done(3)) << "nothing was shipped behind it";
    EXPECT_TRUE(told.take_released().answers.empty());
    EXPECT_TRUE(told.on_done(1));
    const reported_in_order::released r = told.take_released();
    EXPECT_EQ(r.answers, (tokens{4}));
    EXPECT_TRUE(r.records);
    EXPECT_TRUE(told.empty());
}

TEST_F(reported_in_order_test, without_a_standby_everything_is_told) {
    EXPECT_FALSE(told.on_done(3));
    EXPECT_FALSE(told.on_completion());
    const reported_in_order::released r = told.release_all();
    EXPECT_EQ(r.answers, (tokens{3}));
    EXPECT_TRUE(r.records);
    EXPECT_TRUE(told.on_done(1));
    EXPECT_TRUE(told.on_completion());
}

} // namespace
} // namespace kagemusha::mirror
