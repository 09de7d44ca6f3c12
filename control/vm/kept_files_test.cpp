// SPDX-License-Identifier: GPL-2.0-or-later
// Files that stay when a package manager replaces them.
#include "control/vm/kept_files.hpp"

#include "control/base/whole_file.hpp"
#include "control/vm/fingerprint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sys/stat.h>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

struct kept_files_test : testing::Test {
    void SetUp() override {
        char name[] = "/tmp/kept-files-XXXXXX";
        folder = ::mkdtemp(name);
        ::setenv("KAGEMUSHA_STATE_DIR", (folder + "/state").c_str(), 1);
        fs::create_directory(folder + "/state");
        payload = folder + "/payload";
    }
    void TearDown() override {
        ::unsetenv("KAGEMUSHA_STATE_DIR");
        fs::remove_all(folder);
    }
    static kept_files opened(const std::string& supervisor) {
        std::string error;
        auto kept = kept_files::open("web", supervisor, error);
        EXPECT_TRUE(kept) << error;
        return kept;
    }
    // As dpkg and make-payload do it: a new file of that name.
    std::string write(const std::string& content) const {
        fs::remove(payload);
        std::ofstream(payload) << content;
        std::string error;
        return file_digest(payload, error).value_or(error);
    }
    std::string folder, payload, error;
};

TEST_F(kept_files_test, a_kept_file_outlives_its_original) {
    auto kept = opened("web");
    const auto first = write("of release 1");
    EXPECT_EQ(read_whole_file(kept.keep(payload, first, error)), "of release 1") << error;
    const auto second = write("of release 2");
    EXPECT_EQ(read_whole_file(kept.keep(payload, second, error)), "of release 2") << error;
    EXPECT_EQ(read_whole_file(kept.find(first, error)), "of release 1") << error;
    EXPECT_EQ(kept.own(), (std::set{first, second}));
    kept.drop({first});
    EXPECT_EQ(kept.find(first, error), "");
    EXPECT_NE(error, "");
}

TEST_F(kept_files_test, a_hosts_other_supervisor_of_the_vm_finds_it) {
    const auto digest = write("of release 1");
    opened("web").keep(payload, digest, error);
    write("of release 2");
    auto standby = opened("web-standby");
    EXPECT_EQ(standby.all(), std::set{digest});
    const auto found = standby.find(digest, error);
    EXPECT_EQ(read_whole_file(found), "of release 1") << error;
    EXPECT_EQ(standby.own(), std::set{digest}) << "it goes on to have it when the other one drops it";
}

TEST_F(kept_files_test, what_an_older_release_left_is_adopted) {
    auto kept = opened("web");
    const auto digest = write("of a release that kept nothing");
    kept.adopt(payload);
    kept.adopt(folder + "/none");
    write("of release 2");
    EXPECT_EQ(read_whole_file(kept.find(digest, error)), "of a release that kept nothing") << error;
}

TEST_F(kept_files_test, what_has_changed_is_not_used) {
    auto kept = opened("web");
    const auto digest = write("of release 1");
    const auto name = kept.keep(payload, digest, error);
    fs::remove(name);
    std::ofstream(name) << "spoilt";
    EXPECT_EQ(kept.find(digest, error), "");
    EXPECT_EQ(kept.keep(payload, "sha256:" + std::string(64, '0'), error), "");
    EXPECT_NE(error.find("has changed"), std::string::npos) << error;
}

TEST_F(kept_files_test, names_that_are_no_digests_lead_nowhere) {
    auto kept = opened("web");
    write("content");
    for (const char* name : {"", "sha256:", "sha256:../../payload", "../../../payload"}) {
        EXPECT_EQ(kept.find(name, error), "") << name;
        EXPECT_EQ(kept.keep(payload, name, error), "") << name;
    }
}

TEST_F(kept_files_test, two_supervisors_do_not_share_a_folder) {
    const auto first = opened("web");
    EXPECT_FALSE(kept_files::open("web", "web", error));
    EXPECT_NE(error.find("another supervisor"), std::string::npos) << error;
}

TEST_F(kept_files_test, a_folder_that_others_can_write_is_not_used) {
    fs::create_directory(folder + "/state/kept");
    ::chmod((folder + "/state/kept").c_str(), 0777);
    EXPECT_FALSE(kept_files::open("web", "web", error));
    EXPECT_NE(error.find("only this user"), std::string::npos) << error;
}

TEST_F(kept_files_test, folders_of_vms_that_are_gone_are_bounded) {
    const auto runs = opened("runs");
    const auto digest = write("content");
    for (std::size_t i = 0; i < kept_files::most_idle_folders + 5; ++i)
        opened(fmt::format("job{}", i)).keep(payload, digest, error);
    std::size_t folders = 0;
    for ([[maybe_unused]] const auto& one : fs::directory_iterator(folder + "/state/kept/web"))
        ++folders;
    EXPECT_EQ(folders, kept_files::most_idle_folders + 2) << "those, the last one, and the one that runs";
    EXPECT_TRUE(fs::exists(folder + "/state/kept/web/runs"));
    EXPECT_FALSE(fs::exists(folder + "/state/kept/web/job0"));
}

} // namespace
} // namespace kagemusha::control
