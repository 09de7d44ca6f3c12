// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/network.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

namespace {

constexpr time_us connect_timeout = 1000 * ms; // control/supervise/supervisor_loop.cpp
constexpr time_us longest_repeat = 2000 * ms;  // of TCP, after a silence

} // namespace

// ---- ways

bool network::cut_off(std::uint8_t host) const {
    return w_.now() < unplugged_until_[host];
}

bool network::blocked(std::uint8_t from, std::uint8_t to, port p) const {
    return w_.now() < ways_[from][to][static_cast<std::size_t>(p)].blocked_until || cut_off(from) ||
           cut_off(to) || !w_.hosts[to]->up();
}

time_us network::arrival(std::uint8_t from, std::uint8_t to, port p) {
    const auto& way = ways_[from][to][static_cast<std::size_t>(p)];
    auto at = w_.now() + w_.o.latency_us + w_.below(w_.o.jitter_us);
    if (w_.now() < way.slow_until)
        at += way.extra;
    const auto open = std::max({way.blocked_until, unplugged_until_[from], unplugged_until_[to]});
    if (w_.now() < open) // repeated less and less often
        at += open - w_.now() +
              w_.below(static_cast<std::uint32_t>(std::min(open - w_.now() + 1, longest_repeat)));
    return at;
}

void network::block(std::uint8_t from, std::uint8_t to, port p, time_us until) {
    auto& way = ways_[from][to][static_cast<std::size_t>(p)];
    way.blocked_until = std::max(way.blocked_until, until);
}

void network::slow(std::uint8_t from, std::uint8_t to, port p, time_us until, time_us extra) {
    auto& way = ways_[from][to][static_cast<std::size_t>(p)];
    way.slow_until = until;
    way.extra = extra;
}

void network::unplug(std::uint8_t host, time_us until) {
    unplugged_until_[host] = std::max(unplugged_until_[host], until);
}

void network::heal() {
    for (auto& from : ways_)
        for (auto& to : from)
            for (auto& way : to)
                way = {};
    for (auto& until : unplugged_until_)
        until = 0;
}

// ---- connections

void network::connect(std::uint8_t from, std::uint32_t generation, std::uint8_t to, std::uint32_t attempt) {
    const auto arg = std::uint64_t{attempt} << 8 | to;
    const bool silent = blocked(from, to, port::supervision) || blocked(to, from, port::supervision);
    if (silent)
        return w_.put(w_.now() + connect_timeout, event_kind::connect_failed, from, generation, arg);
    w_.put(arrival(from, to, port::supervision) + w_.o.latency_us, event_kind::connected, from, generation,
           arg);
}

// The standby takes one connection at a time. One that is not taken is closed.
void network::connected(const event& e) {
    const auto to = static_cast<std::uint8_t>(e.arg & 0xff);
    auto& client = w_.hosts[e.host]->process;
    if (client.generation() != e.generation || client.attempt() != e.arg >> 8)
        return;
    auto& server = w_.hosts[to]->process;
    if (server.frozen()) // TLS needs the process
        return w_.put(std::min(server.thaws(), w_.now() + connect_timeout),
                      w_.now() + connect_timeout < server.thaws() ? event_kind::connect_failed
                                                                  : event_kind::connected,
                      e.host, e.generation, e.arg);
    if (blocked(e.host, to, port::supervision) || !server.takes_connection())
        return client.connect_failed();
    const auto id = static_cast<std::uint32_t>(connections_.size());
    connections_.emplace_back();
    auto& c = connections_.back();
    c.host[0] = e.host;
    c.host[1] = to;
    c.generation[0] = e.generation;
    c.generation[1] = server.generation();
    c.open[0] = c.open[1] = true;
    server.connected(id, 1);
    client.connected(id, 0);
}

void network::put(std::uint32_t id, int towards, item i) {
    auto& queue = connections_[id].towards[towards];
    if (!queue.empty())
        i.at = std::max(i.at, queue.back().at);
    w_.put(i.at, event_kind::deliver, connections_[id].host[towards], 0,
           std::uint64_t{id} << 1 | unsigned(towards));
    queue.push_back(std::move(i));
}

void network::send(std::uint32_t id, int end, const mirror::message& m) {
    auto& c = connections_[id];
    if (c.open[end])
        put(id, 1 - end, {arrival(c.host[end], c.host[1 - end], port::supervision), false, m});
}

void network::finish(std::uint32_t id, int end, const std::string& why) {
    auto& c = connections_[id];
    if (!c.open[end])
        return;
    c.open[end] = false;
    put(id, 1 - end,
        {arrival(c.host[end], c.host[1 - end], port::supervision), true,
         mirror::goodbye{mirror::goodbye_reason::other, why}});
}

void network::process_ended(std::uint8_t host, bool silent) {
    for (std::uint32_t id = 0; id < connections_.size(); ++id)
        for (int end = 0; end < 2; ++end)
            if (connections_[id].open[end] && connections_[id].host[end] == host) {
                if (silent)
                    connections_[id].open[end] = false;
                else
                    finish(id, end, "its process ended");
            }
}

void network::deliver(std::uint32_t id, int end) {
    auto& c = connections_[id];
    auto& queue = c.towards[end];
    const auto from = c.host[1 - end], to = c.host[end];
    if (ways_[from][to][static_cast<std::size_t>(port::supervision)].blocked_until > w_.now() ||
        cut_off(from) || cut_off(to)) { // blocked meanwhile: everything waits
        const auto at = arrival(from, to, port::supervision);
        queue.front().at = at;
        w_.put(at, event_kind::deliver, to, 0, std::uint64_t{id} << 1 | unsigned(end));
        return;
    }
    if (!w_.hosts[to]->up()) { // repeated until it is there again, and refused then
        if (!c.open[1 - end])
            return queue.clear();
        queue.front().at = w_.now() + 200 * ms;
        return w_.put(queue.front().at, event_kind::deliver, to, 0, std::uint64_t{id} << 1 | unsigned(end));
    }
    auto& process = w_.hosts[to]->process;
    if (c.open[end] && process.generation() == c.generation[end] && process.frozen()) {
        queue.front().at = process.thaws();
        return w_.put(process.thaws(), event_kind::deliver, to, 0, std::uint64_t{id} << 1 | unsigned(end));
    }
    item i = std::move(queue.front());
    queue.pop_front();
    if (!c.open[end]) { // nobody has this connection any more
        if (!i.end && c.open[1 - end])
            put(id, 1 - end,
                {arrival(to, from, port::supervision), true,
                 mirror::goodbye{mirror::goodbye_reason::other, "connection reset"}});
        return;
    }
    if (i.end) {
        c.open[end] = false;
        return process.closed(id, std::get<mirror::goodbye>(i.what).why);
    }
    process.arrived(id, i.what);
}

void network::happen(const event& e) {
    if (e.kind == event_kind::connected)
        return connected(e);
    const auto id = static_cast<std::uint32_t>(e.arg >> 1);
    const auto end = static_cast<int>(e.arg & 1);
    // An event may have found the one in front waiting; then that one's brings both.
    while (!connections_[id].towards[end].empty() && connections_[id].towards[end].front().at <= w_.now())
        deliver(id, end);
}

// What is under way is lost, and both ends hear of it.
void network::reset(std::uint8_t a, std::uint8_t b, port p) {
    if (p != port::supervision) {
        for (const auto h : {a, b}) {
            auto& q = w_.hosts[h]->vm;
            if (!q.replicates_to(h == a ? b : a))
                continue;
            if (p == port::state)
                q.break_stream("connection reset");
            else
                q.break_gpu_link();
        }
        return;
    }
    for (std::uint32_t id = 0; id < connections_.size(); ++id) {
        auto& c = connections_[id];
        if ((c.host[0] != a || c.host[1] != b) && (c.host[0] != b || c.host[1] != a))
            continue;
        for (int end = 0; end < 2; ++end) {
            c.towards[end].clear();
            if (c.open[end])
                put(id, end,
                    {w_.now() + w_.below(30000), true,
                     mirror::goodbye{mirror::goodbye_reason::other, "connection reset"}});
        }
    }
}

} // namespace kagemusha::world
