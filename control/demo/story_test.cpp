// SPDX-License-Identifier: GPL-2.0-or-later
//
// What is made of a demo's story: verdict, timeline, summary, report, picture.
#include "control/demo/story.hpp"
#include "control/demo/timeline_svg.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kagemusha::control {
namespace {

constexpr std::uint64_t ms = 1'000'000;

demo_story good() {
    demo_story s;
    s.words = {6, 26};
    s.known = s.reference =
        s.result = {"00000000000000000000000000000000:aaaaaa", "11111111111111111111111111111111:bbbbbb"};
    s.gpu = s.standby_gpu = "a <GPU> & more";
    s.started_ns = 1'000 * ms;
    s.begun_ns = 50'000 * ms;
    s.committed_ns = 59'970 * ms;
    s.killed_ns = 60'000 * ms;
    s.detected_ns = 60'001 * ms;
    s.decided_ns = 60'002 * ms;
    s.running_ns = 60'040 * ms;
    s.first_command_ns = 60'057 * ms;
    s.ended_ns = 72'500 * ms;
    s.progress = {{demo_host::primary, 55'000 * ms, 0.2}, {demo_host::standby, 70'000 * ms, 0.8}};
    s.after.launches = 5;
    s.behind = 1234;
    return s;
}

demo_story trained() {
    auto s = good();
    s.program = demo_program::training;
    s.asked = "900 steps";
    s.known.clear();
    s.reference = s.result = {"00000009:3e4a2d0f", "00000450:3a83126f", "00000900:39b5e7c4"};
    s.progress = {{demo_host::primary, 55'000 * ms, 0.2, 0.19},
                  {demo_host::standby, 70'000 * ms, 0.8, 0.0004}};
    return s;
}

std::vector<std::string> names(const demo_story& s) {
    std::vector<std::string> out;
    for (const auto& point : timeline_of(s))
        out.push_back(point.name);
    return out;
}

TEST(story, is_verified_only_if_everything_is_right) {
    EXPECT_EQ(why_not_verified(good()), "");
    auto s = good();
    s.result.erase(s.result.begin());
    EXPECT_EQ(why_not_verified(s),
              "the run with the failure found 1 of 2 words, and 0 that nobody had chosen");
    s.result.insert("22222222222222222222222222222222:cccccc");
    EXPECT_EQ(why_not_verified(s),
              "the run with the failure found 1 of 2 words, and 1 that nobody had chosen");
    s = good();
    s.reference.clear();
    EXPECT_NE(why_not_verified(s), "");
    s = good();
    s.killed_ns = 0;
    EXPECT_NE(why_not_verified(s), "");
    s = good();
    s.running_ns = 0;
    EXPECT_NE(why_not_verified(s), "");
    s = good();
    s.first_command_ns = 0;
    EXPECT_NE(why_not_verified(s), "");
    s = good();
    s.after.launches = 0;
    EXPECT_NE(why_not_verified(s), "");
    EXPECT_NE(why_not_verified(demo_story{}), "");
}

TEST(story, a_training_is_verified_only_if_it_learned_and_each_loss_is_the_same) {
    EXPECT_EQ(why_not_verified(trained()), "");
    auto s = trained();
    s.result = {"00000009:3e4a2d0f", "00000450:3a83126e", "00000900:39b5e7c4"};
    EXPECT_EQ(why_not_verified(s), "1 of 3 losses are not those of the run without a failure");
    s = trained();
    s.result.clear();
    EXPECT_EQ(why_not_verified(s), "3 of 3 losses are not those of the run without a failure");
    s = trained();
    s.reference = s.result = {"00000009:3e4a2d0f", "00000900:3e4a2d0e"};
    EXPECT_EQ(why_not_verified(s), "in the run without a failure nothing was learned");
    s.reference = s.result = {"00000009:3e4a2d0f", "00000900:7fc00000"}; // no number
    EXPECT_EQ(why_not_verified(s), "in the run without a failure nothing was learned");
    s = trained();
    s.after.launches = 0;
    EXPECT_EQ(why_not_verified(s), "the losses are right, but the standby's GPU did nothing for the guest");
}

TEST(story, timeline_is_in_the_order_of_the_times) {
    EXPECT_EQ(names(good()), (std::vector<std::string>{"begun", "commit", "kill", "detection", "decision",
                                                       "takeover", "first-command", "result"}));
    auto s = good();
    s.committed_ns = s.killed_ns + 1 * ms; // was on its way
    s.detected_ns = 0;                     // nobody told
    EXPECT_EQ(names(s), (std::vector<std::string>{"begun", "kill", "commit", "decision", "takeover",
                                                  "first-command", "result"}));
    EXPECT_TRUE(names(demo_story{}).empty());
}

TEST(story, offsets) {
    EXPECT_EQ(format_offset(-31'200'000), "-31.2 ms");
    EXPECT_EQ(format_offset(57'040'000), "+57.0 ms");
    EXPECT_EQ(format_offset(12'400'000'000), "+12.40 s");
}

TEST(story, a_person_reads_what_happened) {
    const auto text = timeline_text(good()) + story_summary(good());
    for (const auto* part :
         {"         0  kill -9", "+40.0 ms  the guest runs again", "+12.50 s  the program ends",
          "verified    yes", "ran again 40.0 ms after the kill, its GPU after 57.0 ms",
          "GPU was 1,234 requests behind", "the last 30.0 ms before it were done again"})
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
    auto s = good();
    s.result.clear();
    EXPECT_NE(story_summary(s).find("verified    NO: the run with the failure found 0 of 2 words"),
              std::string::npos);
    EXPECT_FALSE(story_summary(demo_story{}).empty());
    const auto training = story_summary(trained());
    for (const auto* part :
         {"CUDA, in the guest", "fell from 0.197 to 0.000347", "yes: 3 losses, each to the bit"})
        EXPECT_NE(training.find(part), std::string::npos) << part << " is not in\n" << training;
}

TEST(story, a_program_reads_the_report) {
    const auto report = story_report(good());
    EXPECT_EQ(report["verified"], true);
    EXPECT_EQ(report["timeline"][2]["name"], "kill");
    EXPECT_EQ(report["timeline"][5]["after_kill_ns"], 40 * ms);
    EXPECT_EQ(report["timeline"][1]["after_kill_ns"], -30 * static_cast<std::int64_t>(ms));
}

// A crude look: tags are closed in their order, names from elsewhere are escaped, no number is none.
TEST(timeline_svg, is_well_formed) {
    auto no_losses = trained();
    no_losses.progress = {{demo_host::primary, 55'000 * ms, 0.2, 0}};
    for (const auto& s : {good(), demo_story{}, trained(), no_losses}) {
        const auto svg = timeline_svg(s);
        std::vector<std::string> open;
        for (auto at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
            const auto end = svg.find('>', at);
            ASSERT_NE(end, std::string::npos);
            const auto tag = svg.substr(at + 1, end - at - 1);
            const auto name =
                tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
            if (tag[0] == '/') {
                ASSERT_FALSE(open.empty());
                EXPECT_EQ(open.back(), name);
                open.pop_back();
            } else if (tag.back() != '/') {
                open.push_back(name);
            }
        }
        EXPECT_TRUE(open.empty());
        EXPECT_EQ(svg.find("nan"), std::string::npos);
        EXPECT_EQ(svg.find("inf"), std::string::npos);
    }
    const auto svg = timeline_svg(good());
    EXPECT_NE(svg.find("a &lt;GPU&gt; &amp; more"), std::string::npos);
    EXPECT_NE(svg.find("+57.0 ms"), std::string::npos);
}

} // namespace
} // namespace kagemusha::control
