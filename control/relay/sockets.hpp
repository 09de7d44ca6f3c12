// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a relay needs of sockets: of the supervisor, which makes the listeners, and of the process that
// relays.
#pragma once

#include "control/base/process.hpp"

#include <optional>
#include <string>

namespace kagemusha::control {

// Nothing and a sentence. A Unix socket is `owner`'s, else ours, and nobody else's.
unique_fd listen_at(const std::string& address, std::optional<std::uint32_t> owner, std::string& error);

// To "HOST:PORT", within the time and while whoever is at the other end of `beside` is there. Not blocking.
unique_fd connect_tcp(const std::string& address, int time_ms, int beside, std::string& error);

void set_blocking(int fd);
void no_delay(int fd);

} // namespace kagemusha::control
