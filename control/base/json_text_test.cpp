// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/json_text.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {

TEST(json_text, a_log_line_moves_no_cursor) {
    EXPECT_EQ(as_log_line("a\x1b[2Jb\nc\x7f \xc3\xa4"), "a?[2Jb?c? \xc3\xa4");
    EXPECT_EQ(as_log_line("\xc2\x9b"
                          "2J"),
              "\xc2?2J")
        << "no text any more, and no command";
}

TEST(json_text, bytes_that_are_no_text_are_replaced) {
    EXPECT_EQ(as_json_text({{"why", "a\xff\xc3(b"}}), "{\"why\":\"a\xef\xbf\xbd\xef\xbf\xbd(b\"}");
    EXPECT_EQ(as_json_text({{"why", "\xc3"}}), "{\"why\":\"\xef\xbf\xbd\"}");
    EXPECT_EQ(as_json_text({{"n", 1}}, 2), "{\n  \"n\": 1\n}");
}

TEST(json_text, a_number_that_is_not_there_is_0) {
    const nlohmann::json object{
        {"n", 18446744073709551615u}, {"negative", -1}, {"broken", 1.5}, {"text", "1"}};
    EXPECT_EQ(number_in(object, "n"), 18446744073709551615u);
    for (const char* key : {"negative", "broken", "text", "none"})
        EXPECT_EQ(number_in(object, key), 0u) << key;
}

} // namespace kagemusha::control
