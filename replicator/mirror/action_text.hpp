// SPDX-License-Identifier: GPL-2.0-or-later
// action_text: messages and actions as one line each, for traces, scenarios and tests. Pure.
#ifndef KAGEMUSHA_MIRROR_ACTION_TEXT_HPP
#define KAGEMUSHA_MIRROR_ACTION_TEXT_HPP

#include <string>

#include "mirror/primary_fsm.hpp"
#include "mirror/standby_fsm.hpp"

namespace kagemusha::mirror {

const char* name_of(primary_state s);
const char* name_of(standby_state s);
const char* name_of(entry_kind k);
const char* name_of(supervision_kind k);

std::string to_text(const message& m);
std::string to_text(const primary_action& a);
std::string to_text(const standby_action& a);

} // namespace kagemusha::mirror

#endif
