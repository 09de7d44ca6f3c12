// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of an installation: what is found in it, and what is said of a half-installed one.
#include "control/base/installation.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

struct an_installation : testing::Test {
    an_installation() {
        std::string name = testing::TempDir() + "installation-XXXXXX";
        prefix = ::mkdtemp(name.data());
    }
    ~an_installation() override { fs::remove_all(prefix); }

    void put(const std::string& file) const {
        fs::create_directories((prefix / file).parent_path());
        std::ofstream(prefix / file) << "x";
    }
    // As the packages kagemusha, kagemusha-qemu and kagemusha-guest-image fill it.
    void put_everything() const {
        for (const char* file :
             {"share/kagemusha/scripts/make-payload", "bin/kagemusha-gpus",
              "libexec/kagemusha/kagemusha-worker", "libexec/kagemusha/kagemusha-gpu",
              "lib/kagemusha/libkagemusha_device.so", "lib/kagemusha/qemu-system-x86_64",
              "lib/kagemusha/guest/libkagemusha_opencl.so", "lib/kagemusha/guest/libcuda.so.1.0",
              "lib/kagemusha/guest/root.squashfs", "lib/kagemusha/guest/6.12-cloud/vmlinuz",
              "lib/kagemusha/guest/6.12-cloud/initramfs", "lib/kagemusha/guest/6.12-cloud/kagemusha_vgpu.ko"})
            put(file);
    }
    std::string missing(const std::string& flavour = default_flavour, bool with_gpu = true) const {
        const auto found = installation::at(prefix.string());
        return found ? found->missing(found->parts(flavour), with_gpu) : "no installation";
    }
    std::string missing_without(const std::string& file, bool with_gpu = true) const {
        fs::remove(prefix / file);
        return missing(default_flavour, with_gpu);
    }
    fs::path prefix;
};

TEST_F(an_installation, is_where_our_scripts_are) {
    EXPECT_FALSE(installation::at(prefix.string()));
    EXPECT_FALSE(installation::at(""));
    put("share/kagemusha/scripts/make-payload");
    const auto found = installation::at(prefix.string());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->scripts(), (prefix / "share/kagemusha").string());
}

TEST_F(an_installation, has_programs_and_libraries_in_four_folders) {
    put_everything();
    const auto found = installation::at(prefix.string());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->find("kagemusha-gpus"), prefix / "bin/kagemusha-gpus");
    EXPECT_EQ(found->find("kagemusha-gpu"), prefix / "libexec/kagemusha/kagemusha-gpu");
    EXPECT_EQ(found->find("libkagemusha_device.so"), prefix / "lib/kagemusha/libkagemusha_device.so");
    EXPECT_EQ(found->find("libcuda.so.1.0"), prefix / "lib/kagemusha/guest/libcuda.so.1.0");
    EXPECT_EQ(found->find("vmlinuz"), "");
}

TEST_F(an_installation, with_everything_misses_nothing) {
    put_everything();
    EXPECT_EQ(missing(), "");
    const auto parts = installation::at(prefix.string())->parts(default_flavour);
    for (const auto& path : {parts.qemu, parts.kernel, parts.initramfs, parts.root_image, parts.module,
                             parts.icd, parts.cuda, parts.device_library, parts.worker})
        EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(an_installation, names_the_package_of_what_is_missing) {
    put_everything();
    EXPECT_EQ(missing("6.1-cloud"), "there is no guest image with the kernel '6.1-cloud' in " +
                                        prefix.string() + "/lib/kagemusha/guest: it has 6.12-cloud");
    EXPECT_EQ(missing_without("lib/kagemusha/guest/libcuda.so.1.0"),
              (prefix / "lib/kagemusha/guest/libcuda.so.1.0").string() +
                  " is missing: install the package kagemusha again");
    EXPECT_EQ(missing_without("lib/kagemusha/guest/6.12-cloud/kagemusha_vgpu.ko"),
              (prefix / "lib/kagemusha/guest/6.12-cloud/kagemusha_vgpu.ko").string() +
                  " is missing: install the package kagemusha-guest-image again");
    EXPECT_EQ(missing(default_flavour, false), "") << "a guest without a GPU needs neither";
    EXPECT_EQ(missing_without("lib/kagemusha/guest/6.12-cloud/initramfs"),
              (prefix / "lib/kagemusha/guest/6.12-cloud/initramfs").string() +
                  " is missing: install the package kagemusha-guest-image again");
    EXPECT_EQ(missing_without("lib/kagemusha/guest/root.squashfs"),
              "there is no guest image, " + prefix.string() +
                  "/lib/kagemusha/guest/root.squashfs: install the package kagemusha-guest-image");
    EXPECT_EQ(missing_without("lib/kagemusha/qemu-system-x86_64", false),
              (prefix / "lib/kagemusha/qemu-system-x86_64").string() +
                  " is missing: install the package kagemusha-qemu");
}

TEST(own_installation, is_none_in_a_build_directory) {
    EXPECT_FALSE(own_installation());
    EXPECT_EQ(tool_word(), "./kage");
    EXPECT_EQ(not_there("kagemusha-gpu"), "kagemusha-gpu is not built: run ./kage build");
}

TEST(own_installation, is_that_of_programs_for_people_and_of_others) {
    EXPECT_EQ(prefix_of("/usr/bin/kagemusha"), "/usr");
    EXPECT_EQ(prefix_of("/usr/libexec/kagemusha/kagemusha-daemon"), "/usr");
    EXPECT_EQ(prefix_of("/home/me/libexec/other/kagemusha-daemon"), "");
    EXPECT_EQ(prefix_of("/home/me/kagemusha/build/default/control/kagemusha"), "");
    EXPECT_EQ(prefix_of(""), "");
}

TEST(tool_program, is_beside_this_one_in_a_build) {
    EXPECT_EQ(tool_program(), fs::canonical("/proc/self/exe").parent_path() / "kagemusha");
}

TEST(own_program, is_named_after_an_upgrade_too) {
    EXPECT_EQ(own_program(), fs::canonical("/proc/self/exe"));
    EXPECT_EQ(program_of("/usr/bin/kagemusha (deleted)"), "/usr/bin/kagemusha");
    EXPECT_EQ(program_of("/usr/bin/kagemusha"), "/usr/bin/kagemusha");
    EXPECT_EQ(program_of(""), "");
}

} // namespace
} // namespace kagemusha::control
