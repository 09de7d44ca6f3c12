// SPDX-License-Identifier: GPL-2.0-or-later
// The end of a program's log: why it ended, said by itself. A failed assertion is told nowhere else.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

namespace kagemusha::control {

// The last lines of a file, at most so many, without what ends them (also that of a serial console). Empty
// where there is no file.
std::deque<std::string> last_lines(const std::string& path, std::size_t most_lines);

} // namespace kagemusha::control
