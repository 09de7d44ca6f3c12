// SPDX-License-Identifier: GPL-2.0-or-later
// own_root: a root directory of a worker's own, in which only what it may use has a name.
//
// Landlock denies the content of files, but not their names: without this a kernel learns by stat() and
// readlink() which paths the host has. It holds for a process in its own mount namespace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::worker {

// Where the private directory is in it: a file system in memory of `private_bytes`, empty and writable.
inline constexpr char own_root_directory[] = "/mnt";

// Goes there for good, with the paths (files or folders, with all below them; what the host does not have is
// passed over) under their names and read-only, but for the nodes of devices. "" or why this host does not
// give it; then nothing has changed. /proc/self is this process's, also for its children.
std::string enter_own_root(const std::vector<std::string>& paths, std::uint64_t private_bytes);

} // namespace kagemusha::worker
