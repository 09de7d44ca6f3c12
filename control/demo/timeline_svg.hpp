// SPDX-License-Identifier: GPL-2.0-or-later
//
// The picture of a takeover, as SVG: above, how far the program was on which host, in seconds; below, the
// moment of the kill in milliseconds. Pure.
#pragma once

#include "control/demo/story.hpp"

#include <string>

namespace kagemusha::control {

std::string timeline_svg(const demo_story& story);

} // namespace kagemusha::control
