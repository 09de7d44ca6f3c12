// SPDX-License-Identifier: GPL-2.0-or-later
//
// A supervisor's own socket: one JSON object as a line in, one as a line out, then it is closed.
//
//   {"command": "status"}                     → the status
//   {"command": "protect", "standby": "…"}    → {"done": true} or {"error": "a sentence"}
//   {"command": "switchover"}, {"command": "cancel-switchover"}
//   {"command": "drill"}                      → its times, when it is over
//   {"command": "stop"}
//
// The socket is in a directory that only this user can enter.
#pragma once

#include "control/base/process.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <list>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

namespace kagemusha::control {

// The server's side: part of a poll() loop.
class control_socket {
public:
    // Null: the answer comes later, with answer_waiting().
    using handler = std::function<nlohmann::json(const nlohmann::json& request)>;
    static std::optional<control_socket> listen(const std::string& path, handler answer, std::string& error);

    void add_to(std::vector<pollfd>& fds) const; // appends its descriptors
    void handle(const std::vector<pollfd>& fds);
    void answer_waiting(const nlohmann::json& answer); // to everybody who still has none

private:
    struct client {
        unique_fd fd;
        std::string line;
    };
    control_socket(unique_fd listener, handler answer)
        : listener_(std::move(listener)), answer_(std::move(answer)) {}
    bool serve(client& c); // false: it is over
    unique_fd listener_;
    handler answer_;
    std::list<client> clients_;
    std::list<unique_fd> waiting_; // at most most_clients: the oldest ones are given up
};

// The other side. Nothing and a sentence in `error` when nobody answers in time, or with one.
std::optional<nlohmann::json> ask_supervisor(const std::string& path, const nlohmann::json& request,
                                             std::string& error, int answer_ms = 5000);

} // namespace kagemusha::control
