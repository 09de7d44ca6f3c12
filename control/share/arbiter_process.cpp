// SPDX-License-Identifier: GPL-2.0-or-later
//
// See arbiter_process.hpp.
#include "control/share/arbiter_process.hpp"

#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/process.hpp"
#include "worker/share_join.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;

constexpr int ready_within_ms = 5000;

} // namespace

// In a session of its own, out of reach of our terminal and of our end. The number of a pipe's writing end
// goes with it; it is closed when clients can connect.
std::string start_share_arbiter(const std::string& socket, bool for_good) {
    const auto program = find_built("kagemusha-gpu");
    if (program.empty())
        return not_there("kagemusha-gpu");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return fmt::format("no pipe: {}", std::strerror(errno));
    const unique_fd reading(ends[0]);
    unique_fd writing(ends[1]);
    const unique_fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    spawn_request request;
    request.command = {program, "--socket", socket, "--ready-fd", std::to_string(writing.get())};
    request.in = request.out = nothing.get();
    request.inherit = {writing.get()};
    request.detached = true;
    if (for_good)
        request.command.insert(request.command.end(), {"--linger", "0"});
    std::string error;
    auto arbiter = child_process::start(request, error);
    writing.reset();
    if (!arbiter)
        return error;
    pollfd event{reading.get(), POLLIN, 0};
    ::poll(&event, 1, ready_within_ms);
    // Ours for as long as we live, whoever else uses it: its end is taken note of, and waited for by nobody.
    std::thread([child = std::move(*arbiter)]() mutable { child.wait_for(-1ms); }).detach();
    return {};
}

bool share_arbiter_answers(const std::string& socket) {
    share_hello asks{};
    asks.magic = SHARE_MAGIC;
    asks.version = SHARE_VERSION;
    asks.role = SHARE_ASKER;
    const auto joined = worker::join_share(socket, asks);
    return joined.answer.magic == SHARE_MAGIC; // also one of another version
}

} // namespace kagemusha::control
