// SPDX-License-Identifier: GPL-2.0-or-later
//
// A request and its reply, without a transport: what control/portal's server reads of HTTP, and what whoever
// answers gives back.
#pragma once

#include "control/access/role.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control::portal {

struct request {
    std::string method, target, body;
    std::string from; // the other end's address
    bool websocket = false;
    // Headers; "" if there is none.
    std::string if_match, if_none_match, cookies, authorization, origin, host, csrf, content_type;
};

struct reply {
    unsigned status = 200;
    std::string type = "application/json", body = {};
    std::vector<std::pair<std::string, std::string>> headers = {};
    std::chrono::milliseconds hold{0}; // how long it is kept back: a refusal whose time shall say nothing
};

// What a WebSocket is for, once it was let in.
struct opening {
    enum class kind { refused, live, console } what = kind::refused;
    reply refusal = {};
    access::caller who = {};
    std::string socket = {}, secret = {}; // console: of the node's agent
};

// Those without another word are called on the server's second thread, one after the other, and may wait for etcd.
struct handlers {
    std::function<reply(const request&)> answer;
    std::function<opening(const request&)> open;
    std::function<bool(const access::caller&)> is_alive; // its session, or its token, still counts
    // Answering it may take seconds: then `answer` is called on a thread of its own, beside others. On the thread of
    // the sockets, so it does not wait.
    std::function<bool(const request&)> is_login;
};

} // namespace kagemusha::control::portal
