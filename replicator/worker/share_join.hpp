// SPDX-License-Identifier: GPL-2.0-or-later
// share_join: how a client gets to the share arbiter of a GPU (kagemusha-gpu): the connection and the first
// two packets. A worker can't connect once it is in its sandbox, so its device does it before, and hands it
// the socket and the page with its setup.
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "proto/share/share_protocol.h"

namespace kagemusha::worker {

struct joined_share {
    unique_fd socket, page; // page: of a session
    share_answer answer{};
    std::string refusal; // a sentence; "": it has joined
};

// Waits for the arbiter's answer for a second at most.
joined_share join_share(const std::string& socket, const share_hello& hello);

// What a supervisor says in the environment of its QEMU about the VM's share: see share_variable.
inline constexpr char share_variable[] = "KAGEMUSHA_SHARE";
// "SOCKET VM SHARE CAP PRIORITY MEMORY STANDBY", shares in permille, memory in bytes, STANDBY 0 or 1.
std::string share_text(const std::string& socket, const share_hello& hello);
bool parse_share_text(std::string_view text, std::string& socket, share_hello& hello);

} // namespace kagemusha::worker
