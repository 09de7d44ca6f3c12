// SPDX-License-Identifier: GPL-2.0-or-later
//
// The portal of this daemon: its server once it was asked for, what requests over the network become for the
// API, and what open pages get. Where it listens is kept in the state folder, so that a daemon that starts
// again has its portal again.
#pragma once

#include "control/daemon/api.hpp"
#include "control/portal/server.hpp"
#include "control/portal/web_files.hpp"

#include <memory>
#include <mutex>
#include <string>

namespace kagemusha::control::daemon {

class portal_service {
public:
    // All of them outlive it.
    portal_service(api& answers, reconciler& work, event_log& events, const state_folder& folder);
    ~portal_service();
    portal_service(const portal_service&) = delete;
    portal_service& operator=(const portal_service&) = delete;

    // Where an earlier daemon had it; a sentence when it can't be there.
    std::string open_again();
    // {"listen": "127.0.0.1", "port": 7443} → {"address": "https://…", "fingerprint": "…"}. One that listens
    // there already, or with nothing named, is left as it is; one that listens elsewhere is closed.
    nlohmann::json open(const nlohmann::json& wanted, std::string& error);

private:
    portal::reply answer(const portal::request& request);
    portal::opening let_in(const portal::request& request);
    api_answer ask(const portal::request& request, access::caller* who = nullptr);
    void publish(const std::vector<cluster_record>& records);
    std::string listen(const portal::server_address& at);
    nlohmann::json where() const;

    api& api_;
    reconciler& work_;
    event_log& events_;
    const state_folder& folder_;
    std::mutex mutex_; // of what follows: asked to open, and by the reconciler to publish
    portal::web_files files_;
    portal::server_address at_;
    std::string fingerprint_;
    std::chrono::steady_clock::time_point gauges_at_{};
    std::unique_ptr<portal::server> server_;
};

} // namespace kagemusha::control::daemon
