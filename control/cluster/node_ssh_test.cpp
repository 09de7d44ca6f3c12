// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a node of the image `mpi` is told of keys, users and processors.
#include "control/cluster/node_ssh.hpp"

#include "control/cluster/node_files.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control::cluster {
namespace {

declaration with_alice() {
    declaration out;
    out.name = "lab";
    out.nodes = 2;
    out.image = "mpi";
    out.node.cpus = 2;
    out.exceptions[2] = {4, 512, true};
    out.users.push_back({"alice", {"ssh-ed25519 ALICE at home", "ssh-rsa ALICE at work"}});
    return out;
}

node_logins logins() {
    return {"HOST KEY",
            {"ssh-ed25519 ONE", "ssh-ed25519 TWO"},
            {{"root", {"ROOT", "root's"}}, {"alice", {"HERS", "alice's"}}}};
}

TEST(node_ssh, a_hostfile_has_each_declared_node_with_its_processors) {
    EXPECT_EQ(hostfile(with_alice()), "node1 slots=2\nnode2 slots=4\n");
}

TEST(node_ssh, each_node_is_known_by_its_name_and_its_address) {
    EXPECT_EQ(known_hosts(logins().host_public, "10.77.0.", 10),
              "node1,10.77.0.11 ssh-ed25519 ONE\nnode2,10.77.0.12 ssh-ed25519 TWO\n");
}

TEST(node_ssh, root_may_be_anybody_and_nobody_root) {
    const auto files = login_files(with_alice(), logins(), "10.77.0.", 10);
    EXPECT_EQ(files.at("root.authorized"), "ROOT root\n");
    EXPECT_EQ(files.at("alice.authorized"),
              "HERS alice\nROOT root\nssh-ed25519 ALICE at home\nssh-rsa ALICE at work\n");
    EXPECT_EQ(files.at("host_key"), "HOST KEY");
    EXPECT_EQ(files.at("alice.key"), "alice's");
}

TEST(node_ssh, users_have_the_same_number_on_each_node_and_a_home) {
    const auto setup = login_files(with_alice(), logins(), "10.77.0.", 10).at("setup");
    EXPECT_NE(setup.find("echo 'alice:*:1000:1000::/home/alice:/bin/bash' >>/etc/passwd\n"), setup.npos);
    EXPECT_NE(setup.find("install -d -m 700 -o 0 -g 0 /root/.ssh\n"), setup.npos);
    EXPECT_EQ(setup.find("echo 'root"), setup.npos);
}

// Debian 13's mpirun does not read openmpi-default-hostfile.
TEST(node_ssh, mpirun_of_both_debians_finds_the_nodes) {
    const auto files = login_files(with_alice(), logins(), "10.77.0.", 10);
    EXPECT_NE(files.at("setup").find("/etc/openmpi/$name-default-hostfile"), std::string::npos);
    EXPECT_NE(files.at("setup").find("for name in openmpi prte;"), std::string::npos);
    EXPECT_TRUE(files.at("prte-mca-params.conf").starts_with("prte_default_hostfile = /etc/openmpi/prte-"));
}

TEST(node_ssh, only_the_image_mpi_has_it) {
    auto declared = with_alice();
    const node_places places{"/f", "/s", "/a", "10.77.0.11", "52:54:00:00:00:01", "10.77.0.", 10, "g", "n"};
    EXPECT_NE(vm_toml(declared, 1, places).find("guest = \"6.12-cloud+mpi\"\n"), std::string::npos);
    EXPECT_NE(vm_toml(declared, 1, places).find("\"ssh:system/ssh\""), std::string::npos);
    EXPECT_NE(node_job(declared, 1, places).find("/payload/system/ssh/setup"), std::string::npos);
    declared.image.clear();
    EXPECT_NE(vm_toml(declared, 1, places).find("guest = \"6.12-cloud\"\n"), std::string::npos);
    EXPECT_EQ(vm_toml(declared, 1, places).find("ssh"), std::string::npos);
    EXPECT_EQ(node_job(declared, 1, places).find("ssh"), std::string::npos);
}

} // namespace
} // namespace kagemusha::control::cluster
