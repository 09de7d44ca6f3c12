// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qemu_command.hpp.
#include "control/qemu/qemu_command.hpp"

#include "net/identity.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace kagemusha::control {

namespace {

void add(std::vector<std::string>& command, std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
}

void add_disk(std::vector<std::string>& command, std::string_view id, std::string_view path,
              std::string_view format = "raw") {
    add(command, {"-drive",
                  fmt::format("if=none,id={},file={},format={},readonly=on", id, escape_option(path), format),
                  "-device", fmt::format("virtio-blk-pci,drive={}", id)});
}

// Known by its node to both hosts. An error of the image is the guest's: a VM that QEMU stops because of one
// has no checkpoints any more, and nobody would be there to let it go on.
void add_writable_disk(std::vector<std::string>& command, std::string_view node, const disk_config& disk) {
    add(command, {"-drive",
                  fmt::format("if=none,id={0}-drive,node-name={0},driver=checkpoint-disk,file.driver={1},"
                              "file.file.driver=file,file.file.filename={2},werror=report,rerror=report",
                              node, disk.format, escape_option(disk.path)),
                  "-device", fmt::format("virtio-blk-pci,drive={}-drive", node)});
}

void add_ports(std::vector<std::string>& command, const std::vector<serial_port>& ports) {
    if (ports.empty())
        return;
    add(command, {"-device", "virtio-serial-pci,id=ports"});
    for (std::size_t i = 0; i < ports.size(); ++i) {
        const auto& port = ports[i];
        const auto path = escape_option(port.path);
        const auto id = fmt::format("port{}", i);
        add(command, {"-chardev", port.host_end == serial_port::end::file
                                      ? fmt::format("file,id={},path={}", id, path)
                                      : fmt::format("socket,id={},path={},server=on,wait=off", id, path)});
        add(command, {"-device", fmt::format("virtserialport,bus=ports.0,chardev={},name={}", id,
                                             escape_option(port.name))});
    }
}

void add_gpu(std::vector<std::string>& command, const gpu_config& gpu) {
    // An I/O thread of its own: the device's work stays outside the main loop's lock.
    add(command, {"-object", "iothread,id=vgpu-io"});
    auto device =
        fmt::format("virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend={}", escape_option(gpu.backend));
    if (!gpu.gpu.empty())
        device += fmt::format(",gpu={}", escape_option(gpu.gpu));
    for (const auto& [name, value] : gpu.properties)
        device += fmt::format(",{}={}", name, escape_option(value));
    add(command, {"-device", device});
}

// What the guest sends goes through hold<i> (until it is committed, while somebody stands by) and then
// through the gate.
void add_networks(std::vector<std::string>& command, const vm_config& config) {
    for (std::size_t i = 0; i < config.networks.size(); ++i) {
        const auto& network = config.networks[i];
        add(command, {"-netdev", fmt::format("{},id=net{}", network.netdev, i)});
        add(command,
            {"-object", fmt::format("filter-buffer,id=hold{0},netdev=net{0},queue=rx,interval=0", i)});
        auto device = fmt::format("{},id=nic{},netdev=net{},romfile=", escape_option(network.model), i, i);
        if (!network.mac.empty())
            device += fmt::format(",mac={}", escape_option(network.mac));
        add(command, {"-device", device});
        if (config.gate)
            add(command, {"-device", fmt::format("lease-gate,id=gate{0},netdev=net{0},file={1}", i,
                                                 escape_option(*config.gate))});
    }
}

// A standby listens, and sends when it has become a primary. It takes the state from this VM's primary only,
// whose subject gnutls writes in either order; and gives it to this VM's standby only.
void add_state_keys(std::vector<std::string>& command, const vm_config& config) {
    for (const auto& [id, end] : {std::pair{state_from_id, "server"}, {state_to_id, "client"}})
        add(command, {"-object", fmt::format("tls-creds-x509,id={},dir={},endpoint={},verify-peer=on,"
                                             "priority={}",
                                             id, escape_option(config.state_keys), end, state_tls_priority)});
    const auto primary =
        net::certificate_subject({config.state_vm, mirror::role::primary, net::link_part::qemu});
    auto rules = nlohmann::json::array();
    for (const auto& subject :
         {fmt::format("O=Kagemusha,OU=*,CN={}", primary), fmt::format("CN={},OU=*,O=Kagemusha", primary)})
        rules.push_back({{"match", subject}, {"policy", "allow"}, {"format", "glob"}});
    add(command,
        {"-object",
         nlohmann::json{
             {"qom-type", "authz-list"}, {"id", state_peer_id}, {"policy", "deny"}, {"rules", rules}}
             .dump(),
         "-global", fmt::format("migration.tls-authz={}", state_peer_id), "-global",
         fmt::format("migration.tls-hostname={}",
                     net::certificate_name({config.state_vm, mirror::role::standby, net::link_part::qemu}))});
}

// What the kernel of an emulated guest is told; one that the host's processor runs is told none of it.
//   no_timer_check     on a host that has no time for it, a late timer is taken for a broken one: a panic
//   cryptomgr.notests  the ciphers' tests of themselves: code that runs once, and is translated for that
//   jent_mod_init      likewise: the test of a source of noise that only CRYPTO_DRBG asks, beside the kernel's
//                      own random numbers, and that would hear an emulator's noise here
//   no5lvl             a fifth level of page tables: each miss of the emulated TLB would walk through it
// The last three and the two features below are a sixth of what a boot costs. Mitigations of processors' faults
// stay: without them it was not measurably less (docs/results/first-contact.md).
constexpr char emulated_arguments[] =
    " no_timer_check cryptomgr.notests initcall_blacklist=jent_mod_init no5lvl";

// Without erms and fsrm the kernel and the C library copy and clear memory in loops over words. With them it is
// one instruction, which the emulator takes byte by byte. A guest that began on a host of another release may
// have them, and come here: nobody refuses it the instruction.
constexpr char emulated_without[] = ",-erms,-fsrm";

constexpr char sandbox_option[] = "-sandbox";
// QEMU's filters of system calls, for all of its threads: none that only old programs use, no other user or
// group, no process (the launcher starts workers), no priority or processor for itself or others. Mounts,
// modules, swap and reboot are denied with any of them.
constexpr char sandbox_rules[] = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

} // namespace

std::string cpu_model(const vm_config& config) {
    if (!config.cpu.empty())
        return config.cpu;
    return config.accel == accelerator::kvm ? "host" : "max";
}

std::string why_not_sandboxed(std::string_view netdev) {
    const auto kind = netdev.substr(0, netdev.find(','));
    const auto has = [&](std::string_view option) {
        return ("," + std::string(netdev.substr(std::min(netdev.size(), kind.size() + 1))) + ",")
                   .find("," + std::string(option)) != std::string::npos;
    };
    if (kind == "bridge" || has("helper="))
        return "its helper";
    if (kind == "tap" && !has("script=no,") && !has("script=,") && !has("fd=") && !has("fds="))
        return "a script for its card (give script=no)";
    if (has("smb=") || (has("guestfwd=") && netdev.find("cmd:") != std::string_view::npos))
        return "a server for the guest";
    return {};
}

std::vector<std::string> without_sandbox(std::vector<std::string> command) {
    const auto at = std::find(command.begin(), command.end(), sandbox_option);
    if (at != command.end())
        command.erase(at, at + 2);
    return command;
}

std::string escape_option(std::string_view value) {
    std::string escaped;
    for (const char c : value) {
        escaped += c;
        if (c == ',')
            escaped += c;
    }
    return escaped;
}

std::vector<std::string> qemu_command(const vm_config& config) {
    const bool probe = config.root_image.empty() && !config.described;
    std::vector<std::string> command{config.qemu, "-nodefaults", "-no-user-config",
                                     "-display",  "none",        "-no-shutdown"};
    if (!config.described) // a job's guest ends; a VM of its owner's starts anew
        command.emplace_back("-no-reboot");
    if (config.sandboxed)
        add(command, {sandbox_option, sandbox_rules});
    for (const auto& dir : config.firmware_dirs)
        add(command, {"-L", dir});
    // The main memory is named and shared: the device's worker process maps it.
    add(command, {"-object", fmt::format("memory-backend-memfd,id=ram,size={}M,share=on", config.memory_mib),
                  "-machine", config.machine + ",memory-backend=ram", "-m",
                  fmt::format("{}M", config.memory_mib), "-smp", fmt::format("{}", config.cpus)});
    if (config.accel == accelerator::kvm)
        add(command, {"-accel", "kvm"});
    else
        add(command, {"-accel", "tcg,thread=multi"});
    // A model by name has all that it is known for, or the VM does not start: both hosts have the same then.
    const char* const changed = !config.cpu.empty()                ? ",enforce"
                                : config.accel == accelerator::tcg ? emulated_without
                                                                   : "";
    add(command, {"-cpu", cpu_model(config) + changed});
    // loglevel=4: the kernel's warnings are on the console, its chatter is not.
    std::string arguments = "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0";
    if (probe)
        arguments += " kagemusha.probe";
    if (config.accel == accelerator::tcg)
        arguments += emulated_arguments;
    if (config.accel == accelerator::tcg && config.tsc_khz != 0)
        arguments += fmt::format(" tsc_early_khz={}", config.tsc_khz);
    if (!config.append.empty())
        arguments = config.append;
    if (!config.kernel.empty())
        add(command, {"-kernel", config.kernel, "-append", arguments});
    if (!config.initramfs.empty())
        add(command, {"-initrd", config.initramfs});
    if (config.console)
        add(command, {"-chardev",
                      fmt::format("socket,id=console,{},server=on,wait=off,logfile={},logappend=on",
                                  config.console->listener ? fmt::format("fd={}", *config.console->listener)
                                                           : "path=" + escape_option(config.console->socket),
                                  escape_option(config.console->log))});
    else
        add(command, {"-chardev", "stdio,id=console,signal=off"});
    add(command, {"-serial", "chardev:console"});
    if (config.qmp_fd)
        add(command, {"-chardev", fmt::format("socket,id=qmp,fd={}", *config.qmp_fd), "-mon",
                      "chardev=qmp,mode=control"});
    if (config.status_listener)
        add(command,
            {"-chardev", fmt::format("socket,id=status,fd={},server=on,wait=off", *config.status_listener),
             "-mon", "chardev=status,mode=control"});
    for (const auto& socket :
         {config.qmp_socket, config.status_listener ? std::nullopt : config.status_socket})
        if (socket)
            add(command, {"-qmp", fmt::format("unix:{},server=on,wait=off", escape_option(*socket))});
    if (!config.root_image.empty()) {
        add_disk(command, "root", config.root_image);
        add_disk(command, "payload", config.payload);
    }
    for (std::size_t i = 0; i < config.disks.size(); ++i) {
        const auto& disk = config.disks[i];
        const auto name = fmt::format("disk{}", i);
        if (disk.writable)
            add_writable_disk(command, name, disk);
        else
            add_disk(command, name, disk.path, disk.format);
    }
    if (!probe) {
        add(command, {"-device", "virtio-rng-pci"});
        add_ports(command, config.ports);
        add_networks(command, config);
    }
    if (config.gpu)
        add_gpu(command, *config.gpu);
    if (!config.state_keys.empty())
        add_state_keys(command, config);
    if (config.gate) // somebody waits for this QEMU's end: he shall not wait for its memory to be freed
        add(command, {"-device", "memory-keeper"});
    if (config.early) // of whoever is the primary
        add(command,
            {"-global", fmt::format("migration.x-colo-min-delay={}", config.early->min_epoch_ms), "-global",
             fmt::format("migration.x-colo-max-paused={}", config.early->max_paused_percent)});
    if (config.standby) // Between checkpoints it does not run (qemu-device/README.md, Continuous checkpoints)
        add(command, {"-global", "migration.x-colo-passive=on", "-incoming", "defer"});
    command.insert(command.end(), config.extra.begin(), config.extra.end());
    return command;
}

} // namespace kagemusha::control
