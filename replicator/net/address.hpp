// SPDX-License-Identifier: GPL-2.0-or-later
// address: "HOST:PORT", "[V6]:PORT" or "unix:PATH" as text and in parts. Pure; names are not looked up here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kagemusha::net {

struct address {
    std::string host; // without brackets; empty for a Unix socket
    std::uint16_t port = 0;
    std::string path; // of a Unix socket

    bool is_unix() const { return host.empty(); }
    std::string text() const;
    friend bool operator==(const address&, const address&) = default;
};

// Nothing and a sentence in `error` when it is none of the three forms.
std::optional<address> parse_address(const std::string& text, std::string& error);

} // namespace kagemusha::net
