// SPDX-License-Identifier: GPL-2.0-or-later
//
// The thread that makes what is wanted true: reads all clusters from etcd, looks at this host, puts that together
// with what the other hosts see, makes each one's plan (cluster/plan.hpp), carries out the steps that are this
// host's, and begins again. Of several hosts one leads, and also gives slots to hosts (cluster/assignment.hpp). It keeps no list of what is half done; a
// daemon that starts after a crash does the same as one that has run all the time.
#pragma once

#include "control/cluster/plan.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/etcd_process.hpp"
#include "control/daemon/fleet/fleet_store.hpp"
#include "control/daemon/host_nodes.hpp"
#include "control/daemon/state_folder.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace kagemusha::control::daemon {

class reconciler {
public:
    using logger = std::function<void(const std::string& cluster, const std::string& text)>;
    using listener = std::function<void(const std::vector<cluster_record>& records)>;

    // `etcd` outlives it. It starts at once. `fleet`: this host is one of several.
    reconciler(etcd_process& etcd, const state_folder& folder, const std::string& tool, logger log,
               host_entry self, const std::optional<fleet_settings>& fleet);
    ~reconciler(); // waits for the round that is under way
    reconciler(const reconciler&) = delete;
    reconciler& operator=(const reconciler&) = delete;

    void kick(); // something is wanted: at once, not in a while

    // Somebody watches: then it looks again at once, as far as looking leaves time for others.
    void set_watched(bool watched) { watched_ = watched; }
    // After each round that reached etcd, on this thread; nobody: {}.
    void listen(listener to);

    struct seen {
        std::string revision; // of the record that the plan is for
        cluster::plan plan;
    };
    // Of the last round that had this cluster.
    std::optional<seen> look(const std::string& cluster) const;
    // All hosts and what they have, as the last round that reached etcd saw them. Never null.
    struct fleet_view {
        std::string self, leader;
        bool is_alone = true;                      // not one of several
        std::map<std::string, host_entry> entries; // alive
        std::vector<cluster::fleet_host> hosts;    // with those that are not, by name
        std::map<std::string, cluster::assignment> places;
        std::map<std::string, cluster::cluster_seen> seen; // merged, by cluster
        // Where each host's part of a cluster's network awaits the others.
        std::map<std::string, std::map<std::string, std::uint16_t>> trunk_ports;
        std::vector<cluster::resources> used; // by host
        std::vector<std::uint64_t> reserved_cpus;
    };
    std::shared_ptr<const fleet_view> fleet() const;
    // "" when the last round reached etcd.
    std::string problem() const;
    // Until a round has reached etcd, or so long; false: none has.
    bool wait_for_etcd(std::chrono::milliseconds limit) const;

private:
    void run();
    bool round(); // false: something is under way
    bool work_on(const std::vector<cluster_record>& records, const fleet_state& state);
    void take_part(const fleet_state& state);
    std::shared_ptr<const fleet_view> view_of(const std::vector<cluster_record>& records,
                                              const fleet_state& state);
    void place(const std::vector<cluster_record>& records, const fleet_state& state, fleet_view& view);
    void add_waiting(const std::string& cluster, cluster::plan& plan) const;
    bool carry_out(const cluster_record& record, const fleet_view& view); // false: the same
    bool publish(const std::string& cluster, const cluster::cluster_seen& seen);
    void perform(const std::vector<cluster::step>& steps, const cluster_record& record,
                 const fleet_view& view);
    void clear_strays(const std::set<std::string>& known, const fleet_view& view);
    bool is_known_etcd(const fleet_state& state);
    void say(const std::string& cluster, const std::string& text);

    etcd_process& etcd_;
    cluster_store store_;
    const state_folder folder_;
    host_nodes nodes_;
    const logger log_;
    host_entry self_;
    const bool is_one_of_several_;
    host_lease lease_;
    fleet_store fleet_store_;
    std::string joined_; // the lease with which this host is in etcd
    struct published {
        std::string text; // without what changes all the time
        std::chrono::steady_clock::time_point at;
    };
    std::map<std::string, published> published_;                     // by cluster: what etcd has of our view
    std::map<std::string, cluster::cluster_seen> own_;               // of this round
    std::map<std::string, std::map<unsigned, std::string>> no_room_; // of this round
    std::map<std::string, std::string> said_;                        // the last complaint of each cluster

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool stop_ = false, kicked_ = false, reached_ = false;
    std::atomic<bool> watched_ = false;
    std::string problem_ = "etcd has not started yet";
    std::shared_ptr<const fleet_view> view_;
    std::map<std::string, seen> seen_;
    std::mutex listener_mutex_;
    listener listener_; // under its own mutex: it asks what mutex_ guards
    std::thread thread_;
};

} // namespace kagemusha::control::daemon
