// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the guest of the demo is asked: words are chosen at random, and only their MD5s go into the guest. So
// its answer can be neither canned nor known to it.
#pragma once

#include <optional>
#include <set>
#include <string>

namespace kagemusha::control {

std::string random_word(unsigned letters);

// HASH:WORD of `count` different words. The hashes are made by coreutils' md5sum: the check shares no code
// with what it checks. Nothing: md5sum does not run, which was said.
std::optional<std::set<std::string>> hidden_words(unsigned count, unsigned letters);

} // namespace kagemusha::control
