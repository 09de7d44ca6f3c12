// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/vm/image_mark.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kagemusha::control {

namespace {

using ha::disk_mark;
using ha::disk_state;

class image_marks : public ::testing::Test {
protected:
    void SetUp() override {
        auto name = (std::filesystem::temp_directory_path() / "image-mark-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
        images_ = {name + "/a.img", name + "/b.img"};
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    disk_mark read() {
        std::string error;
        const auto mark = read_marks(images_, error);
        EXPECT_EQ(error, "");
        return mark;
    }
    static disk_mark newest(std::uint32_t number) {
        disk_mark m{disk_state::newest, {}};
        for (std::uint32_t i = 0; i < number; ++i)
            m.of.begin(7);
        return m;
    }
    void spoil(const std::string& image, std::streamoff at) {
        std::fstream file(image + ".kagemusha", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(at);
        file.put('?');
    }

    std::filesystem::path directory_;
    std::vector<std::string> images_;
};

} // namespace

TEST_F(image_marks, an_image_that_cannot_be_flushed_is_named) {
    std::ofstream(images_[0]) << "content";
    EXPECT_EQ(flush_images({images_[0]}), "");
    EXPECT_EQ(flush_images(images_), "cannot flush " + images_[1] + ": No such file or directory");
}

TEST_F(image_marks, are_read_as_they_were_written) {
    EXPECT_EQ(read(), disk_mark{});
    for (std::uint32_t i = 1; i < 6; ++i) {
        EXPECT_EQ(write_marks(images_, newest(i)), "");
        EXPECT_EQ(read(), newest(i));
    }
    EXPECT_EQ(write_marks({images_[1]}, {disk_state::copy, newest(2).of}), "");
    EXPECT_EQ(read().state, disk_state::copy) << "one image is behind the other";
}

TEST_F(image_marks, half_a_mark_leaves_the_one_before) {
    EXPECT_EQ(write_marks(images_, newest(1)), "");
    EXPECT_EQ(write_marks(images_, newest(2)), "");
    EXPECT_EQ(write_marks(images_, newest(3)), "");
    spoil(images_[0], 50); // the slots are written in turns, so the third one is in the first
    EXPECT_EQ(read(), newest(2));
    EXPECT_EQ(write_marks(images_, newest(4)), "");
    EXPECT_EQ(read(), newest(4));
}

TEST_F(image_marks, those_of_an_earlier_release_are_read) {
    std::ofstream(images_[0] + ".kagemusha") << "protected: a standby may have gone on with the VM\n";
    EXPECT_EQ(read(), (disk_mark{disk_state::protected_, {}}));
    std::ofstream(images_[0] + ".kagemusha") << "copy: a standby's; it follows the VM of another host\n";
    EXPECT_EQ(read(), (disk_mark{disk_state::copy, {}}));
    EXPECT_EQ(write_marks(images_, newest(1)), "");
    EXPECT_EQ(read(), newest(1));
}

TEST_F(image_marks, what_is_none_is_told) {
    std::ofstream(images_[1] + ".kagemusha") << "newest\n";
    std::string error;
    read_marks(images_, error);
    EXPECT_NE(error.find("b.img.kagemusha is no mark of a disk image that can be read"), std::string::npos);
    EXPECT_EQ(write_marks(images_, newest(1)), "") << "it is replaced when the image is";
    EXPECT_EQ(read(), newest(1));
}

TEST_F(image_marks, one_that_cannot_be_written_is_told) {
    EXPECT_NE(write_marks({directory_ / "nowhere" / "a.img"}, newest(1)).find("cannot write"),
              std::string::npos);
}

} // namespace kagemusha::control
