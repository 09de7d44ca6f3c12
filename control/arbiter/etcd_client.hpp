// SPDX-License-Identifier: GPL-2.0-or-later
//
// Requests to an etcd cluster's JSON gateway (HTTP), with libcurl: a request is a round trip then, and not a
// process of etcdctl's (tens of ms of a core, ten times a second).
//
// The member that answered last is asked first, and the others while it does not answer (endpoint_race), so a
// request may reach etcd twice. That changes nothing: a transaction names the revision that it expects, and a
// second lease runs out unused.
//
// One thread uses it. All calls of one ask() are under way at once, and are over within a third of a lease.
#pragma once

#include "control/vm/description.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

class etcd_client {
public:
    struct call {
        const char* path;
        nlohmann::json body;
    };
    using answer = std::optional<nlohmann::json>; // nothing: no member gave one that can be used

    static constexpr std::size_t usual_answer = 65536;
    // An answer longer than that is none.
    explicit etcd_client(const described_arbiter& described, std::size_t longest_answer = usual_answer);
    ~etcd_client();
    etcd_client(const etcd_client&) = delete;
    etcd_client& operator=(const etcd_client&) = delete;

    answer ask(const char* path, const nlohmann::json& body);
    std::vector<answer> ask(const std::vector<call>& calls);
    const std::string& problem() const { return problem_; } // of the last call without an answer: a sentence

private:
    struct transfer;
    std::vector<answer> race(const std::vector<call>& calls);
    void* begin(transfer& t, std::uint64_t limit_ms);
    answer read(const transfer& t, int code);
    bool log_in();

    const described_arbiter described_;
    const std::size_t longest_answer_;
    void* multi_ = nullptr;
    std::size_t first_ = 0;    // the member that answered last
    std::string token_;        // of the user; "": none yet, or none is needed
    bool needs_login_ = false; // a member refused the token
    std::string problem_;
};

} // namespace kagemusha::control
