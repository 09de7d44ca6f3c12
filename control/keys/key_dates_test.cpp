// SPDX-License-Identifier: GPL-2.0-or-later
// How many days certificates have left, and from when on somebody is told.
#include "control/keys/key_dates.hpp"
#include "control/keys/keys.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

namespace kagemusha::control {
namespace {

constexpr std::int64_t day_s = 86400;

TEST(key_dates, days_are_rounded_down) {
    const key_date date{"a", 100 * day_s};
    EXPECT_EQ(date.days_left(86 * day_s), 14);
    EXPECT_EQ(date.days_left(86 * day_s + 1), 13);
    EXPECT_EQ(date.days_left(100 * day_s), 0);
    EXPECT_EQ(date.days_left(100 * day_s + 1), -1);
}

TEST(key_dates, the_warning_comes_two_weeks_ahead_and_names_what_ends) {
    const std::vector<key_date> dates{{"primary of web", 100 * day_s}, {"CA", 1000 * day_s}};
    EXPECT_EQ(key_warning(dates, 86 * day_s), "");
    EXPECT_EQ(key_warning(dates, 86 * day_s + 1), "primary of web ends in 13 days: renew with `kage keys "
                                                  "DIRECTORY --renew` and copy them to the hosts");
    EXPECT_NE(key_warning(dates, 101 * day_s).find("primary of web has ended"), std::string::npos);
    EXPECT_NE(key_warning(dates, 999 * day_s).find("CA ends in 1 days: make keys with a new CA"),
              std::string::npos);
    EXPECT_NE(key_warning({{"a", 0}, {"CA", 1000 * day_s}}, day_s).find("a can't be read"),
              std::string::npos);
}

TEST(key_dates, are_those_of_the_files_that_a_vm_uses) {
    char name[] = "/tmp/key-dates-XXXXXX";
    keys_request request;
    request.directory = std::string(::mkdtemp(name)) + "/keys";
    request.hosts = {{"here"}};
    request.vms = {"web"};
    request.days = 10;
    ASSERT_EQ(make_keys(request).error, "");
    const auto now_s = static_cast<std::int64_t>(std::time(nullptr));
    const auto dates = key_dates(request.directory + "/here", "web");
    ASSERT_EQ(dates.size(), 5u);
    for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(dates[i].days_left(now_s), 9) << dates[i].name; // it is valid since an hour ago
    EXPECT_EQ(dates[4].days_left(now_s), 3649);
    EXPECT_NE(key_warning(dates, now_s).find("standby of web"), std::string::npos);
    std::filesystem::remove_all(name);
    EXPECT_EQ(key_dates(request.directory + "/here", "web")[0].expires_at_s, 0);
}

} // namespace
} // namespace kagemusha::control
