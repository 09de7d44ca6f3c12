// SPDX-License-Identifier: GPL-2.0-or-later
// primary_text: what replication_primary_fsm decided, as one line each. For traces, scenarios and tests.
// Pure.
#pragma once

#include <string>

#include "mirror/primary/replication_primary_fsm.hpp"

namespace kagemusha::mirror {

const char* name_of(primary_state s);
std::string to_text(const primary_action& a);
std::string sentence(const act_lagging& a); // for people

} // namespace kagemusha::mirror
