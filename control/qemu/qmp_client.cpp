// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qmp_client.hpp.
#include "control/qemu/qmp_client.hpp"

#include "control/base/unix_socket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using clock = std::chrono::steady_clock;

} // namespace

std::optional<qmp_client> qmp_client::connect(const std::string& socket_path, std::string& error,
                                              std::chrono::milliseconds limit) {
    unique_fd fd = connect_unix(socket_path, SOCK_NONBLOCK);
    if (!fd && errno == ENAMETOOLONG) {
        error = fmt::format("{} is too long for the path of a socket", socket_path);
        return std::nullopt;
    }
    if (!fd) {
        // EAGAIN: QEMU serves one client at a time, and its queue of waiting ones is full.
        error = fmt::format("cannot connect to QEMU's monitor {}: {}", socket_path,
                            errno == EAGAIN ? "it is busy with others" : std::strerror(errno));
        return std::nullopt;
    }
    qmp_client client(std::move(fd), socket_path, limit);
    const auto greeting = client.next(clock::now() + limit, error);
    if (!greeting)
        return std::nullopt;
    if (greeting->what != qmp_message::kind::greeting) {
        error = fmt::format("{} is no QMP monitor", socket_path);
        return std::nullopt;
    }
    if (!client.ask("qmp_capabilities", {}, error))
        return std::nullopt;
    return client;
}

std::optional<qmp_message> qmp_client::next(clock::time_point until, std::string& error) {
    while (arrived_.empty()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
        pollfd wait{fd_.get(), POLLIN, 0};
        const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left)) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0) {
            error = fmt::format("QEMU's monitor {} gives no answer within {} ms", path_, limit_.count());
            return std::nullopt;
        }
        char buffer[16384];
        const auto got = ::read(fd_.get(), buffer, sizeof buffer);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0) {
            error = fmt::format("QEMU's monitor {} closed the connection", path_);
            return std::nullopt;
        }
        for (auto& message : session_.feed({buffer, static_cast<std::size_t>(got)}))
            arrived_.push_back(std::move(message));
    }
    auto message = std::move(arrived_.front());
    arrived_.pop_front();
    if (message.what == qmp_message::kind::broken) {
        error = fmt::format("{} does not speak QMP", path_);
        return std::nullopt;
    }
    return message;
}

std::optional<nlohmann::json> qmp_client::ask(const std::string& command, const nlohmann::json& arguments,
                                              std::string& error) {
    std::uint64_t id = 0;
    const auto line = session_.command(command, arguments, id);
    // Short against a socket's buffer, and one at a time: it is taken at once or never.
    if (::send(fd_.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
        error = fmt::format("QEMU's monitor {} takes no command: {}", path_, std::strerror(errno));
        return std::nullopt;
    }
    const auto until = clock::now() + limit_;
    while (auto message = next(until, error)) {
        if (message->id != id)
            continue; // an event
        if (message->what == qmp_message::kind::success)
            return std::move(message->body);
        const auto description = message->body.find("desc");
        error = fmt::format("QEMU refuses {}: {}", command,
                            description != message->body.end() && description->is_string()
                                ? description->get<std::string>()
                                : "without a reason");
        return std::nullopt;
    }
    return std::nullopt;
}

std::optional<nlohmann::json> qmp_client::get(const std::string& object, const std::string& property,
                                              std::string& error) {
    return ask("qom-get", {{"path", object}, {"property", property}}, error);
}

} // namespace kagemusha::control
