// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/mirror/cut_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

namespace kagemusha::test {

namespace {

// One way of a connection: what was read of one end and not yet written to the other.
struct way {
    int from, to;
    std::vector<char> waiting = {};
    bool from_ended = false;

    bool reads() const { return waiting.empty() && !from_ended; }
};

struct carried {
    way there, back;

    void close_both() const {
        close(there.from);
        close(there.to);
    }
};

// What can be read and written now. False: this way is over, and all of it was carried. Nothing here waits for
// an end that does not read: the other connections go on, as they do on a real network.
bool carry(way& w) {
    if (w.reads()) {
        w.waiting.resize(65536);
        const ssize_t got = recv(w.from, w.waiting.data(), w.waiting.size(), MSG_DONTWAIT);
        w.waiting.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        w.from_ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    }
    if (!w.waiting.empty()) {
        const ssize_t sent = send(w.to, w.waiting.data(), w.waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        w.waiting.erase(w.waiting.begin(), w.waiting.begin() + std::max<ssize_t>(sent, 0));
    }
    return !w.from_ended || !w.waiting.empty();
}

} // namespace

sockaddr_un unix_name(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    return name;
}

cut_link::cut_link(const std::string& from, const std::string& to) : from_(from), to_(to) {
    const sockaddr_un name = unix_name(from_);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
        listen(listener_, 8) != 0) {
        std::abort();
    }
    thread_ = std::thread([this] { run(); });
}

cut_link::~cut_link() {
    end_ = true;
    thread_.join();
    close(listener_);
    unlink(from_.c_str());
}

void cut_link::cut() {
    cut_ = true;
}

void cut_link::restore() {
    cut_ = false;
}

void cut_link::run() {
    std::vector<carried> all;
    const auto drop = [&](std::size_t i) {
        all[i].close_both();
        all.erase(all.begin() + static_cast<long>(i));
    };
    while (!end_) {
        while (cut_ && !all.empty())
            drop(0);
        std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
        const auto events_of = [](const way& in, const way& out) {
            return static_cast<short>((in.reads() ? POLLIN : 0) | (out.waiting.empty() ? 0 : POLLOUT));
        };
        for (const carried& c : all) {
            fds.push_back({c.there.from, events_of(c.there, c.back), 0});
            fds.push_back({c.there.to, events_of(c.back, c.there), 0});
        }
        poll(fds.data(), fds.size(), 10);
        for (std::size_t i = all.size(); i-- > 0;)
            if (!carry(all[i].there) || !carry(all[i].back))
                drop(i);
        if (fds[0].revents != 0) {
            const int one = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            const sockaddr_un name = unix_name(to_);
            if (cut_ || connect(other, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
                close(one);
                close(other);
            } else {
                all.push_back({{one, other}, {other, one}});
            }
        }
    }
    while (!all.empty())
        drop(0);
}

} // namespace kagemusha::test
