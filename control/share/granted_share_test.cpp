// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/share/granted_share.hpp"
#include "proto/share/share_protocol.h"

#include <gtest/gtest.h>

#include <map>

namespace kagemusha::control {
namespace {

using variables = std::map<std::string, std::string>;

std::optional<granted_share> read(const variables& set, std::string& error) {
    return read_granted_share(
        [&](const char* name) -> const char* {
            const auto found = set.find(name);
            return found == set.end() ? nullptr : found->second.c_str();
        },
        error);
}

const granted_share quarter{"cpu:0:P", "/run/kagemusha/share/gpu-1", 25, 2048};

described_gpu wanting(std::uint32_t percent, std::uint64_t memory_mib) {
    described_gpu gpu;
    gpu.share = described_share{};
    gpu.share->percent = percent;
    gpu.share->memory_mib = memory_mib;
    return gpu;
}

TEST(granted_share, is_read_from_the_environment) {
    std::string error;
    EXPECT_FALSE(read({}, error));
    EXPECT_FALSE(read({{"KAGEMUSHA_GPU_SHARE", ""}}, error));
    EXPECT_EQ(error, "");
    const auto granted = read({{"KAGEMUSHA_GPU", "cpu:0:P"},
                               {"KAGEMUSHA_GPU_SHARE", "25"},
                               {"KAGEMUSHA_GPU_MEMORY_MIB", "2048"},
                               {"KAGEMUSHA_GPU_ARBITER", "/run/kagemusha/share/gpu-1"}},
                              error);
    EXPECT_EQ(granted, quarter) << error;
}

TEST(granted_share, nonsense_is_told) {
    for (const char* share : {"0", "101", "-1", "25%", "x", "99999999999999999999"}) {
        std::string error;
        EXPECT_FALSE(read({{"KAGEMUSHA_GPU_SHARE", share}}, error));
        EXPECT_NE(error.find("KAGEMUSHA_GPU_SHARE"), std::string::npos) << share;
    }
    std::string error;
    EXPECT_FALSE(read({{"KAGEMUSHA_GPU_SHARE", "5"}, {"KAGEMUSHA_GPU_MEMORY_MIB", "8G"}}, error));
    EXPECT_NE(error.find("KAGEMUSHA_GPU_MEMORY_MIB"), std::string::npos);
}

TEST(granted_share, fills_what_the_description_does_not_say) {
    described_gpu gpu;
    EXPECT_EQ(use_granted_share(quarter, gpu), "");
    EXPECT_EQ(gpu.gpu, "cpu:0:P");
    ASSERT_TRUE(gpu.share);
    EXPECT_EQ(gpu.share->percent, 25u);
    EXPECT_EQ(gpu.share->memory_mib, 2048u);
    EXPECT_EQ(gpu.share->socket, quarter.arbiter);
}

TEST(granted_share, a_description_may_want_less) {
    auto gpu = wanting(10, 512);
    gpu.share->priority = 3;
    EXPECT_EQ(use_granted_share(quarter, gpu), "");
    EXPECT_EQ(gpu.share->percent, 10u);
    EXPECT_EQ(gpu.share->memory_mib, 512u);
    EXPECT_EQ(gpu.share->priority, 3u);
}

TEST(granted_share, a_quota_in_the_properties_stays_the_only_one) {
    described_gpu gpu;
    gpu.properties.emplace_back("max-memory", "1048576");
    EXPECT_EQ(use_granted_share(quarter, gpu), "");
    EXPECT_EQ(gpu.share->memory_mib, 0u);
}

TEST(granted_share, more_or_another_gpu_is_refused) {
    auto more = wanting(26, 0);
    EXPECT_NE(use_granted_share(quarter, more).find("wants 26 percent"), std::string::npos);
    auto memory = wanting(0, 2049);
    EXPECT_NE(use_granted_share(quarter, memory).find("wants 2049 MiB"), std::string::npos);
    described_gpu other;
    other.gpu = "cpu:1:P";
    EXPECT_NE(use_granted_share(quarter, other).find("leave 'gpu' out"), std::string::npos);
    other.gpu = "cpu:0:P";
    EXPECT_EQ(use_granted_share(quarter, other), "");
}

TEST(granted_share, vms_of_one_name_in_two_places_are_two) {
    EXPECT_EQ(name_in_place("web", "pod-1"), "web.pod-1");
    EXPECT_EQ(name_in_place("web", ""), "web");
    const std::string place(63, 'p');
    const auto one = name_in_place("web", place + "1"), other = name_in_place("web", place + "2");
    EXPECT_NE(one, other);
    EXPECT_EQ(one.size(), SHARE_NAME_BYTES - 1);
    EXPECT_TRUE(one.starts_with("web.pp"));
}

} // namespace
} // namespace kagemusha::control
