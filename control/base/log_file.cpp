// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/log_file.hpp"

#include <fstream>

namespace kagemusha::control {

std::deque<std::string> last_lines(const std::string& path, std::size_t most_lines) {
    std::ifstream file(path);
    std::deque<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        if (!line.empty() && line.back() == '\r')
            line.pop_back();
        lines.push_back(line);
        if (lines.size() > most_lines)
            lines.pop_front();
    }
    return lines;
}

} // namespace kagemusha::control
