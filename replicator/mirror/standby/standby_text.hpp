// SPDX-License-Identifier: GPL-2.0-or-later
// standby_text: what replication_standby_fsm decided, as one line each. For traces, scenarios and tests.
// Pure.
#pragma once

#include <string>

#include "mirror/standby/replication_standby_fsm.hpp"

namespace kagemusha::mirror {

const char* name_of(standby_state s);
std::string to_text(const standby_action& a);

} // namespace kagemusha::mirror
