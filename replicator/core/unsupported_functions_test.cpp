// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/unsupported_functions.hpp"

#include <gtest/gtest.h>

namespace kagemusha::core {
namespace {

TEST(UnsupportedFunctions, CountsByName) {
    unsupported_functions all;
    EXPECT_EQ(all.text(), "");
    all.note("cuIpcGetMemHandle");
    all.note("cuMemAdvise");
    all.note("cuIpcGetMemHandle");
    EXPECT_EQ(all.text(), "cuIpcGetMemHandle 2, cuMemAdvise 1");
}

TEST(UnsupportedFunctions, TakesNoNameThatIsNone) {
    unsupported_functions all;
    for (const std::string& name : {std::string(), std::string("cu\n"), std::string("cu A"),
                                    std::string("\0", 1), std::string("cu\x1b[31m"), std::string(65, 'a')}) {
        all.note(name);
    }
    EXPECT_EQ(all.text(), "");
    all.note(std::string(64, 'a'));
    EXPECT_EQ(all.text(), std::string(64, 'a') + " 1");
}

TEST(UnsupportedFunctions, AGuestCannotMakeItGrow) {
    unsupported_functions all;
    for (int i = 0; i < 100000; ++i)
        all.note("cuName" + std::to_string(i));
    const std::string text = all.text();
    EXPECT_LT(text.size(), 64u * 80);
    EXPECT_NE(text.find("cuName63 1"), std::string::npos);
    EXPECT_EQ(text.find("cuName64 "), std::string::npos);
    EXPECT_NE(text.find(", others 99936"), std::string::npos);
}

} // namespace
} // namespace kagemusha::core
