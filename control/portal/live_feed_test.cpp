// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a page gets, however slowly it reads.
#include "control/portal/live_feed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kagemusha::control::portal {
namespace {

constexpr std::size_t plenty = 1 << 20;

std::vector<std::string> take(const live_feed& feed, live_feed::reader& who, std::size_t bytes = plenty) {
    std::vector<std::string> out;
    for (const auto& one : feed.news(who, bytes))
        out.push_back(*one);
    return out;
}

TEST(live_feed, a_page_gets_what_is_there_and_then_what_changes) {
    live_feed feed;
    live_feed::reader page;
    feed.put("a", "1");
    feed.put("b", "2");
    EXPECT_EQ(take(feed, page), (std::vector<std::string>{"1", "2"}));
    EXPECT_TRUE(take(feed, page).empty());
    feed.put("a", "1");
    EXPECT_TRUE(take(feed, page).empty()); // nothing has changed
    feed.put("a", "3");
    feed.put("a", "4");
    EXPECT_EQ(take(feed, page), std::vector<std::string>{"4"}); // what was in between is skipped
    feed.remove("a", "gone");
    feed.add_event("e");
    EXPECT_EQ(take(feed, page), (std::vector<std::string>{"gone", "e"}));
    EXPECT_EQ(feed.topics(), std::vector<std::string>{"b"});
    feed.put("a", "5");
    EXPECT_EQ(take(feed, page), std::vector<std::string>{"5"});
}

TEST(live_feed, a_new_page_hears_nothing_of_what_is_gone) {
    live_feed feed;
    feed.put("a", "1");
    feed.remove("a", "gone");
    feed.remove("a", "gone");
    live_feed::reader page;
    EXPECT_TRUE(take(feed, page).empty());
}

TEST(live_feed, pieces_are_bounded_and_nothing_is_left_out) {
    live_feed feed;
    for (int i = 0; i < 10; ++i)
        feed.put(std::to_string(i), std::string(10, 'x'));
    live_feed::reader page;
    EXPECT_EQ(take(feed, page, 25).size(), 2u);
    EXPECT_EQ(take(feed, page, 1).size(), 1u);
    EXPECT_EQ(take(feed, page, plenty).size(), 7u);
}

TEST(live_feed, what_is_kept_is_bounded) {
    live_feed feed;
    for (std::size_t i = 0; i < 5000; ++i) {
        feed.add_event("e");
        feed.put("t" + std::to_string(i), "x");
        feed.remove("t" + std::to_string(i), "gone");
    }
    live_feed::reader page{1};
    EXPECT_EQ(take(feed, page).size(), live_feed::most_events + live_feed::most_gone);
}

// Pages that read at random times end with what there is.
TEST(live_feed, every_page_ends_with_what_there_is) {
    std::mt19937 random(7);
    live_feed feed;
    std::map<std::string, std::string> truth;
    struct page {
        live_feed::reader who;
        std::map<std::string, std::string> shows;
    };
    std::vector<page> pages(4);
    const auto read = [&](page& one, std::size_t bytes) {
        for (const auto& text : feed.news(one.who, bytes)) {
            const auto topic = text->substr(1, 1);
            if (text->front() == '-')
                one.shows.erase(topic);
            else
                one.shows[topic] = text->substr(2);
        }
    };
    for (int step = 0; step < 5000; ++step) {
        const std::string topic(1, static_cast<char>('a' + random() % 6));
        if (random() % 4 == 0) {
            feed.remove(topic, "-" + topic);
            truth.erase(topic);
        } else {
            const auto value = std::to_string(random() % 3);
            feed.put(topic, "+" + topic + value);
            truth[topic] = value;
        }
        if (random() % 3 == 0)
            read(pages[random() % pages.size()], random() % 8);
    }
    for (auto& one : pages) {
        read(one, plenty);
        EXPECT_EQ(one.shows, truth);
    }
}

} // namespace
} // namespace kagemusha::control::portal
