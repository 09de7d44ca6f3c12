// SPDX-License-Identifier: GPL-2.0-or-later
//
// Carries bytes between a confined QEMU and its peers. QEMU has a network of its own, in which nobody else
// is, and connects to Unix sockets in its root; a process of the supervisor's, this one, connects these to
// the addresses that the supervisor has named, and the other way round. It reads nothing of what it carries:
// TLS goes from QEMU to QEMU, which check each other's names.
//
// QEMU gets no TCP sockets instead: connect(2) with AF_UNSPEC takes one off its peer, a listening one too,
// and it can then be connected to any address of the network that it came from.
//
// Hostile are strangers who reach a port, and QEMU. Whoever floods a port keeps his own connections out
// (net/admission.hpp); of too many connections the one that has been silent for longest ends. Of what is
// in a folder of QEMU's only its own socket is connected to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct relay_route {
    int listener = -1; // open, under this number in the process that relays
    std::string to;    // "HOST:PORT" or "unix:PATH"
    // Of the Unix socket at `to`, which is in a folder of this user's. Nothing: `to` is as good as its name.
    std::optional<std::uint32_t> owner;
    bool operator==(const relay_route&) const = default;
};

// At the same time, of each route; each has two threads, and two pipes for what is under way.
inline constexpr std::size_t most_relayed = 32;

// Between the supervisor and the process that relays.
std::string to_text(const std::vector<relay_route>& routes);
std::optional<std::vector<relay_route>> parse_routes(const std::string& text);

// Of the process that relays; called by main(). It ends with who started it (process.hpp).
inline constexpr char relay_word[] = "--relay";
[[noreturn]] void relay_main(const char* routes);

} // namespace kagemusha::control
