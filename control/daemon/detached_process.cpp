// SPDX-License-Identifier: GPL-2.0-or-later
//
// See detached_process.hpp.
#include "control/daemon/detached_process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <utility>

namespace kagemusha::control::daemon {

std::optional<child_process> start_logged(spawn_request request, const std::string& log, std::string& error) {
    const unique_fd out(
        ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    const unique_fd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!out || !in) {
        error = fmt::format("cannot write {}: {}", log, std::strerror(errno));
        return std::nullopt;
    }
    request.in = in.get();
    request.out = request.err = out.get();
    return child_process::start(request, error);
}

std::optional<child_process> start_detached(const std::vector<std::string>& command, const std::string& log,
                                            std::string& error) {
    spawn_request request;
    request.command = command;
    request.detached = true;
    return start_logged(std::move(request), log, error);
}

} // namespace kagemusha::control::daemon
