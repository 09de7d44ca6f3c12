// SPDX-License-Identifier: GPL-2.0-or-later
//
// See job_vm.hpp.
#include "control/job/job_vm.hpp"

#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/whole_file.hpp"
#include "control/cluster/node_files.hpp"
#include "control/cluster/plan.hpp"
#include "control/lan/addresses.hpp"
#include "control/lan/lan.hpp"

#include <fmt/format.h>

namespace kagemusha::control::job {

namespace {

// A network with one node. Nothing in it is hidden from the job, and on the host who may connect to the agent's
// socket may do with the VM what he likes: the agent's secret needs to be the same on both hosts, and no secret.
std::string secret_of(const std::string& name) {
    return fmt::format("whoever reaches the agent of {} may use it", name);
}

} // namespace

std::string prepare_job_vm(const job_vm& vm) {
    if (vm.folder.find_first_of(",:\"\\") != vm.folder.npos)
        return fmt::format("{}: a folder without commas, colons, quotes and backslashes is needed",
                           vm.folder);
    const auto agent = find_built("kagemusha-node-agent"), keeper = find_built("kagemusha-node-job");
    if (agent.empty() || keeper.empty())
        return not_there(agent.empty() ? "kagemusha-node-agent" : "kagemusha-node-job");
    cluster::declaration declared;
    declared.name = vm.name;
    declared.network.outside = vm.outside;
    cluster::node_places places;
    places.address = lan::dotted(lan::node_address(1));
    places.prefix = "10.77.0.";
    places.first_address = lan::first_node;
    places.gateway = lan::dotted(lan::gateway_address);
    places.name_server = lan::dotted(lan::name_server_address);
    const auto tables =
        fmt::format("[boot]\nguest = \"{}\"\njob = \"job.sh\"\n"
                    "files = [\"{}:system/kagemusha-node-agent\", \"{}:system/kagemusha-node-job\", "
                    "\"secret:system/node-secret\"]\n\n"
                    "[[network]]\n"
                    "netdev = \"stream,server=off,reconnect-ms=1000,addr.type=unix,addr.path={}\"\n"
                    "mac = \"{}\"\n",
                    vm.guest.empty() ? default_flavour : vm.guest, agent, keeper,
                    lan::switch_socket(vm.folder + "/net"), lan::node_mac(vm.name, 1));
    const std::pair<const char*, std::string> files[] = {{"/secret", secret_of(vm.name) + "\n"},
                                                         {"/job.sh", cluster::node_job(declared, 1, places)},
                                                         {"/tables.toml", tables}};
    for (const auto& [file, text] : files)
        if (auto why = write_whole_file(vm.folder + file, text); !why.empty())
            return why;
    return {};
}

void run_job_network(const std::string& folder, bool outside) {
    cluster::declaration declared;
    declared.network.outside = outside;
    lan::lan_main((folder + "/net").c_str(), cluster::network_description(declared).c_str());
}

} // namespace kagemusha::control::job
