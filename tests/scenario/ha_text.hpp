// SPDX-License-Identifier: GPL-2.0-or-later
// ha_text: what the supervisors' state machines decide, and what the arbiter is asked and answers, as one
// line each, in the words of docs/spec/takeover.md.
#pragma once

#include <string>

#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"

namespace kagemusha::scenario {

std::string to_text(const ha::arbiter_request& q);
std::string answer_text(const ha::arbiter_request& q, const ha::arbiter_answer& a);
std::string to_text(const ha::primary_action& a);
std::string to_text(const ha::standby_action& a);
std::string quoted(const std::string& text); // with a space before it; empty: nothing

} // namespace kagemusha::scenario
