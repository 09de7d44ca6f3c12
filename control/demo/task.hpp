// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the guest of the demo is asked: words are chosen at random, and only their MD5s go into the guest. So
// its answer can be neither canned nor known to it.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>

namespace kagemusha::control {

// Words of so many small letters, the last one of the first `endings` of the alphabet. The end is what is cut
// short: hashcat makes the beginnings on the GPU.
struct word_set {
    unsigned letters = 6;
    unsigned endings = 26;

    double size() const;      // how many there are
    std::string name() const; // of its list of hashes
    std::string mask() const; // hashcat's, with ending_letters() as its charset 1
    std::string ending_letters() const;
    std::string describe() const; // "words of 6 letters"
    bool operator==(const word_set&) const = default;
};
// From the smallest on, each at most some three times as large as the one before it.
std::span<const word_set> word_sets();

std::string random_word(const word_set& of);

// HASH:WORD of `count` different words. The hashes are made by coreutils' md5sum: the check shares no code
// with what it checks. Nothing: md5sum does not run, which was said.
std::optional<std::set<std::string>> hidden_words(unsigned count, const word_set& of);

} // namespace kagemusha::control
