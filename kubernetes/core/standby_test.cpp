// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/core_test_helpers.hpp"
#include "kubernetes/core/json_below.hpp"
#include "kubernetes/core/standby.hpp"

#include <gtest/gtest.h>

namespace kagemusha::kubernetes {
namespace {

using nlohmann::json;

constexpr char early[] = "2026-01-01T00:00:00Z", late[] = "2026-01-01T00:01:00Z";

json claim_of(const std::string& name, const std::string& node, const std::string& share,
              const std::string& standby = "") {
    const json result = {{"driver", "gpu.kagemusha.io"},        {"pool", node},
                         {"device", gpu_numbered(0).id},        {"request", "gpu"},
                         {"shareID", name + "-share"},          {"consumedCapacity", {{"share", share}}},
                         {"bindingConditions", {standby_ready}}};
    json claim = {{"metadata", {{"name", name}, {"namespace", "vms"}, {"uid", name}}},
                  {"status", {{"allocation", {{"devices", {{"results", json::array({result})}}}}}}}};
    if (!standby.empty())
        claim["status"]["allocation"]["devices"]["config"] = json::array(
            {{{"source", "FromClaim"},
              {"opaque", {{"driver", "gpu.kagemusha.io"}, {"parameters", {{"standby", standby}}}}}}});
    return claim;
}

// The drivers of these nodes, one after another, as often as they change something. Which claims are prepared: by uid.
void settle(std::vector<json>& claims, const std::vector<std::string>& nodes,
            const std::string& prepared = "", const inventory& gpus = node_with(1),
            std::string_view now = early) {
    for (int round = 0; round < 8; ++round)
        for (const auto& node : nodes)
            for (const auto& written : claims_to_write(
                     claims, {node, gpus, [&](std::string_view uid) { return uid == prepared; }}, now))
                for (auto& claim : claims)
                    if (claim["metadata"] == written["metadata"])
                        claim = written;
}

json condition(const json& claim, const std::string& type) {
    for (const auto& entry : below(claim, {"status", "devices"}))
        for (const auto& one : below(entry, {"conditions"}))
            if (text_of(one, "type") == type)
                return one;
    return {};
}
std::string status(const json& claim, const std::string& type) {
    return text_of(condition(claim, type), "status");
}
std::string message(const json& claim, const std::string& type) {
    return text_of(condition(claim, type), "message");
}

TEST(standby, a_claim_without_one_does_not_wait) {
    std::vector<json> claims{claim_of("web", "node1", "25")};
    settle(claims, {"node1"});
    EXPECT_EQ(status(claims[0], standby_ready), "True");
    EXPECT_EQ(status(claims[0], standby_failed), "False");
    EXPECT_EQ(status(claims[0], share_ready), "False");
    const auto& entry = claims[0]["status"]["devices"][0];
    EXPECT_EQ(entry["shareID"], "web-share");
    EXPECT_EQ(entry["pool"], "node1");
    for (const auto& one : entry["conditions"])
        EXPECT_FALSE(text_of(one, "reason").empty()) << "the API wants a reason";
}

TEST(standby, the_primary_waits_until_the_other_node_has_prepared_the_standby) {
    std::vector<json> claims{claim_of("web", "node1", "50", "web-standby")};
    settle(claims, {"node1", "node2"});
    EXPECT_EQ(status(claims[0], standby_ready), "False");
    EXPECT_NE(message(claims[0], standby_ready).find("no claim web-standby"), std::string::npos);
    claims.push_back(claim_of("web-standby", "node2", "50"));
    settle(claims, {"node1"});
    EXPECT_NE(message(claims[0], standby_ready).find("the driver of its node has not told"),
              std::string::npos);
    settle(claims, {"node1", "node2"});
    EXPECT_NE(message(claims[0], standby_ready).find("has not started a pod"), std::string::npos);
    EXPECT_EQ(status(claims[1], standby_ready), "True");
    settle(claims, {"node1", "node2"}, "web-standby", node_with(1), late);
    EXPECT_EQ(status(claims[1], share_ready), "True");
    EXPECT_EQ(status(claims[0], standby_ready), "True");
    EXPECT_EQ(condition(claims[0], standby_ready)["lastTransitionTime"], late);
    EXPECT_EQ(condition(claims[0], standby_failed)["lastTransitionTime"], early);
}

TEST(standby, what_did_not_change_is_not_written) {
    std::vector<json> claims{claim_of("web", "node1", "50", "web-standby"),
                             claim_of("web-standby", "node2", "50")};
    settle(claims, {"node1", "node2"}, "web-standby");
    const auto gpus = node_with(1);
    const own_node node{"node2", gpus, [](std::string_view uid) { return uid == "web-standby"; }};
    EXPECT_TRUE(claims_to_write(claims, node, late).empty());
    EXPECT_TRUE(claims_to_write(claims, {"node3", gpus, node.is_prepared}, late).empty());
}

TEST(standby, a_gpu_that_goes_makes_the_primary_wait_again) {
    std::vector<json> claims{claim_of("web", "node1", "50", "web-standby"),
                             claim_of("web-standby", "node2", "50")};
    auto gpus = node_with(1);
    settle(claims, {"node2"}, "web-standby", gpus);
    gpus.looked({std::vector<found_gpu>{}});
    settle(claims, {"node1", "node2"}, "web-standby", gpus, late);
    EXPECT_EQ(status(claims[0], standby_ready), "False");
    EXPECT_NE(message(claims[0], standby_ready).find("is gone"), std::string::npos);
    EXPECT_EQ(condition(claims[1], share_ready)["lastTransitionTime"], late);
}

TEST(standby, after_the_binding_nothing_is_judged_again) {
    std::vector<json> claims{claim_of("web", "node1", "50", "web-standby"),
                             claim_of("web-standby", "node2", "50")};
    settle(claims, {"node1", "node2"}, "web-standby");
    claims.pop_back(); // the standby took over, say, and another pod is the next one
    settle(claims, {"node1"}, "web");
    EXPECT_EQ(status(claims[0], standby_ready), "True");
    EXPECT_EQ(status(claims[0], share_ready), "True");
}

TEST(standby, what_no_waiting_mends_fails) {
    const auto failed = [](std::vector<json> claims) {
        settle(claims, {"node1", "node2"}, "web-standby");
        EXPECT_EQ(status(claims[0], standby_failed), "True") << claims[0];
        EXPECT_EQ(status(claims[0], standby_ready), "False");
        EXPECT_EQ(message(claims[0], standby_ready), message(claims[0], standby_failed));
        return message(claims[0], standby_failed);
    };
    const auto web = claim_of("web", "node1", "50", "web-standby");
    EXPECT_NE(failed({web, claim_of("web-standby", "node1", "50")}).find("die with it"), std::string::npos);
    EXPECT_NE(failed({web, claim_of("web-standby", "node2", "49")}).find("49 percent"), std::string::npos);
    EXPECT_NE(failed({web, claim_of("web-standby", "node2", "50", "web")}).find("waits for a standby itself"),
              std::string::npos);
    EXPECT_NE(failed({claim_of("web", "node1", "50", "web")}).find("names itself"), std::string::npos);
    EXPECT_NE(failed({claim_of("web", "node1", "50", "../kube-system/x")}).find("not understood"),
              std::string::npos);
    auto twice = claim_of("web-standby", "node2", "50");
    auto& results = twice["status"]["allocation"]["devices"]["results"];
    results.push_back(results[0]);
    EXPECT_NE(failed({web, twice}).find("has 2 devices"), std::string::npos);
}

TEST(standby, a_claim_of_that_name_in_another_namespace_is_none) {
    std::vector<json> claims{claim_of("web", "node1", "50", "web-standby"),
                             claim_of("web-standby", "node2", "50")};
    claims[1]["metadata"]["namespace"] = "others";
    settle(claims, {"node1", "node2"}, "web-standby");
    EXPECT_EQ(status(claims[0], standby_ready), "False");
}

TEST(standby, entries_of_other_drivers_stay) {
    std::vector<json> claims{claim_of("web", "node1", "50")};
    const json theirs = {
        {"driver", "net.example.com"}, {"pool", "p"}, {"device", "d"}, {"conditions", json::array()}};
    const json stale = {{"driver", "gpu.kagemusha.io"}, {"pool", "node1"}, {"device", gpu_numbered(0).id}};
    claims[0]["status"]["devices"] = json::array({theirs, stale});
    settle(claims, {"node1"});
    const auto& entries = claims[0]["status"]["devices"];
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0], theirs);
    EXPECT_EQ(entries[1], stale) << "of another share of the device";
    EXPECT_EQ(entries[2]["shareID"], "web-share");
}

TEST(standby, the_claims_own_parameters_count_more_than_its_classs) {
    auto claim = claim_of("web", "node1", "50", "web-standby");
    auto& config = claim["status"]["allocation"]["devices"]["config"];
    json of_class = config[0], of_another = config[0], of_others = config[0];
    of_class["opaque"]["parameters"]["standby"] = "of-class";
    of_another["requests"] = {"other"};
    of_another["opaque"]["parameters"]["standby"] = "of-another";
    of_others["opaque"] = {{"driver", "gpu.example.com"}, {"parameters", {{"sharing", "mps"}}}};
    config = json::array({of_class, config[0], of_another, of_others});
    std::string refusal;
    const auto share = allocated_to(claim, refusal);
    ASSERT_TRUE(share) << refusal;
    EXPECT_EQ(parameters_of(claim, *share, refusal)->standby, "web-standby") << refusal;
    config[1]["requests"] = {"gpu"};
    EXPECT_EQ(parameters_of(claim, *share, refusal)->standby, "web-standby") << refusal;
    config[1]["opaque"]["parameters"] = {{"apiVersion", "gpu.kagemusha.io/v1"}, {"kind", "ShareParameters"}};
    EXPECT_EQ(parameters_of(claim, *share, refusal)->standby, "") << refusal;
    for (const auto& bad : {json("standby"), json{{"standby", 3}}, json{{"standBy", "x"}},
                            json{{"kind", "Gpu"}}, json{{"apiVersion", "gpu.kagemusha.io/v2"}}}) {
        config[1]["opaque"]["parameters"] = bad;
        EXPECT_FALSE(parameters_of(claim, *share, refusal)) << bad;
    }
}

TEST(standby, a_list_of_any_form_does_no_harm) {
    const auto gpus = node_with(1);
    const own_node node{"node1", gpus, [](std::string_view) { return true; }};
    std::vector<json> claims{json(nullptr), json(3), json::array(), json{{"status", 1}}};
    for (const auto& entries : {json(1), json{3, "x"}, json{{{"driver", 1}}}, json{{"a", 1}}}) {
        auto claim = claim_of("web", "node1", "50", "web-standby");
        claim["status"]["devices"] = entries;
        claims.push_back(claim);
    }
    auto odd = claim_of("odd", "node1", "50");
    odd["status"]["devices"] = json::array({{{"driver", "gpu.kagemusha.io"},
                                             {"pool", "node1"},
                                             {"device", gpu_numbered(0).id},
                                             {"shareID", "odd-share"},
                                             {"conditions", {3, nullptr, {{"type", 4}}}}}});
    claims.push_back(odd);
    for (const auto& written : claims_to_write(claims, node, early))
        EXPECT_EQ(status(written, share_ready), "True") << written;
    EXPECT_EQ(claims_to_write(claims, node, early).size(), 5u);
}

} // namespace
} // namespace kagemusha::kubernetes
