// SPDX-License-Identifier: GPL-2.0-or-later
//
// See control_socket.hpp.
#include "control/supervise/control_socket.hpp"

#include "control/base/json_text.hpp"

#include "control/base/unix_socket.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace kagemusha::control {

namespace {

constexpr std::size_t longest_line = 65536, most_clients = 16;

// Far less than a socket's buffer: it is taken at once or never.
void send_answer(int fd, const nlohmann::json& answer) {
    const auto bytes = as_json_text(answer) + "\n";
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

} // namespace

std::optional<control_socket> control_socket::listen(const std::string& path, handler answer,
                                                     std::string& error) {
    ::unlink(path.c_str()); // of one that was killed; its name is ours
    unique_fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto name = unix_address(path);
    if (!name || !fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0 ||
        ::listen(fd.get(), 8) != 0) {
        error = fmt::format("cannot listen at {}: {}", path,
                            name ? std::strerror(errno) : "the path is too long");
        return std::nullopt;
    }
    return control_socket(std::move(fd), std::move(answer));
}

void control_socket::add_to(std::vector<pollfd>& fds) const {
    fds.push_back({clients_.size() < most_clients ? listener_.get() : -1, POLLIN, 0});
    for (const auto& c : clients_)
        fds.push_back({c.fd.get(), POLLIN, 0});
}

void control_socket::handle(const std::vector<pollfd>& fds) {
    for (const auto& ready : fds) {
        if (ready.revents == 0)
            continue;
        if (ready.fd == listener_.get()) {
            unique_fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (fd)
                clients_.push_back({std::move(fd), {}});
            continue;
        }
        for (auto c = clients_.begin(); c != clients_.end(); ++c) {
            if (c->fd.get() == ready.fd) {
                if (!serve(*c))
                    clients_.erase(c);
                break;
            }
        }
    }
}

bool control_socket::serve(client& c) {
    char buffer[4096];
    const auto got = ::read(c.fd.get(), buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (got <= 0)
        return false;
    c.line.append(buffer, static_cast<std::size_t>(got));
    const auto end = c.line.find('\n');
    if (end == std::string::npos)
        return c.line.size() < longest_line;
    const auto request = nlohmann::json::parse(c.line.substr(0, end), nullptr, false);
    const auto answer =
        request.is_object() ? answer_(request) : nlohmann::json{{"error", "this is no JSON object"}};
    if (answer.is_null()) {
        waiting_.push_back(std::move(c.fd));
        if (waiting_.size() > most_clients)
            waiting_.pop_front();
    } else {
        send_answer(c.fd.get(), answer);
    }
    return false;
}

void control_socket::answer_waiting(const nlohmann::json& answer) {
    for (const auto& fd : std::exchange(waiting_, {}))
        send_answer(fd.get(), answer);
}

std::optional<nlohmann::json> ask_supervisor(const std::string& path, const nlohmann::json& request,
                                             std::string& error, int answer_ms) {
    const unique_fd fd = connect_unix(path);
    if (!fd) {
        error = fmt::format("cannot connect to the supervisor at {}: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    const auto line = as_json_text(request) + "\n";
    std::string text;
    if (::send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
        error = fmt::format("the supervisor at {} takes no request", path);
        return std::nullopt;
    }
    for (;;) {
        pollfd wait{fd.get(), POLLIN, 0};
        char buffer[4096];
        const int ready = ::poll(&wait, 1, answer_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        const auto got = ready > 0 ? ::read(fd.get(), buffer, sizeof buffer) : -1;
        if (got < 0 || text.size() > longest_line) {
            error = fmt::format("the supervisor at {} gives no answer", path);
            return std::nullopt;
        }
        if (got == 0)
            break;
        text.append(buffer, static_cast<std::size_t>(got));
    }
    auto answer = nlohmann::json::parse(text, nullptr, false);
    if (!answer.is_object()) {
        error = fmt::format("the supervisor at {} gives no answer", path);
        return std::nullopt;
    }
    if (answer.contains("error") && answer["error"].is_string()) {
        error = answer["error"].get<std::string>();
        return std::nullopt;
    }
    return answer;
}

} // namespace kagemusha::control
