// SPDX-License-Identifier: GPL-2.0-or-later
//
// What is wanted, in etcd: one key for each cluster. Every change is a transaction that names the revision it
// was made from, so of two administrators who change one cluster at once the second one is refused, and sees
// what the first one has done. What is wanted is written before anything is done about it.
//
// One thread uses one object. A call takes at most three seconds.
#pragma once

#include "control/arbiter/etcd_client.hpp"
#include "control/cluster/declaration.hpp"
#include "control/cluster/plan.hpp"
#include "control/daemon/etcd_process.hpp"
#include "control/daemon/fleet/cluster_keys.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::daemon {

struct cluster_record {
    cluster::declaration declared;
    cluster::wish wanted = cluster::wish::running;
    std::string secret;         // of its nodes' agents: 64 hexadecimal digits
    std::string revision = "0"; // of its key in etcd
    cluster_ca ca = {};         // of its links between hosts
};

// As the key's value has it, and back. Nothing: it is none of this release.
std::string to_text(const cluster_record& record);
std::optional<cluster_record> parse_record(const std::string& text, const std::string& revision);

enum class stored { done, conflict, unreachable };

class cluster_store {
public:
    explicit cluster_store(const etcd_process& etcd) : etcd_(etcd) {}

    // Nothing: etcd can't be reached, problem() says why. By name; without those of another release.
    std::optional<std::vector<cluster_record>> all();
    const std::vector<std::string>& of_another_release() const { return foreign_; } // that all() left out
    // The outer one: it can't be reached. The inner one: there is no such cluster.
    std::optional<std::optional<cluster_record>> find(const std::string& name);

    // With revision "0" it must not be there. Done: `record` has the new revision.
    stored write(cluster_record& record);
    stored remove(const std::string& name, const std::string& revision);

    const std::string& problem() const { return problem_; }

private:
    etcd_client* client();
    etcd_client::answer ask(const char* path, const nlohmann::json& body);

    const etcd_process& etcd_;
    std::unique_ptr<etcd_client> client_;
    std::string endpoint_; // of client_
    std::string problem_;
    std::vector<std::string> foreign_;
};

} // namespace kagemusha::control::daemon
