// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/core/mailbox.hpp"

#include <cstring>
#include <utility>

namespace kagemusha::loop {
namespace {

constexpr std::size_t padded(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

template <typename T>
void append(std::vector<std::byte>& to, const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
}

} // namespace

bool mailbox::push(event one) {
    if (waiting_.size() >= max_events || one.data.size() > LOOP_DATA_BYTES)
        return false;
    one.head.bytes = static_cast<loop_u32>(one.data.size());
    waiting_.push_back(std::move(one));
    return true;
}

std::uint32_t mailbox::pack(std::vector<std::byte>& inbox) const {
    const std::size_t begin = inbox.size();
    std::uint32_t count = 0;
    for (const event& one : waiting_) {
        const std::size_t bytes = sizeof one.head + padded(one.data.size());
        if (inbox.size() - begin + bytes > LOOP_INBOX_BYTES)
            break;
        append(inbox, one.head);
        inbox.insert(inbox.end(), one.data.begin(), one.data.end());
        inbox.resize(inbox.size() + padded(one.data.size()) - one.data.size());
        ++count;
    }
    return count;
}

void mailbox::consumed(std::uint32_t events) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + events);
}

std::size_t inbox_bytes(std::uint32_t lanes) {
    return lanes * (sizeof(loop_lane_in) + std::size_t{LOOP_INBOX_BYTES});
}

std::vector<std::byte> pack_inbox(std::span<const mailbox> lanes, std::vector<std::uint32_t>& packed) {
    std::vector<std::byte> inbox(lanes.size() * sizeof(loop_lane_in));
    packed.clear();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        loop_lane_in in{static_cast<loop_u32>(inbox.size()), 0};
        packed.push_back(in.events = lanes[i].pack(inbox));
        std::memcpy(inbox.data() + i * sizeof in, &in, sizeof in);
    }
    return inbox;
}

lane_report read_outbox(std::span<const std::byte> outbox, std::uint32_t packed, std::uint32_t callbacks) {
    lane_report out;
    const auto nonsense = [&](const char* what) {
        out.error = std::string("the device loop's outbox makes no sense: ") + what;
        out.requests.clear();
        return out;
    };
    if (outbox.size() < sizeof out.head)
        return nonsense("it is too short");
    std::memcpy(&out.head, outbox.data(), sizeof out.head);
    if (out.head.fault == LOOP_FAULT_REQUESTS)
        out.error = "a callback made more requests, or one with more data, than loop_layout.h allows";
    else if (out.head.fault == LOOP_FAULT_STEPS)
        out.error = "more steps wait in one lane than loop_layout.h allows";
    else if (out.head.fault == LOOP_FAULT_STORES)
        out.error = "a callback made more stores than loop_layout.h allows";
    if (!out.error.empty())
        return out;
    if (out.head.fault != 0 || out.head.consumed > packed || out.head.callbacks > callbacks ||
        out.head.steps > LOOP_MAX_STEPS || out.head.bytes > outbox.size() - sizeof out.head)
        return nonsense("its counts are too large");
    auto left = outbox.subspan(sizeof out.head, out.head.bytes);
    for (std::uint32_t i = 0; i < out.head.requests; ++i) {
        request one;
        if (left.size() < sizeof one.head)
            return nonsense("a request is cut");
        std::memcpy(&one.head, left.data(), sizeof one.head);
        left = left.subspan(sizeof one.head);
        if (one.head.bytes > LOOP_DATA_BYTES || padded(one.head.bytes) > left.size())
            return nonsense("a request's data is cut");
        if (one.head.kind < LOOP_SEND || one.head.kind > LOOP_POST)
            return nonsense("a request is of no kind");
        one.data.assign(left.begin(), left.begin() + one.head.bytes);
        left = left.subspan(padded(one.head.bytes));
        out.requests.push_back(std::move(one));
    }
    return left.empty() ? out : nonsense("it has more bytes than requests");
}

} // namespace kagemusha::loop
