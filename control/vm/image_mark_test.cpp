// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/vm/image_mark.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace kagemusha::control {

namespace {

class image_marks : public ::testing::Test {
protected:
    void SetUp() override {
        auto name = (std::filesystem::temp_directory_path() / "image-mark-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
        images_ = {name + "/a.img", name + "/b.img"};
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    std::filesystem::path directory_;
    std::vector<std::string> images_;
};

} // namespace

TEST_F(image_marks, an_image_without_one_is_the_newest) {
    EXPECT_EQ(why_not_newest(images_), "");
    EXPECT_EQ(mark_images(images_, image_mark::newest), "");
    EXPECT_EQ(why_not_newest(images_), "");
}

TEST_F(image_marks, a_standbys_copy_is_not_started_from) {
    EXPECT_EQ(mark_images({images_[1]}, image_mark::copy), "");
    EXPECT_EQ(why_not_newest({images_[0]}), "");
    EXPECT_EQ(why_not_newest(images_).find(images_[1] + " is the copy of a standby"), 0u);
    EXPECT_EQ(mark_images(images_, image_mark::newest), "");
    EXPECT_EQ(why_not_newest(images_), "");
}

TEST_F(image_marks, a_primary_whose_standby_may_have_gone_on_is_asked_about) {
    EXPECT_EQ(mark_images(images_, image_mark::copy), "");
    EXPECT_EQ(mark_images(images_, image_mark::protected_), "");
    EXPECT_EQ(why_not_newest(images_).find("the VM had a standby when it ended here"), 0u);
}

TEST_F(image_marks, a_mark_that_cannot_be_written_is_told) {
    EXPECT_NE(mark_images({directory_ / "nowhere" / "a.img"}, image_mark::copy).find("cannot write"),
              std::string::npos);
}

} // namespace kagemusha::control
