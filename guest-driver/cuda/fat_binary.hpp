// SPDX-License-Identifier: GPL-2.0-or-later
//
// What is in a fat binary: images for several GPUs, packed or not. Pure; its lengths are not believed.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kagemusha::cuda {

// The names of the variables of those members that a GPU of this architecture (90 is 9.0) may be given: machine
// code of its generation, else PTX. Nothing: it has none that are understood, so what they have is not known.
std::optional<std::vector<std::string>> variables_in_fat_binary(std::span<const std::byte> image,
                                                                unsigned architecture);

} // namespace kagemusha::cuda
