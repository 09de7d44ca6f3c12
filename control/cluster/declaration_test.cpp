// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a declaration may say, and which sentence refuses the rest.
#include "control/cluster/declaration.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control::cluster {
namespace {

declaration good(std::string_view text) {
    std::vector<std::string> errors;
    const auto out = parse_text(text, errors);
    EXPECT_TRUE(out) << (errors.empty() ? "" : errors[0]);
    return out.value_or(declaration{});
}

std::string refusal(std::string_view text) {
    std::vector<std::string> errors;
    const auto out = parse_text(text, errors);
    EXPECT_FALSE(out) << text;
    std::string all;
    for (const auto& error : errors)
        all += error + "\n";
    EXPECT_FALSE(all.empty()) << text;
    return all;
}

bool has(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

constexpr char whole[] = R"(
name = "lab"
nodes = 4
cpus = 2
memory = "1G"
protected = true
guest = "6.1-cloud"
accel = "tcg"
[gpu]
backend = "opencl"
share = 20
memory = "256M"
[network]
outside = false
bandwidth-mbit = 100
latency-ms = 2
[[node]]
name = "node3"
cpus = 1
protected = false
)";

constexpr char with_users[] = R"(
name = "lab"
image = "mpi"
[[users]]
name = "alice"
keys = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI alice@desk", "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTI="]
[[users]]
name = "bob"
keys = ["ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB"]
)";

TEST(cluster_declaration, every_key_is_read) {
    const auto d = good(whole);
    EXPECT_EQ(d.name, "lab");
    EXPECT_EQ(d.nodes, 4u);
    EXPECT_EQ(d.node, (node_shape{2, 1024, true}));
    EXPECT_EQ(d.shape(3), (node_shape{1, 1024, false}));
    EXPECT_EQ(d.shape(4), d.node);
    ASSERT_TRUE(d.gpu);
    EXPECT_EQ(d.gpu->share_percent, 20u);
    EXPECT_EQ(d.gpu->memory_mib, 256u);
    EXPECT_EQ(d.network, (network_shape{false, 100, 2}));
    EXPECT_EQ(d.guest, "6.1-cloud");
    EXPECT_EQ(d.accel, "tcg");
}

TEST(cluster_declaration, its_json_gives_the_same_again) {
    for (const char* text :
         {whole, "name = \"a\"\n", "name = \"b\"\n[gpu]\nprofile = \"1/4\"\n", with_users}) {
        const auto d = good(text);
        EXPECT_EQ(good(to_json(d).dump()), d) << text;
    }
}

TEST(cluster_declaration, a_misspelt_key_is_named_at_each_place) {
    EXPECT_TRUE(has(refusal("name = \"a\"\nnode-count = 3\n"), "'node-count' is no key of a cluster"));
    EXPECT_TRUE(has(refusal("name = \"a\"\n[gpu]\nshares = 3\n"), "'shares' is no key of [gpu]"));
    EXPECT_TRUE(has(refusal("name = \"a\"\n[network]\nspeed = 3\n"), "'speed' is no key of [network]"));
    EXPECT_TRUE(
        has(refusal("name = \"a\"\n[[node]]\nname = \"node1\"\ndisk = 1\n"), "'disk' is no key of [[node]]"));
}

TEST(cluster_declaration, names_have_no_markup_no_path_and_no_end) {
    for (const char* name : {"", "A", "1a", "-a", "a-", "a.b", "a/b", "../a", "a b", "<b>",
                             "aaaaaaaaaaaaaaaaa", "a_b", "\xc3\xa4"})
        EXPECT_TRUE(has(refusal(nlohmann::json{{"name", name}}.dump()), "is no name for a cluster")) << name;
    EXPECT_TRUE(is_cluster_name("a"));
    EXPECT_TRUE(is_cluster_name("lab-2"));
    EXPECT_TRUE(is_cluster_name("aaaaaaaaaaaaaaaa"));
}

TEST(cluster_declaration, what_a_person_sent_is_shown_without_what_a_terminal_obeys) {
    const auto said = refusal(nlohmann::json{{"name", "\x1b[2J" + std::string(500, 'x')}}.dump());
    EXPECT_EQ(said.find('\x1b'), std::string::npos);
    EXPECT_LT(said.size(), 250u);
}

TEST(cluster_declaration, numbers_have_bounds) {
    EXPECT_TRUE(
        has(refusal("name=\"a\"\nnodes = 0"), "'nodes' of a cluster must be a whole number from 1 to 64"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnodes = 65"), "1 to 64"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnodes = 2.0"), "whole number"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnodes = -1"), "whole number"));
    EXPECT_TRUE(has(refusal(R"({"name":"a","nodes":18446744073709551615})"), "whole number"));
    EXPECT_TRUE(has(refusal("name=\"a\"\ncpus = 65"), "'cpus'"));
    for (const char* size : {"\"1T\"", "\"G\"", "\"127M\"", "\"-1G\"", "\"99999999999999G\"", "1.5", "true"})
        EXPECT_TRUE(has(refusal("name=\"a\"\nmemory = " + std::string(size)), "'memory'")) << size;
    EXPECT_EQ(good("name=\"a\"\nmemory = 700").node.memory_mib, 700u);
}

TEST(cluster_declaration, a_profile_goes_without_share_and_memory) {
    EXPECT_EQ(good("name=\"a\"\n[gpu]\nprofile = \"1/3\"").gpu->profile_parts, 3u);
    EXPECT_TRUE(has(refusal("name=\"a\"\n[gpu]\nprofile = \"1/3\"\nshare = 5"), "a profile says both"));
    for (const char* profile : {"2/3", "1/0", "1/17", "1/", "1/x", "x"})
        EXPECT_TRUE(
            has(refusal("name=\"a\"\n[gpu]\nprofile = \"" + std::string(profile) + "\""), "'profile'"))
            << profile;
}

TEST(cluster_declaration, users_have_names_and_public_keys) {
    const auto d = good(with_users);
    EXPECT_EQ(d.image, "mpi");
    ASSERT_EQ(d.users.size(), 2u);
    EXPECT_EQ(d.users[0].name, "alice");
    EXPECT_EQ(d.users[0].keys.size(), 2u);
    const auto user = [](const nlohmann::json& name, const nlohmann::json& keys) {
        return nlohmann::json{
            {"name", "lab"}, {"image", "mpi"}, {"users", {{{"name", name}, {"keys", keys}}}}}
            .dump();
    };
    const std::string key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI";
    for (const char* name : {"root", "sshd", "nobody", "", "Alice", "a'b", "a:b", "a\nb", "../a"})
        EXPECT_TRUE(has(refusal(user(name, {key})), "is no name for a user")) << name;
    for (const std::string& wrong :
         {std::string(), std::string("AAAA"), "command=\"rm\" " + key, key + "\nssh-rsa AAAA",
          std::string("ssh-rsa AA$(reboot)AAAAAAAAAA"), "ssh-rsa " + std::string(2000, 'A'),
          std::string("-----BEGIN OPENSSH PRIVATE KEY-----")})
        EXPECT_TRUE(has(refusal(user("alice", {wrong})), "public keys")) << wrong;
    EXPECT_TRUE(has(refusal(user("alice", nlohmann::json::array())), "public keys"));
    EXPECT_TRUE(has(refusal(user("alice", 1)), "public keys"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nimage=\"mpi\"\nusers = 3"), "'users' must be a list"));
    EXPECT_TRUE(
        has(refusal(std::string(with_users) + "[[users]]\nname = \"bob\"\nkeys = [\"" + key + "\"]\n"),
            "two tables"));
}

TEST(cluster_declaration, only_the_image_mpi_has_users_and_it_needs_a_kernel_with_fuse) {
    auto without = nlohmann::json::parse(to_json(good(with_users)).dump());
    without.erase("image");
    EXPECT_TRUE(has(refusal(without.dump()), "which only 'image' = \"mpi\" has"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nimage=\"mpi\"\nguest=\"6.1-cloud\""), "needs 'guest'"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nimage=\"debian\""), "'image' of a cluster must be one of"));
}

TEST(cluster_declaration, a_port_of_the_host_leads_to_node1s_ssh_server) {
    const std::string mpi = "name=\"a\"\nimage=\"mpi\"\n[network]\n";
    auto d = good(mpi + "ssh-port = 2222");
    EXPECT_EQ(d.network.ssh_port, 2222u);
    EXPECT_EQ(d.network.ssh_address, "127.0.0.1");
    d = good(mpi + "ssh-port = 65535\nssh-address = \"192.0.2.17\"");
    EXPECT_EQ(d.network.ssh_address, "192.0.2.17");
    EXPECT_EQ(good(to_json(d).dump()), d);
    for (const char* port : {"22", "65536", "-1", "\"2222\"", "0"})
        EXPECT_TRUE(has(refusal(mpi + "ssh-port = " + port), "'ssh-port'")) << port;
    for (const char* address :
         {"", "host", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.04", "1..2.3", "1.2.3.", "::1", "1.2.3.4 "})
        EXPECT_TRUE(has(refusal(mpi + "ssh-port = 2222\nssh-address = \"" + address + "\""), "'ssh-address'"))
            << address;
    EXPECT_TRUE(has(refusal("name=\"a\"\n[network]\nssh-port = 2222"), "which only 'image' = \"mpi\" has"));
    EXPECT_TRUE(has(refusal(mpi + "ssh-port = 2222\noutside = false"), "'outside' = false"));
}

TEST(cluster_declaration, an_exception_names_one_node_of_the_cluster) {
    EXPECT_TRUE(
        has(refusal("name=\"a\"\nnodes=2\n[[node]]\nname=\"node3\""), "'node3' is no node of this cluster"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnodes=2\n[[node]]\nname=\"node01\""), "is no node"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnodes=2\n[[node]]\nname=\"node1\"\n[[node]]\nname=\"node1\""),
                    "two tables"));
    EXPECT_TRUE(has(refusal("name=\"a\"\nnode = 3"), "'node' must be a list"));
}

TEST(cluster_declaration, what_is_no_declaration_is_refused_in_time) {
    EXPECT_TRUE(has(refusal("name = "), "line 1"));
    EXPECT_TRUE(has(refusal("{"), "this is no JSON"));
    EXPECT_TRUE(has(refusal("{" + std::string(60000, '[')), "this is no JSON"));
    EXPECT_TRUE(
        has(refusal("{\"a\":" + std::string(30000, '[') + std::string(30000, ']') + "}"), "this is no JSON"));
    EXPECT_TRUE(has(refusal("{" + std::string(longest_declaration, ' ')), "64 KiB"));
    refusal("name = 2001-01-01");
    refusal("gpu = 1\nname = \"a\"");
}

TEST(cluster_declaration, nodes_have_numbers) {
    EXPECT_EQ(node_number("node1"), 1u);
    EXPECT_EQ(node_number("node64"), 64u);
    for (const char* name : {"", "node", "node0", "node65", "node01", "node1x", "node100", "Node1", "node-1"})
        EXPECT_FALSE(node_number(name)) << name;
}

} // namespace
} // namespace kagemusha::control::cluster
