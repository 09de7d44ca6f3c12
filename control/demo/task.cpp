// SPDX-License-Identifier: GPL-2.0-or-later
//
// See task.hpp.
#include "control/demo/task.hpp"

#include "control/process.hpp"

#include <fmt/format.h>

#include <random>
#include <sstream>
#include <vector>

namespace kagemusha::control {

std::string random_word(unsigned letters) {
    std::random_device random;
    std::uniform_int_distribution<int> letter('a', 'z');
    std::string word;
    for (unsigned i = 0; i < letters; ++i)
        word += static_cast<char>(letter(random));
    return word;
}

std::optional<std::set<std::string>> hidden_words(unsigned count, unsigned letters) {
    std::set<std::string> words;
    while (words.size() < count)
        words.insert(random_word(letters));
    std::vector<std::string> command{"sh", "-c", "for word; do printf %s \"$word\" | md5sum; done", "sh"};
    command.insert(command.end(), words.begin(), words.end());
    const auto sums = run_captured(command);
    std::istringstream lines(sums.out);
    std::set<std::string> out;
    for (const auto& word : words) {
        std::string line;
        if (!std::getline(lines, line) || line.size() < 32)
            break;
        out.insert(line.substr(0, 32) + ":" + word);
    }
    if (sums.status != 0 || out.size() != count) {
        fmt::print(stderr, "kagemusha: md5sum does not run\n");
        return std::nullopt;
    }
    return out;
}

} // namespace kagemusha::control
