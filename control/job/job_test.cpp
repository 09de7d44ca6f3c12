// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/job/job_reader.hpp"
#include "control/job/output_spool.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kagemusha::control::job {
namespace {

using lan::exec_frame;

TEST(output_spool, keeps_what_is_not_confirmed_and_no_more_than_its_capacity) {
    output_spool spool(100, 8);
    spool.append("abcdef");
    EXPECT_EQ(spool.from(100), "abcdef");
    EXPECT_EQ(spool.room(), 2U);
    spool.append("ghijk");
    EXPECT_EQ(spool.end(), 108U) << "what has no room is not taken";
    spool.confirm(103);
    EXPECT_EQ(spool.first(), 103U);
    EXPECT_EQ(spool.from(104), "efgh");
    EXPECT_EQ(spool.room(), 3U);
}

TEST(output_spool, a_position_that_it_does_not_have_is_moved_to_one_that_it_has) {
    output_spool spool(100);
    spool.append("abcdef");
    spool.confirm(102);
    EXPECT_EQ(spool.begin_for(0), 102U) << "confirmed, so in some file";
    EXPECT_EQ(spool.begin_for(1000), 106U) << "the file has other bytes, too";
    spool.confirm(1000);
    EXPECT_EQ(spool.first(), 106U);
    spool.confirm(0);
    EXPECT_EQ(spool.first(), 106U) << "nothing comes back";
}

// Readers that are lost at any moment, with what they wrote: their file has all bytes, once.
TEST(output_spool, over_lost_readers_a_file_gets_everything_once) {
    std::mt19937 random(7); // NOLINT(cert-msc32-c,cert-msc51-cpp): the same each time
    std::string written, file = "before";
    output_spool spool(file.size(), 64);
    while (written.size() < 5000 || file.size() < 6 + written.size()) {
        const auto position = spool.begin_for(file.size());
        ASSERT_EQ(position, file.size());
        for (auto steps = random() % 8; steps > 0; --steps) {
            if (written.size() < 5000) {
                const std::string more(random() % (spool.room() + 1), static_cast<char>('a' + random() % 26));
                spool.append(more);
                written += more;
            }
            file += spool.from(file.size()).substr(0, random() % 20);
            if (random() % 3 == 0)
                spool.confirm(file.size());
        }
    }
    EXPECT_EQ(file, "before" + written);
}

struct heard {
    std::string out, err;
    bool works = true;
    job_reader reader{[this](std::string_view bytes) { return out += bytes, works; },
                      [this](std::string_view bytes) { return err += bytes, works; }};
};

TEST(job_reader, writes_what_comes_and_counts_from_where_it_begins) {
    heard h;
    const auto all = exec_frame('B', "10 20") + exec_frame('O', "out") + exec_frame('X', "error") +
                     exec_frame('K', {}) + exec_frame('S', "7");
    for (const char byte : all)
        ASSERT_TRUE(h.reader.feed({&byte, 1}));
    EXPECT_EQ(h.out, "out");
    EXPECT_EQ(h.err, "error");
    EXPECT_EQ(h.reader.at(), (positions{13, 25}));
    EXPECT_EQ(h.reader.status(), 7);
    EXPECT_EQ(h.reader.heard(), 5U);
}

TEST(job_reader, hangs_up_on_what_no_keeper_sends) {
    const auto hello = exec_frame('B', "0 0");
    for (const auto& bad :
         {exec_frame('O', "before the beginning"), exec_frame('B', "1"), exec_frame('B', "-1 0"),
          hello + hello, hello + exec_frame('S', "256"), hello + exec_frame('S', ""),
          hello + exec_frame('Z', ""), hello + exec_frame('S', "0") + exec_frame('O', "after the end"),
          hello + exec_frame('K', "1"), hello + "O\xff\xff\xff\xff"}) {
        heard h;
        EXPECT_FALSE(h.reader.feed(bad)) << bad;
        EXPECT_EQ(h.out, "");
    }
}

TEST(job_reader, says_when_output_could_not_be_written) {
    heard h;
    h.works = false;
    EXPECT_FALSE(h.reader.feed(exec_frame('B', "0 0") + exec_frame('O', "x")));
    EXPECT_TRUE(h.reader.failed_to_write());
    EXPECT_EQ(h.reader.at(), positions{}) << "it is not confirmed";
}

TEST(job_frames, positions_are_two_decimal_numbers) {
    EXPECT_EQ(positions_in("3 18446744073709551615"), (positions{3, ~0ULL}));
    for (const char* bad : {"", "1", "1 ", " 1", "1  2", "1 2 ", "+1 2", "1 18446744073709551616", "1 0x2"})
        EXPECT_FALSE(positions_in(bad)) << bad;
}

TEST(job_frames, a_key_is_a_name_of_a_file_and_no_path) {
    EXPECT_TRUE(is_key("12.batch"));
    for (const char* bad : {"", ".", "..", "a/b", "a b", "../x"})
        EXPECT_FALSE(is_key(bad)) << bad;
    EXPECT_FALSE(is_key(std::string(65, 'a')));
}

} // namespace
} // namespace kagemusha::control::job
