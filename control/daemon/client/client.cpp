// SPDX-License-Identifier: GPL-2.0-or-later
//
// See client.hpp.
#include "control/daemon/client/client.hpp"

#include "control/base/process.hpp"
#include "control/base/unix_socket.hpp"
#include "control/base/write_all.hpp"
#include "control/daemon/state_folder.hpp"
#include "control/lan/frames.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr auto answer_within = std::chrono::seconds(30); // more than etcd's bound, several times
constexpr std::uint64_t longest_answer = 16 << 20;
constexpr int lost = 126, refused = 125;
constexpr int again_ms = 500, idle_ms = 1000;

asio::awaitable<daemon_answer> ask(std::string path, http::request<http::string_body> request) {
    beast::basic_stream<asio::local::stream_protocol> stream(co_await asio::this_coro::executor);
    stream.expires_after(answer_within);
    co_await stream.async_connect(asio::local::stream_protocol::endpoint(path), asio::use_awaitable);
    co_await http::async_write(stream, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(longest_answer);
    co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
    auto& got = parser.get();
    auto revision = std::string(got[http::field::etag]);
    std::erase(revision, '"');
    co_return daemon_answer{got.result_int(), nlohmann::json::parse(got.body(), nullptr, false), revision};
}

} // namespace

std::optional<daemon_answer> ask_daemon(const std::string& method, const std::string& target,
                                        const std::string& body, const std::string& if_match,
                                        std::string& error) {
    const auto path = daemon_socket(error);
    if (path.empty())
        return std::nullopt;
    http::request<http::string_body> request{http::string_to_verb(method), target, 11};
    request.set(http::field::host, "localhost");
    request.set(http::field::content_type, "application/json");
    if (!if_match.empty())
        request.set(http::field::if_match, fmt::format("\"{}\"", if_match));
    request.keep_alive(false);
    request.body() = body;
    request.prepare_payload();
    asio::io_context io;
    std::optional<daemon_answer> out;
    asio::co_spawn(
        io, ask(path, std::move(request)), [&](const std::exception_ptr& failed, daemon_answer got) {
            if (!failed) {
                out = std::move(got);
                return;
            }
            try {
                std::rethrow_exception(failed);
            } catch (const boost::system::system_error& why) {
                const bool nobody =
                    why.code() == asio::error::connection_refused || why.code().value() == ENOENT;
                error =
                    nobody ? fmt::format("no daemon of this user answers at {}: start one with `kage daemon`",
                                         path)
                           : fmt::format("the daemon at {}: {}", path, why.code().message());
            }
        });
    io.run();
    if (out && !out->body.is_object()) {
        error = fmt::format("what answers at {} is no daemon of ours", path);
        return std::nullopt;
    }
    return out;
}

namespace {

// One command in one node: our streams on the one side, its agent on the other.
class exec_session {
public:
    exec_session(unique_fd fd, const exec_ends& ends) : fd_(std::move(fd)), ends_(ends) {}
    int run(const std::string& secret, const std::vector<std::string>& words);
    bool begun() const { return begun_; } // the node has the command, so it must not be sent again

private:
    bool send(const std::string& bytes) const;
    std::optional<int> take(const lan::exec_reader::frame& frame);
    void pass_input();

    bool pass_on(const std::function<bool(std::string_view)>& to, int otherwise,
                 std::string_view bytes) const {
        return to ? to(bytes) : write_all(otherwise, bytes);
    }

    const unique_fd fd_;
    const exec_ends& ends_;
    lan::exec_reader reader_;
    bool input_open_ = true, begun_ = false;
};

bool exec_session::send(const std::string& bytes) const {
    return write_all(fd_.get(), bytes);
}

std::optional<int> exec_session::take(const lan::exec_reader::frame& frame) {
    begun_ = true;
    switch (frame.letter) {
    case 'A':
        return std::nullopt;
    case 'O':
        return pass_on(ends_.output, STDOUT_FILENO, frame.payload) ? std::nullopt : std::optional(lost);
    case 'X':
        return pass_on(ends_.errors, STDERR_FILENO, frame.payload) ? std::nullopt : std::optional(lost);
    case 'S':
        if (const auto status = lan::exec_status(frame.payload))
            return status;
        break;
    case 'R':
        if (!ends_.quiet)
            fmt::print(stderr, "kage: the node refused the command\n");
        return refused;
    default:
        break;
    }
    if (!ends_.quiet)
        fmt::print(stderr, "kage: what answers in the node is no agent of ours\n");
    return lost;
}

void exec_session::pass_input() {
    char buffer[16384];
    const auto got = ::read(ends_.input, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR)
        return;
    input_open_ = got > 0;
    send(input_open_ ? lan::exec_frame('I', {buffer, static_cast<std::size_t>(got)})
                     : lan::exec_frame('E', {}));
}

int exec_session::run(const std::string& secret, const std::vector<std::string>& words) {
    std::string command;
    for (const auto& word : words)
        command += word + '\0';
    if (command.size() > lan::most_exec_payload) {
        fmt::print(stderr, "kage: a command has at most {} KiB\n", lan::most_exec_payload >> 10);
        return refused;
    }
    if (!send(lan::exec_frame('H', secret) + lan::exec_frame('C', command)))
        return lost;
    for (;;) {
        pollfd fds[] = {{fd_.get(), POLLIN, 0},
                        {input_open_ && begun_ ? ends_.input : -1, POLLIN, 0},
                        {interrupt_fd(), POLLIN, 0}};
        const int ready = ::poll(fds, 3, ends_.idle ? idle_ms : -1);
        if (ready == 0 && !ends_.idle())
            return lost;
        if (ready <= 0)
            continue;
        if (fds[2].revents != 0)
            return 128 + interrupted_by(); // hanging up ends the command
        if (fds[1].revents != 0)
            pass_input();
        if (fds[0].revents == 0)
            continue;
        char buffer[65536];
        const auto got = ::read(fd_.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return lost;
        reader_.feed({buffer, static_cast<std::size_t>(got)});
        while (const auto frame = reader_.next())
            if (const auto status = take(*frame))
                return *status;
        if (reader_.broken())
            return lost;
    }
}

} // namespace

int exec_in_node(const std::string& socket, const std::string& secret, const std::vector<std::string>& words,
                 bool wait, const exec_ends& ends) {
    for (;;) {
        unique_fd fd = connect_unix(socket);
        const auto why = std::string(std::strerror(errno));
        const bool connected = static_cast<bool>(fd);
        if (connected) {
            exec_session session(std::move(fd), ends);
            const int status = session.run(secret, words);
            if (session.begun() || status != lost) {
                if (status == lost && !ends.quiet)
                    fmt::print(stderr, "kage: the connection to the node was lost; its command was ended\n");
                return status;
            }
        }
        if (!wait && ends.quiet)
            return refused;
        if (!wait) {
            fmt::print(stderr, "kage: {}\n",
                       connected
                           ? "the node does not answer: it is not up yet (--wait waits), or its agent is gone"
                           : fmt::format("the cluster's network does not answer at {}: {}", socket, why));
            return refused;
        }
        pollfd interrupt{interrupt_fd(), POLLIN, 0};
        if (::poll(&interrupt, 1, again_ms) > 0)
            return 128 + interrupted_by();
    }
}

} // namespace kagemusha::control::daemon
