// SPDX-License-Identifier: GPL-2.0-or-later
//
// The links of a confined QEMU, as its supervisor has them: where QEMU finds its peers and they find it, and
// the process between them (relay.hpp).
//
// A folder of the supervisor's has the sockets that QEMU connects to; one of QEMU's user has those at which
// QEMU listens. The listeners are opened here, so that nobody is refused because the process is not there
// yet, and it is started again if it ends.
#pragma once

#include "control/base/process.hpp"
#include "control/relay/relay.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

// Addresses of a VM's state and of its GPU.
struct link_addresses {
    std::string state, gpu;
    bool operator==(const link_addresses&) const = default;
};

// As QEMU has them, in a folder that it sees. Pure.
link_addresses links_in(const std::string& folder);

class relayed_links {
public:
    struct config {
        std::string to_peers, of_qemu;     // folders
        std::optional<std::uint32_t> user; // QEMU's; nothing: ours
        bool gpu = false;
        std::string log;
    };
    // The folders are made. Nothing and a sentence.
    static std::optional<relayed_links> make(config c, std::string& error);

    // From now on, peers come from there. Empty, or a sentence.
    std::string listen(const link_addresses& at);
    // From now on QEMU's connections go there, and peers come no more.
    std::string aim(const link_addresses& at);

    int pidfd() const { return process_ ? process_->pidfd() : -1; } // readable when it has ended
    // How it ended. It is started anew, not more often than once a second.
    std::string ended();
    std::chrono::steady_clock::time_point deadline() const;
    void handle();

private:
    struct open_route {
        unique_fd listener;
        std::string to;
        std::optional<std::uint32_t> owner;
    };
    explicit relayed_links(config c) : config_(std::move(c)) {}
    using user = std::optional<std::uint32_t>;
    // Sockets of `from`, the listeners' owner, lead to `to`, whose sockets must have the other owner.
    std::string carry(const link_addresses& from, user listeners, const link_addresses& to, user targets);
    std::string start();

    config config_;
    link_addresses target_;
    std::vector<open_route> routes_;
    std::optional<child_process> process_;
    std::chrono::steady_clock::time_point started_at_{};
    bool wanted_ = false; // anew
};

} // namespace kagemusha::control
