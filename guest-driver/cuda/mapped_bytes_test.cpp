// SPDX-License-Identifier: GPL-2.0-or-later
#include "mapped_bytes.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kagemusha::cuda {
namespace {

using runs = std::vector<byte_range>;
using memory = std::vector<std::byte>;

runs differences(const memory& a, const memory& b, std::size_t gap, std::size_t most = ~std::size_t{0}) {
    runs found;
    for_each_difference(a.data(), b.data(), a.size(), gap, [&](std::size_t first, std::size_t bytes) {
        found.push_back({first, bytes});
        return found.size() < most;
    });
    return found;
}

TEST(mapped_bytes, equal_memories_have_no_differences) {
    EXPECT_EQ(differences(memory(10001), memory(10001), 0), runs{});
    EXPECT_EQ(differences({}, {}, 0), runs{});
}

TEST(mapped_bytes, differences_are_exact_to_a_byte) {
    memory a(10001), b(10001);
    for (const std::size_t at : {0, 1, 3, 4095, 4096, 8191, 10000})
        b[at] = std::byte{1};
    EXPECT_EQ(differences(a, b, 0), (runs{{0, 2}, {3, 1}, {4095, 2}, {8191, 1}, {10000, 1}}));
}

TEST(mapped_bytes, a_gap_joins_differences) {
    memory a(100), b(100);
    for (const std::size_t at : {10, 15, 21})
        b[at] = std::byte{1};
    EXPECT_EQ(differences(a, b, 4), (runs{{10, 6}, {21, 1}}));
    EXPECT_EQ(differences(a, b, 5), (runs{{10, 12}}));
}

TEST(mapped_bytes, a_body_that_has_enough_ends_it) {
    memory a(9000), b(9000, std::byte{1});
    for (std::size_t at = 0; at < a.size(); at += 2)
        a[at] = std::byte{1};
    EXPECT_EQ(differences(a, b, 0, 3), (runs{{1, 1}, {3, 1}, {5, 1}}));
}

// As a plain loop finds them.
TEST(mapped_bytes, random_differences) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        memory a(random() % 9000), b = a;
        for (std::size_t i = 0; i < b.size() / 50; ++i)
            b[random() % b.size()] = static_cast<std::byte>(random() % 3);
        runs wanted;
        for (std::size_t at = 0; at < a.size(); ++at)
            if (a[at] != b[at]) {
                if (!wanted.empty() && wanted.back().first + wanted.back().bytes == at)
                    ++wanted.back().bytes;
                else
                    wanted.push_back({at, 1});
            }
        EXPECT_EQ(differences(a, b, 0), wanted);
    }
}

TEST(mapped_bytes, both_sides_may_change_other_bytes) {
    memory program(64), known(64), gpu(64);
    program[8] = std::byte{5}; // stored by the program meanwhile
    gpu[9] = std::byte{6};     // by a kernel
    take_differences(program.data(), known.data(), gpu.data(), 64);
    EXPECT_EQ(program[8], std::byte{5});
    EXPECT_EQ(program[9], std::byte{6});
    EXPECT_EQ(known[8], std::byte{0}); // so it is still to be sent
    EXPECT_EQ(known[9], std::byte{6});
}

void note(unfetched_commands& to, std::uint64_t queue, std::uint64_t place, byte_range where) {
    to.begin(queue, where);
    to.sent(queue, place);
}

TEST(mapped_bytes, what_no_command_touched_is_not_fetched) {
    unfetched_commands all;
    EXPECT_TRUE(all.is_empty());
    EXPECT_EQ(all.stale(), std::nullopt);
}

TEST(mapped_bytes, a_range_is_fetched_until_its_command_is_over) {
    unfetched_commands all;
    note(all, 1, 5, {100, 10});
    note(all, 1, 7, {200, 10});
    all.reach(1, 6); // the second may still run
    EXPECT_EQ(all.stale(), (byte_range{100, 110}));
    all.fetched();
    EXPECT_EQ(all.stale(), (byte_range{100, 110}));
    all.reach(1, 7);
    all.fetched();
    EXPECT_TRUE(all.is_empty());
}

// Another thread may wait for the queue while a command is on its way into it.
TEST(mapped_bytes, a_command_that_is_being_sent_is_not_over) {
    unfetched_commands all;
    all.begin(1, {0, 10});
    all.begin(1, {5, 10});
    all.sent(1, 3);
    all.reach(1, 9);
    all.fetched();
    EXPECT_EQ(all.stale(), (byte_range{0, 15}));
    all.sent(1, 4);
    all.reach(1, 3);
    all.fetched();
    EXPECT_FALSE(all.is_empty());
    all.reach(1, 4);
    all.fetched();
    EXPECT_TRUE(all.is_empty());
    all.sent(1, 5); // of one that was forgotten meanwhile
    EXPECT_TRUE(all.is_empty());
}

TEST(mapped_bytes, another_queues_end_says_nothing) {
    unfetched_commands all;
    note(all, 1, 5, {0, 10});
    note(all, 2, 5, {50, 10});
    all.reach(2, 9);
    EXPECT_EQ(all.stale(), (byte_range{0, 60}));
    all.fetched();
    EXPECT_EQ(all.stale(), (byte_range{0, 10}));
}

TEST(mapped_bytes, a_command_behind_the_end_opens_it_again) {
    unfetched_commands all;
    note(all, 1, 5, {0, 10});
    all.reach(1, 5);
    note(all, 1, 6, {20, 5});
    all.fetched();
    EXPECT_EQ(all.stale(), (byte_range{0, 25}));
}

TEST(mapped_bytes, words_of_parameters) {
    const std::uint64_t words[] = {1, 0x100000, 0x2fffff, 0x300000};
    std::vector<std::uint64_t> found;
    const auto look = [&](std::size_t bytes) {
        found.clear();
        return any_word(std::as_bytes(std::span(words)).first(bytes), 0x100000, 0x300000,
                        [&](std::uint64_t w) {
                            found.push_back(w);
                            return false;
                        });
    };
    EXPECT_FALSE(look(sizeof words));
    EXPECT_EQ(found, (std::vector<std::uint64_t>{0x100000, 0x2fffff}));
    look(15); // half a word is none
    EXPECT_TRUE(found.empty());
    EXPECT_TRUE(any_word(std::as_bytes(std::span(words)), 0, 2, [](std::uint64_t) { return true; }));
    EXPECT_FALSE(any_word(std::as_bytes(std::span(words)), 5, 5, [](std::uint64_t) { return true; }));
}

} // namespace
} // namespace kagemusha::cuda
