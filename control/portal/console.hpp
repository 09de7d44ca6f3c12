// SPDX-License-Identifier: GPL-2.0-or-later
//
// A terminal in a node, over a WebSocket: what its page sends, as frames of the node's agent (lan/frames.hpp),
// and back. Pure; server.cpp has the sockets.
//
// The page's messages: text {"columns": 80, "rows": 24} when its size changes, and first of all; binary: input.
// Ours: binary: output; text {"exit": 0} or {"error": "…"}, the last one.
#pragma once

#include "control/lan/frames.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::portal {

inline constexpr std::size_t longest_console_message = 16 << 10;

// The whole greeting of an agent for a shell in a terminal of this size; nothing: that is no size.
std::optional<std::string> console_greeting(const std::string& secret, std::string_view size_message);
// Of a later message; nothing: it makes no sense, and the console ends.
std::optional<std::string> console_frames(std::string_view message, bool is_text);

struct console_output {
    std::string binary; // to the page
    std::string last;   // "": it goes on; else the last message
};
console_output console_text(const lan::exec_reader::frame& frame);

} // namespace kagemusha::control::portal
