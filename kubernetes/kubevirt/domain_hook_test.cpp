// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/kubevirt/domain_hook.hpp"

#include "control/libvirt/bounded_xml.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kagemusha::kubernetes {
namespace {

using boost::property_tree::ptree;

// A headless VM without a balloon, as KubeVirt describes it.
constexpr char kubevirt_domain[] =
    R"(<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>default_web</name><memory unit="b">1073741824</memory>
  <os><type arch="x86_64" machine="q35">hvm</type><smbios mode="sysinfo"></smbios></os>
  <devices>
    <interface type="ethernet"><source></source><model type="virtio-non-transitional"></model></interface>
    <channel type="unix"><target name="org.qemu.guest_agent.0" type="virtio"></target></channel>
    <controller type="usb" index="0" model="none"></controller>
    <controller type="scsi" index="0" model="virtio-non-transitional"></controller>
    <controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
    <memballoon model="none"></memballoon>
    <disk device="disk" type="file" model="virtio-non-transitional"><source file="/a &amp; b.img"></source>
      <target bus="virtio" dev="vda"></target><driver name="qemu" type="qcow2"></driver></disk>
    <serial type="unix"><target port="0"></target></serial><console type="pty"></console>
  </devices>
  <metadata><kubevirt xmlns="http://kubevirt.io"><uid>a &lt; b</uid></kubevirt></metadata>
</domain>)";
constexpr char vmi[] = R"({"spec": {"domain": {"resources": {"limits": {"kagemusha.io/gpu": "100"}}}}})";

std::string with(std::string text, const std::string& what, const std::string& by) {
    const auto at = text.find(what);
    EXPECT_NE(at, text.npos) << what;
    return text.replace(at, what.size(), by);
}

ptree hooked(const std::string& xml, const hook_options& options = {}) {
    const auto done = hook_domain(xml, vmi, options);
    EXPECT_TRUE(done.refused.empty()) << done.refused.front();
    std::string error;
    const auto tree = control::read_bounded_xml(done.xml, "domain", error);
    EXPECT_TRUE(tree) << error;
    return tree ? tree->get_child("domain", {}) : ptree();
}

std::string refusal(const std::string& xml, const std::string& of_vmi = vmi) {
    const auto done = hook_domain(xml, of_vmi, {});
    EXPECT_TRUE(done.xml.empty());
    std::string out;
    for (const auto& sentence : done.refused)
        out += sentence + "\n";
    return out;
}

std::vector<std::string> arguments(const ptree& domain) {
    std::vector<std::string> out;
    for (const auto& [name, argument] : domain.get_child("qemu:commandline"))
        if (name == "qemu:arg")
            out.push_back(argument.get<std::string>("<xmlattr>.value"));
    return out;
}

TEST(kubevirt_domain, gets_our_emulator_our_device_and_shared_memory) {
    const auto domain = hooked(kubevirt_domain);
    EXPECT_EQ(domain.get<std::string>("devices.emulator"), "/usr/lib/kagemusha/qemu-system-x86_64");
    EXPECT_EQ(domain.get<std::string>("memoryBacking.source.<xmlattr>.type"), "memfd");
    EXPECT_EQ(domain.get<std::string>("memoryBacking.access.<xmlattr>.mode"), "shared");
    const std::vector<std::string> wanted{
        "-L",      "/usr/share/seabios",
        "-L",      "/usr/share/qemu",
        "-object", "iothread,id=vgpu-io",
        "-device", "virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend=opencl,bus=pcie.0,addr=0x10"};
    EXPECT_EQ(arguments(domain), wanted);
}

TEST(kubevirt_domain, keeps_everything_else) {
    const auto domain = hooked(kubevirt_domain);
    EXPECT_EQ(domain.get<std::string>("<xmlattr>.type"), "kvm");
    EXPECT_EQ(domain.get<std::string>("name"), "default_web");
    EXPECT_EQ(domain.get<std::string>("metadata.kubevirt.uid"), "a < b");
    EXPECT_EQ(domain.get<std::string>("devices.disk.source.<xmlattr>.file"), "/a & b.img");
    EXPECT_EQ(domain.get_child("devices").count("controller"), 2u) << "the SCSI controller has no disk";
    EXPECT_EQ(domain.get_child("devices").count("channel"), 1u);
}

TEST(kubevirt_domain, options_are_escaped_and_arguments_of_others_stay) {
    hook_options options;
    options.backend = "null,x-in-process=on";
    options.gpu = "pci:0000:17:00.0";
    options.firmware.clear();
    const auto domain = hooked(with(kubevirt_domain, "</domain>",
                                    "<qemu:commandline><qemu:arg value='-snapshot'/>"
                                    "</qemu:commandline></domain>"),
                               options);
    const std::vector<std::string> wanted{
        "-snapshot", "-object", "iothread,id=vgpu-io", "-device",
        "virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend=null,,x-in-process=on,"
        "gpu=pci:0000:17:00.0,bus=pcie.0,addr=0x10"};
    EXPECT_EQ(arguments(domain), wanted);
}

TEST(kubevirt_domain, the_device_takes_a_slot_that_nobody_has) {
    const auto slots =
        with(kubevirt_domain, "<memballoon model=\"none\"></memballoon>",
             "<rng model='virtio'><address type='pci' domain='0x0000' bus='0x00' slot='0x10'/></rng>"
             "<controller type='pci'><address type='pci' bus='0' slot='17'/></controller>"
             "<controller type='pci'><address type='pci' bus='0x01' slot='0x12'/></controller>");
    EXPECT_NE(arguments(hooked(slots)).back().find("addr=0x12"), std::string::npos);
    const auto old = with(kubevirt_domain, "machine=\"q35\"", "machine=\"pc-i440fx-10.0\"");
    EXPECT_NE(arguments(hooked(old)).back().find("bus=pci.0"), std::string::npos);
    std::string all;
    for (int slot = 0x10; slot <= 0x1b; ++slot)
        all +=
            "<controller type='pci'><address type='pci' slot='" + std::to_string(slot) + "'/></controller>";
    EXPECT_NE(refusal(with(kubevirt_domain, "<serial", all + "<serial")).find("no free slot"),
              std::string::npos);
}

TEST(kubevirt_domain, what_our_emulator_does_not_have_is_refused_with_what_to_say) {
    const auto refused = [](const std::string& what, const std::string& by, const std::string& words) {
        const auto said = refusal(with(kubevirt_domain, what, by));
        EXPECT_NE(said.find(words), std::string::npos) << by << ": " << said;
    };
    const auto device = [&](const std::string& xml, const std::string& words) {
        refused("<serial", xml + "<serial", words);
    };
    device("<graphics type='vnc'/>", "autoattachGraphicsDevice: false");
    device("<video><model type='vga'/></video>", "autoattachGraphicsDevice: false");
    device("<hostdev type='pci'/>", "<hostdev>");
    device("<tpm model='tpm-tis'/>", "<tpm> tpm-tis");
    device("<input type='tablet' bus='usb'/>", "<input>");
    device("<memory model='virtio-mem'/>", "<memory>");
    device("<disk><target bus='scsi' dev='sda'/></disk>", "not scsi");
    refused("model=\"none\"></memballoon>", "model=\"virtio\"></memballoon>", "autoattachMemBalloon: false");
    refused("type=\"virtio-non-transitional\"></model>", "type=\"e1000e\"></model>", "<interface> e1000e");
    refused("machine=\"q35\"", "machine=\"pc-q35-rhel9.4.0\"", "type: q35");
    refused("arch=\"x86_64\"", "arch=\"aarch64\"", "not aarch64");
    refused("type=\"kvm\"", "type=\"xen\"", "only domains of QEMU");
    refused("<smbios", "<loader>/x</loader><smbios", "SeaBIOS");
    refused("<devices>", "<memoryBacking><hugepages/></memoryBacking><devices>", "huge pages");
    refused("<devices>", "<cpu><numa><cell id='0'/></numa></cpu><devices>", "one piece");
    refused("<devices>", "<launchSecurity type='sev'/><devices>", "<launchSecurity>");
    refused("qemu/1.0\"", "qemu/9.9\"", "another namespace");
    refused("xmlns:qemu=", "xmlns:q=", "the prefix");
}

TEST(kubevirt_domain, a_second_sidecar_is_refused) {
    EXPECT_NE(refusal(hook_domain(kubevirt_domain, vmi, {}).xml).find("there twice"), std::string::npos);
}

TEST(kubevirt_domain, a_part_of_a_gpu_is_refused) {
    const auto asking = [](const std::string& units) {
        return R"({"spec": {"domain": {"resources": {"limits": {"kagemusha.io/gpu": )" + units + "}}}}}";
    };
    EXPECT_NE(refusal(kubevirt_domain, asking("\"25\"")).find("a whole GPU"), std::string::npos);
    EXPECT_NE(refusal(kubevirt_domain, asking("25")).find("a whole GPU"), std::string::npos);
    EXPECT_NE(refusal(kubevirt_domain, asking("{}")).find("a whole GPU"), std::string::npos);
    EXPECT_TRUE(hook_domain(kubevirt_domain, asking("100"), {}).refused.empty());
    EXPECT_TRUE(hook_domain(kubevirt_domain, "{}", {}).refused.empty());
    EXPECT_NE(refusal(kubevirt_domain, "[").find("no JSON object"), std::string::npos);
}

TEST(kubevirt_domain, hostile_texts_are_refused) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i)
        deep += "<a>";
    for (const std::string& text :
         {std::string(), std::string("<"), std::string("<vm/>"), deep, std::string((1 << 20) + 1, ' '),
          std::string("<domain><devices></domain>"), std::string("<domain/>"),
          std::string("<domain>\0</domain>", 18)})
        EXPECT_FALSE(refusal(text).empty()) << text.substr(0, 40);
    // An entity of its own is text, not a file.
    const auto entity = with(kubevirt_domain, "default_web", "&file;");
    const auto done =
        hook_domain("<!DOCTYPE domain [<!ENTITY file SYSTEM 'file:///etc/passwd'>]>" + entity, vmi, {});
    EXPECT_EQ(done.xml.find("root:"), std::string::npos);
}

} // namespace
} // namespace kagemusha::kubernetes
