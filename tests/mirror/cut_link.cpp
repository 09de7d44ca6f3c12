// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/mirror/cut_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace kagemusha::test {

namespace {

struct carried {
    int ends[2];
};

sockaddr_un name_of(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    return name;
}

// What is there now, from one end to the other. False: it is over.
bool carry(int from, int to) {
    char bytes[65536];
    const ssize_t got = recv(from, bytes, sizeof bytes, 0);
    for (ssize_t sent = 0; sent < got;) {
        const ssize_t n = send(to, bytes + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        sent += n;
    }
    return got > 0;
}

} // namespace

cut_link::cut_link(const std::string& from, const std::string& to) : from_(from), to_(to) {
    const sockaddr_un name = name_of(from_);
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
        close(all[i].ends[0]);
        close(all[i].ends[1]);
        all.erase(all.begin() + static_cast<long>(i));
    };
    while (!end_) {
        while (cut_ && !all.empty())
            drop(0);
        std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
        for (const carried& c : all) {
            fds.push_back({c.ends[0], POLLIN, 0});
            fds.push_back({c.ends[1], POLLIN, 0});
        }
        poll(fds.data(), fds.size(), 10);
        for (std::size_t i = all.size(); i-- > 0;) {
            const auto& a = fds[1 + 2 * i];
            const auto& b = fds[2 + 2 * i];
            if ((a.revents != 0 && !carry(a.fd, b.fd)) || (b.revents != 0 && !carry(b.fd, a.fd)))
                drop(i);
        }
        if (fds[0].revents != 0) {
            const int one = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            const sockaddr_un name = name_of(to_);
            if (cut_ || connect(other, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
                close(one);
                close(other);
            } else {
                all.push_back({{one, other}});
            }
        }
    }
    while (!all.empty())
        drop(0);
}

} // namespace kagemusha::test
