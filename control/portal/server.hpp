// SPDX-License-Identifier: GPL-2.0-or-later
//
// The portal's transport: HTTP/1.1 and WebSockets over TLS 1.3 and 1.2 at one TCP address (Boost.Beast). What is
// asked, the handlers answer; what open pages show, live_feed has. Everything that somebody outside can make it
// keep is bounded: connections, those of one address, bytes and seconds of a request, WebSockets, their
// messages.
//
// Threads: one has all sockets, one calls the handlers, and some answer logins, which may take seconds.
#pragma once

#include "control/portal/exchange.hpp"
#include "control/portal/live_feed.hpp"

#include <functional>
#include <memory>
#include <string>

namespace kagemusha::control::portal {

struct server_limits {
    static constexpr std::size_t body_bytes = 64 << 10, header_bytes = 16 << 10;
    static constexpr int request_s = 10; // a handshake, a request, the taking of its answer
    static constexpr int idle_s = 30;    // between two requests
    static constexpr std::size_t connections = 512, of_one_address = 128;
    static constexpr std::size_t websockets = 128;
    static constexpr std::size_t login_threads = 4, logins = 32; // that wait for PAM or a provider
    static constexpr std::size_t page_message = 1024;            // from a live page, which has little to say
    static constexpr std::size_t page_messages = 1000;           // then it is hung up on
    static constexpr std::size_t live_bytes = 256 << 10;         // of one message to a page
    static constexpr int look_s = 10;                            // whether a WebSocket's session still counts
};

struct server_address {
    std::string address = "127.0.0.1";
    std::uint16_t port = 7443; // 0: one that is free
};

class server {
public:
    // Null and a sentence in `error`. `certificate`, `key`: paths, PEM. `pages_open`: how many live pages there are
    // now, called on the thread of the sockets whenever that changes.
    static std::unique_ptr<server> listen(const server_address& at, const std::string& certificate,
                                          const std::string& key, handlers answer,
                                          std::function<void(std::size_t)> pages_open, std::string& error);
    ~server(); // ends all connections
    server(const server&) = delete;
    server& operator=(const server&) = delete;

    std::uint16_t port() const;
    // On the thread of the sockets; then pages get what is new. May be called by any thread.
    void change_feed(std::function<void(live_feed&)> change);

private:
    struct impl;
    explicit server(std::unique_ptr<impl> own);
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::control::portal
