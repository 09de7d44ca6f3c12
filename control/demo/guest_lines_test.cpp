// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the demo's guest writes: real output of hashcat 6.2.6, chopped anyhow, and nonsense.
#include "control/demo/guest_lines.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

using kind = guest_event::kind;

constexpr char real[] = "KAGEMUSHA-DEMO begun 1\n"
                        "[s]tatus [p]ause [b]ypass [c]heckpoint [f]inish [q]uit => \r\n"
                        "\x1b[2K\r214f2b54f3271af0b1971a84fb3a2376:vcjcor\r\n"
                        "Status...........: Running\n"
                        "Speed.#1.........: 24228.4 kH/s (14.03ms) @ Accel:512 Loops:676 Thr:1 Vec:16\n"
                        "Recovered........: 2/12 (16.67%) Digests (total), 2/12 (16.67%) Digests (new)\n"
                        "Progress.........: 77228944/308915776 (25.00%)\n"
                        "KAGEMUSHA-DEMO ended 1 0\n"
                        "KAGEMUSHA-DEMO result 1 214f2b54f3271af0b1971a84fb3a2376:vcjcor\n"
                        "KAGEMUSHA-DEMO results-end 1\n"
                        "KAGEMUSHA-DEMO ready\n";

std::vector<guest_event> expected() {
    return {{kind::begun, 1, 0, 0, 0, {}},
            {kind::found, 0, 0, 0, 0, "214f2b54f3271af0b1971a84fb3a2376:vcjcor"},
            {kind::progress, 0, 0, 0.25, 24228400, "2/12 words, 24228.4 kH/s"},
            {kind::ended, 1, 0, 0, 0, {}},
            {kind::result, 1, 0, 0, 0, "214f2b54f3271af0b1971a84fb3a2376:vcjcor"},
            {kind::results_end, 1, 0, 0, 0, {}},
            {kind::ready, 0, 0, 0, 0, {}}};
}

TEST(guest_lines, understands_what_hashcat_writes) {
    EXPECT_EQ(guest_lines().feed(real), expected());
}

TEST(guest_lines, the_chopping_of_the_bytes_does_not_matter) {
    const std::string_view all = real;
    for (std::size_t step = 1; step < 100; ++step) {
        guest_lines lines;
        std::vector<guest_event> out;
        for (std::size_t at = 0; at < all.size(); at += step)
            for (auto& event : lines.feed(all.substr(at, step)))
                out.push_back(std::move(event));
        EXPECT_EQ(out, expected()) << "step " << step;
    }
}

TEST(guest_lines, understands_what_the_training_writes) {
    const std::vector<guest_event> wanted{
        {kind::begun, 2, 0, 0, 0, {}},
        {kind::progress, 0, 0, 0.25, 53.5, "loss 0.000835, 54 steps/s", 0.000835},
        {kind::result, 2, 0, 0, 0, "00000225:3a5b0c1d"},
        {kind::results_end, 2, 0, 0, 0, {}}};
    EXPECT_EQ(guest_lines().feed("KAGEMUSHA-DEMO begun 2\nKAGEMUSHA-DEMO step 225/900 0.000835 53.5\n"
                                 "KAGEMUSHA-DEMO result 2 00000225:3a5b0c1d\nKAGEMUSHA-DEMO results-end 2\n"),
              wanted);
}

TEST(guest_lines, units_of_speed) {
    const auto rate = [](const std::string& speed) {
        return guest_lines()
            .feed("Speed.#1.........: " + speed + "\nProgress.........: 1/2 (50.00%)\n")
            .at(0)
            .per_second;
    };
    EXPECT_EQ(rate("512 H/s (1.00ms)"), 512);
    EXPECT_EQ(rate("61.5 GH/s (1.00ms)"), 61.5e9);
    EXPECT_EQ(rate("12 parsecs"), 0);
    EXPECT_EQ(rate("-3 H/s"), 0);
    EXPECT_EQ(rate(""), 0);
}

TEST(guest_lines, nonsense_is_no_event) {
    for (const auto* line : {"Progress.........: 3/2 (150.00%)",
                             "Progress.........: 1/0 (0%)",
                             "Progress: ",
                             "Progress",
                             "Progress.........: 99999999999999999999/1 (0%)",
                             "KAGEMUSHA-DEMO",
                             "KAGEMUSHA-DEMO ended 1",
                             "KAGEMUSHA-DEMO ended x 0",
                             "KAGEMUSHA-DEMO step 2/1 0.5 3",
                             "KAGEMUSHA-DEMO step 1/2 0.5",
                             "KAGEMUSHA-DEMO step 1/2 nan 3",
                             "KAGEMUSHA-DEMO step 1/2 -1 3",
                             "KAGEMUSHA-DEMO step 1/2 0.5 inf",
                             "KAGEMUSHA-DEMO result 1 225:3a5b0c1d",
                             "KAGEMUSHA-DEMO result 1 00000225:3A5B0C1D",
                             "KAGEMUSHA-DEMO result 1 a:b",
                             "xKAGEMUSHA-DEMO ready",
                             "214f2b54f3271af0b1971a84fb3a2376:",
                             "214f2b54f3271af0b1971a84fb3a237G:word",
                             "214f2b54f3271af0b1971a84fb3a2376:Word",
                             "\x1b[",
                             "\x1b["})
        EXPECT_TRUE(guest_lines().feed(std::string(line) + "\n").empty()) << line;
}

TEST(guest_lines, a_line_without_an_end_is_not_kept) {
    guest_lines lines;
    EXPECT_TRUE(lines.feed(std::string(1 << 20, 'x')).empty());
    EXPECT_TRUE(lines.feed("KAGEMUSHA-DEMO ready\n").empty()); // still the same line
    EXPECT_EQ(lines.feed("KAGEMUSHA-DEMO ready\n").size(), 1u);
}

} // namespace
} // namespace kagemusha::control
