// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the demo's guest is asked: the words are in the set that the mask says, and each set is a step that a
// GPU of any speed can take.
#include "control/demo/task.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

TEST(task, each_set_of_words_is_a_little_larger_than_the_one_before) {
    const auto sets = word_sets();
    for (std::size_t i = 1; i < sets.size(); ++i) {
        EXPECT_GT(sets[i].size(), sets[i - 1].size()) << i;
        EXPECT_LE(sets[i].size(), 3 * sets[i - 1].size()) << i;
        EXPECT_NE(sets[i].name(), sets[i - 1].name());
    }
}

TEST(task, a_word_is_what_the_mask_says) {
    const word_set set{7, 3};
    EXPECT_EQ(set.mask(), "?l?l?l?l?l?l?1");
    EXPECT_EQ(set.ending_letters(), "abc");
    EXPECT_EQ(set.describe(), "words of 7 letters, the last one of a to c");
    EXPECT_EQ(word_set{}.describe(), "words of 6 letters");
    for (int i = 0; i < 200; ++i) {
        const auto word = random_word(set);
        ASSERT_EQ(word.size(), 7u);
        ASSERT_EQ(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), std::string::npos) << word;
        ASSERT_NE(set.ending_letters().find(word.back()), std::string::npos) << word;
    }
}

TEST(task, the_hidden_words_come_with_their_hashes) {
    const auto words = hidden_words(5, {6, 26});
    ASSERT_TRUE(words);
    EXPECT_EQ(words->size(), 5u);
    for (const auto& word : *words)
        EXPECT_EQ(word.find(':'), 32u) << word;
}

} // namespace
} // namespace kagemusha::control
