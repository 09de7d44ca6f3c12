// SPDX-License-Identifier: GPL-2.0-or-later
// hello: the first packet of a connection, checked. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "proto/share/share_protocol.h"
#include "share/core/terms.hpp"

namespace kagemusha::share {

struct hello {
    share_role role = SHARE_ASKER;
    std::string vm;
    vm_terms terms;
    bool has_policy = false;
    policy_kind policy = policy_kind::fair;
    std::uint64_t gpu_memory_bytes = 0;
    bool asks_programs = false;
};

struct checked_hello {
    hello what;
    std::string refusal; // a sentence; "": it is valid
};
checked_hello check_hello(std::span<const std::byte> packet);

// A message of a session; nothing of another kind or length.
std::optional<share_message_kind> check_message(std::span<const std::byte> packet);

// Its own part of a packet, for who makes one.
bool put_name(char (&field)[SHARE_NAME_BYTES], std::string_view name);

} // namespace kagemusha::share
