// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/vm/description.hpp"
#include "control/vm/prepare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace kagemusha::control {
namespace {

std::string errors_of(const std::string& text) {
    std::vector<std::string> errors;
    const auto vm = parse_vm_description(text, "vm.toml", "/vms", errors);
    EXPECT_EQ(vm.has_value(), errors.empty());
    std::string all;
    for (const auto& error : errors)
        all += error + "\n";
    return all;
}

vm_description good(const std::string& text) {
    std::vector<std::string> errors;
    auto vm = parse_vm_description(text, "vm.toml", "/vms", errors);
    EXPECT_TRUE(vm) << (errors.empty() ? "" : errors.front());
    return vm.value_or(vm_description{});
}

const std::string least = "name = \"a\"\n[[disk]]\npath = \"d.img\"\n";
const std::string lock = "[arbiter]\nkind = \"lock\"\npath = \"lease\"\n";
const std::string etcd = "[arbiter]\nkind = \"etcd\"\nendpoints = [\"https://e:2379\"]\n";

TEST(description, paths_are_relative_to_the_file) {
    const auto vm = good(least + "[protection]\nstandby = \"unix:s\"\n" + lock);
    EXPECT_EQ(vm.disks.at(0).path, "/vms/d.img");
    EXPECT_EQ(vm.protection.standby, "unix:/vms/s");
    EXPECT_EQ(vm.protection.gpu, "unix:/vms/s.gpu");
    EXPECT_EQ(vm.arbiter.path, "/vms/lease");
}

TEST(description, a_card_for_which_qemu_starts_a_program_is_without_the_sandbox) {
    const std::string bridge = least + "[[network]]\nnetdev = \"bridge,br=br0\"\n";
    EXPECT_NE(errors_of(bridge).find("its sandbox lets it start nothing"), std::string::npos);
    EXPECT_FALSE(good("sandbox = false\n" + bridge).sandbox);
    EXPECT_TRUE(good(least).sandbox);
}

TEST(description, ports_beside_the_standbys_are_used) {
    const auto vm = good(least + "[protection]\nstandby = \"127.0.0.1:7000\"\ntls = \"k\"\n" + lock);
    EXPECT_EQ(vm.protection.gpu, "127.0.0.1:7001");
    EXPECT_EQ(vm.protection.state, "127.0.0.1:7002");
}

TEST(description, every_part_is_read) {
    const auto vm = good("name = \"all\"\nmemory = \"2G\"\ncpus = 4\naccel = \"tcg\"\n"
                         "[boot]\nkernel = \"/k\"\ninitramfs = \"/i\"\nappend = \"console=ttyS0\"\n"
                         "[[network]]\nnetdev = \"tap,ifname=vm0,script=no\"\nmac = \"52:54:00:00:00:01\"\n"
                         "[gpu]\nbackend = \"null\"\n[gpu.properties]\nlog-size = \"1G\"\n"
                         "[protection]\nstandby = \"unix:/s\"\nepoch-ms = 25\nwithout-standby = \"stop\"\n"
                         "priority = 7\n" +
                         lock + "lease-ms = 200\n");
    EXPECT_EQ(vm.memory_mib, 2048u);
    EXPECT_EQ(vm.cpus, 4u);
    EXPECT_EQ(vm.kernel, "/k");
    EXPECT_EQ(vm.networks.at(0).netdev, "tap,ifname=vm0,script=no");
    EXPECT_EQ(vm.gpu.value().properties.at(0).second, "1G");
    EXPECT_EQ(vm.protection.min_epoch_ms, 25u);
    EXPECT_EQ(vm.protection.max_epoch_ms, 25u);
    EXPECT_TRUE(vm.protection.stop_without_standby);
    EXPECT_EQ(vm.protection.priority, 7u);
    EXPECT_EQ(vm.arbiter.lease_ms, 200u);
}

TEST(description, a_machine_has_its_version_and_a_processor_is_a_name) {
    const auto vm = good("machine = \"pc-i440fx-9.2\"\ncpu = \"EPYC-v4\"\n" + least);
    EXPECT_EQ(vm.machine, "pc-i440fx-9.2");
    EXPECT_EQ(vm.cpu, "EPYC-v4");
    for (const char* machine : {"pc", "q35", "pc-i440fx", "pc-i440fx-10.0,x=y", "pc-i440fx-10.0 "})
        EXPECT_NE(errors_of("machine = \"" + std::string(machine) + "\"\n" + least).find("'machine' must be"),
                  std::string::npos)
            << machine;
    EXPECT_NE(errors_of("cpu = \"host,-avx\"\n" + least).find("'cpu' must be"), std::string::npos);
}

TEST(description, mistakes_have_lines) {
    EXPECT_EQ(errors_of(least + "cpu = 3\n"), "vm.toml:4:7: 'cpu' is no key of [[disk]]\n");
    EXPECT_EQ(errors_of("name = \"a\"\ncpus = 0\n" + least.substr(11)),
              "vm.toml:2:8: 'cpus' must be a whole number from 1 to 255\n");
    EXPECT_NE(errors_of("name = \"a\"\nmemory = \n").find("vm.toml:2:"), std::string::npos);
    EXPECT_NE(errors_of("memory = \"1T\"\n" + least).find("vm.toml:1:10: 'memory' must be a size"),
              std::string::npos);
}

TEST(description, all_mistakes_are_told_at_once) {
    const auto all = errors_of("name = \"a b\"\ncpus = \"two\"\naccel = \"xen\"\n" + least.substr(11));
    EXPECT_NE(all.find("'name'"), std::string::npos);
    EXPECT_NE(all.find("'cpus'"), std::string::npos);
    EXPECT_NE(all.find("'accel' must be one of: auto, kvm, tcg"), std::string::npos);
}

TEST(description, epochs_adapt_or_have_one_length) {
    const auto with = [](const std::string& lines) {
        return least + "[protection]\nstandby = \"unix:/s\"\n" + lines + lock;
    };
    const auto times = [&](const std::string& lines) {
        const auto p = good(with(lines)).protection;
        return std::array{p.min_epoch_ms, p.max_epoch_ms, p.max_paused_percent};
    };
    EXPECT_EQ(times(""), (std::array{2u, 100u, 10u}));
    EXPECT_EQ(times("min-epoch-ms = 5\nmax-epoch-ms = 200\nmax-paused-percent = 20\n"),
              (std::array{5u, 200u, 20u}));
    EXPECT_EQ(times("max-epoch-ms = 1\n"), (std::array{1u, 1u, 10u}));
    EXPECT_EQ(times("min-epoch-ms = 300\n"), (std::array{300u, 300u, 10u}));
    EXPECT_EQ(errors_of(with("min-epoch-ms = 30\nmax-epoch-ms = 20\n")),
              "vm.toml:6:16: 'min-epoch-ms' is more than 'max-epoch-ms'\n");
    EXPECT_NE(errors_of(with("epoch-ms = 50\nmax-paused-percent = 20\n"))
                  .find("vm.toml:7:22: 'max-paused-percent' is of no use with 'epoch-ms'"),
              std::string::npos);
    EXPECT_NE(errors_of(with("max-paused-percent = 100\n")).find("from 1 to 99"), std::string::npos);
}

TEST(description, a_disk_is_read_only_unless_it_says_so) {
    std::vector<std::string> errors;
    const auto writable = [&](const char* line) {
        const auto vm = parse_vm_description(least + line, "vm.toml", "/d", errors);
        return vm && vm->disks.at(0).writable;
    };
    EXPECT_FALSE(writable(""));
    EXPECT_FALSE(writable("writable = false\n"));
    EXPECT_TRUE(writable("writable = true\n"));
    EXPECT_TRUE(errors.empty());
    EXPECT_NE(errors_of(least + "writable = 1\n").find("vm.toml:4:12: 'writable' must be true or false"),
              std::string::npos);
}

TEST(description, a_card_whose_packets_nobody_can_hold_is_refused) {
    const auto card = [](const char* netdev) {
        return errors_of(least + "[[network]]\nnetdev = \"" + netdev + "\"\n");
    };
    EXPECT_NE(card("tap,ifname=vm0,vhost=on").find("vm.toml:5:10: with vhost, packets leave past QEMU"),
              std::string::npos);
    EXPECT_NE(card("vhost-user,chardev=c").find("with vhost"), std::string::npos);
    EXPECT_NE(card("tap,id=net0").find("leave 'id=' out"), std::string::npos);
    EXPECT_EQ(card("tap,ifname=vm0,script=no,vhost=off"), "");
    EXPECT_EQ(card("stream,server=off,addr.type=unix,addr.path=/s"), "");
}

TEST(description, nothing_speaks_past_the_gate) {
    const auto with = [](const std::string& options, const std::string& more) {
        return errors_of("name = \"a\"\nqemu-options = [" + options + "]\n" + least.substr(11) + more);
    };
    for (const char* options :
         {R"("-netdev", "user,id=n")", R"("--nic", "tap")", R"("-device", "vhost-vsock-pci,guest-cid=3")",
          R"("-device", "{'driver': 'vhost-user-fs-pci'}")", R"("-virtfs", "local,path=/")"}) {
        EXPECT_NE(with(options, lock).find("describe a card as a [[network]]"), std::string::npos) << options;
        EXPECT_EQ(with(options, ""), "") << "nobody protects it";
    }
    EXPECT_EQ(with(R"("-device", "virtio-rng-pci", "-trace", "net")", lock), "");
}

TEST(description, what_belongs_to_a_standby_is_beside_it) {
    EXPECT_EQ(gpu_address_beside("unix:/a/s"), "unix:/a/s.gpu");
    EXPECT_EQ(state_address_beside("[::1]:7000"), "[::1]:7002");
    EXPECT_EQ(gpu_address_beside("host:port"), "");
    EXPECT_EQ(gpu_address_beside("host"), "");
    EXPECT_TRUE(is_local_address("127.0.0.1:1"));
    EXPECT_TRUE(is_local_address("127.8.9.10:1"));
    EXPECT_TRUE(is_local_address("localhost:1"));
    EXPECT_TRUE(is_local_address("[::1]:1"));
    EXPECT_TRUE(is_local_address("unix:127.example.com"));
    for (const char* other : {"0.0.0.0:1", "127.example.com:1", "127.0.0.1.example:1", "127.1:1",
                              "128.0.0.1:1", "localhost.example:1"})
        EXPECT_FALSE(is_local_address(other)) << other;
}

TEST(description, nothing_is_protected_without_an_arbiter) {
    EXPECT_NE(errors_of(least + "[protection]\nstandby = \"unix:s\"\n").find("needs an [arbiter]"),
              std::string::npos);
}

TEST(description, other_hosts_need_tls) {
    const auto all = errors_of(least + "[protection]\nstandby = \"host:7000\"\n" + etcd);
    EXPECT_NE(all.find("it needs TLS"), std::string::npos);
    EXPECT_NE(errors_of(least + "[protection]\nstandby = \"unix:s\"\nstate = \"host:7000\"\n" + lock)
                  .find("vm.toml:6:9: 'state' is no Unix socket, so it needs TLS"),
              std::string::npos);
}

// Any local user may connect to a port of this machine, and who connects is the VM's primary.
TEST(description, ports_of_this_machine_need_tls_too) {
    for (const char* address : {"127.0.0.1:7000", "localhost:7000", "[::1]:7000"}) {
        const auto with = [&](const std::string& lines) {
            return errors_of(least + "[protection]\n" + lines + lock);
        };
        const auto text = "\"" + std::string(address) + "\"\n";
        EXPECT_NE(with("standby = " + text).find("'standby' is no Unix socket, so it needs TLS"),
                  std::string::npos);
        EXPECT_NE(with("standby = \"unix:s\"\ngpu = " + text).find("'gpu' is no Unix socket"),
                  std::string::npos);
        EXPECT_NE(with("standby = \"unix:s\"\nstate = " + text).find("'state' is no Unix socket"),
                  std::string::npos);
        EXPECT_EQ(with("standby = " + text + "tls = \"k\"\n"), "");
    }
}

TEST(description, nobody_leaves_the_vms_state_in_the_clear) {
    EXPECT_NE(errors_of(least +
                        "[protection]\nstandby = \"host:7000\"\ntls = \"keys\"\nplain-state = true\n" + etcd)
                  .find("'plain-state' is no key"),
              std::string::npos);
}

// Each host would have a file of its own, and every claim would be refused.
TEST(description, a_lock_does_not_reach_another_machine) {
    const auto all = errors_of(least + "[protection]\nstandby = \"hostb:7000\"\ntls = \"keys\"\n" + lock);
    EXPECT_NE(all.find("vm.toml:7:1: the arbiter \"lock\" is a file of one machine, and hostb:7000 is on "
                       "another one"),
              std::string::npos)
        << all;
    const auto vm = good(least + "[protection]\nstandby = \"unix:s\"\n" + lock);
    EXPECT_NE(why_not_a_standby(vm, "hostb:7000"), "") << "a new standby, too";
    EXPECT_EQ(why_not_a_standby(vm, "unix:/other"), "");
    EXPECT_EQ(why_not_a_standby(good(least + "[protection]\nstandby = \"h:1\"\ntls = \"k\"\n" + etcd), "h:1"),
              "");
}

TEST(description, etcd_on_another_machine_needs_tls) {
    for (const char* own : {"http://127.0.0.1:2379", "http://127.8.0.1", "http://localhost:2379",
                            "http://[::1]:2379", "https://e1:2379", "https://10.0.0.1"})
        EXPECT_EQ(why_not_an_endpoint(own), "") << own;
    for (const char* other : {"http://e1:2379", "http://127.0.0.1.example:2379", "http://0.0.0.0:2379",
                              "http://128.0.0.1:2379", "http://[fe80::1]:2379", "http://localhost.example"})
        EXPECT_NE(why_not_an_endpoint(other).find("another machine without TLS"), std::string::npos) << other;
    for (const char* none : {"e1:2379", "http://", "ftp://e1:2379", "http://127.0.0.1@e1:2379",
                             "https://e1/x", "", "https://a b"})
        EXPECT_NE(why_not_an_endpoint(none).find("is no endpoint of etcd"), std::string::npos) << none;
    EXPECT_NE(errors_of(least + "[arbiter]\nkind = \"etcd\"\nendpoints = [\"https://a:1\", \"http://b:1\"]\n")
                  .find("vm.toml:6:13: http://b:1 is etcd on another machine without TLS"),
              std::string::npos);
    EXPECT_NE(errors_of(least + "[arbiter]\nkind = \"etcd\"\nendpoints = []\n").find("names no server"),
              std::string::npos);
}

TEST(description, etcds_user_is_in_a_file_that_nobody_else_reads) {
    auto name = (std::filesystem::temp_directory_path() / "login-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    const auto path = name + "/login";
    const auto text = least + "[arbiter]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\nlogin = \"" +
                      path + "\"\n";
    EXPECT_NE(errors_of(text).find("cannot open"), std::string::npos);
    const auto write = [&](const char* what) {
        std::ofstream(path) << what;
        std::filesystem::permissions(path, std::filesystem::perms::owner_read |
                                               std::filesystem::perms::owner_write);
        return errors_of(text);
    };
    EXPECT_EQ(write("kagemusha\nsecret\n"), "");
    std::vector<std::string> errors;
    const auto vm = parse_vm_description(text, "vm.toml", name, errors);
    ASSERT_TRUE(vm);
    EXPECT_EQ(vm->arbiter.user, "kagemusha");
    EXPECT_EQ(vm->arbiter.password, "secret");
    EXPECT_NE(write("kagemusha\n").find("must have two lines"), std::string::npos);
    EXPECT_NE(write("a\nb\nc\n").find("must have two lines"), std::string::npos);
    write("kagemusha\nsecret\n");
    std::filesystem::permissions(path, std::filesystem::perms::others_read,
                                 std::filesystem::perm_options::add);
    EXPECT_NE(errors_of(text).find("is open to others: chmod 600"), std::string::npos);
    std::filesystem::remove_all(name);
}

TEST(description, a_fencing_command_can_be_run) {
    const auto fence = [](const std::string& program) {
        return errors_of(least + "[arbiter]\nkind = \"fence\"\npath = \"r\"\ncommand = [" + program + "]\n");
    };
    EXPECT_EQ(fence("\"/bin/sh\", \"-c\", \"x\""), "");
    EXPECT_EQ(fence("\"sh\""), "");
    EXPECT_NE(
        fence("\"/none/such\"").find("vm.toml:7:11: 'command' can't be run: there is no program /none/such"),
        std::string::npos);
    EXPECT_NE(fence("\"no-such-program\"").find("there is no program no-such-program in PATH"),
              std::string::npos);
    EXPECT_NE(fence("\"fence.sh\", \"x\"").find("in PATH"), std::string::npos);
    EXPECT_NE(fence("\"./fence.sh\"").find("there is no program /vms/fence.sh"), std::string::npos)
        << "relative to the description";
    EXPECT_NE(fence("\"/etc/passwd\"").find("/etc/passwd is not executable"), std::string::npos);
    EXPECT_NE(fence("\"/etc\"").find("there is no program /etc"), std::string::npos);
    EXPECT_NE(fence("").find("names no program"), std::string::npos);
    EXPECT_NE(fence("\"sh\"]\ncheck-command = [\"/none/such\"").find("'check-command' can't be run"),
              std::string::npos);
    EXPECT_NE(fence("\"sh\"]\ngive-up-ms = 5000\nendpoints = [").find("at least 'delay-ms' and a second"),
              std::string::npos);
    EXPECT_NE(errors_of(least + lock + "delay-ms = 5\n").find("'delay-ms' is for the arbiter \"fence\""),
              std::string::npos);
}

TEST(description, keys_of_another_arbiter_are_refused) {
    EXPECT_NE(errors_of(least + "[arbiter]\nkind = \"etcd\"\npath = \"x\"\n")
                  .find("'path' is for the arbiter \"lock\""),
              std::string::npos);
    EXPECT_NE(errors_of(least + "[arbiter]\nkind = \"fence\"\n").find("needs 'command'"), std::string::npos);
    EXPECT_NE(
        errors_of(least + "[arbiter]\nkind = \"etcd\"\nendpoints = [\"http://e:2379\"]\nlease-ms = 100\n")
            .find("from 2000"),
        std::string::npos);
}

TEST(description, something_must_boot) {
    EXPECT_NE(errors_of("name = \"a\"\n").find("nothing to boot"), std::string::npos);
    EXPECT_NE(errors_of("name = \"a\"\n[boot]\nguest = \"6.12-cloud\"\n").find("needs 'job'"),
              std::string::npos);
}

TEST(description, the_driver_library_is_one_for_cuda) {
    const std::string head = "name = \"a\"\n[boot]\nkernel = \"/k\"\n[gpu]\nbackend = ";
    EXPECT_EQ(good(head + "\"cuda\"\ndriver = \"ptx\"\n").gpu->driver, "ptx");
    EXPECT_EQ(good(head + "\"cuda\"\ndriver = \"/lib/libcuda.so.1\"\n").gpu->driver, "/lib/libcuda.so.1");
    EXPECT_NE(errors_of(head + "\"opencl\"\ndriver = \"ptx\"\n").find("backend = \"cuda\" only"),
              std::string::npos);
    EXPECT_NE(errors_of(head + "\"cuda\"\ndriver = \"ptx\"\n[gpu.properties]\noptions = \"driver=/d\"\n")
                  .find("beside 'driver'"),
              std::string::npos);
    const auto vm = good(head + "\"cuda\"\n");
    const auto device = gpu_of(vm, {}, false, {}, "/lib/libcuda.so.1");
    EXPECT_EQ(device.properties.front(),
              (std::pair<std::string, std::string>{"options", "driver=/lib/libcuda.so.1"}));
}

TEST(description, a_budget_covers_two_heartbeats) {
    EXPECT_NE(errors_of(least +
                        "[protection]\nstandby = \"unix:s\"\nheartbeat-ms = 60\nheartbeat-budget-ms = 100\n" +
                        lock)
                  .find("at least twice"),
              std::string::npos);
}

TEST(description, a_takeover_has_one_of_eight_priorities) {
    EXPECT_NE(
        errors_of(least + "[protection]\nstandby = \"unix:s\"\npriority = 8\n" + lock).find("'priority'"),
        std::string::npos);
}

TEST(description, what_kernels_wrote_is_shipped_if_the_administrator_says_so) {
    const auto ships = [](const std::string& key, bool standby) {
        const auto vm = good("name = \"a\"\n[boot]\nkernel = \"/k\"\n[gpu]\n" + key +
                             "[protection]\nstandby = \"unix:/s\"\n" + lock);
        for (const auto& [name, value] : gpu_of(vm, vm.protection.gpu, standby).properties)
            if (name == "ship-differences")
                return value;
        return std::string();
    };
    EXPECT_EQ(ships("", false), "");
    EXPECT_EQ(ships("differences = \"repair\"\n", false), "");
    EXPECT_EQ(ships("differences = \"ship\"\n", false), "on");
    EXPECT_EQ(ships("differences = \"ship\"\n", true), "on") << "it may become a primary";
    EXPECT_NE(errors_of("name = \"a\"\n[boot]\nkernel = \"/k\"\n[gpu]\ndifferences = \"hold\"\n")
                  .find("'differences'"),
              std::string::npos);
}

TEST(description, what_named_kernels_wrote_is_shipped) {
    const std::string gpu = "name = \"a\"\n[boot]\nkernel = \"/k\"\n[gpu]\n";
    const auto vm =
        good(gpu + "ship-kernels = [\"insert\", \"_take2\"]\n[protection]\nstandby = \"unix:/s\"\n" + lock);
    for (const bool standby : {false, true}) {
        const auto device = gpu_of(vm, vm.protection.gpu, standby);
        EXPECT_TRUE(std::any_of(device.properties.begin(), device.properties.end(), [](const auto& p) {
            return p == std::pair<std::string, std::string>("ship-kernels", "insert,_take2");
        }));
    }
    for (const char* name : {"", "a,b", "2a", "a b", "a\\n"})
        EXPECT_NE(errors_of(gpu + "ship-kernels = [\"" + name + "\"]\n").find("is no name of a kernel"),
                  std::string::npos)
            << name;
    EXPECT_NE(errors_of(gpu + "ship-kernels = \"a\"\n").find("a list of texts"), std::string::npos);
    EXPECT_NE(errors_of(gpu + "differences = \"ship\"\nship-kernels = [\"a\"]\n").find("of no use"),
              std::string::npos);
    std::string many;
    for (int i = 0; i < 65; ++i)
        many += "\"a" + std::to_string(i) + "\",";
    EXPECT_NE(errors_of(gpu + "ship-kernels = [" + many + "]\n").find("more than 64"), std::string::npos);
}

// Else its GPU gives a standby up that the supervisors still count on.
TEST(description, who_does_not_get_on_is_given_up_after_these) {
    const auto before =
        good(least + "[protection]\nstandby = \"unix:/s\"\nepoch-ms = 200\n" + lock).supervision;
    EXPECT_EQ(before.checkpoint_ms, 10600u) << "longer epochs, more time";
    const auto after =
        good(least + "[supervision]\ncheckpoint-ms = 0\nmain-loop-ms = 500\ntransfer-ms = 7000\n"
                     "switchover-ms = 800\ngpu-takeover-ms = 60000\nlog-mib = 2\n")
            .supervision;
    EXPECT_EQ(after.checkpoint_ms, 0u);
    EXPECT_EQ(after.main_loop_ms, 500u);
    EXPECT_EQ(after.transfer_ms, 7000u);
    EXPECT_EQ(after.switchover_ms, 800u);
    EXPECT_EQ(before.gpu_takeover_ms, 3'600'000u);
    EXPECT_EQ(after.gpu_takeover_ms, 60'000u);
    EXPECT_EQ(after.log_mib, 2u);
    EXPECT_EQ(
        errors_of(least + "[supervision]\nmain-loop-ms = 499\n"),
        "vm.toml:5:16: 'main-loop-ms' must be 0 (no bound) or at least 500: a busy host is no broken one\n");
    EXPECT_NE(errors_of(least + "[protection]\nstandby = \"unix:/s\"\nepoch-ms = 200\n" + lock +
                        "[supervision]\ncheckpoint-ms = 1399\n")
                  .find("'checkpoint-ms' must be at least 1400"),
              std::string::npos);
}

TEST(description, a_gpu_is_at_least_as_patient_as_the_supervisors) {
    const auto of = [](const std::string& properties, const std::string& times, const std::string& name) {
        const auto vm = good("name = \"a\"\n[boot]\nkernel = \"/k\"\n[gpu]\n[gpu.properties]\n" + properties +
                             "[protection]\nstandby = \"unix:/s\"\n" + times + lock);
        std::string found;
        for (const auto standby : {false, true})
            for (const auto& [key, value] : gpu_of(vm, vm.protection.gpu, standby).properties)
                if (key == name)
                    found += value + ";";
        return found;
    };
    const std::string times = "heartbeat-ms = 500\nheartbeat-budget-ms = 10000\n";
    EXPECT_EQ(of("", times, "heartbeat-ms"), "500;500;");
    EXPECT_EQ(of("", times, "heartbeat-budget-ms"), "10000;10000;");
    EXPECT_EQ(of("heartbeat-ms = \"7\"\n", times, "heartbeat-ms"), "7;7;"); // its owner's word
    // It is never told dead after less than 500 ms, and wants three heartbeats in them.
    const std::string short_times = "heartbeat-ms = 10\nheartbeat-budget-ms = 30\n";
    EXPECT_EQ(of("", short_times, "heartbeat-budget-ms"), "500;500;");
    EXPECT_EQ(of("", short_times, "heartbeat-ms"), "10;10;");
    EXPECT_EQ(of("heartbeat-budget-ms = \"90\"\n", short_times, "heartbeat-budget-ms"), "90;90;");
    EXPECT_EQ(of("", "heartbeat-ms = 250\nheartbeat-budget-ms = 500\n", "heartbeat-ms"), "166;166;");
}

TEST(description, confinement_is_had_unless_it_is_not_wanted) {
    const std::string vm = "name = \"a\"\n[[disk]]\npath = \"d\"\n";
    std::vector<std::string> errors;
    const auto read = [&](const std::string& more) {
        errors.clear();
        return parse_vm_description(vm + more, "f", "/d", errors);
    };
    ASSERT_TRUE(read(""));
    EXPECT_TRUE(read("")->confinement.root);
    EXPECT_FALSE(read("")->confinement.described);
    errors.clear();
    const auto off = parse_vm_description("confinement = false\n" + vm, "f", "/d", errors);
    ASSERT_TRUE(off);
    EXPECT_FALSE(off->confinement.root);
    EXPECT_FALSE(parse_vm_description("confinement = \"no\"\n" + vm, "f", "/d", errors));
    const auto plain = read("[confinement]\n");
    ASSERT_TRUE(plain);
    EXPECT_TRUE(plain->confinement.root && plain->confinement.described);
    EXPECT_EQ(plain->confinement.user, described_confinement::user_kind::own);
    const auto all = read("[confinement]\nuser = 990\nnetwork = \"host\"\npaths = [\"switch\"]\n");
    ASSERT_TRUE(all);
    EXPECT_EQ(all->confinement.user, described_confinement::user_kind::given);
    EXPECT_EQ(all->confinement.id, 990u);
    EXPECT_EQ(all->confinement.network, described_confinement::network_kind::host);
    EXPECT_EQ(all->confinement.paths, std::vector<std::string>{"/d/switch"});
    EXPECT_EQ(read("[confinement]\nuser = \"caller\"\n")->confinement.user,
              described_confinement::user_kind::caller);
    for (const char* wrong : {"user = 0", "user = 4294967295", "user = \"root\"", "network = \"none\"",
                              "root = false\nuser = 5", "root = false\npaths = [\"/x\"]", "rooot = true"})
        EXPECT_FALSE(read(std::string("[confinement]\n") + wrong)) << wrong;
}

} // namespace
} // namespace kagemusha::control
