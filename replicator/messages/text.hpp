// SPDX-License-Identifier: GPL-2.0-or-later
// text: names and sentences that cross between hosts and end in logs and on terminals. On the wire they are
// UTF-8 without control characters; so who shows one has nothing to escape.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "mirror/log/limits.hpp"

namespace kagemusha::messages {

// At most so many bytes of UTF-8 without control characters (U+0000–001F, U+007F–009F).
bool is_text(std::string_view s, std::size_t most_bytes = mirror::max_text_bytes);

// What remains of `s` as such a text: cut between two characters, and '?' for each byte that may not be in
// it.
std::string as_text(std::string_view s, std::size_t most_bytes = mirror::max_text_bytes);

} // namespace kagemusha::messages
