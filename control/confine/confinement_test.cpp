// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/confine/confinement.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kagemusha::control {
namespace {

using testing::Test;

confinement_needs needs() {
    confinement_needs n;
    n.vm = "web";
    n.directory = "/run/k/web.d";
    n.programs = {"/opt/qemu/qemu"};
    n.images = {"/srv/base.img", ""};
    n.writable = {"/srv/web.img"};
    n.own_files = {"/run/k/web.gate"};
    n.console_log = "/run/k/web.d/console.log";
    n.to_peers = "/run/k/web.d/peers";
    n.of_qemu = "/run/k/web.d/listens";
    n.status_socket = "/run/k/web.qmp";
    n.console_socket = "/run/k/web.console";
    n.sandboxed = true;
    return n;
}

host_offers root() {
    host_offers offers;
    offers.privileged = offers.own_ids = true;
    return offers;
}

described_confinement asked() {
    described_confinement wanted;
    wanted.described = true;
    return wanted;
}

host_offers person() {
    host_offers offers;
    offers.user = offers.group = 1000;
    offers.user_namespaces = true;
    return offers;
}

const shown_path* find(const confinement_decision& d, const std::string& path) {
    const auto found = std::find_if(d.what->paths.begin(), d.what->paths.end(),
                                    [&](const shown_path& one) { return one.path == path; });
    return found == d.what->paths.end() ? nullptr : &*found;
}

TEST(confinement, root_gives_a_user_a_root_and_a_network) {
    const auto d = decide_confinement({}, needs(), root());
    ASSERT_TRUE(d.what) << d.says << d.refusal;
    EXPECT_EQ(d.what->user, user_of_vm("web"));
    EXPECT_FALSE(d.what->user_namespace);
    EXPECT_TRUE(d.what->network);
    EXPECT_EQ(d.what->place, "/run/k/web.d/root");
    EXPECT_NE(d.says.find("a network of its own"), std::string::npos) << d.says;
}

TEST(confinement, each_vm_has_a_user_that_stays_and_is_no_persons) {
    EXPECT_EQ(user_of_vm("web"), user_of_vm("web"));
    EXPECT_NE(user_of_vm("web"), user_of_vm("web2"));
    for (const char* name : {"a", "web", "a-name-of-thirty-two-letters-xxxx"}) {
        EXPECT_GE(user_of_vm(name), first_vm_user);
        EXPECT_LT(user_of_vm(name), first_vm_user + vm_users);
    }
}

TEST(confinement, what_qemu_writes_are_its_images_its_log_and_its_links) {
    const auto d = decide_confinement({}, needs(), root());
    ASSERT_TRUE(d.what);
    std::vector<std::string> writable;
    for (const auto& one : d.what->paths)
        if (one.writable)
            writable.push_back(one.path);
    EXPECT_EQ(writable,
              (std::vector<std::string>{"/run/k/web.d/console.log", "/run/k/web.d/listens", "/srv/web.img"}));
    ASSERT_TRUE(find(d, "/run/k/web.d/peers"));
    EXPECT_FALSE(find(d, "/run/k/web.d/peers")->given) << "it can't put anything else there";
    ASSERT_TRUE(find(d, "/srv/base.img"));
    EXPECT_FALSE(find(d, "/srv/base.img")->given) << "an image of its owner's stays its owner's";
    EXPECT_TRUE(find(d, "/run/k/web.gate")->given);
    EXPECT_FALSE(find(d, "")) << "what the VM has not";
    EXPECT_FALSE(find(d, "/run/k")) << "other VMs' files are there";
    EXPECT_FALSE(find(d, "/etc"));
}

TEST(confinement, folders_come_before_what_is_in_them) {
    auto n = needs();
    n.to_peers = "/srv";
    const auto d = decide_confinement({}, n, root());
    ASSERT_TRUE(d.what && find(d, "/srv"));
    EXPECT_LT(find(d, "/srv"), find(d, "/srv/base.img"));
    EXPECT_FALSE(find(d, "/srv")->writable);
}

TEST(confinement, a_path_that_is_needed_twice_has_the_rights_of_both) {
    auto n = needs();
    n.images.push_back("/srv/web.img");
    const auto d = decide_confinement({}, n, root());
    ASSERT_TRUE(d.what);
    EXPECT_TRUE(find(d, "/srv/web.img")->writable);
}

TEST(confinement, who_is_not_root_keeps_his_user) {
    const auto d = decide_confinement({}, needs(), person());
    ASSERT_TRUE(d.what);
    EXPECT_FALSE(d.what->user);
    EXPECT_TRUE(d.what->user_namespace);
    EXPECT_NE(d.says.find("only root can"), std::string::npos) << d.says;
}

TEST(confinement, where_nothing_can_be_had_it_is_said) {
    host_offers none;
    none.why_not = "no namespaces";
    const auto d = decide_confinement({}, needs(), none);
    EXPECT_FALSE(d.what);
    EXPECT_TRUE(d.refusal.empty());
    EXPECT_NE(d.says.find("no namespaces"), std::string::npos) << d.says;
    const auto wanted = decide_confinement(asked(), needs(), none);
    EXPECT_FALSE(wanted.what);
    EXPECT_NE(wanted.refusal.find("no namespaces"), std::string::npos) << wanted.refusal;
}

TEST(confinement, a_given_user_is_had_or_refused) {
    described_confinement wanted;
    wanted.user = described_confinement::user_kind::given;
    wanted.id = 990;
    EXPECT_EQ(decide_confinement(wanted, needs(), root()).what->user, 990u);
    EXPECT_FALSE(decide_confinement(wanted, needs(), person()).refusal.empty());
    EXPECT_FALSE(decide_confinement(wanted, needs(), {}).refusal.empty());
}

TEST(confinement, root_in_a_small_user_namespace_keeps_its_user) {
    auto offers = root();
    offers.own_ids = false;
    const auto d = decide_confinement({}, needs(), offers);
    ASSERT_TRUE(d.what);
    EXPECT_FALSE(d.what->user);
    EXPECT_NE(d.says.find("has no users from"), std::string::npos) << d.says;
}

TEST(confinement, what_needs_the_hosts_network_has_it) {
    const auto has_own = [](const confinement_needs& n) {
        return decide_confinement(asked(), n, root()).what->network;
    };
    auto n = needs();
    EXPECT_TRUE(has_own(n)) << "its links to a standby are carried, whatever their addresses are";
    n.options = {"-device", "pcie-root-port"};
    EXPECT_FALSE(has_own(n));
    EXPECT_FALSE(decide_confinement({}, n, root()).what) << "nobody asked for it";
    n = needs();
    n.netdevs = {"tap,ifname=vm0,script=no,downscript=no"};
    EXPECT_TRUE(has_own(n));
    n.netdevs = {"stream,server=off,addr.type=unix,addr.path=/srv/switch"};
    EXPECT_TRUE(has_own(n));
    n.netdevs = {"user"};
    EXPECT_FALSE(has_own(n));
    n.netdevs = {"stream,server=off,addr.type=inet,addr.host=a,addr.port=1"};
    EXPECT_FALSE(has_own(n));
    described_confinement wanted;
    wanted.network = described_confinement::network_kind::own;
    EXPECT_FALSE(decide_confinement(wanted, n, root()).refusal.empty());
    wanted.network = described_confinement::network_kind::host;
    EXPECT_FALSE(decide_confinement(wanted, needs(), root()).what->network);
}

TEST(confinement, who_may_start_programs_is_not_confined) {
    auto n = needs();
    n.sandboxed = false;
    EXPECT_FALSE(decide_confinement({}, n, root()).what);
    described_confinement wanted;
    wanted.root = false;
    EXPECT_FALSE(decide_confinement(wanted, needs(), root()).what);
}

TEST(confinement, devices_are_those_of_the_vm) {
    auto offers = root();
    offers.gpu_nodes = {"/dev/nvidia0"};
    const auto devices = [&](const confinement_needs& n) {
        return decide_confinement(asked(), n, offers).what->devices;
    };
    const auto has = [](const std::vector<std::string>& all, const char* one) {
        return std::find(all.begin(), all.end(), one) != all.end();
    };
    EXPECT_FALSE(has(devices(needs()), "/dev/kvm") || has(devices(needs()), "/dev/nvidia0"));
    auto n = needs();
    n.gpu = n.kvm = true;
    EXPECT_TRUE(has(devices(n), "/dev/kvm") && has(devices(n), "/dev/nvidia0") &&
                has(devices(n), "/dev/null"));
    EXPECT_FALSE(decide_confinement({}, n, offers).what) << "nobody has asked for it";
    n.gpu = false;
    EXPECT_TRUE(decide_confinement({}, n, offers).what) << "the host's GPUs are not this VM's";
}

TEST(confinement, files_of_the_owners_options_are_shown) {
    auto n = needs();
    n.options = {"-drive", "file=/srv/data.img,format=raw", "-chardev", "socket,id=a,path=/srv/a.sock", "/"};
    const auto d = decide_confinement(asked(), n, root());
    ASSERT_TRUE(d.what && find(d, "/srv/data.img") && find(d, "/srv/a.sock"));
    EXPECT_TRUE(find(d, "/srv/data.img")->optional);
    EXPECT_FALSE(find(d, "/"));
}

TEST(confinement, an_interface_is_opened_before_qemu) {
    EXPECT_EQ(tap_of("tap,ifname=vm0,script=no,downscript=no"), "vm0");
    EXPECT_EQ(tap_of("tap,fd=3"), "");
    EXPECT_EQ(tap_of("tap,ifname=vm0,queues=2"), "");
    EXPECT_EQ(tap_of("user"), "");
    EXPECT_EQ(tap_of(""), "");
    EXPECT_EQ(netdev_with_tap("tap,ifname=vm0,script=no,sndbuf=0,downscript=no", 210), "tap,fd=210,sndbuf=0");
    auto n = needs();
    n.netdevs = {"user", "tap,ifname=vm0,script=no,downscript=no"};
    const auto d = decide_confinement({}, n, root());
    ASSERT_TRUE(d.what);
    EXPECT_EQ(d.what->descriptors.back(),
              (handed_descriptor{handed_descriptor::kind::tap, "vm0", first_tap_fd + 1}));
}

TEST(confinement, is_text_on_its_way) {
    auto n = needs();
    n.netdevs = {"tap,ifname=vm0"};
    for (const auto& offers : {root(), person()}) {
        const auto d = decide_confinement({}, n, offers);
        ASSERT_TRUE(d.what);
        EXPECT_EQ(parse_confinement(to_text(*d.what)), d.what);
    }
    EXPECT_FALSE(parse_confinement("{}"));
    EXPECT_FALSE(parse_confinement("no JSON"));
}

} // namespace
} // namespace kagemusha::control
