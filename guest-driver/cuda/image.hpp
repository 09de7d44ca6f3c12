// SPDX-License-Identifier: GPL-2.0-or-later
//
// The images that a program hands to cuModuleLoadData: text in PTX, an ELF file, or a fat binary with several
// of them. The program does not say how long they are. Here only the length is found; what is inside is the
// driver's on the host.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace kagemusha::cuda {

// The bytes of an image; none when it is of no kind that is known, or claims to be longer than the limit of
// the wire. Reads as much of the program's memory as the image says that it has.
std::optional<std::span<const std::byte>> image_at(const void* image);

} // namespace kagemusha::cuda
