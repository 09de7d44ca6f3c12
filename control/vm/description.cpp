// SPDX-License-Identifier: GPL-2.0-or-later
//
// See description.hpp. Every table is read by a function that takes the keys that it knows and complains
// about what is left, so that a misspelt key is never ignored.
#include "control/vm/description.hpp"

#include "control/base/process.hpp"
#include "control/ha/takeover_order.hpp"
#include "control/qemu/qemu_command.hpp"
#include "control/vm/described_share.hpp"
#include "control/vm/toml_table.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t longest_file = 1 << 20;
constexpr std::uint32_t shortest_bound_ms = 500; // of [supervision]

bool is_name(const std::string& name) {
    return !name.empty() && name.size() <= 32 && name.front() != '.' && name.front() != '-' &&
           std::all_of(name.begin(), name.end(),
                       [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

// "HOST:7000" with 1 → "HOST:7001"; "unix:PATH" → "unix:PATH.gpu".
std::string beside(const std::string& address, unsigned port_offset, const char* suffix) {
    if (address.starts_with("unix:"))
        return address + suffix;
    const auto colon = address.rfind(':');
    if (colon == std::string::npos)
        return {};
    const auto digits = address.substr(colon + 1);
    if (digits.empty() || digits.size() > 5 ||
        !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); }))
        return {};
    return fmt::format("{}:{}", address.substr(0, colon), std::stoul(digits) + port_offset);
}

void read_boot(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table boot(r, t, "[boot]");
    boot.text("guest", vm.guest);
    boot.path("job", vm.job);
    boot.texts("files", vm.files);
    boot.path("kernel", vm.kernel);
    boot.path("initramfs", vm.initramfs);
    boot.text("append", vm.append);
    for (auto& file : vm.files)
        file = r.absolute(file);
    if (!vm.guest.empty() && !vm.kernel.empty())
        boot.complain("kernel", "[boot] has 'guest' (our image) and 'kernel': give one of them");
    if (!vm.guest.empty() && vm.job.empty())
        boot.missing("job", ": the script that the guest runs");
    if (vm.guest.empty() && (!vm.job.empty() || !vm.files.empty()))
        boot.complain("job", "'job' and 'files' are for our image: give 'guest', too");
    if (vm.kernel.empty() && (!vm.initramfs.empty() || !vm.append.empty()))
        boot.complain("append", "'initramfs' and 'append' are of no use without 'kernel'");
}

void read_disk(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table disk(r, t, "[[disk]]");
    described_disk d;
    disk.missing("path", "");
    disk.path("path", d.path);
    disk.choice("format", d.format, {"raw", "qcow2"});
    disk.flag("writable", d.writable);
    vm.disks.push_back(std::move(d));
}

void read_network(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table network(r, t, "[[network]]");
    described_network n;
    network.missing("netdev", ": what QEMU's -netdev takes, without an id");
    network.text("netdev", n.netdev);
    network.text("model", n.model);
    network.text("mac", n.mac);
    if (n.netdev.find("id=") != std::string::npos)
        network.complain("netdev", "the id is given by kage: leave 'id=' out");
    if (n.netdev.starts_with("vhost-") || n.netdev.find("vhost=on") != std::string::npos ||
        n.netdev.find("vhostfd") != std::string::npos)
        network.complain("netdev",
                         "with vhost, packets leave past QEMU, where nobody can hold them back until a "
                         "checkpoint covers them: use the card without vhost");
    vm.networks.push_back(std::move(n));
}

bool is_kernel_name(const std::string& name) {
    return !name.empty() && name.size() <= 255 && !std::isdigit(static_cast<unsigned char>(name.front())) &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

void read_ship_kernels(toml_table& gpu, described_gpu& g) {
    constexpr std::size_t most = 64; // each kernel that a guest makes is compared with all of them
    gpu.texts("ship-kernels", g.ship_kernels);
    for (const auto& name : g.ship_kernels)
        if (!is_kernel_name(name))
            return gpu.complain("ship-kernels",
                                fmt::format("'{}' in 'ship-kernels' is no name of a kernel: letters, digits "
                                            "and _, as in the program's source",
                                            name));
    if (g.ship_kernels.size() > most)
        gpu.complain("ship-kernels", fmt::format("'ship-kernels' has more than {} names: use differences = "
                                                 "\"ship\", which ships what all kernels write",
                                                 most));
    if (!g.ship_kernels.empty() && g.differences == "ship")
        gpu.complain("ship-kernels", "'ship-kernels' is of no use with differences = \"ship\", which ships "
                                     "what all kernels write");
}

void read_gpu(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table gpu(r, t, "[gpu]");
    described_gpu g;
    gpu.choice("backend", g.backend, {"opencl", "cuda", "null", "faulty"});
    gpu.text("gpu", g.gpu);
    gpu.text("driver", g.driver);
    if (!g.driver.empty() && g.backend != "cuda")
        gpu.complain("driver", "'driver' is for backend = \"cuda\" only");
    if (!g.driver.empty() && g.driver != "ptx")
        g.driver = r.absolute(g.driver);
    gpu.choice("differences", g.differences, {"repair", "ship"});
    read_ship_kernels(gpu, g);
    read_share(gpu, g);
    if (const auto* properties = gpu.child("properties")) {
        for (const auto& [key, value] : *properties) {
            if (const auto text = value.value_exact<std::string>())
                g.properties.emplace_back(std::string(key.str()), *text);
            else
                r.complain(value.source(),
                           fmt::format("the property '{}' must be a text in quotes", key.str()));
            if (key == "options" && !g.driver.empty())
                r.complain(value.source(), "'options' beside 'driver': give one of them");
        }
    }
    refuse_two_quotas(gpu, g);
    vm.gpu = std::move(g);
}

void read_epochs(toml_table& protection, described_protection& p) {
    constexpr std::uint32_t longest = 60000;
    std::uint32_t fixed = 0;
    protection.number("epoch-ms", fixed, 1, longest);
    protection.number("min-epoch-ms", p.min_epoch_ms, 1, longest);
    // One that is longer than the other's default means both.
    if (!protection.has("max-epoch-ms"))
        p.max_epoch_ms = std::max(p.max_epoch_ms, p.min_epoch_ms);
    protection.number("max-epoch-ms", p.max_epoch_ms, 1, longest);
    if (!protection.has("min-epoch-ms"))
        p.min_epoch_ms = std::min(p.min_epoch_ms, p.max_epoch_ms);
    protection.number("max-paused-percent", p.max_paused_percent, 1, 99);
    if (p.min_epoch_ms > p.max_epoch_ms)
        protection.complain("min-epoch-ms", "'min-epoch-ms' is more than 'max-epoch-ms'");
    if (!protection.has("epoch-ms"))
        return;
    p.min_epoch_ms = p.max_epoch_ms = fixed;
    for (const char* key : {"min-epoch-ms", "max-epoch-ms", "max-paused-percent"})
        if (protection.has(key))
            protection.complain(
                key, fmt::format("'{}' is of no use with 'epoch-ms', which makes all epochs that long", key));
}

void read_protection(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table protection(r, t, "[protection]");
    auto& p = vm.protection;
    protection.missing("standby", ": the address at which the standby's supervisor listens");
    protection.address("standby", p.standby);
    p.gpu = gpu_address_beside(p.standby);
    p.state = state_address_beside(p.standby);
    protection.address("gpu", p.gpu);
    protection.address("state", p.state);
    if (!p.standby.empty() && (p.gpu.empty() || p.state.empty()))
        protection.complain("standby", "'standby' must be \"HOST:PORT\" or \"unix:PATH\"");
    protection.path("tls", p.tls);
    read_epochs(protection, p);
    protection.number("priority", p.priority, 0, ha::most_takeover_priority);
    protection.number("heartbeat-ms", p.heartbeat_ms, 1, 10000);
    protection.number("heartbeat-budget-ms", p.heartbeat_budget_ms, 10, 600000);
    protection.number("qemu-budget-ms", p.qemu_budget_ms, 0, 600000);
    std::string policy = "degraded";
    protection.choice("without-standby", policy, {"degraded", "stop"});
    p.stop_without_standby = policy == "stop";
    if (p.heartbeat_budget_ms < 2 * p.heartbeat_ms)
        protection.complain("heartbeat-budget-ms",
                            "'heartbeat-budget-ms' must be at least twice 'heartbeat-ms'");
    for (const auto& [key, address] :
         {std::pair{"standby", &p.standby}, std::pair{"gpu", &p.gpu}, std::pair{"state", &p.state}})
        if (needs_tls(*address) && p.tls.empty())
            return protection.complain(
                key, fmt::format(
                         "'{}' is no Unix socket, so it needs TLS, on this machine, too, where any user may "
                         "connect: make keys with `kage keys` and name their directory as 'tls'",
                         key));
}

void read_supervision(toml_reader& r, const toml::table& t, vm_description& vm) {
    constexpr std::uint32_t longest = 3'600'000;
    toml_table supervision(r, t, "[supervision]");
    auto& s = vm.supervision;
    for (const auto& [key, out] : {std::pair{"checkpoint-ms", &s.checkpoint_ms},
                                   {"main-loop-ms", &s.main_loop_ms},
                                   {"transfer-ms", &s.transfer_ms}}) {
        supervision.number(key, *out, 0, longest);
        if (*out != 0 && *out < shortest_bound_ms)
            supervision.complain(key,
                                 fmt::format("'{}' must be 0 (no bound) or at least {}: a busy host is no "
                                             "broken one",
                                             key, shortest_bound_ms));
    }
    supervision.number("switchover-ms", s.switchover_ms, shortest_bound_ms, longest);
    supervision.number("gpu-takeover-ms", s.gpu_takeover_ms, 0, 24 * longest);
    supervision.number("log-mib", s.log_mib, 1, 1 << 20);
    // Else a main loop that stands still at the end of an epoch looked like a standby that does.
    if (const auto least = 2 * vm.protection.max_epoch_ms + 1000;
        s.checkpoint_ms != 0 && s.checkpoint_ms < least)
        supervision.complain(
            "checkpoint-ms",
            fmt::format("'checkpoint-ms' must be at least {}, a second more than two of the longest epochs",
                        least));
}

// Of QEMU's own options, what lets a guest speak past the gate and the held output; nothing: none of them.
std::string speaks_past_the_gate(const std::vector<std::string>& options) {
    for (std::size_t i = 0; i < options.size(); ++i) {
        auto word = options[i];
        if (word.starts_with("--"))
            word.erase(0, 1);
        if (word == "-netdev" || word == "-nic" || word == "-net" || word == "-virtfs" || word == "-fsdev")
            return options[i];
        // vhost-vsock, vhost-user-*, virtio-9p: also as JSON
        if (word == "-device" && i + 1 < options.size())
            for (const char* driver : {"vhost-", "virtio-9p"})
                if (options[i + 1].find(driver) != std::string::npos)
                    return word + " " + options[i + 1];
    }
    return {};
}

// As the kernel will look for it: a path, or a name in PATH. Empty: it may be started; else a sentence.
std::string why_not_executable(const std::string& program) {
    std::vector<std::string> places;
    if (program.find('/') != std::string::npos) {
        places.push_back(program);
    } else if (const char* path = std::getenv("PATH")) {
        std::istringstream parts(path);
        for (std::string part; std::getline(parts, part, ':');)
            places.push_back((part.empty() ? "." : part) + "/" + program);
    }
    bool there = false;
    for (const auto& place : places) {
        std::error_code failed;
        if (!fs::is_regular_file(place, failed))
            continue;
        if (::access(place.c_str(), X_OK) == 0)
            return {};
        there = true;
    }
    return there ? fmt::format("{} is not executable for this user", program)
                 : fmt::format("there is no program {}{}", program,
                               program.find('/') == std::string::npos ? " in PATH" : "");
}

// A command of the description: its program is looked for now, not when it is needed.
void read_command(toml_reader& r, toml_table& arbiter, const char* key, std::vector<std::string>& command) {
    arbiter.texts(key, command);
    if (!arbiter.has(key))
        return;
    if (command.empty() || command.front().empty())
        return arbiter.complain(key, fmt::format("'{}' names no program", key));
    if (command.front().find('/') != std::string::npos)
        command.front() = r.absolute(command.front());
    if (const auto why = why_not_executable(command.front()); !why.empty())
        arbiter.complain(key, fmt::format("'{}' can't be run: {}", key, why));
}

void read_endpoints(toml_table& arbiter, described_arbiter& a) {
    arbiter.texts("endpoints", a.endpoints);
    constexpr std::size_t most_endpoints = 16;
    if (a.endpoints.size() > most_endpoints)
        arbiter.complain("endpoints", fmt::format("more than {} 'endpoints'", most_endpoints));
    if (arbiter.has("endpoints") && a.endpoints.empty())
        arbiter.complain("endpoints", "'endpoints' names no server");
    for (auto& endpoint : a.endpoints) {
        while (endpoint.ends_with("/"))
            endpoint.pop_back();
        if (const auto why = why_not_an_endpoint(endpoint); !why.empty())
            arbiter.complain("endpoints", why);
    }
}

// A name and a password, a line each, for nobody else to read.
std::string read_login(const std::string& path, std::string& user, std::string& password) {
    constexpr std::size_t longest = 1024;
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat found{};
    if (!fd || ::fstat(fd.get(), &found) != 0)
        return fmt::format("cannot open {}: {}", path, std::strerror(errno));
    if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return fmt::format("{} has a password and is open to others: chmod 600 {}", path, path);
    std::string text(longest, '\0');
    const auto got = ::read(fd.get(), text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    std::istringstream lines(text);
    std::string more;
    if (got == static_cast<ssize_t>(longest) || !std::getline(lines, user) || user.empty() ||
        !std::getline(lines, password) || password.empty() || std::getline(lines, more))
        return fmt::format("{} must have two lines: the user's name, and the password", path);
    return {};
}

void read_arbiter(toml_reader& r, const toml::table& t, vm_description& vm) {
    toml_table arbiter(r, t, "[arbiter]");
    auto& a = vm.arbiter;
    std::string kind;
    arbiter.missing("kind", "");
    arbiter.choice("kind", kind, {"lock", "etcd", "fence"});
    arbiter.path("path", a.path);
    read_endpoints(arbiter, a);
    arbiter.path("tls", a.tls);
    std::string login;
    arbiter.path("login", login);
    if (arbiter.has("login"))
        if (const auto why = read_login(login, a.user, a.password); !why.empty())
            arbiter.complain("login", why);
    read_command(r, arbiter, "command", a.command);
    read_command(r, arbiter, "check-command", a.check_command);
    arbiter.number("delay-ms", a.delay_ms, 0, 600000);
    arbiter.number("give-up-ms", a.give_up_ms, 1000, 3600000);
    if (a.give_up_ms < a.delay_ms + 1000)
        arbiter.complain("give-up-ms", "'give-up-ms' must be at least 'delay-ms' and a second, or no standby "
                                       "would ever take over");
    const auto of = [&](const char* key, std::initializer_list<const char*> kinds, bool needed) {
        const bool fits = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
        if (!fits && arbiter.has(key))
            arbiter.complain(
                key, fmt::format("'{}' is for the arbiter \"{}\"", key, fmt::join(kinds, "\" or \"")));
        if (fits && needed && !arbiter.has(key))
            arbiter.missing(key, "");
    };
    of("path", {"lock", "fence"}, true);
    of("endpoints", {"etcd"}, true);
    of("tls", {"etcd"}, false);
    of("login", {"etcd"}, false);
    of("command", {"fence"}, true);
    for (const char* key : {"check-command", "delay-ms", "give-up-ms"})
        of(key, {"fence"}, false);
    if (kind == "etcd") {
        a.what = described_arbiter::kind::etcd;
        a.lease_ms = 3000;
        arbiter.number("lease-ms", a.lease_ms, 2000, 600000); // etcd's own shortest
    } else {
        a.what = kind == "lock" ? described_arbiter::kind::lock : described_arbiter::kind::fence;
        a.lease_ms = 500;
        arbiter.number("lease-ms", a.lease_ms, 20, 600000);
    }
}

void read_confinement(toml_reader& r, const toml::table& t, vm_description& vm) {
    constexpr std::int64_t highest_id = 0xfffffffe; // the one above is "nobody in particular" for the kernel
    toml_table confinement(r, t, "[confinement]");
    auto& c = vm.confinement;
    c.described = true;
    confinement.flag("root", c.root);
    if (const auto* user = confinement.find("user")) {
        const auto number = user->value_exact<std::int64_t>();
        const auto word = user->value_exact<std::string>();
        if (number && *number >= 1 && *number <= highest_id) {
            c.user = described_confinement::user_kind::given;
            c.id = static_cast<std::uint32_t>(*number);
        } else if (word == "caller") {
            c.user = described_confinement::user_kind::caller;
        } else if (word != "own") {
            confinement.complain("user", fmt::format("'user' must be \"own\", \"caller\" or the number of a "
                                                     "user from 1 to {}",
                                                     highest_id));
        }
    }
    std::string network = "auto";
    confinement.choice("network", network, {"auto", "host", "own"});
    c.network = network == "own"    ? described_confinement::network_kind::own
                : network == "host" ? described_confinement::network_kind::host
                                    : described_confinement::network_kind::automatic;
    confinement.texts("paths", c.paths);
    for (auto& path : c.paths)
        path = r.absolute(path);
    const bool wanted = c.user == described_confinement::user_kind::given ||
                        c.network == described_confinement::network_kind::own || !c.paths.empty();
    if (!c.root && wanted)
        confinement.complain("root",
                             "with root = false QEMU has its caller's user and network and all of the "
                             "host's files: leave 'user', 'network' and 'paths' out");
}

bool is_versioned_machine(const std::string& name) {
    constexpr std::string_view kind = "pc-i440fx-";
    unsigned major = 0, minor = 0;
    char more = 0; // the numbers have at most seven digits together, so they fit
    return name.starts_with(kind) && name.size() < kind.size() + 8 &&
           // NOLINTNEXTLINE(cert-err34-c): see above
           std::sscanf(name.c_str() + kind.size(), "%u.%u%c", &major, &minor, &more) == 2;
}

} // namespace

std::string gpu_address_beside(const std::string& standby) {
    return beside(standby, 1, ".gpu");
}

std::string state_address_beside(const std::string& standby) {
    return beside(standby, 2, ".state");
}

std::string why_not_a_standby(const vm_description& vm, const std::string& address) {
    if (vm.arbiter.what == described_arbiter::kind::lock && !is_local_address(address))
        return fmt::format(
            "the arbiter \"lock\" is a file of one machine, and {} is on another one: each host "
            "would have a record of its own, and no takeover would ever be granted. Use kind = "
            "\"etcd\" or kind = \"fence\"",
            address);
    return {};
}

std::string why_not_an_endpoint(const std::string& url) {
    const bool plain = url.starts_with("http://");
    if (!plain && !url.starts_with("https://"))
        return fmt::format("'{}' is no endpoint of etcd: https://HOST:PORT", url);
    auto host = url.substr(plain ? 7 : 8);
    if (host.empty() || host.find_first_of("/@?# ") != std::string::npos)
        return fmt::format("'{}' is no endpoint of etcd: https://HOST:PORT", url);
    if (!plain)
        return {};
    if (host.starts_with('['))
        host = host.substr(1, host.find(']') - 1);
    else
        host = host.substr(0, host.rfind(':'));
    in_addr four{};
    const bool loopback =
        host == "localhost" || host == "::1" ||
        (::inet_pton(AF_INET, host.c_str(), &four) == 1 && (ntohl(four.s_addr) >> 24) == IN_LOOPBACKNET);
    return loopback ? std::string()
                    : fmt::format("{} is etcd on another machine without TLS: whoever is on the way decides "
                                  "who runs the VM. Use https:// and 'tls'",
                                  url);
}

bool is_local_address(const std::string& address) {
    if (!needs_tls(address) || address.starts_with("localhost:") || address.starts_with("[::1]:"))
        return true;
    in_addr four{};
    return ::inet_pton(AF_INET, address.substr(0, address.rfind(':')).c_str(), &four) == 1 &&
           (ntohl(four.s_addr) >> 24) == IN_LOOPBACKNET;
}

bool needs_tls(const std::string& address) {
    return !address.empty() && !address.starts_with("unix:");
}

std::optional<vm_description> parse_vm_description(std::string_view text, const std::string& file,
                                                   const std::string& directory,
                                                   std::vector<std::string>& errors) {
    toml_reader r(file, directory, errors);
    toml::table root;
    try {
        root = toml::parse(text, file);
    } catch (const toml::parse_error& error) {
        r.complain(error.source(), std::string(error.description()));
        return std::nullopt;
    }
    vm_description vm;
    {
        toml_table top(r, root, "a VM's description");
        top.missing("name", "");
        top.text("name", vm.name);
        if (top.has("name") && !is_name(vm.name))
            top.complain("name", "'name' must be 1 to 32 letters, digits, '-', '_' and '.'");
        top.mebibytes("memory", vm.memory_mib);
        top.number("cpus", vm.cpus, 1, 255);
        top.choice("accel", vm.accel, {"auto", "kvm", "tcg"});
        top.text("machine", vm.machine);
        if (!vm.machine.empty() && !is_versioned_machine(vm.machine))
            top.complain("machine",
                         "'machine' must be one with its version, like \"pc-i440fx-10.0\": an alias "
                         "is another machine in each release of QEMU");
        top.text("cpu", vm.cpu);
        if (vm.cpu.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
            std::string::npos)
            top.complain("cpu",
                         "'cpu' must be the name of a model, as `qemu-system-x86_64 -cpu help` prints it");
        top.path("console-log", vm.console_log);
        top.flag("sandbox", vm.sandbox);
        top.texts("qemu-options", vm.qemu_options);
        if (const auto* t = top.child("boot"))
            read_boot(r, *t, vm);
        for (const auto* t : top.children("disk"))
            read_disk(r, *t, vm);
        for (const auto* t : top.children("network"))
            read_network(r, *t, vm);
        if (const auto* t = top.child("gpu"))
            read_gpu(r, *t, vm);
        if (const auto* t = top.child("protection"))
            read_protection(r, *t, vm);
        vm.supervision.checkpoint_ms = 10000 + 3 * vm.protection.max_epoch_ms;
        if (const auto* t = top.child("supervision"))
            read_supervision(r, *t, vm);
        if (const auto* t = top.child("arbiter"))
            read_arbiter(r, *t, vm);
        if (const auto* word = top.find("confinement"); word && word->is_boolean())
            top.flag("confinement", vm.confinement.root);
        else if (const auto* t = top.child("confinement"))
            read_confinement(r, *t, vm);
        for (const auto& network : vm.networks)
            if (const auto what = why_not_sandboxed(network.netdev); vm.sandbox && !what.empty())
                top.complain("network", fmt::format("QEMU would start {} for '{}', and its sandbox lets it "
                                                    "start nothing: do without, or give sandbox = false",
                                                    what, network.netdev));
        if (vm.guest.empty() && vm.kernel.empty() && vm.disks.empty())
            top.complain("boot", "nothing to boot: [boot] with 'guest' or 'kernel', or a [[disk]]");
        if (!vm.protection.standby.empty() && vm.arbiter.what == described_arbiter::kind::none)
            top.complain("protection",
                         "a protected VM needs an [arbiter]: without one a cut connection could make two "
                         "of it. On one machine: kind = \"lock\"");
        if (const auto why = why_not_a_standby(vm, vm.protection.standby); !why.empty())
            top.complain("arbiter", why);
        if (const auto option = speaks_past_the_gate(vm.qemu_options);
            !option.empty() && vm.arbiter.what != described_arbiter::kind::none)
            top.complain(
                "qemu-options",
                fmt::format("'{}': what the guest says there leaves at once, and a takeover would take "
                            "it back: describe a card as a [[network]]; a VM that is not to be "
                            "protected has no [arbiter]",
                            option));
    }
    if (!errors.empty())
        return std::nullopt;
    return vm;
}

std::optional<vm_description> read_vm_description(const std::string& path, std::vector<std::string>& errors) {
    std::error_code failed;
    const auto size = fs::file_size(path, failed);
    if (failed || size > longest_file) {
        errors.push_back(failed ? fmt::format("cannot read {}: {}", path, failed.message())
                                : fmt::format("{} is too long for the description of a VM", path));
        return std::nullopt;
    }
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) {
        errors.push_back(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
        return std::nullopt;
    }
    return parse_vm_description(text.str(), path, fs::absolute(path).parent_path().string(), errors);
}

} // namespace kagemusha::control
