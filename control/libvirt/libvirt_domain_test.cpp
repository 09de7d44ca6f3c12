// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/libvirt/bounded_xml.hpp"
#include "control/libvirt/libvirt_domain.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kagemusha::control {
namespace {

const std::string plain = R"(<domain type='kvm'>
  <name>web</name><memory unit='MiB'>512</memory><vcpu placement='static'>2</vcpu>
  <os><type arch='x86_64' machine='pc-i440fx-10.0'>hvm</type><boot dev='hd'/></os>
  <features><acpi/></features><cpu mode='host-passthrough'/><clock offset='utc'/>
  <metadata><kagemusha:vm xmlns:kagemusha='https://kagemusha.example/vm'>[gpu]
backend = "opencl"</kagemusha:vm></metadata>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/srv/web.img'/>
      <target dev='vda' bus='virtio'/></disk>
    <interface type='bridge'><mac address='52:54:00:12:34:56'/><source bridge='br0'/><target dev='web0'/>
      <model type='virtio'/></interface>
    <serial type='pty'/><console type='pty'/><controller type='usb' model='none'/><memballoon model='none'/>
  </devices></domain>)";

std::string with(const std::string& what, const std::string& instead) {
    auto text = plain;
    const auto at = text.find(what);
    EXPECT_NE(at, text.npos) << what;
    return text.replace(at, what.size(), instead);
}

TEST(libvirt_domain, becomes_a_description_of_what_the_guest_sees) {
    const auto got = import_domain(plain, {});
    EXPECT_TRUE(got.refused.empty()) << got.refused[0];
    EXPECT_EQ(got.toml, R"(# from the domain "web" of libvirt
name = "web"
accel = "kvm"
machine = "pc-i440fx-10.0"
memory = "512M"
cpus = 2

[[disk]]
path = "/srv/web.img"
format = "qcow2"
writable = true

[[network]]
# a tap in the bridge "br0" of each host
netdev = "tap,ifname=web0,script=no,downscript=no"
mac = "52:54:00:12:34:56"

[gpu]
backend = "opencl"
)");
}

TEST(libvirt_domain, boots_from_a_kernel_and_has_disks_that_are_read_only) {
    auto text = with("<boot dev='hd'/>", "<kernel>/k</kernel><initrd>/i</initrd><cmdline>a \"b\"</cmdline>");
    text.insert(text.find("<target dev='vda'"), "<readonly/>");
    const auto got = import_domain(text, {});
    EXPECT_NE(got.toml.find("[boot]\nkernel = \"/k\"\ninitramfs = \"/i\"\nappend = \"a \\\"b\\\"\"\n"),
              got.toml.npos)
        << got.toml;
    EXPECT_EQ(got.toml.find("writable"), got.toml.npos);
}

TEST(libvirt_domain, what_we_do_not_have_is_refused_with_a_sentence) {
    const std::tuple<std::string, std::string, std::string> cases[] = {
        {"type='kvm'", "type='xen'", "only domains of QEMU"},
        {"pc-i440fx-10.0", "pc-q35-10.0", "give a version of pc-i440fx"},
        {"<boot dev='hd'/>", "<loader>/OVMF.fd</loader>", "SeaBIOS"},
        {"'MiB'>512", "'KiB'>1025", "whole mebibytes"},
        {"'MiB'>512", "'KiB'>99999999999999999999999", "whole mebibytes"},
        {">2</vcpu>", ">two</vcpu>", "a number is needed"},
        {"<cpu mode='host-passthrough'/>", "<cpu mode='host-model'/>", "name a model that both hosts have"},
        {"<cpu mode='host-passthrough'/>", "", "<cpu> is missing"},
        {"offset='utc'", "offset='localtime'", "only utc"},
        {"bus='virtio'", "bus='sata'", "only bus='virtio'"},
        {"device='disk'", "device='cdrom'", "a cdrom can't be described"},
        {"type='qcow2'", "type='vmdk'", "only raw and qcow2"},
        {"<interface type='bridge'>", "<interface type='network'>", "libvirt makes the network"},
        {"<target dev='web0'/>", "<target dev='vnet0'/>", "of its own that is on both hosts"},
        {"<model type='virtio'/>", "<model type='e1000'/>", "only model virtio"},
        {"<memballoon model='none'/>", "<memballoon model='virtio'/>", "--without memballoon"},
        {"<memballoon model='none'/>", "<hostdev mode='subsystem' type='pci'/>",
         "<hostdev> pci: a VM of ours has none"},
        {"<memballoon model='none'/>", "<filesystem type='mount'/>", "--without filesystem"},
        {"</devices>", "</devices><qemu:commandline/>", "what the guest sees would differ"},
    };
    for (const auto& [what, instead, sentence] : cases) {
        const auto got = import_domain(with(what, instead), {});
        ASSERT_EQ(got.refused.size(), 1U) << instead;
        EXPECT_NE(got.refused[0].find(sentence), std::string::npos) << got.refused[0];
        EXPECT_EQ(got.toml, "");
    }
}

TEST(libvirt_domain, a_device_is_left_out_when_that_is_wanted) {
    const auto text = with("<memballoon model='none'/>", "<graphics type='vnc'/>");
    EXPECT_EQ(import_domain(text, {}).refused.size(), 1U);
    EXPECT_EQ(import_domain(text, {"graphics"}).toml, import_domain(plain, {}).toml);
}

TEST(libvirt_domain, other_texts_are_told_apart) {
    EXPECT_NE(import_domain("<network/>", {}).refused.at(0).find("no domain of libvirt"), std::string::npos);
    EXPECT_NE(import_domain("<domain>", {}).refused.at(0).find("no XML"), std::string::npos);
    std::string deep;
    for (int i = 0; i < 100000; ++i)
        deep += "<a>";
    EXPECT_NE(import_domain(deep, {}).refused.at(0).find("levels"), std::string::npos);
    EXPECT_EQ(import_domain(std::string(longest_xml + 1, ' '), {}).refused.size(), 1U);
}

} // namespace
} // namespace kagemusha::control
