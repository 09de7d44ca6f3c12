// SPDX-License-Identifier: GPL-2.0-or-later
// clients: the sockets of a loop's clients. Thin: non-blocking reads and writes, bounded.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "loop/core/framer.hpp"
#include "loop/core/mailbox.hpp"

namespace kagemusha::loop {

class clients {
public:
    // `report`: an event for the client's lane.
    using reporter = std::function<void(std::uint32_t lane, event)>;
    // `is_busy`: nothing is read for this lane now.
    using asker = std::function<bool(std::uint32_t lane)>;

    clients(int listener, bool lines, std::uint32_t lanes, reporter report, asker is_busy);
    ~clients();
    clients(const clients&) = delete;
    clients& operator=(const clients&) = delete;

    // What to poll for, and what came of it: serve() takes the same entries.
    void wants(std::vector<pollfd>& to);
    void serve(std::span<const pollfd> ready);

    // Of the device loop. To a client that is gone: nothing, but what was to be answered is.
    void send(std::uint32_t lane, const request& one);
    void close_when_sent(std::uint32_t id);

    std::uint64_t accepted = 0, bytes_in = 0, bytes_out = 0;

private:
    struct notice {
        std::uint32_t lane;
        std::uint64_t cookie;
    };
    struct client {
        int socket;
        std::uint32_t lane;
        framer in;
        std::vector<std::byte> out;  // at most max_send_bytes
        std::vector<notice> notices; // sent when `out` is short again
        bool closing = false, ended = false;
    };

    void accept_all();
    void read_from(std::uint32_t id, client& one);
    void hand_on(std::uint32_t id, client& one);
    bool write_to(std::uint32_t id, client& one); // false: it is gone
    void drop(std::uint32_t id);

    const int listener_;
    const bool lines_;
    const std::uint32_t lanes_;
    const reporter report_;
    const asker is_busy_;
    std::map<std::uint32_t, client> all_; // at most max_clients
    std::uint32_t next_id_ = 1;           // one that was used does not come again soon
};

} // namespace kagemusha::loop
