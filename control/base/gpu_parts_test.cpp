// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/gpu_parts.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {

namespace {

using words = std::vector<std::string>;

assets some_parts() {
    assets parts;
    parts.module = "/m.ko";
    parts.icd = "/icd.so";
    parts.cuda = "/libcuda.so.1.0";
    parts.device_library = "/build/ffi/libdevice.so";
    parts.worker = "/build/worker";
    return parts;
}

} // namespace

TEST(gpu_parts, a_guest_gets_the_driver_of_its_backend) {
    EXPECT_EQ(guest_driver_words(some_parts(), "cuda"),
              (words{"--module", "/m.ko", "--cuda", "/libcuda.so.1.0"}));
    for (const char* backend : {"opencl", "null", "faulty"})
        EXPECT_EQ(guest_driver_words(some_parts(), backend), (words{"--module", "/m.ko", "--icd", "/icd.so"}))
            << backend;
}

TEST(gpu_parts, a_driver_is_a_library_of_the_host_and_for_cuda) {
    EXPECT_EQ(find_host_driver("opencl", ""), "");
    EXPECT_EQ(find_host_driver("cuda", ""), "");
    EXPECT_EQ(find_host_driver("cuda", "/proc/self/exe"), "/proc/self/exe");
    EXPECT_FALSE(find_host_driver("opencl", "/proc/self/exe"));
    EXPECT_FALSE(find_host_driver("cuda", "proc/self/exe"));
    EXPECT_FALSE(find_host_driver("cuda", "/nothing/libcuda.so.1"));
    EXPECT_FALSE(find_host_driver("cuda", "/proc/self/exe,on=launch"));
}

TEST(gpu_parts, the_device_is_told_of_the_driver_once) {
    std::vector<std::pair<std::string, std::string>> properties{{"log-size", "1G"}};
    EXPECT_TRUE(add_host_driver(properties, ""));
    EXPECT_EQ(properties.size(), 1u);
    EXPECT_TRUE(add_host_driver(properties, "/lib/libcuda.so.1"));
    EXPECT_EQ(properties.back(),
              (std::pair<std::string, std::string>{"options", "driver=/lib/libcuda.so.1"}));
    EXPECT_FALSE(add_host_driver(properties, "/lib/libcuda.so.1"));
}

TEST(gpu_parts, workers_see_the_drivers_folder) {
    const auto environment = gpu_environment(some_parts(), "/drivers/libcuda.so.1");
    ASSERT_EQ(environment.size(), 2u);
    EXPECT_EQ(environment[0].first, "LD_LIBRARY_PATH");
    EXPECT_TRUE(environment[0].second.starts_with("/build/ffi:/drivers")) << environment[0].second;
    EXPECT_EQ(environment[1], (std::pair<std::string, std::string>{"KAGEMUSHA_WORKER", "/build/worker"}));
}

} // namespace kagemusha::control
