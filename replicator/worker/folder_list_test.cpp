// SPDX-License-Identifier: GPL-2.0-or-later
#include "worker/folder_list.hpp"

#include <gtest/gtest.h>

namespace kagemusha::worker {
namespace {

using folders = std::vector<std::string>;

TEST(folder_list, only_absolute_folders_are_kept) {
    const folder_list list("/opt/rocm/lib:lib:/usr/lib:../x");
    EXPECT_EQ(list.absolute, (folders{"/opt/rocm/lib", "/usr/lib"}));
    EXPECT_EQ(list.text(), "/opt/rocm/lib:/usr/lib");
    EXPECT_EQ(
        list.complaint("LD_LIBRARY_PATH"),
        "workers don't look into 'lib', '../x' of LD_LIBRARY_PATH: name folders by their absolute paths");
}

TEST(folder_list, an_empty_entry_is_the_working_directory_as_well) {
    for (const char* text : {"", ":/a", "/a:", "/a::/b", "/a;;/b"})
        EXPECT_EQ(folder_list(text).left_out, folders{""}) << text;
    EXPECT_EQ(folder_list("/a;/b").text(), "/a:/b") << "ld.so takes both";
    EXPECT_EQ(folder_list("/a:/b").complaint("X"), "");
}

} // namespace
} // namespace kagemusha::worker
