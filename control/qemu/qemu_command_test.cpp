// SPDX-License-Identifier: GPL-2.0-or-later
//
// The command line for typical machines.
#include "control/qemu/qemu_command.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace kagemusha::control {
namespace {

vm_config example() {
    vm_config config;
    config.qemu = "/opt/qemu";
    config.kernel = "/k/vmlinuz";
    config.initramfs = "/k/initramfs";
    config.root_image = "/i/root";
    config.payload = "/t/payload";
    return config;
}

// The word after the first `option` for which it contains `part`; "" if there is none.
std::string option(const std::vector<std::string>& command, const std::string& name,
                   const std::string& part = "") {
    for (std::size_t i = 0; i + 1 < command.size(); ++i)
        if (command[i] == name && command[i + 1].find(part) != std::string::npos)
            return command[i + 1];
    return {};
}

TEST(qemu_command, a_reboot_ends_a_jobs_guest_and_no_other) {
    auto config = example();
    const auto ends = [](const vm_config& c) {
        const auto command = qemu_command(c);
        return std::count(command.begin(), command.end(), "-no-reboot");
    };
    EXPECT_EQ(ends(config), 1);
    config.described = true;
    EXPECT_EQ(ends(config), 0);
}

TEST(qemu_command, starts_with_the_binary_and_names_memory_and_cpus) {
    auto config = example();
    config.memory_mib = 640;
    config.cpus = 3;
    const auto command = qemu_command(config);
    EXPECT_EQ(command.front(), "/opt/qemu");
    EXPECT_EQ(option(command, "-m"), "640M");
    EXPECT_EQ(option(command, "-smp"), "3");
    EXPECT_EQ(option(command, "-object", "memfd"), "memory-backend-memfd,id=ram,size=640M,share=on");
    EXPECT_EQ(option(command, "-machine"), "pc-i440fx-10.0,memory-backend=ram");
}

TEST(qemu_command, a_processor_by_name_is_all_of_it_or_none) {
    auto config = example();
    EXPECT_EQ(option(qemu_command(config), "-cpu"), "max,-erms,-fsrm");
    config.accel = accelerator::kvm;
    EXPECT_EQ(option(qemu_command(config), "-cpu"), "host");
    config.cpu = "EPYC-v4";
    EXPECT_EQ(option(qemu_command(config), "-cpu"), "EPYC-v4,enforce");
}

TEST(qemu_command, qemu_is_sandboxed_unless_its_owner_says_no) {
    auto config = example();
    const auto rules = option(qemu_command(config), "-sandbox");
    EXPECT_EQ(rules, "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    const auto without = without_sandbox(qemu_command(config));
    EXPECT_EQ(without.size() + 2, qemu_command(config).size());
    config.sandboxed = false;
    EXPECT_EQ(qemu_command(config), without);
    EXPECT_EQ(without_sandbox(without), without);
}

TEST(qemu_command, a_sandboxed_qemu_starts_no_program_for_a_network_card) {
    for (const char* netdev :
         {"user", "user,restrict=on", "tap,ifname=a,script=no,downscript=no", "tap,ifname=a,script=no",
          "tap,script=,ifname=a", "tap,fd=7", "tap,fds=7:8", "stream,server=off,addr.type=unix,addr.path=/x",
          "user,hostfwd=tcp::1-:22", "user,guestfwd=tcp:10.0.2.100:1-chardev:c"})
        EXPECT_EQ(why_not_sandboxed(netdev), "") << netdev;
    for (const char* netdev :
         {"tap", "tap,ifname=a", "tap,script=/etc/up", "tap,ifname=script=no", "bridge,br=br0",
          "tap,helper=/usr/lib/h", "user,smb=/home", "user,guestfwd=tcp:10.0.2.100:1-cmd:cat"})
        EXPECT_NE(why_not_sandboxed(netdev), "") << netdev;
}

TEST(qemu_command, disks_are_read_only_and_the_image_is_the_first) {
    const auto command = qemu_command(example());
    EXPECT_EQ(option(command, "-drive", "id=root"), "if=none,id=root,file=/i/root,format=raw,readonly=on");
    EXPECT_EQ(option(command, "-drive", "id=payload"),
              "if=none,id=payload,file=/t/payload,format=raw,readonly=on");
    EXPECT_LT(std::find(command.begin(), command.end(), "virtio-blk-pci,drive=root"),
              std::find(command.begin(), command.end(), "virtio-blk-pci,drive=payload"));
}

TEST(qemu_command, a_writable_disk_is_in_the_checkpoints) {
    auto config = example();
    config.disks = {{"/d/a", "raw"}, {"/d/b,c", "qcow2", true}};
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-drive", "id=disk0"), "if=none,id=disk0,file=/d/a,format=raw,readonly=on");
    EXPECT_EQ(option(command, "-drive", "node-name=disk1"),
              "if=none,id=disk1-drive,node-name=disk1,driver=checkpoint-disk,file.driver=qcow2,"
              "file.file.driver=file,file.file.filename=/d/b,,c,werror=report,rerror=report");
    EXPECT_EQ(option(command, "-device", "disk1"), "virtio-blk-pci,drive=disk1-drive");
}

TEST(qemu_command, no_gpu_unless_asked) {
    EXPECT_EQ(option(qemu_command(example()), "-device", "vgpu"), "");
}

TEST(qemu_command, gpu_has_its_thread_and_its_properties) {
    auto config = example();
    config.gpu = gpu_config{"opencl", "H200, big", {{"hang-timeout-ms", "2000"}}};
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-object", "iothread"), "iothread,id=vgpu-io");
    EXPECT_EQ(option(command, "-device", "vgpu"),
              "virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend=opencl,gpu=H200,, big,hang-timeout-ms=2000");
}

TEST(qemu_command, ports_reach_files_and_sockets) {
    auto config = example();
    config.ports = {{"out", serial_port::end::file, "/t/out"},
                    {"agent", serial_port::end::socket, "/t/agent"}};
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-chardev", "id=port0"), "file,id=port0,path=/t/out");
    EXPECT_EQ(option(command, "-chardev", "id=port1"), "socket,id=port1,path=/t/agent,server=on,wait=off");
    EXPECT_EQ(option(command, "-device", "name=agent"),
              "virtserialport,bus=ports.0,chardev=port1,name=agent");
}

TEST(qemu_command, an_emulated_guest_is_told_the_frequency_of_its_counter) {
    auto config = example();
    EXPECT_EQ(option(qemu_command(config), "-append").find("tsc"), std::string::npos);
    config.tsc_khz = 2596142;
    EXPECT_NE(option(qemu_command(config), "-append").find(" tsc_early_khz=2596142"), std::string::npos);
    config.accel = accelerator::kvm; // has a clock of its own
    EXPECT_EQ(option(qemu_command(config), "-append").find("tsc"), std::string::npos);
}

TEST(qemu_command, only_an_emulated_guest_is_spared_what_emulation_makes_dear) {
    auto config = example();
    for (const auto* word :
         {" no_timer_check", " cryptomgr.notests", " initcall_blacklist=jent_mod_init", " no5lvl"}) {
        config.accel = accelerator::tcg;
        EXPECT_NE(option(qemu_command(config), "-append").find(word), std::string::npos) << word;
        config.accel = accelerator::kvm;
        EXPECT_EQ(option(qemu_command(config), "-append").find(word), std::string::npos) << word;
    }
    config.accel = accelerator::tcg;
    config.append = "root=/dev/vda"; // its owner's words are all that there are
    EXPECT_EQ(option(qemu_command(config), "-append"), "root=/dev/vda");
}

TEST(qemu_command, a_probe_has_neither_disks_nor_ports) {
    auto config = example();
    config.root_image.clear();
    config.accel = accelerator::kvm;
    config.ports = {{"out", serial_port::end::file, "/t/out"}};
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-drive"), "");
    EXPECT_EQ(option(command, "-chardev", "port"), "");
    EXPECT_NE(option(command, "-append").find("kagemusha.probe"), std::string::npos);
    EXPECT_EQ(option(command, "-accel"), "kvm");
}

TEST(qemu_command, monitors) {
    auto config = example();
    config.qmp_fd = 7;
    config.qmp_socket = "/t/a,b";
    config.status_socket = "/r/vm.qmp";
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-chardev", "id=qmp"), "socket,id=qmp,fd=7");
    EXPECT_EQ(option(command, "-qmp"), "unix:/t/a,,b,server=on,wait=off");
    EXPECT_EQ(option(command, "-qmp", "vm.qmp"), "unix:/r/vm.qmp,server=on,wait=off");
}

TEST(qemu_command, a_checkpoint_may_come_early) {
    auto config = example();
    EXPECT_EQ(option(qemu_command(config), "-global"), "");
    config.early = early_checkpoints{5, 20};
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-global", "min-delay"), "migration.x-colo-min-delay=5");
    EXPECT_EQ(option(command, "-global", "max-paused"), "migration.x-colo-max-paused=20");
}

TEST(qemu_command, keys_for_both_ends_of_the_vms_state) {
    auto config = example();
    EXPECT_EQ(option(qemu_command(config), "-object", "tls-creds"), "");
    config.state_keys = "/r/a,b";
    config.state_vm = "Web_1";
    const auto command = qemu_command(config);
    EXPECT_EQ(option(command, "-object", "endpoint=server"),
              "tls-creds-x509,id=state-from,dir=/r/a,,b,endpoint=server,verify-peer=on,"
              "priority=NORMAL:-VERS-ALL:+VERS-TLS1.3");
    EXPECT_EQ(option(command, "-object", "endpoint=client"),
              "tls-creds-x509,id=state-to,dir=/r/a,,b,endpoint=client,verify-peer=on,"
              "priority=NORMAL:-VERS-ALL:+VERS-TLS1.3");
    // Any host's certificate for the primary of this VM, and nobody else's.
    EXPECT_EQ(nlohmann::json::parse(option(command, "-object", "authz-list")),
              nlohmann::json::parse(
                  R"json({"qom-type": "authz-list", "id": "state-peer", "policy": "deny", "rules": [
                  {"match": "O=Kagemusha,OU=*,CN=primary of Web_1 (QEMU)", "policy": "allow", "format": "glob"
},
                  {"match": "CN=primary of Web_1 (QEMU),OU=*,O=Kagemusha", "policy": "allow", "format": "glob"}
              ]
})json"));
    EXPECT_EQ(option(command, "-global", "authz"), "migration.tls-authz=state-peer");
    EXPECT_EQ(option(command, "-global", "hostname"),
              "migration.tls-hostname=standby.qemu._web__1.vm.kagemusha");
}

TEST(qemu_command, extra_words_come_last) {
    auto config = example();
    config.extra = {"-device", "edu"};
    const auto command = qemu_command(config);
    EXPECT_EQ(command.back(), "edu");
}

} // namespace
} // namespace kagemusha::control
