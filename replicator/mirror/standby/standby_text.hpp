// SPDX-License-Identifier: GPL-2.0-or-later
// standby_text: what replication_standby_fsm decided, as one line each, for traces, scenarios and tests; and its
// sentence about a call that failed. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "mirror/standby/replication_standby_fsm.hpp"

namespace kagemusha::mirror {

const char* name_of(standby_state s);
std::string to_text(const standby_action& a);

// A call that the primary has made and this side can't, and what a person can do about it.
std::string failed_here_alone(log_sequence entry, std::uint32_t file, std::int32_t result);

} // namespace kagemusha::mirror
