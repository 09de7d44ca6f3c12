// SPDX-License-Identifier: GPL-2.0-or-later
//
// The links from a cluster's switch on this host to its switches on other hosts: TCP with mutual TLS 1.3, with keys
// of the cluster's own CA, and in it Ethernet frames as QEMU streams them (frames.hpp). Of two hosts the one with
// the smaller name connects. A link that breaks is made again; frames are lost meanwhile, as on a cable.
//
// Part of a poll() loop, one thread. The other end is as trusted as a host: its nodes may be hostile, so lengths
// are checked, and what is not sent yet is bounded.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::lan {

struct trunk_peer {
    std::string name, address;
    std::uint16_t port = 0;
};

struct trunk_configuration {
    std::string name, address, keys; // of this host; the keys: a folder with ca.pem, cert.pem, key.pem
    std::vector<trunk_peer> peers;
};
nlohmann::json to_json(const trunk_configuration& from);
std::optional<trunk_configuration> parse_trunks(const nlohmann::json& from);

class trunks {
public:
    static constexpr std::size_t most_links = 64, most_unsent_bytes = 4 << 20;
    static constexpr int begins_within_ms = 10'000, again_ms = 1000;

    struct handlers {
        std::function<std::uint32_t()> opened; // gives the link its number; 0: there are too many
        std::function<void(std::uint32_t link)> closed;
        std::function<void(std::uint32_t link, std::string_view frame)> frame;
    };
    explicit trunks(handlers on);
    ~trunks();
    trunks(const trunks&) = delete;
    trunks& operator=(const trunks&) = delete;

    // Links to hosts that are named no more are closed. "" or a sentence.
    std::string configure(const trunk_configuration& wanted);
    std::uint16_t port() const; // 0: it does not listen
    std::size_t open_links() const;

    bool send(std::uint32_t link, std::string_view frame); // false: it was dropped

    void add_to(std::vector<pollfd>& fds, int& timeout_ms);
    void handle(const std::vector<pollfd>& fds, bool failed); // those of the last add_to(), after poll()

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::control::lan
