// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/replica.hpp"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

namespace fs = std::filesystem;

const std::string name(32, 'a'), other(32, 'b');

class replica_keeper_test : public ::testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "replica.XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        for (const char* image : {"a.img", "b.img"}) {
            images_.push_back(directory_ / image);
            write(images_.back());
        }
    }
    void TearDown() override { fs::remove_all(directory_); }

    // As a QEMU does: the file's times change, surely to others than before.
    void write(const std::string& image) {
        std::ofstream(image) << "content";
        const timespec times[2] = {{++second_, 0}, {second_, 0}};
        ASSERT_EQ(::utimensat(AT_FDCWD, image.c_str(), times, 0), 0);
    }

    // What a QEMU that got something has left.
    std::string leave() {
        replica_keeper keeper(images_);
        const auto name = keeper.begin().name;
        write(images_[0]);
        keeper.leave();
        return name;
    }
    std::string base() { return replica_keeper(images_).begin().base; }
    bool has_record(std::size_t image) { return fs::exists(images_[image] + ".kagemusha-replica"); }

    fs::path directory_;
    std::vector<std::string> images_;
    std::int64_t second_ = 1'000'000;
};

TEST_F(replica_keeper_test, what_a_stream_has_left_is_the_next_ones_base) {
    EXPECT_EQ(base(), "");
    const auto left = leave();
    EXPECT_TRUE(has_record(0) && has_record(1));
    EXPECT_EQ(base(), left);
}

TEST_F(replica_keeper_test, a_record_is_there_only_while_no_qemu_runs) {
    leave();
    replica_keeper keeper(images_);
    EXPECT_NE(keeper.begin().base, "");
    EXPECT_FALSE(has_record(0) || has_record(1));
    // This supervisor is killed: the next one knows nothing.
    EXPECT_EQ(base(), "");
}

TEST_F(replica_keeper_test, a_qemu_that_got_nothing_leaves_what_was_there) {
    const auto left = leave();
    replica_keeper keeper(images_);
    EXPECT_NE(keeper.begin().name, left);
    keeper.leave();
    EXPECT_EQ(base(), left);
}

TEST_F(replica_keeper_test, after_a_guest_that_ran_nothing_is_known) {
    replica_keeper keeper(images_);
    keeper.begin();
    write(images_[0]);
    keeper.spoil();
    keeper.leave();
    EXPECT_FALSE(has_record(0) || has_record(1));
    EXPECT_EQ(base(), "");
}

TEST_F(replica_keeper_test, a_vm_that_starts_from_the_images_ends_it) {
    leave();
    replica_keeper(images_).forget();
    EXPECT_EQ(base(), "");
}

TEST_F(replica_keeper_test, an_image_that_was_touched_has_no_base) {
    leave();
    write(images_[1]);
    EXPECT_EQ(base(), "");
}

// Times can be set, but not that of the inode's change.
TEST_F(replica_keeper_test, an_older_image_with_its_old_times_has_no_base) {
    leave();
    struct stat before{};
    ASSERT_EQ(::stat(images_[0].c_str(), &before), 0);
    fs::copy_file(images_[0], images_[0] + ".old");
    ASSERT_EQ(::rename((images_[0] + ".old").c_str(), images_[0].c_str()), 0);
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, images_[0].c_str(), times, 0), 0);
    EXPECT_EQ(base(), "");
}

TEST_F(replica_keeper_test, all_images_or_none) {
    leave();
    fs::remove(images_[1] + ".kagemusha-replica");
    EXPECT_EQ(base(), "");
}

TEST_F(replica_keeper_test, what_is_no_file_has_no_record) {
    images_[1] = "/dev/null";
    leave();
    EXPECT_FALSE(has_record(0));
}

TEST(replica, there_and_back) {
    for (const replica& r : {replica{name, ""}, replica{name, other}})
        EXPECT_EQ(parse_replica(to_text(r)), r);
    const replica_record record{"0f5e-11", name, {1, 2, 3, -4, 5}};
    EXPECT_EQ(parse_replica_record(to_text(record) + "\n"), record);
}

TEST(replica, what_is_none_is_refused) {
    for (const auto& text : {std::string(), name + " ", name + " x", name + " " + other + " ",
                             other.substr(1), std::string(32, 'A'), name + other})
        EXPECT_FALSE(parse_replica(text)) << text;
    const auto good = to_text(replica_record{"boot", name, {1, 2, 3, 4, 5}});
    EXPECT_FALSE(parse_replica_record(good)) << "cut off before its end";
    EXPECT_FALSE(parse_replica_record(good + " 6\n"));
    EXPECT_FALSE(parse_replica_record("x" + good + "\n"));
    EXPECT_FALSE(parse_replica_record(good.substr(0, good.size() - 2) + "\n"));
}

TEST(replica, a_base_is_of_this_boot_and_of_this_image) {
    const image_facts image{1, 2, 3, 4, 5};
    const replica_record good{"boot", name, image};
    EXPECT_EQ(base_of({good}, {image}, "boot"), name);
    EXPECT_EQ(base_of({good}, {image}, "another boot"), "");
    EXPECT_EQ(base_of({good}, {image}, ""), "");
    EXPECT_EQ(base_of({std::nullopt}, {image}, "boot"), "");
    EXPECT_EQ(base_of({}, {}, "boot"), "");
    EXPECT_EQ(base_of({good, replica_record{"boot", other, image}}, {image, image}, "boot"), "");
    for (const image_facts& changed :
         {image_facts{9, 2, 3, 4, 5}, image_facts{1, 9, 3, 4, 5}, image_facts{1, 2, 9, 4, 5},
          image_facts{1, 2, 3, 9, 5}, image_facts{1, 2, 3, 4, 9}})
        EXPECT_EQ(base_of({good}, {changed}, "boot"), "");
}

} // namespace

} // namespace kagemusha::control
