// SPDX-License-Identifier: GPL-2.0-or-later
//
// What hosts tell each other through etcd, below kagemusha/fleet/:
//
//   hosts/HOST          how to reach its daemon, what it offers; goes with its lease: it is alive
//   leader              the host that places; goes with its lease
//   places/CLUSTER      which host has which slot (cluster/assignment.hpp); the leader writes it, in a transaction
//                       that names its election and the revision that it has read
//   seen/HOST/CLUSTER   what the host sees of its part; goes with its lease
//
// One thread uses one object, but for lease(), which keep_lease()'s thread sets. A call takes at most three
// seconds.
#pragma once

#include "control/arbiter/etcd_client.hpp"
#include "control/cluster/assignment.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/etcd_process.hpp"
#include "control/daemon/fleet/settings.hpp"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::control::daemon {

struct host_entry {
    cluster::host_offer offer;
    std::string shown; // for people
    std::string release;
    std::string address;
    std::uint16_t port = 0, first_port = 0;
    std::uint16_t trunk_port = 0;
    std::string start;         // of this daemon: two that call themselves the same are found by it
    bool is_understood = true; // false: of another release, whose words mean something else
};

nlohmann::json to_json(const host_entry& from);
// Of another release: it is not understood, and only its name and release are known.
host_entry parse_host(const std::string& name, const std::string& text);

struct placed_cluster {
    cluster::assignment places;
    std::string revision = "0";
};

// All of it, as one read of etcd has it.
struct fleet_state {
    std::map<std::string, host_entry> hosts; // alive
    std::string leader, leader_revision;
    std::string etcd_id; // of the cluster of etcd that answered
    std::map<std::string, placed_cluster> clusters;
    std::map<std::string, std::map<std::string, cluster::cluster_seen>> views; // by cluster and host
};

// The lease of this host, kept by a thread of its own, so that a long round does not make it look dead.
class host_lease {
public:
    host_lease(const etcd_process& etcd, std::uint32_t lease_ms);
    ~host_lease(); // its end is not told: the next daemon of this host finds its keys, or they run out
    host_lease(const host_lease&) = delete;
    host_lease& operator=(const host_lease&) = delete;

    std::string id() const;           // "": none now
    void lost(const std::string& id); // it is not known to etcd any more

private:
    void run();
    const etcd_process& etcd_;
    const std::uint32_t lease_ms_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::string id_;
    bool stop_ = false;
    std::thread thread_;
};

class fleet_store {
public:
    explicit fleet_store(const etcd_process& etcd) : etcd_(etcd) {}

    // Nothing: etcd can't be reached, problem() says why.
    std::optional<fleet_state> read();
    // done: the entry is there. conflict: another daemon has this name.
    stored join(const host_entry& self, const std::string& lease);
    // Becomes the leader if there is none.
    void stand(const std::string& self, const std::string& lease);
    // Only while `state` has us as the leader.
    stored place(const std::string& cluster, const cluster::assignment& places, const fleet_state& state);
    stored publish(const std::string& self, const std::string& lease, const std::string& cluster,
                   const cluster::cluster_seen& seen);
    void retract(const std::string& self, const std::string& cluster);

    const std::string& problem() const { return problem_; }

private:
    etcd_client::answer ask(const char* path, const nlohmann::json& body);
    stored put_with_lease(const std::string& key, const std::string& value, const std::string& lease,
                          nlohmann::json compare);
    bool take(const std::string& key, const std::string& value, const nlohmann::json& entry,
              fleet_state& into);

    const etcd_process& etcd_;
    std::unique_ptr<etcd_client> client_;
    std::string endpoint_; // of client_
    std::string problem_;
};

// The key of a cluster's places, which goes with its record.
std::string places_key(const std::string& cluster);

} // namespace kagemusha::control::daemon
