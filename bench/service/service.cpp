// SPDX-License-Identifier: GPL-2.0-or-later
//
// The measured service, in the guest: keys and values in the GPU's memory, told over HTTP and RESP to whoever
// asks. One thread: all requests that have come go to the GPU as one batch, then their answers go out.
//
// service [KEYS]: how many keys there are at the beginning (65,536). HTTP on port 8080, RESP on 6379. Says
// "serving" when it does; ends only with an error.
#include "table.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

using service::request;
using service::verb;

constexpr std::size_t most_connections = 1024;
constexpr std::size_t most_answer_bytes = 64 << 10; // of one connection, before it is read from again

[[noreturn]] void fail(const char* what) {
    std::printf("FAILED: %s: %s\n", what, std::strerror(errno));
    std::fflush(stdout);
    std::exit(1);
}

struct connection {
    int fd;
    bool is_http, ends = false; // ends: when its answers are out
    std::string in, out;
};

class server {
public:
    explicit server(std::uint32_t keys) : table_(keys), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
        if (epoll_ < 0)
            fail("epoll_create1");
        listen_on(8080);
        listen_on(6379);
    }

    void serve() {
        std::array<epoll_event, 64> events;
        bool again = false; // somebody has sent more than a batch took
        for (;;) {
            const int ready = epoll_wait(epoll_, events.data(), events.size(), again ? 0 : -1);
            if (ready < 0 && errno != EINTR)
                fail("epoll_wait");
            for (int i = 0; i < ready; ++i)
                look_at(events[static_cast<std::size_t>(i)]);
            again = answer();
        }
    }

private:
    struct asked {
        connection* by;
        request what;
    };

    void listen_on(std::uint16_t port) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_in here{};
        here.sin_family = AF_INET;
        here.sin_port = htons(port);
        const int on = 1;
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
            bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 || listen(fd, 256) != 0)
            fail("listen");
        watch(EPOLL_CTL_ADD, fd, EPOLLIN);
        listening_.push_back(fd);
    }

    void watch(int how, int fd, std::uint32_t events) {
        epoll_event event{};
        event.events = events;
        event.data.fd = fd;
        if (epoll_ctl(epoll_, how, fd, &event) != 0)
            fail("epoll_ctl");
    }

    void look_at(const epoll_event& event) {
        const int fd = event.data.fd;
        if (std::find(listening_.begin(), listening_.end(), fd) != listening_.end()) {
            accept_on(fd);
            return;
        }
        const auto found = connections_.find(fd);
        if (found == connections_.end())
            return;
        if ((event.events & EPOLLOUT) != 0)
            send_to(found->second);
        if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !receive(found->second))
            close_one(found);
    }

    void accept_on(int listening) {
        for (;;) {
            const int fd = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0)
                return; // nobody is left, or has gone again
            if (connections_.size() == most_connections) {
                close(fd);
                continue;
            }
            const int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            connections_.emplace(fd, connection{fd, listening == listening_[0], false, {}, {}});
            watch(EPOLL_CTL_ADD, fd, EPOLLIN);
        }
    }

    // False: it is gone.
    bool receive(connection& one) {
        char bytes[service::longest_request_bytes];
        if (one.in.size() >= sizeof bytes || one.out.size() > most_answer_bytes)
            return true; // later: epoll says it again
        const auto got = recv(one.fd, bytes, sizeof bytes - one.in.size(), 0);
        if (got > 0)
            one.in.append(bytes, static_cast<std::size_t>(got));
        return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    }

    // All that has been asked, as far as a batch takes it. True: there is more.
    bool answer() {
        std::vector<asked> all;
        for (auto& [fd, one] : connections_)
            take_requests(one, all);
        std::vector<const request*> batch;
        for (const auto& [by, what] : all)
            if (what.what == verb::get || what.what == verb::set || what.what == verb::increase)
                batch.push_back(&what);
        const auto values = table_.execute(batch);
        std::size_t next = 0;
        for (const auto& [by, what] : all) {
            const bool is_ours = next < batch.size() && batch[next] == &what;
            const auto value = is_ours ? values[next++] : std::nullopt;
            by->out += by->is_http ? service::http_answer(what, value) : service::resp_answer(what, value);
        }
        for (const auto& [by, what] : all)
            if (!by->out.empty())
                send_to(*by);
        for (auto one = connections_.begin(); one != connections_.end();) {
            const auto next_one = std::next(one);
            if (one->second.ends && one->second.out.empty())
                close_one(one);
            one = next_one;
        }
        return all.size() == service::largest_batch;
    }

    void take_requests(connection& one, std::vector<asked>& all) {
        std::size_t taken = 0;
        while (all.size() < service::largest_batch && !one.ends && one.out.size() <= most_answer_bytes &&
               taken < one.in.size()) {
            const auto rest = std::string_view(one.in).substr(taken);
            auto found = one.is_http ? service::read_http(rest) : service::read_resp(rest);
            if (!found)
                break;
            taken += found->bytes;
            one.ends = !found->keeps_connection;
            all.push_back({&one, std::move(*found)});
        }
        one.in.erase(0, taken);
    }

    void send_to(connection& one) {
        const auto sent = send(one.fd, one.out.data(), one.out.size(), MSG_NOSIGNAL);
        if (sent > 0) {
            one.out.erase(0, static_cast<std::size_t>(sent));
        } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            one.out.clear(); // nobody reads it any more
            one.ends = true;
        }
        watch(EPOLL_CTL_MOD, one.fd, one.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }

    void close_one(std::map<int, connection>::iterator one) {
        close(one->first); // epoll forgets it
        connections_.erase(one);
    }

    service::table table_;
    int epoll_;
    std::vector<int> listening_;
    std::map<int, connection> connections_;
};

} // namespace

int main(int argc, char** argv) {
    std::uint32_t keys = 65536;
    if (argc == 2) {
        const auto [end, error] = std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), keys);
        if (error != std::errc{} || *end != '\0' || keys == 0 || keys > 1u << 24) {
            std::fprintf(stderr, "usage: service [KEYS]: 1 to 16,777,216\n");
            return 2;
        }
    }
    server one(keys);
    std::printf("serving\n");
    std::fflush(stdout);
    one.serve();
}
