// SPDX-License-Identifier: GPL-2.0-or-later
//
// See relay.hpp. The main thread accepts and ends connections; each direction of one is a thread that waits
// in splice(2), so that a slow receiver holds its sender up and nobody else.
#include "control/relay/relay.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/unix_socket.hpp"
#include "control/relay/sockets.hpp"
#include "net/admission.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <linux/capability.h>
#include <memory>
#include <mutex>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using json = nlohmann::json;

constexpr std::string_view unix_prefix = "unix:";
constexpr std::size_t pipe_bytes = 1 << 20; // as much as a process may have without asking
constexpr int connect_time_ms = 10000;
constexpr int look_period_ms = 1000;
// Ends that know each other's keys have shaken hands by then; the GPU's ends a connection that has not.
constexpr std::uint64_t handshake_us = 3000000;

std::uint64_t now_us() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

// To QEMU's log, in which the supervisor looks when something is wrong.
void say(const std::string& line) {
    fmt::print(stderr, "kagemusha relay: {}\n", line);
    std::fflush(stderr);
}

struct relayed {
    std::uint64_t id = 0, since_us = now_us();
    unique_fd from, to;
    std::atomic<std::uint64_t> heard_us = since_us; // from whoever connected
    std::atomic<bool> over = false;
    bool proved = false; // the main thread's
    std::mutex mutex;    // while `to` is set

    void connected(unique_fd fd) {
        const std::lock_guard hold(mutex);
        to = std::move(fd);
    }
    void end() {
        const std::lock_guard hold(mutex);
        ::shutdown(from.get(), SHUT_RDWR);
        if (to)
            ::shutdown(to.get(), SHUT_RDWR);
    }
};

bool is_gone(int fd) {
    pollfd one{fd, 0, 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLHUP | POLLERR)) != 0;
}

// Until one of them ends. What was read is written first.
void pump(relayed& c, int from, int to, bool noted) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return c.end();
    const unique_fd out(ends[0]), in(ends[1]);
    ::fcntl(in.get(), F_SETPIPE_SZ, pipe_bytes); // else it is a smaller one
    for (;;) {
        auto got = ::splice(from, nullptr, in.get(), nullptr, pipe_bytes, SPLICE_F_MOVE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return c.end();
        if (got == 0)
            break;
        if (noted)
            c.heard_us = now_us();
        while (got > 0) {
            const auto put =
                ::splice(out.get(), nullptr, to, nullptr, static_cast<std::size_t>(got), SPLICE_F_MOVE);
            if (put < 0 && errno == EINTR)
                continue;
            if (put <= 0)
                return c.end();
            got -= put;
        }
    }
    // Who has closed his end altogether reads no more, and who has closed half of it may.
    ::shutdown(to, SHUT_WR);
    if (is_gone(from))
        c.end();
}

// QEMU could have put a link to another socket there, or another user's socket.
unique_fd connect_to_qemus(const std::string& path, std::uint32_t owner, std::string& error) {
    const unique_fd socket(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat found{};
    if (!socket || ::fstat(socket.get(), &found) != 0)
        error = fmt::format("{}: {}", path, std::strerror(errno));
    else if (!S_ISSOCK(found.st_mode) || found.st_uid != owner)
        error = fmt::format("{} is no socket of QEMU's", path);
    else if (auto fd = connect_unix(fmt::format("/proc/self/fd/{}", socket.get()), SOCK_NONBLOCK))
        return fd;
    else
        error = fmt::format("{}: {}", path, std::strerror(errno));
    return {};
}

unique_fd connect(const relay_route& route, int beside, std::string& error) {
    const std::string_view to = route.to;
    if (!to.starts_with(unix_prefix))
        return connect_tcp(route.to, connect_time_ms, beside, error);
    const std::string path(to.substr(unix_prefix.size()));
    if (route.owner)
        return connect_to_qemus(path, *route.owner, error);
    auto fd = connect_unix(path, SOCK_NONBLOCK);
    if (!fd)
        error = fmt::format("{}: {}", path, std::strerror(errno));
    return fd;
}

// One listener with what came over it.
class entrance {
public:
    explicit entrance(relay_route route) : route_(std::move(route)), problem_(std::make_shared<problem>()) {}
    int fd() const { return route_.listener; }
    void accept();
    void look();

private:
    // The last one that was said; its connections' threads write it.
    struct problem {
        std::atomic<bool> said = false;
    };
    void begin(std::shared_ptr<relayed> c);
    std::shared_ptr<relayed> find(std::uint64_t id) const;
    void make_room();

    const relay_route route_;
    const std::shared_ptr<problem> problem_;
    net::admission admission_;
    std::deque<std::shared_ptr<relayed>> all_; // oldest first
    std::uint64_t last_id_ = 0;
};

void entrance::look() {
    const auto now = now_us();
    std::erase_if(all_, [&](const auto& c) {
        const bool over = c->over;
        if (!c->proved && (over || now >= c->since_us + handshake_us)) {
            c->proved = true;
            admission_.on_end(c->id, now >= c->since_us + handshake_us);
        }
        return over;
    });
}

std::shared_ptr<relayed> entrance::find(std::uint64_t id) const {
    const auto at = std::find_if(all_.begin(), all_.end(), [&](const auto& c) { return c->id == id; });
    return at == all_.end() ? nullptr : *at;
}

void entrance::make_room() {
    if (all_.size() < most_relayed)
        return;
    const auto silent = std::min_element(all_.begin(), all_.end(), [](const auto& a, const auto& b) {
        return a->heard_us.load() < b->heard_us.load();
    });
    (*silent)->end();
    if (!(*silent)->proved)
        admission_.on_end((*silent)->id, false);
    all_.erase(silent);
}

void entrance::accept() {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    auto c = std::make_shared<relayed>();
    c->from = unique_fd(::accept4(route_.listener, reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_CLOEXEC));
    if (!c->from) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            std::this_thread::sleep_for(std::chrono::milliseconds(look_period_ms / 10));
        return;
    }
    look();
    c->id = ++last_id_;
    if (peer.ss_family != AF_UNIX) {
        no_delay(c->from.get());
        const auto decision = admission_.on_arrival(net::source_of(reinterpret_cast<const sockaddr&>(peer)),
                                                    c->id, now_us() / 1000);
        if (!decision.admitted)
            return;
        if (const auto oldest = find(decision.ends)) {
            oldest->proved = true; // it is not counted any more
            oldest->end();
        }
    } else {
        c->proved = true; // only who may open its file can connect
    }
    make_room();
    all_.push_back(c);
    begin(std::move(c));
}

void entrance::begin(std::shared_ptr<relayed> c) {
    const auto forward = [c, route = route_, said = problem_] {
        std::string error;
        c->connected(connect(route, c->from.get(), error));
        if (error.empty() != !said->said.exchange(!error.empty()))
            say(error.empty() ? fmt::format("{} can be reached again", route.to)
                              : "cannot connect: " + error);
        if (!c->to) {
            c->end();
            c->over = true;
            return;
        }
        set_blocking(c->to.get());
        std::thread back;
        try {
            back = std::thread([c] { pump(*c, c->to.get(), c->from.get(), false); });
        } catch (const std::system_error&) {
            c->end();
        }
        pump(*c, c->from.get(), c->to.get(), true);
        if (back.joinable())
            back.join();
        c->over = true;
    };
    try {
        std::thread(forward).detach();
    } catch (const std::system_error& failed) { // no threads left
        say(fmt::format("cannot take a connection: {}", failed.what()));
        c->over = true;
    }
}

// Root keeps what it needs for QEMU's sockets, which are another user's.
bool give_up_rights() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    if (::syscall(SYS_capget, &header, data) != 0)
        return false;
    data[0].permitted &= 1u << CAP_DAC_OVERRIDE;
    data[0].effective &= 1u << CAP_DAC_OVERRIDE;
    data[1] = {};
    data[0].inheritable = 0;
    // Nor may QEMU look into this process, if it has the same user.
    return ::syscall(SYS_capset, &header, data) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

} // namespace

std::string to_text(const std::vector<relay_route>& routes) {
    json all = json::array();
    for (const auto& one : routes)
        all.push_back({one.listener, one.to, one.owner ? json(*one.owner) : json()});
    return as_json_text(all);
}

std::optional<std::vector<relay_route>> parse_routes(const std::string& text) {
    try {
        std::vector<relay_route> routes;
        for (const auto& one : json::parse(text)) {
            auto& route = routes.emplace_back(
                relay_route{one.at(0).get<int>(), one.at(1).get<std::string>(), std::nullopt});
            if (!one.at(2).is_null())
                route.owner = one.at(2).get<std::uint32_t>();
        }
        return routes;
    } catch (const json::exception&) {
        return std::nullopt;
    }
}

void relay_main(const char* text) {
    const auto routes = parse_routes(text);
    if (!routes || !give_up_rights()) {
        say(routes ? "cannot give up rights" : "its routes can't be read");
        ::_exit(125);
    }
    std::signal(SIGPIPE, SIG_IGN);
    std::deque<entrance> entrances;
    std::vector<pollfd> fds;
    for (const auto& route : *routes) {
        ::fcntl(route.listener, F_SETFL, ::fcntl(route.listener, F_GETFL) | O_NONBLOCK);
        entrances.emplace_back(route);
        fds.push_back({route.listener, POLLIN, 0});
    }
    for (;;) {
        ::poll(fds.data(), fds.size(), look_period_ms);
        for (std::size_t i = 0; i < fds.size(); ++i) {
            if (std::exchange(fds[i].revents, 0) != 0)
                entrances[i].accept();
            entrances[i].look();
        }
    }
}

} // namespace kagemusha::control
