// SPDX-License-Identifier: GPL-2.0-or-later
// README.md names the opcodes that the code has.
#include "build.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace kagemusha::machine {
namespace {

TEST(Readme, ListsTheOpcodes) {
    std::ifstream file("README.md");
    ASSERT_TRUE(file);
    std::stringstream text;
    text << file.rdbuf();
    const std::string all = text.str();
    const std::size_t begin = all.find("<!-- opcodes -->");
    const std::size_t end = all.find("<!-- end -->");
    ASSERT_NE(begin, std::string::npos);
    ASSERT_NE(end, std::string::npos);
    std::string list = all.substr(begin + 16, end - begin - 16);
    std::replace(list.begin(), list.end(), '`', ' ');
    std::istringstream words(list);
    std::set<std::string> written;
    for (std::string word; words >> word;)
        written.insert(word);
    std::set<std::string> known;
    for (std::string_view name : opcodes())
        known.emplace(name);
    EXPECT_EQ(written, known);
}

} // namespace
} // namespace kagemusha::machine
