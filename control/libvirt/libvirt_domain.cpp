// SPDX-License-Identifier: GPL-2.0-or-later
//
// See libvirt_domain.hpp. Elements and attributes: https://libvirt.org/formatdomain.html
#include "control/libvirt/libvirt_domain.hpp"

#include "control/libvirt/bounded_xml.hpp"

#include <boost/property_tree/ptree.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kagemusha::control {

namespace {

using boost::property_tree::ptree;

constexpr std::uint64_t most_mib = 1 << 30;

std::string in_quotes(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\')
            out += '\\';
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f)
            out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        else
            out += c;
    }
    return out + "\"";
}

std::string attribute(const ptree& of, const char* path, const char* otherwise = "") {
    return of.get<std::string>(path, otherwise);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

class importer {
public:
    importer(const ptree& domain, const std::vector<std::string>& without)
        : domain_(domain), without_(without) {}
    imported_domain run();

private:
    void refuse(std::string sentence) { out_.refused.push_back(std::move(sentence)); }
    void machine();
    void memory();
    void processor();
    void boot();
    void devices();
    void disk(const ptree& disk);
    void network(const ptree& interface);
    void ours();

    const ptree& domain_;
    const std::vector<std::string>& without_;
    imported_domain out_;
    std::string top_, tables_;
};

void importer::machine() {
    const auto type = attribute(domain_, "<xmlattr>.type");
    if (type == "kvm" || type == "qemu")
        top_ += fmt::format("accel = \"{}\"\n", type == "kvm" ? "kvm" : "tcg");
    else
        refuse(fmt::format("type='{}': only domains of QEMU, with 'kvm' or 'qemu'", type));
    const auto arch = attribute(domain_, "os.type.<xmlattr>.arch", "x86_64");
    const auto name = attribute(domain_, "os.type.<xmlattr>.machine");
    if (arch != "x86_64" || domain_.get<std::string>("os.type", "") != "hvm")
        refuse(fmt::format("<os>: only whole machines of x86_64, not {}", arch));
    if (name.starts_with("pc-i440fx-"))
        top_ += fmt::format("machine = {}\n", in_quotes(name));
    else
        refuse(fmt::format(
            "machine='{}': give a version of pc-i440fx, as pc-i440fx-10.0; the guest finds another machine "
            "then",
            name));
    if (domain_.get_child_optional("os.loader") || attribute(domain_, "os.<xmlattr>.firmware") == "efi")
        refuse("<loader>: a VM of ours boots with SeaBIOS, or from a kernel");
    const auto clock = attribute(domain_, "clock.<xmlattr>.offset", "utc");
    if (clock != "utc")
        refuse(fmt::format("<clock offset='{}'>: only utc", clock));
}

void importer::memory() {
    const auto amount = domain_.get_optional<std::uint64_t>("memory");
    const auto unit = attribute(domain_, "memory.<xmlattr>.unit", "KiB");
    std::uint64_t kib = 0;
    for (const auto& [word, in_kib] : {std::pair<std::string_view, std::uint64_t>{"KiB", 1},
                                       {"k", 1},
                                       {"K", 1},
                                       {"MiB", 1 << 10},
                                       {"M", 1 << 10},
                                       {"GiB", 1 << 20},
                                       {"G", 1 << 20}})
        if (unit == word)
            kib = in_kib;
    if (!amount || kib == 0 || *amount > most_mib || *amount * kib % 1024 != 0 || *amount == 0)
        return refuse("<memory>: whole mebibytes are needed, in KiB, MiB or GiB");
    top_ += fmt::format("memory = \"{}M\"\n", *amount * kib / 1024);
    if (domain_.get_child_optional("maxMemory"))
        refuse("<maxMemory>: memory can't be added to a VM that runs");
}

void importer::processor() {
    const auto count = domain_.get<std::string>("vcpu", "1");
    if (count.empty() || count.size() > 4 || count.find_first_not_of("0123456789") != count.npos ||
        count == "0")
        refuse(fmt::format("<vcpu>{}</vcpu>: a number is needed", count));
    else
        top_ += fmt::format("cpus = {}\n", count);
    if (domain_.get_child_optional("vcpu.<xmlattr>.current"))
        refuse("<vcpu current=…>: processors can't be added to a VM that runs");
    const auto cpu = domain_.get_child_optional("cpu");
    if (!cpu)
        return refuse("<cpu> is missing: libvirt would take qemu64; say mode='host-passthrough', or a model "
                      "that both hosts "
                      "have");
    const auto mode = attribute(*cpu, "<xmlattr>.mode", "custom"), model = cpu->get<std::string>("model", "");
    if (mode == "custom" && !model.empty())
        top_ += fmt::format("cpu = {}\n", in_quotes(model));
    else if (mode != "host-passthrough" && mode != "maximum")
        refuse(fmt::format(
            "<cpu mode='{}'>: name a model that both hosts have, or say mode='host-passthrough'", mode));
    for (const char* part : {"feature", "topology", "numa"})
        if (cpu->get_child_optional(part))
            refuse(fmt::format("<cpu>: <{}> can't be described", part));
}

void importer::boot() {
    const auto kernel = domain_.get<std::string>("os.kernel", "");
    if (kernel.empty())
        return;
    tables_ += fmt::format("\n[boot]\nkernel = {}\n", in_quotes(kernel));
    for (const auto& [element, key] :
         {std::pair{"os.initrd", "initramfs"}, std::pair{"os.cmdline", "append"}})
        if (const auto text = domain_.get<std::string>(element, ""); !text.empty())
            tables_ += fmt::format("{} = {}\n", key, in_quotes(text));
}

void importer::disk(const ptree& disk) {
    const auto where = attribute(disk, "target.<xmlattr>.dev", "?");
    const auto file = attribute(disk, "source.<xmlattr>.file");
    const auto format = attribute(disk, "driver.<xmlattr>.type", "raw");
    const auto device = attribute(disk, "<xmlattr>.device", "disk");
    if (device != "disk")
        return refuse(fmt::format("<disk> {}: a {} can't be described; only disks", where, device));
    if (attribute(disk, "<xmlattr>.type") != "file" || file.empty())
        return refuse(fmt::format("<disk> {}: only type='file'", where));
    if (attribute(disk, "target.<xmlattr>.bus") != "virtio")
        return refuse(fmt::format("<disk> {}: only bus='virtio'", where));
    if (!is_one_of(format, {"raw", "qcow2"}))
        return refuse(fmt::format("<disk> {}: only raw and qcow2, not {}", where, format));
    for (const char* part : {"encryption", "iotune", "shareable", "transient", "mirror"})
        if (disk.get_child_optional(part))
            refuse(fmt::format("<disk> {}: <{}> can't be described", where, part));
    tables_ += fmt::format("\n[[disk]]\npath = {}\nformat = \"{}\"\n", in_quotes(file), format);
    if (!disk.get_child_optional("readonly"))
        tables_ += "writable = true\n";
}

void importer::network(const ptree& interface) {
    const auto mac = attribute(interface, "mac.<xmlattr>.address"),
               type = attribute(interface, "<xmlattr>.type");
    const auto device = attribute(interface, "target.<xmlattr>.dev");
    const auto model = attribute(interface, "model.<xmlattr>.type");
    if (model != "virtio")
        return refuse(fmt::format("<interface> {}: only model virtio, not '{}'", mac, model));
    if (mac.empty())
        return refuse("<interface>: without <mac> each host would make one of its own");
    std::string netdev;
    if (type == "user")
        netdev = "user";
    else if (!is_one_of(type, {"bridge", "ethernet"}))
        return refuse(fmt::format(
            "<interface> {}: only type bridge, ethernet and user: with '{}' libvirt makes the network, "
            "on one host",
            mac, type));
    else if (device.empty() || device.find(',') != device.npos || device.starts_with("vnet"))
        return refuse(fmt::format(
            "<interface> {}: give it a <target dev='…'/> of its own that is on both hosts: libvirt does "
            "not make one here",
            mac));
    else
        netdev = fmt::format("tap,ifname={},script=no,downscript=no", device);
    tables_ += "\n[[network]]\n";
    if (type == "bridge")
        tables_ += fmt::format("# a tap in the bridge {} of each host\n",
                               in_quotes(attribute(interface, "source.<xmlattr>.bridge")));
    tables_ += fmt::format("netdev = {}\nmac = {}\n", in_quotes(netdev), in_quotes(mac));
}

void importer::devices() {
    const auto all = domain_.get_child_optional("devices");
    if (!all)
        return;
    // What a VM of ours has all the same, or what only the host sees.
    const auto known = [](std::string_view name) {
        return is_one_of(name,
                         {"emulator", "serial", "console", "rng", "input", "<xmlcomment>", "<xmlattr>"});
    };
    for (const auto& [name, device] : *all) {
        const auto model = attribute(device, "<xmlattr>.model"), type = attribute(device, "<xmlattr>.type");
        if (known(name) || std::find(without_.begin(), without_.end(), name) != without_.end())
            continue;
        if (name == "disk")
            disk(device);
        else if (name == "interface")
            network(device);
        else if (is_one_of(name, {"memballoon", "watchdog", "video", "audio"}) &&
                 (model == "none" || type == "none" || model.empty()) && name != "video")
            continue;
        else if (name == "controller" && is_one_of(type, {"pci", "ide", "virtio-serial"}))
            continue;
        else if (name == "controller" && model == "none")
            continue;
        else
            refuse(fmt::format("<{}>{}: a VM of ours has none; --without {} leaves it out", name,
                               model.empty() ? type.empty() ? "" : " " + type : " " + model, name));
    }
}

// <metadata> has tables of ours as they stand in a description: [gpu], [protection], [arbiter].
void importer::ours() {
    if (const auto data = domain_.get_child_optional("metadata"))
        for (const auto& [name, element] : *data)
            if (name == "kagemusha:vm")
                tables_ += "\n" + element.data() + "\n";
    for (const char* part : {"qemu:commandline", "qemu:override", "launchSecurity", "iothreads", "sysinfo"})
        if (domain_.get_child_optional(part))
            refuse(fmt::format("<{}> can't be described: what the guest sees would differ", part));
}

imported_domain importer::run() {
    const auto name = domain_.get<std::string>("name", "");
    top_ = fmt::format("# from the domain {} of libvirt\nname = {}\n", in_quotes(name), in_quotes(name));
    machine();
    memory();
    processor();
    boot();
    devices();
    ours();
    if (out_.refused.empty())
        out_.toml = top_ + tables_;
    return std::move(out_);
}

} // namespace

imported_domain import_domain(std::string_view xml, const std::vector<std::string>& without) {
    std::string error;
    const auto tree = read_bounded_xml(xml, "domain", error);
    if (!tree)
        return {{}, {error}};
    const auto domain = tree->get_child_optional("domain");
    if (!domain)
        return {{}, {"this is no domain of libvirt: `virsh dumpxml --inactive VM` prints one"}};
    return importer(*domain, without).run();
}

} // namespace kagemusha::control
