// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/cdi.hpp"
#include "kubernetes/core/core_test_helpers.hpp"

#include <gtest/gtest.h>

namespace kagemusha::kubernetes {
namespace {

TEST(cdi, a_specification_has_a_device_for_each_gpu_that_is_there) {
    auto gpus = node_with(2);
    gpus.looked({{gpu_numbered(1)}});
    const auto spec = gpu_specification(gpus.gpus(), {.share_directory = "/share", .nodes = {"/dev/kvm"}});
    EXPECT_EQ(spec["kind"], "kagemusha.io/gpu");
    ASSERT_EQ(spec["devices"].size(), 1u);
    const auto& device = spec["devices"][0];
    EXPECT_EQ("kagemusha.io/gpu=" + device["name"].get<std::string>(), cdi_name(gpu_numbered(1)));
    const auto& edits = device["containerEdits"];
    ASSERT_EQ(edits["deviceNodes"].size(), 2u);
    EXPECT_EQ(edits["deviceNodes"][0]["path"], "/dev/dri/renderD129");
    EXPECT_EQ(edits["deviceNodes"][1]["path"], "/dev/kvm");
    EXPECT_EQ(edits["mounts"][0]["hostPath"], "/share");
    EXPECT_EQ(edits["mounts"][0]["containerPath"], share_directory_inside);
    EXPECT_FALSE(edits.contains("env"));
}

TEST(cdi, without_a_gpu_there_is_none) {
    EXPECT_TRUE(gpu_specification({}, {}).is_null());
}

TEST(cdi, edits_carry_an_environment) {
    const auto edits = container_edits(gpu_numbered(0), {}, {{"KEY", "a=b"}});
    EXPECT_EQ(edits["env"][0], "KEY=a=b");
}

} // namespace
} // namespace kagemusha::kubernetes
