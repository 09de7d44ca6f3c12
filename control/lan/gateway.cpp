// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gateway.hpp.
#include "control/lan/gateway.hpp"

#include "control/base/unix_socket.hpp"
#include "control/lan/addresses.hpp"

#include <fmt/format.h>
#include <libslirp.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <list>
#include <netinet/in.h>
#include <optional>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control::lan {

namespace {

std::int64_t now_ns() {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

struct timer {
    SlirpTimerCb run;
    void* opaque;
    std::int64_t at_ms = -1; // -1: not set
};

in_addr address_of(std::uint32_t address) {
    return {htonl(address)};
}

sockaddr_in endpoint(in_addr address, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_addr = address;
    out.sin_port = htons(port);
    return out;
}

std::optional<sockaddr_in> host_endpoint(const std::string& address, std::uint16_t port) {
    in_addr parsed{};
    return ::inet_pton(AF_INET, address.c_str(), &parsed) == 1 ? std::optional(endpoint(parsed, port))
                                                               : std::nullopt;
}

} // namespace

struct gateway::impl {
    std::function<void(std::string_view)> send;
    Slirp* slirp = nullptr;
    std::list<timer> timers;
    std::vector<pollfd> polled; // what add_to() appended
    std::size_t begin = 0;      // of them in the caller's
    std::set<int> sockets;      // of connections, in either direction; none that listens
    SlirpCb callbacks{};

    static impl& of(void* opaque) { return *static_cast<impl*>(opaque); }
    void run_timers();
    void leave_strangers_waiting();
    // What connects to the host's address reaches this port of a node; `name` of it is for people.
    std::string forward(const sockaddr* host, socklen_t size, const std::string& name, std::uint32_t address,
                        std::uint16_t port) const;
};

std::string gateway::impl::forward(const sockaddr* host, socklen_t size, const std::string& name,
                                   std::uint32_t address, std::uint16_t port) const {
    const auto to = endpoint(address_of(address), port);
    if (slirp_add_hostxfwd(slirp, host, size, reinterpret_cast<const sockaddr*>(&to), sizeof to, 0) != 0)
        return fmt::format("cannot listen at {}: {}", name, std::strerror(errno));
    return {};
}

namespace {

short to_poll(int events) {
    return static_cast<short>(((events & SLIRP_POLL_IN) != 0 ? POLLIN : 0) |
                              ((events & SLIRP_POLL_OUT) != 0 ? POLLOUT : 0) |
                              ((events & SLIRP_POLL_PRI) != 0 ? POLLPRI : 0));
}

// poll() reports a hang-up whether it was asked for or not. libslirp asks for one where it wants to read. Where it
// only wants to write, it would read nothing instead, and ask again at once, for ever: a core for each client that
// left before its answer. What it writes then fails, and that ends the connection.
int from_poll(const pollfd& one) {
    const int events = one.revents;
    const bool hung_up = (events & POLLHUP) != 0, reads = (one.events & POLLIN) != 0;
    return ((events & POLLIN) != 0 ? SLIRP_POLL_IN : 0) |
           ((events & POLLOUT) != 0 || (hung_up && !reads) ? SLIRP_POLL_OUT : 0) |
           ((events & POLLPRI) != 0 ? SLIRP_POLL_PRI : 0) | ((events & POLLERR) != 0 ? SLIRP_POLL_ERR : 0) |
           (hung_up && reads ? SLIRP_POLL_HUP : 0);
}

} // namespace

gateway::gateway(bool outside, std::function<void(std::string_view frame)> send)
    : impl_(std::make_unique<impl>()) {
    impl_->send = std::move(send);
    auto& c = impl_->callbacks;
    c.send_packet = [](const void* bytes, std::size_t size, void* opaque) -> ssize_t {
        impl::of(opaque).send({static_cast<const char*>(bytes), size});
        return static_cast<ssize_t>(size);
    };
    c.guest_error = [](const char*, void*) {}; // a node's fault is its own matter
    c.clock_get_ns = [](void*) { return now_ns(); };
    c.timer_new = [](SlirpTimerCb run, void* of, void* opaque) -> void* {
        return &impl::of(opaque).timers.emplace_back(timer{run, of});
    };
    c.timer_free = [](void* one, void* opaque) {
        impl::of(opaque).timers.remove_if([&](const timer& t) { return &t == one; });
    };
    c.timer_mod = [](void* one, std::int64_t at_ms, void*) { static_cast<timer*>(one)->at_ms = at_ms; };
    c.register_poll_fd = [](int fd, void* opaque) { impl::of(opaque).sockets.insert(fd); };
    c.unregister_poll_fd = [](int fd, void* opaque) { impl::of(opaque).sockets.erase(fd); };
    c.notify = [](void*) {};

    SlirpConfig config{};
    config.version = 1;
    config.restricted = outside ? 0 : 1;
    config.in_enabled = true;
    config.vnetwork = address_of(network_address);
    config.vnetmask = address_of(network_mask);
    config.vhost = address_of(gateway_address);
    config.vnameserver = address_of(name_server_address);
    config.vdhcp_start = address_of(network_address + 200); // nobody asks: nodes know their addresses
    config.disable_host_loopback = true;
    impl_->slirp = slirp_new(&config, &impl_->callbacks, impl_.get());
}

gateway::~gateway() {
    if (impl_->slirp)
        slirp_cleanup(impl_->slirp);
}

void gateway::input(std::string_view frame) {
    slirp_input(impl_->slirp, reinterpret_cast<const std::uint8_t*>(frame.data()),
                static_cast<int>(frame.size()));
}

std::string gateway::forward(const std::string& path, std::uint32_t address, std::uint16_t port) {
    const auto name = unix_address(path);
    if (!name)
        return fmt::format("{} is too long for the path of a socket", path);
    ::unlink(path.c_str()); // of one that was killed
    return impl_->forward(reinterpret_cast<const sockaddr*>(&*name), sizeof *name, path, address, port);
}

std::string gateway::listen(const std::string& host_address, std::uint16_t host_port, std::uint32_t address,
                            std::uint16_t port) {
    const auto at = host_endpoint(host_address, host_port);
    if (!at)
        return fmt::format("'{}' is no IPv4 address", host_address);
    return impl_->forward(reinterpret_cast<const sockaddr*>(&*at), sizeof *at,
                          fmt::format("{}:{}", host_address, host_port), address, port);
}

void gateway::close(const std::string& host_address, std::uint16_t host_port) {
    if (const auto at = host_endpoint(host_address, host_port))
        slirp_remove_hostxfwd(impl_->slirp, reinterpret_cast<const sockaddr*>(&*at), sizeof *at, 0);
}

void gateway::add_to(std::vector<pollfd>& fds, int& timeout_ms) {
    std::uint32_t wait = timeout_ms < 0 ? UINT32_MAX : static_cast<std::uint32_t>(timeout_ms);
    const auto now_ms = now_ns() / 1'000'000;
    for (const auto& t : impl_->timers)
        if (t.at_ms >= 0)
            wait = std::min(wait,
                            static_cast<std::uint32_t>(std::clamp<std::int64_t>(t.at_ms - now_ms, 0, 60000)));
    impl_->polled.clear();
    impl_->begin = fds.size();
    slirp_pollfds_fill(
        impl_->slirp, &wait,
        [](int fd, int events, void* opaque) {
            auto& polled = impl::of(opaque).polled;
            polled.push_back({fd, to_poll(events), 0});
            return static_cast<int>(polled.size()) - 1;
        },
        impl_.get());
    if (is_full())
        impl_->leave_strangers_waiting();
    fds.insert(fds.end(), impl_->polled.begin(), impl_->polled.end());
    timeout_ms = wait > static_cast<std::uint32_t>(INT_MAX) ? -1 : static_cast<int>(wait);
}

bool gateway::is_full() const {
    return impl_->sockets.size() >= max_connections;
}

// poll() ignores what is negative. The host's own, at Unix sockets, come in all the same.
void gateway::impl::leave_strangers_waiting() {
    for (pollfd& one : polled) {
        const auto option = [&](int name) {
            int value = 0;
            socklen_t size = sizeof value;
            return ::getsockopt(one.fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
        };
        if (!sockets.contains(one.fd) && option(SO_ACCEPTCONN) == 1 && option(SO_DOMAIN) == AF_INET)
            one.fd = -1;
    }
}

void gateway::impl::run_timers() {
    const auto now_ms = now_ns() / 1'000'000;
    for (auto& t : timers)
        if (t.at_ms >= 0 && t.at_ms <= now_ms) {
            t.at_ms = -1; // run() may set it again
            t.run(t.opaque);
        }
}

void gateway::handle(const std::vector<pollfd>& fds, bool failed) {
    for (std::size_t i = 0; i < impl_->polled.size(); ++i)
        impl_->polled[i].revents = failed ? short{0} : fds[impl_->begin + i].revents;
    slirp_pollfds_poll(
        impl_->slirp, failed ? 1 : 0,
        [](int index, void* opaque) {
            return from_poll(impl::of(opaque).polled[static_cast<std::size_t>(index)]);
        },
        impl_.get());
    impl_->run_timers();
}

} // namespace kagemusha::control::lan
