// SPDX-License-Identifier: GPL-2.0-or-later
// message_text: messages, and what both state machines ask of the link, as one line each. For traces,
// scenarios and tests. Pure.
#pragma once

#include <string>

#include "mirror/protocol/link_actions.hpp"

namespace kagemusha::mirror {

const char* name_of(entry_kind k);
const char* name_of(supervision_kind k);

std::string to_text(const message& m);
std::string to_text(const act_send& a);
std::string to_text(const act_close_link& a);
// "state NAME", and the reason behind it where there is one.
std::string state_text(const char* name, const std::string& why);

} // namespace kagemusha::mirror
