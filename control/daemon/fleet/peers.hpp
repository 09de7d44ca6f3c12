// SPDX-License-Identifier: GPL-2.0-or-later
//
// What one daemon asks of another one: requests of the API that are about a node whose VM runs there, and the way
// to that node's agent. Mutual TLS; only hosts that etcd knows are answered (peer_tls.hpp has the messages).
//
// Two threads: one has all sockets, the other one answers requests, which may wait for etcd. Everything that
// another host can make it keep is bounded: connections, bytes and seconds of a request.
#pragma once

#include "control/daemon/api.hpp"
#include "control/daemon/fleet/settings.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace kagemusha::control::daemon {

struct peer_place {
    std::string name, address; // of the host
    std::uint16_t port = 0;
};

class peers {
public:
    static constexpr std::size_t most_connections = 256, most_ways = 256;

    struct handlers {
        std::function<api_answer(const api_request&)> answer;           // of another host's
        std::function<bool(const std::string& host)> is_host;           // a certificate's name
        std::function<std::string(const std::string&, unsigned)> agent; // its Unix socket here
        // Where a node's VM runs now; nothing: here, or nowhere.
        std::function<std::optional<peer_place>(const std::string& cluster, unsigned node)> place;
    };
    // Null and a sentence. `folder`: for the Unix sockets of ways.
    static std::unique_ptr<peers> listen(const fleet_settings& own, const std::string& folder, handlers on,
                                         std::string& error);
    ~peers();
    peers(const peers&) = delete;
    peers& operator=(const peers&) = delete;

    // Any thread. Waits for the answer: not for long.
    api_answer ask(const peer_place& to, const api_request& request);
    // A Unix socket here that leads to the agent of a node there, wherever it runs when somebody connects. "" and
    // a sentence.
    std::string way_to(const std::string& cluster, unsigned node, std::string& error);

private:
    struct impl;
    explicit peers(std::unique_ptr<impl> own);
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::control::daemon
