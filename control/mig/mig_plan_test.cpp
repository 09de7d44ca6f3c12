// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/mig/mig_plan.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

mig_gpu gpu_with_mig(std::uint32_t index) {
    mig_gpu gpu;
    gpu.index = index;
    gpu.uuid = "GPU-" + std::to_string(index);
    gpu.name = "H100";
    gpu.mode = gpu.pending = mig_mode::on;
    gpu.profiles = {{19, "1g.10gb", 1, 10ull << 30, 3}, {9, "3g.40gb", 3, 40ull << 30, 1}};
    gpu.instances = {{"MIG-" + std::to_string(index) + "a", 1, "3g.40gb", 40ull << 30, 0, 4, {}}};
    return gpu;
}

std::string refusal(const std::vector<mig_gpu>& gpus, const mig_request& request) {
    const auto plan = plan_mig(gpus, request);
    EXPECT_TRUE(plan.actions.empty());
    return plan.error;
}

bool says(const std::string& text, const char* what) {
    return text.find(what) != text.npos;
}

TEST(mig_plan, MakesRoomFirst) {
    mig_request request;
    request.destroy = {"MIG-0a"};
    request.create = {"3g.40gb", "3g.40gb"}; // only one is free before
    const auto plan = plan_mig({gpu_with_mig(0)}, request);
    ASSERT_EQ(plan.error, "");
    ASSERT_EQ(plan.actions.size(), 3u);
    EXPECT_EQ(plan.actions[0].what, mig_action::kind::destroy);
    EXPECT_EQ(plan.actions[0].instance_id, 1u);
    EXPECT_EQ(plan.actions[2].what, mig_action::kind::create);
    EXPECT_EQ(plan.actions[2].profile_id, 9u);
}

TEST(mig_plan, ChangesNothingThatIsInUse) {
    mig_request request;
    request.create = {"1g.10gb"};
    auto gpu = gpu_with_mig(0);
    EXPECT_EQ(plan_mig({gpu}, request).error, "");
    gpu.instances[0].processes = {42};
    EXPECT_TRUE(says(refusal({gpu}, request), "in use by process 42"));
    gpu.processes = {42, 7};
    EXPECT_TRUE(says(refusal({gpu}, request), "in use by processes 7, 42"));
    gpu = gpu_with_mig(0);
    // A VM without a program has no process there yet.
    for (const char* its : {"MIG-0a", "GPU-0", "", "0", "H100", "MIG-gone"}) {
        request.described = {its};
        EXPECT_TRUE(says(refusal({gpu}, request), "a VM that runs here has the GPU")) << its;
    }
    request.gpu = "0";
    request.described = {"MIG-1a", "GPU-1"}; // surely another one's
    EXPECT_EQ(plan_mig({gpu, gpu_with_mig(1)}, request).error, "");
}

TEST(mig_plan, RefusesWhatThereIsNot) {
    const std::vector<mig_gpu> one{gpu_with_mig(0)}, two{gpu_with_mig(0), gpu_with_mig(1)};
    mig_request request;
    request.create = {"9g.99gb"};
    EXPECT_TRUE(says(refusal(one, request), "it has 1g.10gb (3 free), 3g.40gb (1 free)"));
    request.create = {"3g.40gb", "3g.40gb"};
    EXPECT_TRUE(says(refusal(one, request), "2 of '3g.40gb' do not fit"));
    request.create = {"1g.10gb"};
    EXPECT_TRUE(says(refusal(two, request), "name one with --gpu"));
    request.gpu = "GPU-7";
    EXPECT_TRUE(says(refusal(two, request), "no GPU 'GPU-7'"));
    EXPECT_TRUE(says(refusal({}, request), "knows no GPU"));
    request = {};
    request.destroy = {"MIG-0a", "MIG-0b"};
    EXPECT_TRUE(says(refusal(one, request), "no instance 'MIG-0b'"));
    auto other = gpu_with_mig(0);
    other.mode = mig_mode::impossible;
    EXPECT_TRUE(says(refusal({other}, request), "can't be cut"));
}

TEST(mig_plan, ModeComesBeforeInstances) {
    auto gpu = gpu_with_mig(0);
    mig_request request;
    request.enable = true;
    auto plan = plan_mig({gpu}, request);
    EXPECT_TRUE(plan.error.empty() && plan.actions.empty()); // it is on
    request.enable = false;
    EXPECT_TRUE(says(refusal({gpu}, request), "has 1 instances"));
    gpu.instances.clear();
    plan = plan_mig({gpu}, request);
    ASSERT_EQ(plan.actions.size(), 1u);
    EXPECT_FALSE(plan.actions[0].on);
    request.create = {"1g.10gb"};
    EXPECT_TRUE(says(refusal({gpu}, request), "change MIG mode first"));
    request.enable.reset();
    gpu.mode = gpu.pending = mig_mode::off;
    EXPECT_TRUE(says(refusal({gpu}, request), "turn it on with --enable"));
    gpu.pending = mig_mode::on;
    EXPECT_TRUE(says(refusal({gpu}, request), "after the GPU's reset"));
}

TEST(mig_text, SaysWhoHasWhat) {
    auto gpu = gpu_with_mig(0);
    gpu.instances[0].processes = {42};
    gpu.name = "H100\x1b[2J"; // a terminal would obey
    const auto text = mig_text({gpu});
    for (const char* part : {"MIG on", "3g.40gb", "40.0 GiB", "MIG-0a", "process 42", "1g.10gb (3 free)"})
        EXPECT_TRUE(says(text, part)) << text;
    EXPECT_EQ(text.find('\x1b'), text.npos);
    gpu.mode = mig_mode::impossible;
    EXPECT_EQ(mig_text({gpu}), "");
}

} // namespace
} // namespace kagemusha::control
