// SPDX-License-Identifier: GPL-2.0-or-later
//
// See confinement.hpp.
#include "control/confine/confinement.hpp"

#include "base/fnv1a.hpp"
#include "control/base/json_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace kagemusha::control {

namespace {

using json = nlohmann::json;
using user_kind = described_confinement::user_kind;
using network_kind = described_confinement::network_kind;

// What programs of a system read: libraries and the linker's tables, names of hosts, what GPU runtimes look
// up (replicator/worker/sandbox.cpp shows each worker a part of it).
constexpr const char* system_paths[] = {"/usr",
                                        "/lib",
                                        "/lib32",
                                        "/lib64",
                                        "/bin",
                                        "/opt",
                                        "/etc/ld.so.cache",
                                        "/etc/ld.so.conf",
                                        "/etc/ld.so.conf.d",
                                        "/etc/alternatives",
                                        "/etc/debian_version",
                                        "/etc/os-release",
                                        "/etc/localtime",
                                        "/etc/hosts",
                                        "/etc/host.conf",
                                        "/etc/gai.conf",
                                        "/etc/nsswitch.conf",
                                        "/etc/resolv.conf",
                                        "/etc/services",
                                        "/etc/gnutls",
                                        "/etc/ssl/openssl.cnf",
                                        "/etc/OpenCL",
                                        "/etc/nvidia",
                                        "/etc/drirc",
                                        "/sys"};
constexpr const char* system_devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                          "/dev/urandom"};

// What an option of QEMU names: "file=/a/b,format=raw" and "unix:/a/b,server=on" have /a/b.
std::vector<std::string> paths_in(std::string_view option) {
    std::vector<std::string> found;
    std::size_t begin = 0;
    while (begin < option.size()) {
        const auto end = std::min(option.find_first_of(",=:\"{} ", begin), option.size());
        if (option[begin] == '/' && end > begin + 1)
            found.emplace_back(option.substr(begin, end - begin));
        begin = end + 1;
    }
    return found;
}

// "key=value" parts after the kind.
std::vector<std::string_view> parts_of(std::string_view netdev) {
    std::vector<std::string_view> parts;
    while (!netdev.empty()) {
        const auto end = std::min(netdev.find(','), netdev.size());
        parts.push_back(netdev.substr(0, end));
        netdev.remove_prefix(std::min(end + 1, netdev.size()));
    }
    return parts;
}

// Empty: it does without the host's network.
std::string why_the_hosts_network(const confinement_needs& needs) {
    for (const auto& netdev : needs.netdevs) {
        const auto parts = parts_of(netdev);
        const auto has = [&](std::string_view part) {
            return std::find(parts.begin(), parts.end(), part) != parts.end();
        };
        const bool over_unix = parts[0] == "stream" && has("addr.type=unix");
        if (tap_of(netdev).empty() && !over_unix)
            return fmt::format("its card is connected to the host's (netdev {})", parts[0]);
    }
    if (!needs.options.empty())
        return "its 'qemu-options' may need it";
    return {};
}

void show(confinement& out, shown_path one) {
    if (one.path.size() < 2 || one.path.front() != '/')
        return;
    const auto same = std::find_if(out.paths.begin(), out.paths.end(),
                                   [&](const shown_path& other) { return other.path == one.path; });
    if (same == out.paths.end()) {
        out.paths.push_back(std::move(one));
        return;
    }
    same->writable = same->writable || one.writable;
    same->given = same->given || one.given;
    same->optional = same->optional && one.optional;
}

void show_all(confinement& out, const confinement_needs& needs, const described_confinement& wanted) {
    for (const char* path : system_paths)
        show(out, {path, false, false, true});
    for (const auto& path : needs.programs)
        show(out, {path});
    for (const auto& path : needs.images)
        show(out, {path});
    for (const auto& path : needs.writable)
        show(out, {path, true});
    for (const auto& path : needs.own_files)
        show(out, {path, false, true});
    show(out, {needs.console_log, true, true});
    show(out, {needs.keys, false, true});
    show(out, {needs.to_peers});
    show(out, {needs.share});
    show(out, {needs.of_qemu, true, true});
    for (const auto& netdev : needs.netdevs)
        for (const auto& path : paths_in(netdev))
            show(out, {path, true, false, true});
    for (const auto& option : needs.options)
        for (const auto& path : paths_in(option))
            show(out, {path, true, false, true});
    for (const auto& path : wanted.paths)
        show(out, {path, true});
    std::stable_sort(out.paths.begin(), out.paths.end(),
                     [](const shown_path& a, const shown_path& b) { return a.path < b.path; });
}

confinement_decision refused(std::string why) {
    return {std::nullopt, {}, "[confinement]: " + std::move(why)};
}

} // namespace

std::uint32_t user_of_vm(std::string_view vm) {
    return first_vm_user + static_cast<std::uint32_t>(fnv1a(vm) % vm_users);
}

std::string tap_of(std::string_view netdev) {
    constexpr std::string_view key = "ifname=";
    const auto parts = parts_of(netdev);
    if (parts.empty() || parts[0] != "tap")
        return {};
    std::string name;
    for (const auto part : parts) {
        if (part.starts_with("queues=") || part.starts_with("fd"))
            return {};
        if (part.starts_with(key))
            name = part.substr(key.size());
    }
    return name;
}

std::string netdev_with_tap(std::string_view netdev, int fd) {
    std::string out = fmt::format("tap,fd={}", fd);
    const auto parts = parts_of(netdev);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const auto key = parts[i].substr(0, parts[i].find('='));
        if (key != "ifname" && key != "script" && key != "downscript" && key != "vnet_hdr")
            out += fmt::format(",{}", parts[i]);
    }
    return out;
}

confinement_decision without_confinement(std::string why) {
    return {std::nullopt, "QEMU has its caller's user, root and network: " + std::move(why), {}};
}

confinement_decision decide_confinement(const described_confinement& wanted, const confinement_needs& needs,
                                        const host_offers& offers) {
    if (!wanted.root)
        return without_confinement("so its description says");
    if (!needs.sandboxed)
        return without_confinement("with sandbox = false it may start programs of this host");
    if (!wanted.described && !needs.options.empty())
        return without_confinement(
            "what its 'qemu-options' need is not known; [confinement] confines it all the same");
    if (!wanted.described && needs.gpu && !offers.gpu_nodes.empty())
        return without_confinement(
            "no GPU's driver was tried in a root of its own; [confinement] confines it all the same");
    if (!offers.privileged && !offers.user_namespaces) {
        if (wanted.user == user_kind::given)
            return refused(fmt::format("only root can give QEMU the user {}", wanted.id));
        if (wanted.described)
            return refused(fmt::format("QEMU can't be confined: {}; without [confinement] it has its "
                                       "caller's user, root and network",
                                       offers.why_not));
        return without_confinement(offers.why_not);
    }
    confinement out;
    out.user_namespace = !offers.privileged;
    std::string user = fmt::format("its caller's user {}", offers.user);
    if (wanted.user != user_kind::caller) {
        const bool given = wanted.user == user_kind::given;
        if (given && !offers.privileged)
            return refused(fmt::format("only root can give QEMU the user {}", wanted.id));
        if (!offers.privileged)
            user += " (only root can give it another)";
        else if (!given && !offers.own_ids)
            user += fmt::format(" (this host's user namespace has no users from {})", first_vm_user);
        else
            user = fmt::format("the user {}", out.user.emplace(given ? wanted.id : user_of_vm(needs.vm)));
    }
    const auto why_host = why_the_hosts_network(needs);
    if (wanted.network == network_kind::own && !why_host.empty())
        return refused("network = \"own\" is not possible: " + why_host);
    out.network = wanted.network != network_kind::host && why_host.empty();
    const std::string network = out.network ? "a network of its own"
                                : wanted.network == network_kind::host
                                    ? "the host's network (as described)"
                                    : fmt::format("the host's network ({})", why_host);
    out.place = needs.directory + "/root";
    show_all(out, needs, wanted);
    for (const char* device : system_devices)
        out.devices.emplace_back(device);
    if (needs.kvm)
        out.devices.emplace_back("/dev/kvm");
    if (needs.gpu)
        out.devices.insert(out.devices.end(), offers.gpu_nodes.begin(), offers.gpu_nodes.end());
    out.descriptors = {{handed_descriptor::kind::listener, needs.status_socket, status_listener_fd},
                       {handed_descriptor::kind::listener, needs.console_socket, console_listener_fd}};
    for (std::size_t i = 0; i < needs.netdevs.size(); ++i)
        if (auto tap = tap_of(needs.netdevs[i]); !tap.empty())
            out.descriptors.push_back(
                {handed_descriptor::kind::tap, std::move(tap), first_tap_fd + static_cast<int>(i)});
    return {std::move(out), fmt::format("QEMU has {}, a root of its own and {}", user, network), {}};
}

std::string to_text(const confinement& what) {
    json paths = json::array(), descriptors = json::array();
    for (const auto& one : what.paths)
        paths.push_back({one.path, one.writable, one.given, one.optional});
    for (const auto& one : what.descriptors)
        descriptors.push_back({one.what == handed_descriptor::kind::tap, one.name, one.fd});
    return as_json_text({{"user", what.user ? json(*what.user) : json()},
                         {"user_namespace", what.user_namespace},
                         {"network", what.network},
                         {"place", what.place},
                         {"paths", paths},
                         {"devices", what.devices},
                         {"descriptors", descriptors}});
}

std::optional<confinement> parse_confinement(const std::string& text) {
    try {
        const auto from = json::parse(text);
        confinement out;
        if (!from.at("user").is_null())
            out.user = from.at("user").get<std::uint32_t>();
        out.user_namespace = from.at("user_namespace").get<bool>();
        out.network = from.at("network").get<bool>();
        out.place = from.at("place").get<std::string>();
        for (const auto& one : from.at("paths"))
            out.paths.push_back({one.at(0).get<std::string>(), one.at(1).get<bool>(), one.at(2).get<bool>(),
                                 one.at(3).get<bool>()});
        out.devices = from.at("devices").get<std::vector<std::string>>();
        for (const auto& one : from.at("descriptors"))
            out.descriptors.push_back(
                {one.at(0).get<bool>() ? handed_descriptor::kind::tap : handed_descriptor::kind::listener,
                 one.at(1).get<std::string>(), one.at(2).get<int>()});
        return out;
    } catch (const json::exception&) {
        return std::nullopt;
    }
}

} // namespace kagemusha::control
