// SPDX-License-Identifier: GPL-2.0-or-later
//
// See task.hpp.
#include "control/demo/task.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <vector>

namespace kagemusha::control {

double word_set::size() const {
    return std::pow(26.0, letters - 1) * endings;
}

std::string word_set::name() const {
    return fmt::format("words-{}-{}", letters, endings);
}

std::string word_set::mask() const {
    std::string mask;
    for (unsigned i = 1; i < letters; ++i)
        mask += "?l";
    return mask + "?1";
}

std::string word_set::ending_letters() const {
    std::string out;
    for (unsigned i = 0; i < endings; ++i)
        out += static_cast<char>('a' + i);
    return out;
}

std::string word_set::describe() const {
    return endings == 26 ? fmt::format("words of {} letters", letters)
                         : fmt::format("words of {} letters, the last one of a to {}", letters,
                                       static_cast<char>('a' + endings - 1));
}

std::span<const word_set> word_sets() {
    static constexpr std::array<word_set, 13> sets{{{6, 3},
                                                    {6, 9},
                                                    {6, 26},
                                                    {7, 2},
                                                    {7, 6},
                                                    {7, 18},
                                                    {8, 2},
                                                    {8, 6},
                                                    {8, 18},
                                                    {9, 2},
                                                    {9, 6},
                                                    {9, 18},
                                                    {9, 26}}};
    return sets;
}

std::string random_word(const word_set& of) {
    std::random_device random;
    std::uniform_int_distribution<int> letter('a', 'z'), ending('a', 'a' + static_cast<int>(of.endings) - 1);
    std::string word;
    for (unsigned i = 1; i < of.letters; ++i)
        word += static_cast<char>(letter(random));
    return word + static_cast<char>(ending(random));
}

std::optional<std::set<std::string>> hidden_words(unsigned count, const word_set& of) {
    std::set<std::string> words;
    while (words.size() < count)
        words.insert(random_word(of));
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
        fmt::print(stderr, "kage: md5sum does not run\n");
        return std::nullopt;
    }
    return out;
}

} // namespace kagemusha::control
