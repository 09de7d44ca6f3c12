// SPDX-License-Identifier: GPL-2.0-or-later
//
// The nodes of this host: what there is of them, and the steps of a plan, carried out. A supervisor is a
// process with a session of its own, so it outlives the daemon; it is found again by the lock on its name and
// asked at its socket (vm/vm_registry.hpp, supervise/control_socket.hpp), a network by its own socket.
//
// One thread uses it.
#pragma once

#include "control/cluster/plan.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/detached_process.hpp"
#include "control/daemon/fleet/fleet_store.hpp"
#include "control/daemon/state_folder.hpp"
#include "control/share/share_status.hpp"
#include "control/vm/vm_registry.hpp"

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::daemon {

class host_nodes {
public:
    using clock = std::chrono::steady_clock;

    host_nodes(state_folder folder, std::string tool, std::optional<fleet_settings> fleet)
        : folder_(std::move(folder)), tool_(std::move(tool)), fleet_(std::move(fleet)) {}
    host_nodes(const host_nodes&) = delete;
    host_nodes& operator=(const host_nodes&) = delete;

    // Reads which VMs run; before the observations of one round. A sentence when that failed.
    std::string look();
    cluster::cluster_seen observe(const cluster_record& record);
    // Clusters of which there are files here.
    std::vector<std::string> with_files() const;

    struct neighbours {
        const cluster::assignment& places;
        const std::map<std::string, host_entry>& hosts;
    };
    // Links the cluster's network here with those of the hosts that await it at `ports`. A sentence.
    std::string connect(const cluster_record& record, const cluster::cluster_seen& own,
                        const std::map<std::string, std::uint16_t>& ports, const neighbours& around);
    // A sentence when it failed. The record of a cluster is removed by the caller.
    std::string perform(const cluster::step& step, const cluster_record& record, const neighbours& around);

private:
    struct attempts {
        unsigned count = 0;
        clock::time_point last{}, protect{};
        std::string failure;
    };
    struct started {
        child_process process;
        std::string log, of; // whose attempts_ these are
    };
    cluster::slot_seen observe_slot(const std::string& name);
    void look_at_shares();
    double gpu_percent_of(const std::string& slot) const; // slot_gauges::no_gpu_share: it shares none
    void reap();
    const registered_vm* running(const std::string& name) const;
    std::string start_network(const cluster_record& record);
    std::string start(const cluster::step& step, const cluster_record& record, bool standby,
                      const neighbours& around);
    std::string write_files(const cluster_record& record, unsigned number, const std::string& standby);
    std::string protect(const cluster::step& step, const cluster_record& record, const neighbours& around);
    std::string slot_address(const cluster_record& record, unsigned number, std::size_t slot,
                             const neighbours& around) const;
    std::string stop(const cluster::step& step, const cluster_record& record);
    std::string remove_node(const cluster_record& record, unsigned number);
    std::string launch(const std::string& name, const std::string& of,
                       const std::vector<std::string>& command, const std::string& log);

    const state_folder folder_;
    const std::string tool_;
    const std::optional<fleet_settings> fleet_;
    std::vector<registered_vm> running_;
    std::vector<shared_gpu> shares_;
    clock::time_point look_at_shares_{};
    std::map<std::string, started> children_;  // by the name of a slot, or a network's folder
    std::map<std::string, attempts> attempts_; // by the name of a VM, or a network's folder
};

// The secret of one node's agent: who has it can't say another's.
std::string node_secret(const cluster_record& record, unsigned number);

} // namespace kagemusha::control::daemon
