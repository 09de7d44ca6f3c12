// SPDX-License-Identifier: GPL-2.0-or-later
//
// The API's description has its routes, all of them and no others; and the records that etcd keeps.
#include "control/daemon/api.hpp"
#include "control/daemon/fleet/fleet_store.hpp"
#include "control/daemon/fleet/settings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace kagemusha::control::daemon {
namespace {

using json = nlohmann::json;

json description() {
    std::ifstream file(std::string(KAGEMUSHA_SOURCE_ROOT) + "/docs/openapi.json");
    return json::parse(file);
}

TEST(daemon_api, its_description_has_its_routes) {
    std::set<std::pair<std::string, std::string>> described;
    const auto whole = description();
    for (const auto& [path, operations] : whole.at("paths").items())
        for (const auto& [method, operation] : operations.items()) {
            std::string upper = method;
            std::transform(upper.begin(), upper.end(), upper.begin(),
                           [](unsigned char c) { return std::toupper(c); });
            described.emplace(upper, path);
            std::string names = operation.value("parameters", json::array()).dump();
            for (const char* parameter : {"name", "node", "account"})
                EXPECT_EQ(path.find("{" + std::string(parameter) + "}") != std::string::npos,
                          names.find("parameters/" + std::string(parameter) + "\"") != std::string::npos)
                    << method << " " << path << " " << parameter;
        }
    std::set<std::pair<std::string, std::string>> routes;
    for (const auto& one : api::routes())
        routes.insert(one);
    EXPECT_EQ(described, routes);
}

// Every reference leads to something.
void check_references(const json& at, const json& whole) {
    if (at.is_object() && at.contains("$ref")) {
        const auto to = at.at("$ref").get<std::string>();
        EXPECT_TRUE(whole.contains(json::json_pointer(to.substr(1)))) << to;
    }
    if (at.is_structured())
        for (const auto& one : at)
            check_references(one, whole);
}

TEST(daemon_api, its_description_refers_to_what_is_there) {
    const auto whole = description();
    check_references(whole, whole);
}

// What a declaration may have is described, and nothing else.
TEST(daemon_api, its_description_has_a_declarations_keys) {
    std::vector<std::string> errors;
    const auto declared =
        cluster::parse_text("name='a'\nnodes=2\nimage='mpi'\n[gpu]\nshare=5\nmemory=100\n[network]\n"
                            "bandwidth-mbit=5\nssh-port=2222\n[[node]]\nname='node1'\n[[users]]\nname='ann'\n"
                            "keys=['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI ann@desk']\n",
                            errors);
    ASSERT_TRUE(declared);
    auto known = cluster::to_json(*declared);
    known["gpu"]["profile"] = "1/2";
    const auto whole = description();
    const auto& described = whole.at("components").at("schemas").at("Declaration").at("properties");
    const auto same = [](const json& keys, const json& properties, const char* where) {
        std::set<std::string> a, b;
        for (const auto& [key, value] : keys.items())
            a.insert(key);
        for (const auto& [key, value] : properties.items())
            b.insert(key);
        EXPECT_EQ(a, b) << where;
    };
    same(known, described, "a cluster");
    same(known["gpu"], described.at("gpu").at("properties"), "gpu");
    same(known["network"], described.at("network").at("properties"), "network");
    same(known["node"][0], described.at("node").at("items").at("properties"), "node");
}

TEST(daemon_record, is_read_as_it_was_written) {
    std::vector<std::string> errors;
    cluster_record record;
    record.declared = *cluster::parse_text("name='a'\nnodes=3\n[gpu]\nprofile='1/4'\n", errors);
    record.wanted = cluster::wish::stopped;
    record.secret = "5";
    const auto again = parse_record(to_text(record), "7");
    ASSERT_TRUE(again);
    EXPECT_EQ(again->declared, record.declared);
    EXPECT_EQ(again->wanted, record.wanted);
    EXPECT_EQ(again->secret, record.secret);
    EXPECT_EQ(again->revision, "7");
}

TEST(daemon_record, has_the_ca_of_its_links) {
    cluster_record record;
    record.declared.name = "a";
    record.ca = {"certificate", "key"};
    const auto again = parse_record(to_text(record), "1");
    ASSERT_TRUE(again);
    EXPECT_EQ(again->ca, record.ca);
    auto damaged = json::parse(to_text(record));
    damaged["ca"] = 5;
    EXPECT_FALSE(parse_record(damaged.dump(), "1"));
}

TEST(daemon_settings, are_checked) {
    const std::string good = "name = 'hosta'\naddress = '192.0.2.1'\ntls = 'keys'\n"
                             "endpoints = ['https://192.0.2.1:2379']\n";
    std::vector<std::string> errors;
    const auto read = parse_settings(good, "/etc/x/daemon.toml", errors);
    ASSERT_TRUE(read) << errors.front();
    EXPECT_EQ(read->name, "hosta");
    EXPECT_EQ(read->tls, "/etc/x/keys");
    EXPECT_EQ(read->at(7500), "192.0.2.1:7500");
    EXPECT_EQ(host_and_port("2001:db8::1", 5), "[2001:db8::1]:5");
    for (const char* more :
         {"colour = 1\n", "port = 0\n", "first-port = 65000\n", "lease-ms = 1\n", "name = 'a'\n"}) {
        errors.clear();
        EXPECT_FALSE(parse_settings(good + more, "daemon.toml", errors)) << more;
        EXPECT_FALSE(errors.empty());
    }
    for (const char* instead :
         {"address = 'hosta'", "name = '../a'", "endpoints = ['http://192.0.2.1:2379']", "endpoints = []"}) {
        auto text = good;
        const std::string key(instead, std::string_view(instead).find(' '));
        const auto at = text.find(key);
        text.replace(at, text.find('\n', at) - at, instead);
        errors.clear();
        EXPECT_FALSE(parse_settings(text, "daemon.toml", errors)) << text;
        EXPECT_FALSE(errors.empty()) << text;
    }
}

TEST(daemon_host, is_read_as_it_was_written_and_not_of_another_release) {
    host_entry host;
    host.offer = {"hosta", {8, 4096, 100}};
    host.address = "192.0.2.1";
    host.port = 7444;
    host.first_port = 7500;
    host.release = "1";
    const auto text = to_json(host).dump();
    const auto again = parse_host("hosta", text);
    EXPECT_TRUE(again.is_understood);
    EXPECT_EQ(to_json(again), to_json(host));
    auto other = json::parse(text);
    other["format"] = 2;
    other["release"] = "9";
    EXPECT_FALSE(parse_host("hosta", other.dump()).is_understood);
    EXPECT_EQ(parse_host("hosta", other.dump()).release, "9");
    EXPECT_FALSE(parse_host("hosta", "{").is_understood);
}

TEST(daemon_record, of_another_release_is_none) {
    cluster_record record;
    record.declared.name = "a";
    auto text = json::parse(to_text(record));
    EXPECT_TRUE(parse_record(text.dump(), "1"));
    for (const char* key : {"format", "wanted", "secret", "declaration"}) {
        auto less = text;
        less.erase(key);
        EXPECT_FALSE(parse_record(less.dump(), "1")) << key;
    }
    auto other = text;
    other["format"] = 2;
    EXPECT_FALSE(parse_record(other.dump(), "1"));
    other = text;
    other["declaration"]["colour"] = "red";
    EXPECT_FALSE(parse_record(other.dump(), "1"));
    for (const char* bytes : {"", "{", "[]", "\xff"})
        EXPECT_FALSE(parse_record(bytes, "1"));
}

TEST(daemon_record, each_node_has_a_secret_of_its_own) {
    cluster_record record;
    record.declared.name = "a";
    record.secret = "s";
    EXPECT_EQ(node_secret(record, 1).size(), 64u);
    EXPECT_NE(node_secret(record, 1), node_secret(record, 2));
    EXPECT_EQ(node_secret(record, 1), node_secret(record, 1));
}

} // namespace
} // namespace kagemusha::control::daemon
