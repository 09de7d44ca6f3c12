// SPDX-License-Identifier: GPL-2.0-or-later
//
// The names of a module's variables in global and constant memory. CUDA has no function that lists them, and
// whoever copies a GPU's state must know of all. Pure; what is not understood has no names.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kagemusha::cuda {

// Of PTX, or of a cubin (ELF), in the order in which they stand there; each once. Not those that are defined
// elsewhere.
std::vector<std::string> variables_in(std::span<const std::byte> image);

// Whose members may be compressed: fat_binary.hpp sees what variables they have.
bool is_fat_binary(std::span<const std::byte> image);

// What a compiler makes of a literal: never written, and most drivers give no address of it.
bool is_literal(const std::string& variable);

} // namespace kagemusha::cuda
