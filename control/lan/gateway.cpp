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

} // namespace

struct gateway::impl {
    std::function<void(std::string_view)> send;
    Slirp* slirp = nullptr;
    std::list<timer> timers;
    std::vector<pollfd> polled; // what add_to() appended
    std::size_t begin = 0;      // of them in the caller's
    SlirpCb callbacks{};

    static impl& of(void* opaque) { return *static_cast<impl*>(opaque); }
    void run_timers();
};

namespace {

short to_poll(int events) {
    return static_cast<short>(((events & SLIRP_POLL_IN) != 0 ? POLLIN : 0) |
                              ((events & SLIRP_POLL_OUT) != 0 ? POLLOUT : 0) |
                              ((events & SLIRP_POLL_PRI) != 0 ? POLLPRI : 0));
}

int from_poll(int events) {
    return ((events & POLLIN) != 0 ? SLIRP_POLL_IN : 0) | ((events & POLLOUT) != 0 ? SLIRP_POLL_OUT : 0) |
           ((events & POLLPRI) != 0 ? SLIRP_POLL_PRI : 0) | ((events & POLLERR) != 0 ? SLIRP_POLL_ERR : 0) |
           ((events & POLLHUP) != 0 ? SLIRP_POLL_HUP : 0);
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
    c.register_poll_fd = [](int, void*) {};
    c.unregister_poll_fd = [](int, void*) {};
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
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr = address_of(address);
    to.sin_port = htons(port);
    if (slirp_add_hostxfwd(impl_->slirp, reinterpret_cast<const sockaddr*>(&*name), sizeof *name,
                           reinterpret_cast<const sockaddr*>(&to), sizeof to, 0) != 0)
        return fmt::format("cannot listen at {}: {}", path, std::strerror(errno));
    return {};
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
    fds.insert(fds.end(), impl_->polled.begin(), impl_->polled.end());
    timeout_ms = wait > static_cast<std::uint32_t>(INT_MAX) ? -1 : static_cast<int>(wait);
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
            return from_poll(impl::of(opaque).polled[static_cast<std::size_t>(index)].revents);
        },
        impl_.get());
    impl_->run_timers();
}

} // namespace kagemusha::control::lan
