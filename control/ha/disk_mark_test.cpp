// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/ha/disk_mark.hpp"

#include <gtest/gtest.h>

namespace kagemusha::ha {
namespace {

constexpr std::uint64_t a = 0xa, b = 0xb;

lineage of(std::vector<lineage::run> runs) {
    lineage out;
    for (const auto& r : runs)
        EXPECT_TRUE(out.add(r));
    return out;
}

} // namespace

TEST(lineage, generations_of_one_supervisor_are_one_run) {
    lineage l;
    l.begin(a);
    l.begin(a);
    l.begin(b);
    l.begin(a);
    EXPECT_EQ(l, of({{a, 1, 2}, {b, 3, 3}, {a, 4, 4}}));
    EXPECT_EQ(to_text(l.current()), "4.000000000000000a");
    EXPECT_TRUE(l.has({2, a}));
    EXPECT_FALSE(l.has({3, a}));
    l.drop_current();
    l.drop_current();
    l.drop_current();
    EXPECT_EQ(l, of({{a, 1, 1}}));
}

TEST(lineage, an_image_is_older_than_what_continues_it) {
    const auto before = of({{a, 1, 2}}), after = of({{a, 1, 2}, {b, 3, 5}});
    EXPECT_EQ(compare(after, before), descent::newer);
    EXPECT_EQ(compare(before, after), descent::older);
    EXPECT_EQ(compare(after, after), descent::same);
    EXPECT_EQ(compare(of({{a, 1, 3}}), after), descent::unrelated) << "both went on from a's second";
    EXPECT_EQ(compare({}, after), descent::unrelated);
    EXPECT_EQ(compare({}, {}), descent::unrelated);
}

TEST(lineage, the_oldest_runs_are_forgotten) {
    lineage l;
    for (std::uint64_t i = 1; i <= lineage::most_runs + 1; ++i)
        l.begin(i);
    EXPECT_EQ(l.runs().size(), lineage::most_runs);
    EXPECT_FALSE(l.has({1, 1}));
    EXPECT_TRUE(l.has({2, 2}));
}

TEST(disk_mark, is_text_and_back) {
    for (const auto state : {disk_state::unmarked, disk_state::waiting, disk_state::newest,
                             disk_state::protected_, disk_state::paired, disk_state::copy}) {
        const disk_mark m{state, of({{a, 1, 2}, {b, 3, 5}})};
        EXPECT_EQ(parse_disk_mark(to_text(m)), m);
    }
    EXPECT_EQ(to_text(disk_mark{disk_state::newest, of({{a, 1, 2}})}), "newest 000000000000000a:1-2");
    EXPECT_EQ(parse_disk_mark("copy"), (disk_mark{disk_state::copy, {}}));
    lineage longest;
    for (std::uint32_t i = 0; i < lineage::most_runs; ++i)
        EXPECT_TRUE(longest.add({UINT64_MAX - i, 999'999'900 + i, 999'999'900 + i}));
    const auto text = to_text(disk_mark{disk_state::protected_, longest});
    EXPECT_LE(text.size(), 1024u) << "as long as a message's text may be";
    EXPECT_TRUE(parse_disk_mark(text));
}

TEST(disk_mark, what_is_none_is_refused) {
    const auto* const run = " 000000000000000a:1-2";
    for (const auto& text :
         {std::string(), std::string("protected:"), std::string(" newest"), std::string("newest 0a:1-2"),
          std::string("newest 000000000000000a:0-2"), std::string("newest 000000000000000a:2-1"),
          std::string("newest 000000000000000a:1-"), std::string("newest 000000000000000a:1-2x"),
          std::string("newest 000000000000000a:-1-2"), std::string("newest 000000000000000g:1-2"),
          std::string("newest 000000000000000a:1-1000000001"), std::string("newest") + run + run,
          std::string("newest ") + run, "newest" + std::string(1100, ' ')})
        EXPECT_FALSE(parse_disk_mark(text)) << text;
    std::string many = "newest";
    for (std::size_t i = 0; i <= lineage::most_runs; ++i)
        many += " 000000000000000a:" + std::to_string(i + 1) + "-" + std::to_string(i + 1);
    EXPECT_FALSE(parse_disk_mark(many));
}

// They are written one after the other, and the host may die in between.
TEST(disk_mark, of_several_images_the_one_that_allows_least_counts) {
    const auto l1 = of({{a, 1, 1}}), l2 = of({{a, 1, 2}});
    EXPECT_EQ(least({}), disk_mark{});
    EXPECT_EQ(least({{disk_state::newest, l2}, {disk_state::protected_, l1}}).state, disk_state::protected_);
    EXPECT_EQ(least({{disk_state::newest, l2}, {disk_state::newest, l1}}).of, l1);
    EXPECT_EQ(least({{disk_state::newest, l2}, {}}).of, l2) << "a new disk";
    EXPECT_EQ(least({{disk_state::paired, l2}, {disk_state::copy, l1}}).state, disk_state::copy);
}

TEST(disk_mark, a_vm_starts_where_it_ran_last) {
    EXPECT_EQ(why_not_start({}, "a.img"), "");
    EXPECT_EQ(why_not_start({disk_state::newest, of({{a, 1, 1}})}, "a.img"), "");
    EXPECT_NE(why_not_start({disk_state::protected_, of({{a, 1, 1}})}, "a.img")
                  .find("generation 1.000000000000000a), which may have gone on with newer disks than a.img"),
              std::string::npos);
    EXPECT_EQ(why_not_start(waits({}), "a.img").find("the VM ran elsewhere while a.img was new here"), 0u);
    EXPECT_EQ(waits({disk_state::newest, {}}).state, disk_state::newest) << "it may be wanted yet";
    for (const auto state : {disk_state::paired, disk_state::copy})
        EXPECT_EQ(why_not_start({state, of({{a, 1, 1}})}, "a.img").find("a.img is the copy of a standby"),
                  0u);
}

TEST(disk_mark, a_primary_starts_again_if_its_standby_has_not_gone_on) {
    const disk_mark ours{disk_state::protected_, of({{a, 1, 2}})};
    EXPECT_EQ(why_not_start(ours, {disk_state::paired, of({{a, 1, 2}})}, false), "");
    EXPECT_EQ(why_not_start(ours, {disk_state::copy, of({{a, 1, 2}})}, false), "");
    EXPECT_NE(why_not_start(ours, {disk_state::paired, of({{a, 1, 2}})}, true), "");
    EXPECT_EQ(why_not_start(ours, {disk_state::newest, of({{a, 1, 2}, {b, 3, 3}})}, false)
                  .find("the standby's host has newer disks: generation 3.000000000000000b, and "
                        "2.000000000000000a here"),
              0u);
    EXPECT_NE(why_not_start(ours, {disk_state::paired, of({{a, 1, 1}})}, false).find("another standby"),
              std::string::npos);
    EXPECT_NE(why_not_start(ours, {disk_state::newest, of({{b, 1, 7}})}, false).find("is not known"),
              std::string::npos);
    EXPECT_NE(why_not_start(ours, {}, false), "") << "its mark was lost";
    EXPECT_NE(why_not_start({disk_state::protected_, {}}, {disk_state::paired, {}}, false), "")
        << "both are of an older release";
}

TEST(disk_mark, only_what_the_primary_continues_is_overwritten) {
    const disk_mark primary{disk_state::newest, of({{a, 1, 2}, {b, 3, 3}})};
    EXPECT_EQ(why_not_overwrite({}, primary), "");
    EXPECT_EQ(why_not_overwrite({disk_state::waiting, {}}, primary), "");
    EXPECT_EQ(why_not_overwrite({disk_state::protected_, of({{a, 1, 2}})}, primary), "");
    EXPECT_EQ(why_not_overwrite({disk_state::newest, of({{a, 1, 1}})}, primary), "");
    EXPECT_EQ(why_not_overwrite({disk_state::copy, of({{a, 1, 9}})}, primary), "") << "it is half a disk";
    EXPECT_EQ(why_not_overwrite({disk_state::protected_, {}}, primary), "") << "an older release's";
    EXPECT_EQ(why_not_overwrite({disk_state::newest, of({{a, 1, 2}, {b, 3, 4}})}, primary)
                  .find("the standby's disks are newer"),
              0u);
    EXPECT_NE(why_not_overwrite({disk_state::protected_, of({{a, 1, 3}})}, primary).find("--discard-replica"),
              std::string::npos);
    EXPECT_NE(why_not_overwrite({disk_state::newest, of({{a, 1, 3}})}), "");
    EXPECT_EQ(why_not_overwrite({disk_state::protected_, of({{a, 1, 3}})}), "");
}

// --force-new: a person says so, and nothing of the other host's is lost by that without being asked for.
TEST(disk_mark, what_is_started_anew_does_not_count_as_newer_than_what_it_lacks) {
    const auto shared = of({{a, 1, 2}});
    const disk_mark primary{disk_state::protected_, shared};
    const auto from_copy = started({disk_state::paired, shared}, b);
    EXPECT_EQ(from_copy.state, disk_state::newest);
    EXPECT_EQ(compare(from_copy.of, shared), descent::unrelated);
    EXPECT_NE(why_not_overwrite(primary, from_copy), "");
    EXPECT_EQ(started({disk_state::copy, shared}, b).of, of({{b, 1, 1}})) << "half a disk continues nothing";
    EXPECT_EQ(compare(started(primary, b).of, shared), descent::newer);
    EXPECT_EQ(gone_on({disk_state::paired, shared}, b).of, of({{a, 1, 2}, {b, 3, 3}}));
}

} // namespace kagemusha::ha
