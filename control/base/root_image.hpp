// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which root image a guest of ours has: "6.12-cloud" is a kernel with the usual one, "6.12-cloud+mpi" the same
// kernel with the image `mpi` (scripts/packages/guest-mpi.list).
#pragma once

#include "control/base/assets.hpp"

#include <string>

namespace kagemusha::control {

// "6.12-cloud+mpi" → "6.12-cloud".
std::string kernel_of_guest(const std::string& guest);

// The path of the image; one that a source tree has not made yet is made. "": it was said on stderr what is missing.
std::string root_image_of(const std::string& guest, const assets& parts);

} // namespace kagemusha::control
