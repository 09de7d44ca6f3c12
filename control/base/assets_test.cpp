// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of where the parts of a VM are looked for.
#include "control/base/assets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

struct firmware : testing::Test {
    firmware() {
        std::string name = testing::TempDir() + "assets-XXXXXX";
        place = ::mkdtemp(name.data());
    }
    ~firmware() override { fs::remove_all(place); }
    fs::path place;
};

// Found on a host with nothing of QEMU in /usr/share: a QEMU looks beside itself, but in the root of a
// confined one that folder was not there.
TEST_F(firmware, of_a_qemu_that_was_installed_elsewhere_comes_first) {
    fs::create_directories(place / "share/qemu");
    fs::create_directories(place / "bin");
    const auto found = firmware_dirs(place / "bin/qemu-system-x86_64");
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front(), place / "share/qemu");
}

TEST_F(firmware, is_only_looked_for_where_there_is_a_folder) {
    const auto found = firmware_dirs(place / "bin/qemu-system-x86_64");
    EXPECT_TRUE(std::ranges::all_of(found, [](const auto& one) { return fs::is_directory(one); }));
    EXPECT_EQ(std::ranges::count(found, (place / "share/qemu").string()), 0);
}

TEST_F(firmware, of_debians_qemu_is_named_once) {
    const auto found = firmware_dirs("/usr/bin/qemu-system-x86_64");
    EXPECT_LE(std::ranges::count(found, std::string("/usr/share/qemu")), 1);
}

} // namespace
} // namespace kagemusha::control
