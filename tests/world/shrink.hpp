// SPDX-License-Identifier: GPL-2.0-or-later
// A failing schedule, made smaller: faults are dropped, and made shorter, while it still fails in the same
// way.
#pragma once

#include <string>

#include "world/options.hpp"

namespace kagemusha::world {

// The checker's name: a failure's text up to the colon.
std::string checker_of(const std::string& failure);
options shrunk(options o, const std::string& failure);

} // namespace kagemusha::world
