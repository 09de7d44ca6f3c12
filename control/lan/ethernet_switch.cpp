// SPDX-License-Identifier: GPL-2.0-or-later
//
// See ethernet_switch.hpp.
#include "control/lan/ethernet_switch.hpp"

#include "control/lan/frames.hpp"

#include <algorithm>

namespace kagemusha::control::lan {

namespace {

mac_address address_at(std::string_view frame, std::size_t at) {
    mac_address out;
    std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
    return out;
}

bool is_group(const mac_address& address) {
    return (address[0] & 1) != 0;
}

bool is_gateways(const mac_address& address) {
    return address[0] == ethernet_switch::gateway_prefix[0] &&
           address[1] == ethernet_switch::gateway_prefix[1];
}

} // namespace

bool shaped_queue::push(std::string frame, const link_shape& shape, bool with_latency, std::uint64_t now_us) {
    const auto start_ns = std::max(free_ns_, now_us * 1000);
    const bool late = shape.bits_per_s != 0 && start_ns > (now_us + most_queued_us) * 1000;
    if (late || bytes_ + frame.size() > most_queued_bytes)
        return false;
    const auto takes_ns = shape.bits_per_s == 0 ? 0 : frame.size() * 8'000'000'000ull / shape.bits_per_s;
    free_ns_ = start_ns + takes_ns;
    const auto at_us = free_ns_ / 1000 + (with_latency ? shape.latency_us : 0);
    // A latency that was made shorter does not let frames overtake each other.
    bytes_ += frame.size();
    frames_.push_back({frames_.empty() ? at_us : std::max(at_us, frames_.back().at_us), std::move(frame)});
    return true;
}

std::optional<shaped_queue::arrived> shaped_queue::pop(std::uint64_t now_us) {
    if (frames_.empty() || frames_.front().at_us > now_us)
        return std::nullopt;
    auto first = std::move(frames_.front());
    bytes_ -= first.frame.size();
    frames_.pop_front();
    return first;
}

std::optional<std::uint64_t> shaped_queue::next_us() const {
    return frames_.empty() ? std::nullopt : std::optional(frames_.front().at_us);
}

bool ethernet_switch::add(port number, bool is_trunk) {
    if (links_.size() >= most_ports || number == gateway)
        return false;
    const auto [link, is_new] = links_.try_emplace(number);
    if (is_new)
        link->second.is_trunk = is_trunk;
    return is_new;
}

bool ethernet_switch::is_trunk(port number) const {
    const auto found = links_.find(number);
    return found != links_.end() && found->second.is_trunk;
}

void ethernet_switch::remove(port number) {
    links_.erase(number);
    std::erase_if(addresses_, [&](const auto& one) { return one.second == number; });
    std::erase_if(learnt_, [&](const auto& address) { return !addresses_.contains(address); });
}

std::optional<ethernet_switch::port> ethernet_switch::where(const mac_address& address) const {
    if (is_gateways(address))
        return gateway;
    const auto found = addresses_.find(address);
    return found == addresses_.end() ? std::nullopt : std::optional(found->second);
}

// Nobody becomes the gateway by saying so.
void ethernet_switch::learn(const mac_address& address, port from) {
    if (from == gateway || is_group(address) || is_gateways(address))
        return;
    if (const auto found = addresses_.find(address); found != addresses_.end()) {
        found->second = from;
        return;
    }
    if (addresses_.size() >= most_addresses) {
        addresses_.erase(learnt_.front());
        learnt_.pop_front();
    }
    addresses_.emplace(address, from);
    learnt_.push_back(address);
}

void ethernet_switch::receive(port from, std::string_view frame, std::uint64_t now_us,
                              std::vector<output>& out) {
    if (frame.size() < least_ethernet || frame.size() > most_ethernet)
        return;
    const auto link = links_.find(from);
    if (link == links_.end() && from != gateway)
        return;
    ++counts_.frames;
    counts_.bytes += frame.size();
    if (from == gateway || link->second.is_trunk || (!has_shape() && !link->second.in.next_us()))
        return forward(from, frame, now_us, out);
    if (!link->second.in.push(std::string(frame), shape_, true, now_us))
        ++counts_.dropped;
}

void ethernet_switch::forward(port from, std::string_view frame, std::uint64_t now_us,
                              std::vector<output>& out) {
    learn(address_at(frame, 6), from);
    const auto to = address_at(frame, 0);
    const auto known = is_group(to) ? std::nullopt : where(to);
    // Between trunks, and between a trunk and the gateway, nothing passes.
    const bool is_of_here = from != gateway && !is_trunk(from);
    if (known) {
        if (*known != from && (is_of_here || (*known != gateway && !is_trunk(*known))))
            send(*known, frame, now_us, out);
        return;
    }
    if (is_of_here && is_group(to))
        send(gateway, frame, now_us, out);
    for (const auto& [number, link] : links_)
        if (number != from && (is_of_here || !link.is_trunk))
            send(number, frame, now_us, out);
}

void ethernet_switch::send(port to, std::string_view frame, std::uint64_t now_us, std::vector<output>& out) {
    if (to == gateway) {
        out.push_back({to, std::string(frame)});
        return;
    }
    auto& link = links_.at(to);
    auto& queue = link.out;
    if (link.is_trunk || (!has_shape() && !queue.next_us()))
        out.push_back({to, std::string(frame)});
    else if (!queue.push(std::string(frame), shape_, false, now_us))
        ++counts_.dropped;
}

// A caller who comes late changes nothing of when a frame is where: each goes on from when it arrived.
void ethernet_switch::due(std::uint64_t now_us, std::vector<output>& out) {
    for (auto& [number, link] : links_)
        while (const auto one = link.in.pop(now_us))
            forward(number, one->frame, one->at_us, out);
    for (auto& [number, link] : links_)
        while (auto one = link.out.pop(now_us))
            out.push_back({number, std::move(one->frame)});
}

std::optional<std::uint64_t> ethernet_switch::next_us() const {
    std::optional<std::uint64_t> next;
    for (const auto& [number, link] : links_)
        for (const auto* queue : {&link.in, &link.out})
            if (const auto at = queue->next_us(); at && (!next || *at < *next))
                next = at;
    return next;
}

} // namespace kagemusha::control::lan
