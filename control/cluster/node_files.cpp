// SPDX-License-Identifier: GPL-2.0-or-later
//
// See node_files.hpp.
#include "control/cluster/node_files.hpp"

#include "control/cluster/plan.hpp"

#include <fmt/format.h>

namespace kagemusha::control::cluster {

namespace {

// As TOML has it. Declarations have no control characters in texts (json_keys.hpp).
std::string in_quotes(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\')
            out += '\\';
        out += c;
    }
    return out + "\"";
}

std::string gpu_table(const gpu_shape& gpu) {
    auto out = fmt::format("[gpu]\nbackend = {}\n", in_quotes(gpu.backend));
    if (!gpu.gpu.empty())
        out += fmt::format("gpu = {}\n", in_quotes(gpu.gpu));
    if (!gpu.driver.empty())
        out += fmt::format("driver = {}\n", in_quotes(gpu.driver));
    if (gpu.share_percent != 0)
        out += fmt::format("share = {}\n", gpu.share_percent);
    if (gpu.profile_parts != 0)
        out += fmt::format("profile = \"1/{}\"\n", gpu.profile_parts);
    if (gpu.memory_mib != 0)
        out += fmt::format("memory = {}\n", gpu.memory_mib);
    return out;
}

// Both supervisors on one host: the kernel tells of a death, so silence may last long before it counts, and a
// busy host moves nothing. On two hosts silence is all that tells of one.
std::string protection(const node_places& places) {
    if (places.standby.empty())
        return fmt::format("[protection]\nstandby = {}\nheartbeat-ms = 100\nheartbeat-budget-ms = 5000\n"
                           "qemu-budget-ms = 60000\n\n[arbiter]\nkind = \"lock\"\npath = \"lease\"\n",
                           in_quotes(slot_address(places.folder, 1)));
    std::string endpoints;
    for (const auto& url : places.etcd)
        endpoints += (endpoints.empty() ? "" : ", ") + in_quotes(url);
    return fmt::format(
        "[protection]\nstandby = {}\ntls = {}\nheartbeat-ms = 100\nheartbeat-budget-ms = 3000\n"
        "qemu-budget-ms = 60000\n\n"
        "[arbiter]\nkind = \"etcd\"\nendpoints = [{}]\ntls = {}\nlease-ms = 6000\n",
        in_quotes(places.standby), in_quotes(places.keys), endpoints, in_quotes(places.etcd_keys));
}

} // namespace

std::string vm_name(const std::string& cluster, unsigned number) {
    return cluster + "." + node_name(number);
}

std::string slot_name(const std::string& cluster, unsigned number, std::size_t slot) {
    return fmt::format("{}.{}", vm_name(cluster, number), slot_letter(slot));
}

std::string slot_address(const std::string& folder, std::size_t slot) {
    return fmt::format("unix:{}/{}", folder, slot_letter(slot));
}

std::string vm_toml(const declaration& declared, unsigned number, const node_places& places) {
    const auto& shape = declared.shape(number);
    auto out = fmt::format(
        "# made by kagemusha daemon; changes are overwritten\n"
        "name = {}\nmemory = {}\ncpus = {}\naccel = {}\n\n"
        "[boot]\nguest = {}\njob = \"job.sh\"\nfiles = [{}, \"secret:system/node-secret\"{}]\n\n"
        "[[network]]\nnetdev = {}\nmac = {}\n\n",
        in_quotes(vm_name(declared.name, number)), shape.memory_mib, shape.cpus, in_quotes(declared.accel),
        in_quotes(declared.image.empty() ? declared.guest : declared.guest + "+" + declared.image),
        in_quotes(places.agent + ":system/kagemusha-node-agent"),
        declared.image.empty() ? "" : ", \"ssh:system/ssh\"",
        in_quotes("stream,server=off,reconnect-ms=1000,addr.type=unix,addr.path=" + places.switch_socket),
        in_quotes(places.mac));
    if (declared.gpu)
        out += gpu_table(*declared.gpu) + "\n";
    if (shape.is_protected)
        out += protection(places);
    return out;
}

// Names of nodes that there are not yet resolve, too, so that scaling changes nothing in the others. The
// image is read-only below an overlay: what is written here is this start's.
std::string node_job(const declaration& declared, unsigned number, const node_places& places) {
    auto out = fmt::format(
        "#!/bin/bash\n"
        "# The job of a node: its name, its network, and the agent that executes commands.\n"
        "busybox=/payload/system/busybox\n"
        "$busybox hostname {0}\n"
        "echo {0} >/etc/hostname\n"
        "printf '127.0.0.1 localhost\\n' >/etc/hosts\n"
        "for n in $(seq {1}); do echo \"{2}$(({3} + n)) node$n\"; done >>/etc/hosts\n"
        "echo {4} >/etc/kagemusha-cluster\n"
        "$busybox ip link set eth0 up\n"
        "$busybox ip addr add {5}/24 dev eth0\n",
        node_name(number), most_nodes, places.prefix, places.first_address, declared.name, places.address);
    if (declared.network.outside)
        out += fmt::format("$busybox ip route add default via {}\necho nameserver {} >/etc/resolv.conf\n",
                           places.gateway, places.name_server);
    if (!declared.image.empty())
        out += "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
               "bash /payload/system/ssh/setup\n";
    return out + "while :; do\n"
                 "    /payload/system/kagemusha-node-agent /payload/system/node-secret\n"
                 "    sleep 1\n"
                 "done\n";
}

std::uint64_t gpu_percent(const declaration& declared) {
    if (!declared.gpu)
        return 0;
    if (declared.gpu->profile_parts != 0)
        return 100 / declared.gpu->profile_parts;
    return declared.gpu->share_percent;
}

} // namespace kagemusha::control::cluster
