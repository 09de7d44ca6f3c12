// SPDX-License-Identifier: GPL-2.0-or-later
//
// HTTP/1.1 at a Unix socket (Boost.Beast): requests of bounded size within bounded time, from a bounded number
// of connections; what they ask, api.hpp answers, on a thread of its own, one after the other.
#pragma once

#include "control/daemon/api.hpp"

#include <functional>
#include <memory>
#include <string>

namespace kagemusha::control::daemon {

struct http_limits {
    static constexpr std::size_t body_bytes = cluster::longest_declaration, header_bytes = 8192;
    static constexpr int request_s = 10; // until a request is there as a whole, and until its answer is taken
    static constexpr std::size_t connections = 64;
};

class http_server {
public:
    using handler = std::function<api_answer(const api_request&)>;

    // Null and a sentence in `error`. A socket of an earlier daemon is replaced.
    static std::unique_ptr<http_server> listen(const std::string& path, handler answer, std::string& error);
    ~http_server(); // ends all connections

    http_server(const http_server&) = delete;
    http_server& operator=(const http_server&) = delete;

private:
    struct impl;
    explicit http_server(std::unique_ptr<impl> own);
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::control::daemon
