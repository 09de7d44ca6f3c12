// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/job/job_reader.hpp"
#include "control/job/output_spool.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kagemusha::control::job {
namespace {

using lan::exec_frame;

output_spool begun_at(std::uint64_t base, std::size_t capacity = most_unconfirmed) {
    output_spool spool(capacity);
    spool.begin_at(base);
    return spool;
}

std::string_view end_of(std::string_view file) {
    return file.substr(file.size() - std::min(file.size(), most_file_end));
}

TEST(output_spool, keeps_what_is_not_confirmed_and_no_more_than_its_capacity) {
    auto spool = begun_at(100, 8);
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

TEST(output_spool, a_program_may_write_before_there_is_a_reader) {
    output_spool spool;
    spool.append("abc");
    spool.begin_at(100);
    EXPECT_EQ(spool.from(spool.begin_for(100, "what others wrote")), "abc");
}

TEST(output_spool, a_position_that_it_does_not_have_is_moved_to_what_is_not_confirmed) {
    auto spool = begun_at(100);
    spool.append("abcdef");
    spool.confirm(102);
    EXPECT_EQ(spool.begin_for(0), 102U) << "confirmed, so in some file";
    EXPECT_EQ(spool.begin_for(1000), 102U) << "the file has other bytes, too: rather twice than never";
    EXPECT_EQ(spool.begin_for(104), 104U) << "without a word of the file's end its size is believed";
    spool.confirm(1000);
    EXPECT_EQ(spool.first(), 106U);
    spool.confirm(0);
    EXPECT_EQ(spool.first(), 106U) << "nothing comes back";
}

TEST(output_spool, what_others_write_into_the_file_hides_no_output) {
    auto spool = begun_at(0);
    for (int line = 1; line < 100; ++line)
        spool.append("line " + std::to_string(line) + "\n");
    const std::string all(spool.from(0));
    spool.confirm(200);
    for (const std::string note : {"a note\n", "line 7\n"}) { // one that is as long as a line
        const auto file = all.substr(0, 50) + note + all.substr(50, 250);
        EXPECT_EQ(spool.begin_for(file.size(), end_of(file)), 300U) << note;
    }
    const auto file = all.substr(0, 300) + "the last word\n";
    EXPECT_EQ(spool.begin_for(file.size(), end_of(file)), 200U) << "not recognized: it comes again";
    EXPECT_EQ(spool.begin_for(240, end_of(all.substr(0, 240))), 240U);
    EXPECT_EQ(spool.begin_for(200, end_of(all.substr(0, 200))), 200U);
}

// Readers that are lost at any moment, with what they wrote: their file has all bytes, once.
TEST(output_spool, over_lost_readers_a_file_gets_everything_once) {
    std::mt19937 random(7); // NOLINT(cert-msc32-c,cert-msc51-cpp): the same each time
    std::string written, file = "before";
    auto spool = begun_at(file.size(), 64);
    while (written.size() < 5000 || file.size() < 6 + written.size()) {
        const auto position = spool.begin_for(file.size(), end_of(file));
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

TEST(job_frames, a_greeting_is_two_positions_and_two_ends) {
    const greeting hello{{3, 4}, std::string("a\n\0", 3), ""};
    const auto text =
        text_of(hello.have) + " " + text_of_end(hello.out_end) + " " + text_of_end(hello.err_end);
    EXPECT_EQ(text, "3 4 610a00 -");
    EXPECT_EQ(greeting_in(text), hello);
    const auto longest = std::string(2 * most_file_end, '0');
    EXPECT_TRUE(greeting_in("1 2 " + longest + " -"));
    for (const std::string& bad :
         {std::string(), std::string("1 2"), std::string("1 2 -"), std::string("1 2  -"),
          std::string("1 2 - 6"), std::string("1 2 - 6g"), std::string("1 2 - +6"), std::string("1 2 3 - -"),
          std::string("- 1 2"), "1 2 " + longest + "00 -"})
        EXPECT_FALSE(greeting_in(bad)) << bad;
}

TEST(job_frames, a_key_is_a_name_of_a_file_and_no_path) {
    EXPECT_TRUE(is_key("12.batch"));
    for (const char* bad : {"", ".", "..", "a/b", "a b", "../x"})
        EXPECT_FALSE(is_key(bad)) << bad;
    EXPECT_FALSE(is_key(std::string(65, 'a')));
}

} // namespace
} // namespace kagemusha::control::job
