// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter in an etcd cluster, through its JSON gateway (HTTP) with libcurl: a request is a round trip
// then, and not a process of etcdctl's (tens of ms of a core, ten times a second).
//
//   /kagemusha/VM/state    "TERM paired|alone OWNER": stays
//   /kagemusha/VM/holder   "OWNER", bound to the holder's etcd lease: goes with it
//
// Each change is one transaction that names the revision of the state that was read (and, for a claim without
// proof, that there is no holder). An etcd lease never ends before its time to live has passed since the
// server got the last keepalive, so the supervisor counts it from before it sent that.
#pragma once

#include "control/arbiter/worker_arbiter.hpp"

#include <nlohmann/json.hpp>

#include <optional>

namespace kagemusha::control {

class etcd_arbiter final : public worker_arbiter {
public:
    etcd_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                 arbiter_answers answer);
    ~etcd_arbiter() override;

private:
    struct state {
        std::uint64_t term = 0;
        bool paired = false;
        std::string owner;
        std::string revision = "0"; // of the key; "0": it is not there
        std::string holder;         // "": nobody has a lease
    };
    ha::arbiter_answer decide(const ha::arbiter_request& request) override;
    ha::arbiter_answer change(const ha::arbiter_request& request);
    ha::arbiter_answer renew(const ha::arbiter_request& request);
    std::optional<state> read();
    bool have_lease();
    bool put(const state& old, std::uint64_t term, bool paired, bool nobody_holds, bool& done);
    std::optional<nlohmann::json> post(const char* path, const nlohmann::json& body);
    std::optional<nlohmann::json> post_to(const std::string& endpoint, const char* path,
                                          const std::string& body);

    described_arbiter described_;
    arbiter_identity identity_;
    std::string state_key_, holder_key_; // in base64
    void* curl_ = nullptr;
    std::string lease_; // etcd's number of ours; "": none
    std::uint64_t lease_until_ms_ = 0;
    std::string problem_; // of the last post()
};

} // namespace kagemusha::control
