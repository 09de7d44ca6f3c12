// SPDX-License-Identifier: GPL-2.0-or-later
//
// The console parser on whole and chopped input, and on guests that write nonsense.
#include "control/qemu/console.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

using kind = console_event::kind;

// All text in a row, markers as words in between.
std::string render(const std::vector<console_event>& events) {
    std::string out;
    for (const auto& event : events) {
        switch (event.what) {
        case kind::text:
            out += event.text;
            break;
        case kind::probe_answered:
            out += "<probe>";
            break;
        case kind::job_started:
            out += "<job>";
            break;
        case kind::job_ended:
            out += "<exit " + std::to_string(event.status) + ">";
            break;
        }
    }
    return out;
}

TEST(console, finds_the_lines_that_are_ours) {
    console_parser parser;
    EXPECT_EQ(render(parser.feed("booting\r\nKAGEMUSHA-JOB\r\nhello\nKAGEMUSHA-EXIT 3\nbye\n")),
              "booting\r\n<job>hello\n<exit 3>bye\n");
    EXPECT_EQ(render(parser.feed("KAGEMUSHA-PROBE\n")), "<probe>");
}

TEST(console, the_chopping_of_the_bytes_does_not_matter) {
    const std::string input =
        "a\n\nKAGEMUSHA-JOB\nKAGE\nprogress 10%\rprogress 20%\r\nKAGEMUSHA-EXIT 255\nKAGEMUSHA-";
    for (std::size_t step = 1; step < input.size(); ++step) {
        console_parser parser;
        std::string out;
        for (std::size_t at = 0; at < input.size(); at += step)
            out += render(parser.feed(std::string_view(input).substr(at, step)));
        EXPECT_EQ(out, "a\n\n<job>KAGE\nprogress 10%\rprogress 20%\r\n<exit 255>") << "step " << step;
    }
}

TEST(console, an_unfinished_line_is_shown_at_once) {
    console_parser parser;
    EXPECT_EQ(render(parser.feed("password: ")), "password: ");
    EXPECT_EQ(render(parser.feed("KAGEMUSHA-JOB\n")), "KAGEMUSHA-JOB\n"); // not at the beginning of a line
}

TEST(console, lines_that_only_look_like_ours_are_text) {
    for (const std::string line :
         {"KAGEMUSHA-EXIT\n", "KAGEMUSHA-EXIT \n", "KAGEMUSHA-EXIT 256\n", "KAGEMUSHA-EXIT -1\n",
          "KAGEMUSHA-EXIT 1 2\n", "KAGEMUSHA-JOBS\n", "KAGEMUSHA-\n", "KAGEMUSHA\n"}) {
        console_parser parser;
        EXPECT_EQ(render(parser.feed(line)), line);
    }
}

TEST(console, an_endless_line_is_not_held_back) {
    console_parser parser;
    const std::string line = "KAGEMUSHA-EXIT " + std::string(1000, '1');
    EXPECT_EQ(render(parser.feed(line)), line);
}

} // namespace
} // namespace kagemusha::control
