// SPDX-License-Identifier: GPL-2.0-or-later
//
// Bytes into a file, a pipe or a socket, all of them.
#pragma once

#include <cerrno>
#include <string_view>
#include <unistd.h>

namespace kagemusha::control {

// False, with errno: nobody reads any more, or there is no room.
inline bool write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const auto done = ::write(fd, bytes.data(), bytes.size());
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes.remove_prefix(static_cast<std::size_t>(done));
    }
    return true;
}

} // namespace kagemusha::control
