// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/claims.hpp"
#include "kubernetes/core/core_test_helpers.hpp"

#include <gtest/gtest.h>

namespace kagemusha::kubernetes {
namespace {

using nlohmann::json;

constexpr char uid[] = "0f2f7a3e-1111-4222-8333-444455556666";

json result_with(const std::string& device) {
    return {{"driver", "gpu.kagemusha.io"}, {"pool", "node1"}, {"device", device}, {"request", "gpu"}};
}
json claim_with(const json& results) {
    return {{"metadata", {{"uid", uid}}},
            {"status", {{"allocation", {{"devices", {{"results", results}}}}}}}};
}
std::string refusal_of(const json& claim, const inventory& gpus = node_with(2)) {
    std::string refusal;
    EXPECT_FALSE(prepare(claim, uid, "node1", gpus, refusal)) << claim;
    return refusal;
}

TEST(claims, a_share_is_the_capacity_that_was_consumed) {
    auto result = result_with(gpu_numbered(1).id);
    result["consumedCapacity"]["share"] = "25";
    result["shareID"] = "a671734a-e8e5-11e4-8fde-42010af09327";
    auto other = result;
    other["driver"] = "gpu.example.com";
    std::string refusal;
    const auto claim = prepare(claim_with(json::array({other, result})), uid, "node1", node_with(2), refusal);
    ASSERT_TRUE(claim) << refusal;
    EXPECT_EQ(claim->given.percent, 25u);
    EXPECT_EQ(claim->given.gpu, gpu_numbered(1));
    EXPECT_EQ(claim->given.memory_mib, 2048u);
    EXPECT_EQ(claim->share.share_id, "a671734a-e8e5-11e4-8fde-42010af09327");
    const auto spec = claim_specification(*claim, {});
    EXPECT_EQ(spec["kind"].get<std::string>() + "=" + spec["devices"][0]["name"].get<std::string>(),
              claim_cdi_name(uid));
    EXPECT_NE(spec.dump().find("KAGEMUSHA_GPU_SHARE=25"), std::string::npos);
}

TEST(claims, a_name_of_a_capacity_may_have_its_domain) {
    auto result = result_with(gpu_numbered(0).id);
    result["consumedCapacity"]["gpu.kagemusha.io/share"] = "1";
    std::string refusal;
    EXPECT_EQ(prepare(claim_with(json::array({result})), uid, "node1", node_with(1), refusal)->given.percent,
              1u)
        << refusal;
}

TEST(claims, a_partition_says_its_share_itself) {
    std::string refusal;
    const auto claim = prepare(claim_with(json::array({result_with(gpu_numbered(0).id + "-1-of-8-7")})), uid,
                               "node1", node_with(1), refusal);
    ASSERT_TRUE(claim) << refusal;
    EXPECT_EQ(claim->given.percent, 12u);
}

TEST(claims, what_can_not_be_prepared_is_told) {
    auto good = result_with(gpu_numbered(0).id);
    good["consumedCapacity"]["share"] = "10";
    auto another = claim_with(json::array({good}));
    another["metadata"]["uid"] = "00000000-1111-4222-8333-444455556666";
    EXPECT_NE(refusal_of(another).find("was deleted"), std::string::npos);
    EXPECT_NE(refusal_of(claim_with(json::array())).find("not allocated"), std::string::npos);
    EXPECT_NE(refusal_of(claim_with(json::array({good, good}))).find("2 devices"), std::string::npos);
    for (const char* share : {"0", "101", "2.5", "many"}) {
        auto result = good;
        result["consumedCapacity"]["share"] = share;
        EXPECT_NE(refusal_of(claim_with(json::array({result}))).find("no whole number of percent"),
                  std::string::npos)
            << share;
    }
    auto elsewhere = good;
    elsewhere["pool"] = "node2";
    EXPECT_NE(refusal_of(claim_with(json::array({elsewhere}))).find("no GPU of this node"),
              std::string::npos);
    EXPECT_NE(refusal_of(claim_with(json::array({result_with("gpu-x")}))).find("no GPU of this node"),
              std::string::npos);
    auto gone = node_with(1);
    gone.looked({std::vector<found_gpu>{}});
    EXPECT_NE(refusal_of(claim_with(json::array({good})), gone).find("is gone"), std::string::npos);
}

TEST(claims, an_answer_of_any_form_does_no_harm) {
    for (const auto& nonsense :
         {json(nullptr), json(3), json::array(), json{{"metadata", 1}}, json{{"metadata", {{"uid", 5}}}}})
        EXPECT_NE(refusal_of(nonsense), "");
    for (const auto& results : {json(nullptr), json(1), json{{"a", 1}}, json{3, "x"}, json{{{"driver", 1}}}})
        EXPECT_NE(refusal_of(claim_with(results)), "");
    auto strange = result_with(gpu_numbered(0).id);
    strange["consumedCapacity"] = 7;
    EXPECT_NE(refusal_of(claim_with(json::array({strange}))), "");
}

TEST(claims, a_uid_is_safe_as_a_part_of_a_file_name) {
    EXPECT_TRUE(is_uid(uid));
    for (const char* text : {"", "../../../../../../etc/cron.d/aaaaaaaaaa",
                             "0f2f7a3e-1111-4222-8333-44445555666", "0F2F7A3E-1111-4222-8333-444455556666"})
        EXPECT_FALSE(is_uid(text)) << text;
}

} // namespace
} // namespace kagemusha::kubernetes
