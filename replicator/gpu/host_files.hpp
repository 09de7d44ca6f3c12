// SPDX-License-Identifier: GPL-2.0-or-later
// host_files: takes out of a guest's program what would make the host's compiler read the host's files.
//
// The compiler runs on the host, and what it reads it quotes in its messages, which the guest gets. The
// guest's driver has put the guest's own files into the source before it comes here (guest-driver/opencl/
// include_files.hpp), so an honest program needs none of the host's. A hostile one does not come through that
// driver. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::gpu {

// The source without directives that name a file from the host's root or upwards, or that do not show what
// they name (through a macro): each becomes an #error in its line, so that nothing happens where a condition
// leaves it out. A name below the current directory stays, for headers that are programs of their own: the
// worker's current directory is its private one. Text that only looks like a directive (in a comment or in a
// literal) is changed, too.
std::vector<std::byte> without_host_files(std::span<const std::byte> source);

// Build, compile or link options without -I and its folders, which are the guest's. Nothing when there is one
// that is not known to name no file: CL_INVALID_…_OPTIONS. Compilers differ in how they treat quotes, so no
// reading may find one.
std::optional<std::string> without_host_files(std::string_view options);

} // namespace kagemusha::gpu
