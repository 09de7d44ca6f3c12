// SPDX-License-Identifier: GPL-2.0-or-later
//
// See domain_hook.hpp. Elements and attributes: https://libvirt.org/formatdomain.html
#include "kubernetes/kubevirt/domain_hook.hpp"

#include "control/libvirt/bounded_xml.hpp"
#include "control/qemu/qemu_command.hpp"
#include "kubernetes/core/allocation.hpp"
#include "kubernetes/core/json_below.hpp"
#include "kubernetes/core/quantity.hpp"

#include <boost/property_tree/xml_parser.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>

namespace kagemusha::kubernetes {

using boost::property_tree::ptree;

namespace {

constexpr char qemu_namespace[] = "http://libvirt.org/schemas/domain/qemu/1.0",
               namespace_key[] = "<xmlattr>.xmlns:qemu";
// Slots of the root bus that nobody takes by himself: libvirt's own begin at 1, the chipset's end at 31.
constexpr unsigned first_slot = 0x10, last_slot = 0x1b;

std::string attribute(const ptree& of, const char* path, const char* otherwise = "") {
    return of.get<std::string>(path, otherwise);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
    return std::ranges::find(words, word) != words.end();
}

// "q35", "pc-q35-10.0", "pc-i440fx-9.2": not those that only one distribution has.
bool is_known_machine(std::string_view name) {
    if (name == "q35" || name == "pc")
        return true;
    for (const std::string_view family : {"pc-q35-", "pc-i440fx-"})
        if (name.starts_with(family) && name.size() > family.size() &&
            name.find_first_not_of("0123456789.", family.size()) == name.npos)
            return true;
    return false;
}

class hook {
public:
    hook(ptree& domain, const hook_options& options) : domain_(domain), options_(options) {}

    void machine();
    void memory();
    void devices();
    void units(std::string_view vmi);
    void command_line();
    std::vector<std::string> refused;

private:
    void refuse(std::string sentence) { refused.push_back(std::move(sentence)); }
    void disk(const ptree& disk);
    void controllers(ptree& all);
    std::optional<unsigned> free_slot() const;
    void taken_slots(const ptree& of, std::set<unsigned>& out) const;

    ptree& domain_;
    const hook_options& options_;
    std::string bus_;
    bool has_scsi_disk_ = false;
};

void hook::machine() {
    if (const auto type = attribute(domain_, "<xmlattr>.type"); !is_one_of(type, {"kvm", "qemu"}))
        refuse(fmt::format("type='{}': only domains of QEMU, with 'kvm' or 'qemu'", shown(type)));
    const auto arch = attribute(domain_, "os.type.<xmlattr>.arch", "x86_64");
    if (arch != "x86_64" || domain_.get<std::string>("os.type", "") != "hvm")
        refuse(fmt::format("<os>: only whole machines of x86_64, not {}", shown(arch)));
    const auto name = attribute(domain_, "os.type.<xmlattr>.machine");
    if (!is_known_machine(name))
        refuse(
            fmt::format("machine='{}': our emulator has q35, and versions of pc-q35 and pc-i440fx that QEMU "
                        "itself has; say spec.domain.machine.type: q35",
                        shown(name)));
    bus_ = name.find("i440fx") != name.npos || name == "pc" ? "pci.0" : "pcie.0";
    if (domain_.get_child_optional("os.loader") || attribute(domain_, "os.<xmlattr>.firmware") == "efi")
        refuse("<loader>: our emulator boots with SeaBIOS; say spec.domain.firmware.bootloader.bios");
    for (const char* part : {"launchSecurity", "maxMemory"})
        if (domain_.get_child_optional(part))
            refuse(fmt::format("<{}>: our device can't be in such a domain", part));
}

// The GPU's workers read and write the guest's memory: one piece that has a descriptor.
void hook::memory() {
    if (domain_.get_child_optional("memoryBacking.hugepages"))
        refuse("<hugepages>: our device wants the guest's memory as one memfd without huge pages");
    if (domain_.get_child_optional("cpu.numa"))
        refuse("<numa>: our device wants the guest's memory as one piece");
    domain_.put("memoryBacking.source.<xmlattr>.type", "memfd");
    domain_.put("memoryBacking.access.<xmlattr>.mode", "shared");
}

void hook::disk(const ptree& disk) {
    const auto bus = attribute(disk, "target.<xmlattr>.bus"),
               where = attribute(disk, "target.<xmlattr>.dev", "?");
    has_scsi_disk_ = has_scsi_disk_ || bus == "scsi";
    if (!is_one_of(bus, {"virtio", "sata"}))
        refuse(fmt::format("<disk> {}: our emulator has the buses virtio and sata, not {}", shown(where),
                           shown(bus)));
}

// KubeVirt adds a SCSI controller to each domain for disks that may come later, and one for USB that is none.
void hook::controllers(ptree& all) {
    if (has_scsi_disk_)
        return;
    for (auto at = all.begin(); at != all.end();)
        at = at->first == "controller" && attribute(at->second, "<xmlattr>.type") == "scsi" ? all.erase(at)
                                                                                            : std::next(at);
}

void hook::devices() {
    auto& all = domain_.put_child("devices", domain_.get_child("devices", ptree()));
    for (const auto& [name, device] : all) {
        const auto model = attribute(device, "<xmlattr>.model"), type = attribute(device, "<xmlattr>.type");
        const auto inner = attribute(device, "model.<xmlattr>.type");
        if (is_one_of(name, {"emulator", "serial", "console", "rng", "<xmlcomment>", "<xmlattr>"}) ||
            model == "none" || type == "none" || inner == "none")
            continue;
        if (name == "disk")
            disk(device);
        else if (name == "interface" && (inner.starts_with("virtio") || inner.starts_with("e1000")) &&
                 inner != "e1000e")
            continue;
        else if (name == "channel" && attribute(device, "target.<xmlattr>.type") == "virtio")
            continue;
        else if (name == "controller" && is_one_of(type, {"pci", "ide", "sata", "virtio-serial", "scsi"}))
            continue;
        else if (name == "input" && attribute(device, "<xmlattr>.bus") == "ps2")
            continue;
        else if (is_one_of(name, {"graphics", "video"}))
            refuse(fmt::format("<{}>: our emulator has no screen; say spec.domain.devices."
                               "autoattachGraphicsDevice: false",
                               name));
        else if (name == "memballoon")
            refuse(
                "<memballoon>: our emulator has none; say spec.domain.devices.autoattachMemBalloon: false");
        else
            refuse(fmt::format("<{}>{}{}: our emulator has none", shown(name),
                               inner.empty() && model.empty() ? "" : " ",
                               shown(inner.empty() ? model : inner)));
    }
    controllers(all);
    all.put("emulator", options_.emulator);
}

// Nobody tells a QEMU of libvirt which share its pod was given, so it may have no less than all of a GPU.
void hook::units(std::string_view vmi) {
    const auto object = nlohmann::json::parse(vmi, nullptr, false);
    if (!object.is_object())
        return refuse("the VirtualMachineInstance is no JSON object");
    const auto& limits = below(object, {"spec", "domain", "resources", "limits"});
    if (!limits.is_object())
        return;
    const auto asked = limits.find(resource_name);
    if (asked == limits.end())
        return;
    const auto text = asked->is_string() ? asked->get<std::string>() : asked->dump();
    if (parse_quantity(text) != units_of_gpu)
        refuse(fmt::format("{}: {}: a VM of KubeVirt has a whole GPU, which are {} units", resource_name,
                           shown(text), units_of_gpu));
}

void hook::taken_slots(const ptree& of, std::set<unsigned>& out) const {
    for (const auto& [name, child] : of) {
        taken_slots(child, out); // no deeper than read_bounded_xml() lets
        if (name != "address" || attribute(child, "<xmlattr>.type") != "pci")
            continue;
        const auto number = [&](const char* key) {
            const auto text = child.get<std::string>(key, "0");
            const bool hexadecimal = text.starts_with("0x");
            const auto* const end = text.data() + text.size();
            unsigned value = 0;
            const auto [rest, failed] =
                std::from_chars(text.data() + (hexadecimal ? 2 : 0), end, value, hexadecimal ? 16 : 10);
            return failed == std::errc{} && rest == end ? value : 0;
        };
        if (number("<xmlattr>.bus") == 0)
            out.insert(number("<xmlattr>.slot"));
    }
}

std::optional<unsigned> hook::free_slot() const {
    std::set<unsigned> taken;
    taken_slots(domain_, taken);
    for (unsigned slot = first_slot; slot <= last_slot; ++slot)
        if (!taken.contains(slot))
            return slot;
    return std::nullopt;
}

void hook::command_line() {
    if (const auto attributes = domain_.get_child_optional("<xmlattr>"))
        for (const auto& [name, value] : *attributes)
            if (value.data() == qemu_namespace && name != "xmlns:qemu")
                return refuse(fmt::format("{}: the prefix of QEMU's elements is qemu", shown(name)));
    if (const auto bound = attribute(domain_, namespace_key, qemu_namespace); bound != qemu_namespace)
        return refuse("xmlns:qemu is another namespace than libvirt's");
    const auto slot = free_slot();
    if (!slot)
        return refuse("the root bus has no free slot from 0x10 to 0x1b for our device");
    domain_.put(namespace_key, qemu_namespace);
    auto& line = domain_.put_child("qemu:commandline", domain_.get_child("qemu:commandline", ptree()));
    for (const auto& [name, argument] : line)
        if (name == "qemu:arg" &&
            attribute(argument, "<xmlattr>.value").find("virtio-vgpu") != std::string::npos)
            return refuse("the domain has our device already: is the sidecar there twice?");
    const auto add = [&](const std::string& value) {
        line.add_child("qemu:arg", ptree()).put("<xmlattr>.value", value);
    };
    for (const auto& folder : options_.firmware) {
        add("-L");
        add(folder);
    }
    add("-object");
    add("iothread,id=vgpu-io");
    add("-device");
    auto device = fmt::format("virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend={}",
                              control::escape_option(options_.backend));
    if (!options_.gpu.empty())
        device += fmt::format(",gpu={}", control::escape_option(options_.gpu));
    // libvirt does not know of it: a slot of its own.
    add(fmt::format("{},bus={},addr={:#x}", device, bus_, *slot));
}

} // namespace

hooked_domain hook_domain(std::string_view domain_xml, std::string_view vmi, const hook_options& options) {
    std::string error;
    auto tree = control::read_bounded_xml(domain_xml, "domain", error);
    if (!tree)
        return {{}, {error}};
    const auto domain = tree->get_child_optional("domain");
    if (!domain)
        return {{}, {"this is no domain of libvirt"}};
    hook change(*domain, options);
    change.units(vmi);
    change.machine();
    change.memory();
    change.devices();
    change.command_line();
    if (!change.refused.empty())
        return {{}, change.refused};
    std::ostringstream out;
    ptree alone;
    alone.put_child("domain", *domain);
    boost::property_tree::write_xml(out, alone);
    return {out.str(), {}};
}

} // namespace kagemusha::kubernetes
