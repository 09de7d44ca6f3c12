// SPDX-License-Identifier: GPL-2.0-or-later
//
// The daemon's API without its transport: a request in, an answer out (docs/clusters.md has the routes). What
// is wanted is checked and written to etcd; the reconciler makes it true afterwards.
//
// answer() may be called by any thread: one after the other is answered. api.cpp has clusters; who may do what,
// and what the portal needs beside them, is in people/api_people.cpp and people/api_login.cpp.
#pragma once

#include "control/access/role.hpp"
#include "control/cluster/placement.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/people/event_log.hpp"
#include "control/daemon/people/login_ways.hpp"
#include "control/daemon/people/people.hpp"
#include "control/daemon/reconciler.hpp"
#include "control/daemon/state_folder.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::daemon {

class peers;
struct peer_place;

struct api_request {
    std::string method, target;
    std::string if_match; // the revision that the client has seen; "": whichever it is
    std::string body;
    access::caller who = {};
    bool websocket = false; // it wants to become one
    std::string cookies = {};
    bool is_of_a_peer = false; // another host's daemon passes it on: this one answers it itself
};

struct api_answer {
    unsigned status = 200;
    nlohmann::json body;
    std::string revision = {};             // for ETag; "": none
    access::caller is = {};                // who has logged in with this request
    std::vector<std::string> cookies = {}; // for Set-Cookie
    std::string location = {};             // of another page; "": none
    std::chrono::milliseconds hold{0};     // how long it is kept back
};

api_answer refuse(unsigned status, std::string why);
// Of an If-Match header: "\"5\"" and "5" are the revision 5; "*" is any.
std::string revision_of(std::string_view if_match);
// The cluster's declaration in the body; nothing: `wrong` says why not.
std::optional<cluster::declaration> declared_in(const api_request& request, api_answer& wrong);

class api {
public:
    // Opens the portal, or says where it is: its answer, or a sentence.
    using portal_opener = std::function<nlohmann::json(const nlohmann::json& wanted, std::string& error)>;

    // All of them outlive it.
    api(const etcd_process& etcd, reconciler& work, const state_folder& folder, event_log& events);

    api_answer answer(const api_request& request);
    // Who a request over the network is from; under the same lock.
    access::admission admit(const access::knock& at);
    bool is_alive(const access::caller& who);
    // The daemon's own user at its Unix socket.
    static access::caller local_caller();
    // Before the portal is opened.
    void set_login_ways(login_ways ways) { ways_ = std::move(ways); }
    void set_portal(portal_opener open) { open_portal_ = std::move(open); }
    // Of several hosts: it outlives all answers.
    void set_peers(peers* others) { peers_ = others; }
    // Where a node's VM runs, if that is another host. Any thread.
    static std::optional<peer_place> place_of(const reconciler& work, const std::string& name,
                                              unsigned number);

    // What pages show of a cluster and of the host. Any thread; without etcd.
    nlohmann::json describe(const cluster_record& record, bool whole) const;
    nlohmann::json describe_host() const;
    nlohmann::json describe_hosts() const;

    // METHOD and path, with {name} and {node}: what docs/openapi.json must have.
    static std::vector<std::pair<std::string, std::string>> routes();

private:
    struct place { // of a request: what the path names
        std::string name, node, account;
    };
    using handler = api_answer (api::*)(const api_request& request, const place& at);
    struct route {
        const char* method;
        const char* path;
        access::role least; // who may
        handler handle;
        bool is_local = false; // at the Unix socket alone
    };
    static const std::vector<route>& table();
    api_answer answer_route(const route& one, const api_request& request, const place& at);

    api_answer get_host(const api_request& request, const place& at);
    api_answer get_hosts(const api_request& request, const place& at);
    api_answer list(const api_request& request, const place& at);
    api_answer create(const api_request& request, const place& at);
    api_answer show(const api_request& request, const place& at);
    api_answer change(const api_request& request, const place& at);
    api_answer scale(const api_request& request, const place& at);
    api_answer start(const api_request& request, const place& at);
    api_answer stop(const api_request& request, const place& at);
    api_answer remove(const api_request& request, const place& at);
    api_answer agent(const api_request& request, const place& at);
    api_answer ssh(const api_request& request, const place& at);
    api_answer plan(const api_request& request, const place& at);
    api_answer live(const api_request& request, const place& at);
    api_answer console(const api_request& request, const place& at);
    api_answer switch_over(const api_request& request, const place& at);
    api_answer log(const api_request& request, const place& at);
    api_answer drill(const api_request& request, const place& at);
    api_answer events(const api_request& request, const place& at);
    api_answer audit(const api_request& request, const place& at);
    api_answer portal(const api_request& request, const place& at);
    api_answer who_am_i(const api_request& request, const place& at);
    api_answer log_in(const api_request& request, const place& at);
    api_answer log_out(const api_request& request, const place& at);
    api_answer ways_to_log_in(const api_request& request, const place& at);
    api_answer begin_oidc(const api_request& request, const place& at);
    api_answer finish_oidc(const api_request& request, const place& at);
    api_answer list_accounts(const api_request& request, const place& at);
    api_answer put_user(const api_request& request, const place& at);
    api_answer delete_user(const api_request& request, const place& at);
    api_answer put_token(const api_request& request, const place& at);
    api_answer delete_token(const api_request& request, const place& at);

    api_answer let_in(const api_request& request, const std::string& user, access::role may);
    api_answer log_in_by_password(const api_request& request, const std::string& user,
                                  const std::string& password);
    api_answer unreachable() const;
    // All records, read at most so long ago; nothing: etcd can't be reached. What this API wrote is in them.
    const std::vector<cluster_record>* recent();
    struct named_node {
        unsigned number = 0;
        cluster::node_report report;
    };
    // What the reconciler last saw of it; nothing: it has seen none.
    std::optional<named_node> seen_node(const place& at) const;
    // The same of one that is declared, or what is wrong.
    std::optional<named_node> declared_node(const api_request& request, const place& at, api_answer& wrong);
    std::optional<api_answer> answer_of_its_host(const api_request& request, const place& at,
                                                 unsigned number);
    api_answer ask_primary(const api_request& request, const place& at, const char* command);
    api_answer pass_on(const api_request& request, const peer_place& to);
    api_answer change_accounts(const std::function<bool(access::accounts&, std::string&)>& edit,
                               nlohmann::json answer);
    // The record, or what is wrong: it is not there, or another revision than the client's.
    std::optional<cluster_record> found(const api_request& request, const std::string& name,
                                        api_answer& wrong);
    api_answer store(cluster_record record, unsigned status);
    // As found(), and nothing with a refusal for one that is being deleted.
    std::optional<cluster_record> changeable(const api_request& request, const std::string& name,
                                             api_answer& wrong);
    // What is to run must fit; what is to stop always does.
    api_answer store_if_it_fits(cluster_record record, unsigned status);
    struct free_and_placed {
        cluster::resources free; // of all hosts, beside the others
        cluster::assignment places;
    };
    // "" or why there is no room. `afterwards`: as it would be.
    std::string why_no_room(const cluster_record& wanted, bool& reached,
                            free_and_placed* afterwards = nullptr);

    std::mutex mutex_;
    cluster_store store_;
    reconciler& work_;
    const state_folder& folder_;
    event_log& events_;
    people people_;
    login_ways ways_;
    portal_opener open_portal_;
    peers* peers_ = nullptr;
    std::optional<std::vector<cluster_record>> recent_;
    std::chrono::steady_clock::time_point recent_at_{};
};

// {"a": "hosta", "b": "hostb"}: which host has which slot of a node.
nlohmann::json hosts_of(const reconciler::fleet_view& fleet, const std::string& name, unsigned number);

// Of this machine: its processors eight times, nine tenths of its memory, all of a GPU.
cluster::resources offers_of_this_host();

} // namespace kagemusha::control::daemon
