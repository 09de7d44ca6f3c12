// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/host/clients.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace kagemusha::loop {
namespace {

event event_of(loop_u32 kind, std::uint32_t source, std::uint64_t cookie = 0, std::uint64_t value = 0) {
    event one;
    one.head.kind = kind;
    one.head.source = source;
    one.head.cookie = cookie;
    one.head.value = value;
    return one;
}

bool would_block() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

} // namespace

clients::clients(int listener, bool lines, std::uint32_t lanes, reporter report, asker is_busy)
    : listener_(listener)
    , lines_(lines)
    , lanes_(lanes)
    , report_(std::move(report))
    , is_busy_(std::move(is_busy)) {}

clients::~clients() {
    for (const auto& [id, one] : all_)
        close(one.socket);
}

void clients::wants(std::vector<pollfd>& to) {
    if (listener_ >= 0 && all_.size() < max_clients)
        to.push_back({listener_, POLLIN, 0});
    for (auto& [id, one] : all_) {
        short events = 0;
        if (!one.closing && !one.ended && one.out.size() < busy_send_bytes && !is_busy_(one.lane))
            events |= POLLIN;
        if (!one.out.empty())
            events |= POLLOUT;
        // Also without events: an error or the other end's reset comes.
        to.push_back({one.socket, events, 0});
    }
}

void clients::serve(std::span<const pollfd> ready) {
    std::map<int, short> by_socket;
    for (const pollfd& one : ready)
        by_socket[one.fd] = one.revents;
    std::vector<std::uint32_t> ids;
    for (const auto& [id, one] : all_)
        ids.push_back(id);
    for (const std::uint32_t id : ids) {
        client& one = all_.at(id);
        const auto found = by_socket.find(one.socket);
        const short came = found == by_socket.end() ? short{0} : found->second;
        if ((came & (POLLERR | POLLNVAL)) != 0 || ((came & POLLHUP) != 0 && (one.ended || one.closing))) {
            drop(id);
            continue;
        }
        if ((came & POLLOUT) != 0 && !write_to(id, one))
            continue;
        if ((came & (POLLIN | POLLHUP)) != 0 && !one.ended && !one.closing)
            read_from(id, one);
        else if (!is_busy_(one.lane))
            hand_on(id, one); // lines that came with an earlier read
    }
    if (const auto found = by_socket.find(listener_);
        found != by_socket.end() && (found->second & POLLIN) != 0)
        accept_all();
}

void clients::accept_all() {
    while (all_.size() < max_clients) {
        const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0)
            return;
        const int on = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        while (next_id_ == LOOP_NONE || next_id_ == 0 || all_.contains(next_id_))
            ++next_id_;
        const std::uint32_t id = next_id_++, lane = id % lanes_;
        all_.emplace(id, client{socket, lane, framer(lines_), {}, {}});
        ++accepted;
        report_(lane, event_of(LOOP_CONNECTED, id));
    }
}

void clients::read_from(std::uint32_t id, client& one) {
    hand_on(id, one);
    if (is_busy_(one.lane))
        return;
    std::array<std::byte, LOOP_DATA_BYTES> data;
    const auto got = recv(one.socket, data.data(), data.size(), 0);
    if (got < 0 && would_block())
        return;
    if (got < 0) {
        drop(id);
        return;
    }
    if (got == 0) {
        // It sends no more. What it asked for is still answered.
        one.ended = true;
        report_(one.lane, event_of(LOOP_CLOSED, id));
        return;
    }
    bytes_in += static_cast<std::uint64_t>(got);
    one.in.put(std::span(data).first(static_cast<std::size_t>(got)));
    hand_on(id, one);
}

void clients::hand_on(std::uint32_t id, client& one) {
    while (!is_busy_(one.lane)) {
        auto data = one.in.next();
        if (!data)
            return;
        event e = event_of(LOOP_RECEIVED, id);
        e.data = std::move(*data);
        report_(one.lane, std::move(e));
    }
}

bool clients::write_to(std::uint32_t id, client& one) {
    std::size_t at = 0;
    while (at < one.out.size()) {
        const auto put = ::send(one.socket, one.out.data() + at, one.out.size() - at, MSG_NOSIGNAL);
        if (put < 0 && would_block())
            break;
        if (put < 0) {
            drop(id);
            return false;
        }
        at += static_cast<std::size_t>(put);
        bytes_out += static_cast<std::uint64_t>(put);
    }
    one.out.erase(one.out.begin(), one.out.begin() + static_cast<std::ptrdiff_t>(at));
    if (one.out.size() < busy_send_bytes)
        for (const notice& n : std::exchange(one.notices, {}))
            report_(n.lane, event_of(LOOP_SENT, id, n.cookie));
    if (one.out.empty() && one.closing) {
        drop(id);
        return false;
    }
    return true;
}

void clients::send(std::uint32_t lane, const request& what) {
    const auto found = all_.find(what.head.target);
    const bool notify = what.head.count != 0;
    if (found == all_.end() || found->second.closing) {
        if (notify)
            report_(lane, event_of(LOOP_SENT, what.head.target, what.head.cookie, 1));
        return;
    }
    client& one = found->second;
    one.out.insert(one.out.end(), what.data.begin(), what.data.end());
    if (notify)
        one.notices.push_back({lane, what.head.cookie});
    if (one.out.size() > max_send_bytes)
        drop(found->first);
    else
        write_to(found->first, one);
}

void clients::close_when_sent(std::uint32_t id) {
    const auto found = all_.find(id);
    if (found == all_.end())
        return;
    found->second.closing = true;
    if (found->second.out.empty())
        drop(id);
}

void clients::drop(std::uint32_t id) {
    const auto node = all_.extract(id);
    client& one = node.mapped();
    close(one.socket);
    for (const notice& n : one.notices)
        report_(n.lane, event_of(LOOP_SENT, id, n.cookie, 1));
    if (!one.ended && !one.closing)
        report_(one.lane, event_of(LOOP_CLOSED, id));
}

} // namespace kagemusha::loop
