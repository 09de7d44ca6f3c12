// SPDX-License-Identifier: GPL-2.0-or-later
//
// See unix_socket.hpp.
#include "control/base/unix_socket.hpp"

#include <cerrno>
#include <sys/socket.h>

namespace kagemusha::control {

std::optional<sockaddr_un> unix_address(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (path.size() >= sizeof name.sun_path) {
        errno = ENAMETOOLONG;
        return std::nullopt;
    }
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    return name;
}

unique_fd connect_unix(const std::string& path, int flags) {
    const auto name = unix_address(path);
    if (!name)
        return {};
    unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
    if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) == 0)
        return fd;
    const int why = errno; // closing may change it
    fd.reset();
    errno = why;
    return fd;
}

} // namespace kagemusha::control
