// SPDX-License-Identifier: GPL-2.0-or-later
//
// See program_output.hpp.
#include "kubernetes/node/program_output.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace kagemusha::kubernetes {

using clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t max_answer_bytes = 1 << 20;

} // namespace

std::optional<program_output> output_of(const std::vector<std::string>& command, bool errors, int timeout_ms,
                                        std::string& error) {
    const auto& program = command.front();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        error = fmt::format("no pipe: {}", std::strerror(errno));
        return std::nullopt;
    }
    const unique_fd reading(ends[0]);
    unique_fd writing(ends[1]);
    control::spawn_request request;
    request.command = command;
    request.out = writing.get();
    if (errors)
        request.err = writing.get();
    auto child = control::child_process::start(request, error);
    writing.reset();
    if (!child)
        return std::nullopt;
    const auto until = clock::now() + std::chrono::milliseconds(timeout_ms);
    std::string said;
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
        pollfd event{reading.get(), POLLIN, 0};
        if (left <= 0 || ::poll(&event, 1, static_cast<int>(left)) == 0) {
            error = fmt::format("{} has not answered within {} ms: a driver hangs", program, timeout_ms);
            return std::nullopt; // and is killed
        }
        char bytes[4096];
        const auto got = ::read(reading.get(), bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        said.append(bytes, static_cast<std::size_t>(got));
        if (said.size() > max_answer_bytes) {
            error = fmt::format("{} says more than {} bytes", program, max_answer_bytes);
            return std::nullopt;
        }
    }
    const auto status = child->wait_for(std::chrono::seconds(1));
    if (!status) {
        error = fmt::format("{} does not end", program);
        return std::nullopt; // and is killed
    }
    return program_output{*status, said};
}

} // namespace kagemusha::kubernetes
