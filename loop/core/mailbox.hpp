// SPDX-License-Identifier: GPL-2.0-or-later
// mailbox: the events that wait for one lane, and the bytes of inbox and outbox (device/loop_layout.h). Pure.
//
// An event leaves its mailbox when a launch reports it as consumed, not when it was packed: what a token left
// over is in the next launch's inbox again.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "loop/core/limits.hpp"

namespace kagemusha::loop {

struct event {
    loop_event head{}; // `bytes` is that of `data`
    std::vector<std::byte> data;
};

struct request {
    loop_request head{};
    std::vector<std::byte> data;

    bool wants_answer() const {
        return head.kind == LOOP_OPEN || head.kind == LOOP_FETCH || head.kind == LOOP_POST ||
               (head.kind == LOOP_SEND && head.count != 0);
    }
};

class mailbox {
public:
    // false: it is full, which only a program does that asks for more than it takes.
    bool push(event one);
    std::size_t size() const { return waiting_.size(); }
    bool empty() const { return waiting_.empty(); }

    // Appends the first events, as many as fit. → how many
    std::uint32_t pack(std::vector<std::byte>& inbox) const;
    void consumed(std::uint32_t events);

private:
    std::deque<event> waiting_; // at most max_events
};

// The inbox of a launch; packed: how many events of each lane it has.
std::vector<std::byte> pack_inbox(std::span<const mailbox> lanes, std::vector<std::uint32_t>& packed);
// The most that it can have.
std::size_t inbox_bytes(std::uint32_t lanes);

struct lane_report {
    loop_lane_out head{};
    std::vector<request> requests;
    std::string error; // not empty: the outbox makes no sense, or the program is broken; nothing else counts
};
// `outbox`: of one lane, LOOP_OUTBOX_BYTES. `packed`: the events that it got.
lane_report read_outbox(std::span<const std::byte> outbox, std::uint32_t packed, std::uint32_t callbacks);

} // namespace kagemusha::loop
