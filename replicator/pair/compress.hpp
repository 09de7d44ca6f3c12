// SPDX-License-Identifier: GPL-2.0-or-later
// compress: content on the wire, for links that are slower than a CPU.
#pragma once

#include <cstddef>
#include <span>

#include "pair/op_log.hpp"

namespace kagemusha::pair {

// Of a `content` message: replaces its bytes if that saves an eighth at least.
void compress(outgoing& o);

// False: not what compress() makes of exactly `to.size()` bytes.
bool decompress(std::span<const std::byte> from, std::span<std::byte> to);

} // namespace kagemusha::pair
