// SPDX-License-Identifier: GPL-2.0-or-later
// build: links modules and makes them a program: names become slots and addresses, instructions are checked.
#pragma once

#include "program.hpp"

#include "ptx-device/ptx/refusal.hpp"
#include "ptx-device/ptx/syntax.hpp"

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace kagemusha::machine {

// Gives memory of the device to a variable; 0: there is none. It is zero, and lives as long as the program.
// build() writes the variables' content there.
using placer = std::function<std::uint64_t(std::uint64_t bytes, std::uint64_t align)>;

ptx::result<program> build(std::span<const ptx::module> modules, const placer& place);

// The opcodes that build() takes, for documents and tests.
std::vector<std::string_view> opcodes();

} // namespace kagemusha::machine
