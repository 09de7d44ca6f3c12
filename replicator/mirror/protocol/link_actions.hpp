// SPDX-License-Identifier: GPL-2.0-or-later
// What both state machines ask of the link.
#pragma once

#include <string>

#include "mirror/protocol/message.hpp"

namespace kagemusha::mirror {

struct act_send {
    message what;
}; // without bytes behind it

struct act_close_link {
    std::string why;
}; // what was handed to it is still sent (link::finish); on_closed does not follow

} // namespace kagemusha::mirror
