// SPDX-License-Identifier: GPL-2.0-or-later
//
// The thread that makes what is wanted true: reads all clusters from etcd, looks at this host, makes each one's
// plan (cluster/plan.hpp), carries out its steps, and begins again. It keeps no list of what is half done; a
// daemon that starts after a crash does the same as one that has run all the time.
#pragma once

#include "control/cluster/plan.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/etcd_process.hpp"
#include "control/daemon/host_nodes.hpp"
#include "control/daemon/state_folder.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace kagemusha::control::daemon {

class reconciler {
public:
    using logger = std::function<void(const std::string& cluster, const std::string& text)>;
    using listener = std::function<void(const std::vector<cluster_record>& records)>;

    // `etcd` outlives it. It starts at once.
    reconciler(etcd_process& etcd, const state_folder& folder, const std::string& tool, logger log);
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
    // "" when the last round reached etcd.
    std::string problem() const;
    // Until a round has reached etcd, or so long; false: none has.
    bool wait_for_etcd(std::chrono::milliseconds limit) const;

private:
    void run();
    bool round();                                 // false: something is under way
    bool carry_out(const cluster_record& record); // false: the same
    void say(const std::string& cluster, const std::string& text);

    etcd_process& etcd_;
    cluster_store store_;
    host_nodes nodes_;
    const logger log_;
    std::map<std::string, std::string> said_; // the last complaint of each cluster

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool stop_ = false, kicked_ = false, reached_ = false;
    std::atomic<bool> watched_ = false;
    std::string problem_ = "etcd has not started yet";
    std::map<std::string, seen> seen_;
    std::mutex listener_mutex_;
    listener listener_; // under its own mutex: it asks what mutex_ guards
    std::thread thread_;
};

} // namespace kagemusha::control::daemon
