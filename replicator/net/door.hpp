// SPDX-License-Identifier: GPL-2.0-or-later
// door: accepts connections and lets them prove who they are, on a thread of its own. What strangers cost is
// this thread's time: the loop with the heartbeats hears only of those who have proved it (M3 of
// docs/security/findings.md).
//
// Threads: `admitted` and `log` are called on the door's thread, at most until the destructor returns. All
// else is the thread's that made it.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "net/endpoint.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

// A connected socket; closed with its owner unless it was released.
class owned_socket {
public:
    owned_socket(int fd, stream_protocol protocol) : fd_(fd), protocol_(protocol) {}
    owned_socket(owned_socket&& other) noexcept : fd_(other.release()), protocol_(other.protocol_) {}
    owned_socket& operator=(owned_socket&&) = delete;
    ~owned_socket();
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }
    const stream_protocol& protocol() const { return protocol_; }

private:
    int fd_;
    stream_protocol protocol_;
};

struct free_ssl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using ssl_pointer = std::unique_ptr<SSL, free_ssl>;

// Whoever has come in.
struct admitted_peer {
    owned_socket socket;
    std::string from;                            // address
    std::shared_ptr<const tls_context> tls = {}; // of the handshake; null without TLS
    ssl_pointer ssl = {};                        // nothing that arrived is left in it
};

class door {
public:
    virtual ~door() = default;             // whoever is in the handshake is put out
    virtual std::string where() const = 0; // with the real port
};

// `keys`: the door's alone; null: no TLS. Null and a sentence in `error`.
std::unique_ptr<door> open_door(const address& at, const stream_endpoint& endpoint,
                                std::shared_ptr<tls_keys> keys, std::uint32_t handshake_timeout_ms,
                                std::function<void(admitted_peer)> admitted,
                                std::function<void(const std::string&)> log, std::string& error);

} // namespace kagemusha::net
