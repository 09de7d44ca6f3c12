// SPDX-License-Identifier: GPL-2.0-or-later
//
// The daemon's API without its transport: a request in, an answer out (docs/clusters.md has the routes). What
// is wanted is checked and written to etcd; the reconciler makes it true afterwards.
//
// One thread uses it.
#pragma once

#include "control/cluster/placement.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/reconciler.hpp"
#include "control/daemon/state_folder.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::daemon {

struct api_request {
    std::string method, target;
    std::string if_match; // the revision that the client has seen; "": whichever it is
    std::string body;
};

struct api_answer {
    unsigned status = 200;
    nlohmann::json body;
    std::string revision = {}; // for ETag; "": none
};

class api {
public:
    // All of them outlive it. `offers`: what this host has for nodes.
    api(const etcd_process& etcd, reconciler& work, const state_folder& folder, cluster::host_offer offers)
        : store_(etcd), work_(work), folder_(folder), offers_(std::move(offers)) {}

    api_answer answer(const api_request& request);

    // METHOD and path, with {name} and {node}: what docs/openapi.json must have.
    static std::vector<std::pair<std::string, std::string>> routes();

private:
    struct place { // of a request: what the path names
        std::string name, node;
    };
    using handler = api_answer (api::*)(const api_request& request, const place& at);
    struct route {
        const char* method;
        const char* path;
        handler handle;
    };
    static const std::vector<route>& table();

    api_answer get_host(const api_request& request, const place& at);
    api_answer list(const api_request& request, const place& at);
    api_answer create(const api_request& request, const place& at);
    api_answer show(const api_request& request, const place& at);
    api_answer change(const api_request& request, const place& at);
    api_answer scale(const api_request& request, const place& at);
    api_answer start(const api_request& request, const place& at);
    api_answer stop(const api_request& request, const place& at);
    api_answer remove(const api_request& request, const place& at);
    api_answer agent(const api_request& request, const place& at);

    api_answer unreachable() const;
    // The record, or what is wrong: it is not there, or another revision than the client's.
    std::optional<cluster_record> found(const api_request& request, const std::string& name,
                                        api_answer& wrong);
    api_answer store(cluster_record record, unsigned status);
    // "" or why there is no room for it beside the others.
    // As found(), and nothing with a refusal for one that is being deleted.
    std::optional<cluster_record> changeable(const api_request& request, const std::string& name,
                                             api_answer& wrong);
    // What is to run must fit; what is to stop always does.
    api_answer store_if_it_fits(cluster_record record, unsigned status);
    std::string why_no_room(const cluster_record& wanted, bool& reached);
    nlohmann::json describe(const cluster_record& record, bool whole) const;

    cluster_store store_;
    reconciler& work_;
    const state_folder& folder_;
    const cluster::host_offer offers_;
};

// Of this machine: its processors eight times, nine tenths of its memory, all of a GPU.
cluster::host_offer offers_of_this_host();

} // namespace kagemusha::control::daemon
