// SPDX-License-Identifier: GPL-2.0-or-later
//
// Stream sockets in the file system: those of QEMU's monitor, of its consoles, and of the supervisors.
#pragma once

#include "control/base/process.hpp"

#include <optional>
#include <string>
#include <sys/un.h>

namespace kagemusha::control {

// Nothing, with errno ENAMETOOLONG, if no socket can have this path.
std::optional<sockaddr_un> unix_address(const std::string& path);

// Connected, or empty with errno. `flags`: SOCK_NONBLOCK or none; it is closed on exec.
unique_fd connect_unix(const std::string& path, int flags = 0);

} // namespace kagemusha::control
