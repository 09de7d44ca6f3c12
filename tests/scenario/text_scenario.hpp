// SPDX-License-Identifier: GPL-2.0-or-later
// text_scenario: what the scenario programs share: the text format (README.md), its golden output, and their
// main().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kagemusha::scenario {

// A command's words; those with a '=' are named.
struct arguments {
    std::vector<std::string> words;
    std::map<std::string, std::string> named;

    explicit arguments(const std::string& line);
    bool has(const std::string& word) const;
    std::string word(std::size_t i) const { return i < words.size() ? words[i] : std::string(); }
    std::string rest(std::size_t from) const; // with a space between them
    std::uint64_t number(std::size_t i) const;
    std::uint64_t number(const std::string& name, std::uint64_t otherwise) const;
    std::int32_t result(std::size_t i) const;
    std::vector<std::uint64_t> numbers(std::size_t from) const;
};

class player {
public:
    virtual ~player() = default;
    // What the command causes, in lines; empty: nothing.
    virtual std::string execute(const std::string& command) = 0;
};

// Plays each file of the command line with a player of its own. --rewrite writes the golden output anew.
int play_files(int argc, char** argv, const std::function<std::unique_ptr<player>()>& make);

} // namespace kagemusha::scenario
