// SPDX-License-Identifier: GPL-2.0-or-later
// standby_hold: the bytes of the log that a standby holds, by number: streams in private memory, content in
// the arena. replication_standby_fsm decides which entries are part of the log; this has what they are made
// of.
//
//   on_payload() ──bytes arrive──▶ on_message() ──the state machine──▶ keep() ──▶ take() or skip()
//                                                        └─refused: nothing of the message stays
//
// So what is held is always what the state machine holds, whatever a primary sends, and its bounds hold here.
// At most one message is under way besides: a frame.
//
// Threads: the replication thread only; what take() gave belongs to its taker, who may drop it anywhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mirror/protocol/message.hpp"
#include "mirror/sync/sync_agent.hpp"
#include "net/link.hpp"
#include "pair/standby_runner.hpp"

namespace kagemusha::pair {

class standby_hold {
public:
    // `memory` outlives this and what was taken from it; `region`: its number on the device.
    standby_hold(mirror::agent_memory& memory, std::uint32_t region, std::uint64_t hold_bytes)
        : memory_(memory), region_(region), hold_bytes_(hold_bytes) {}

    // Where the bytes behind a message go, until on_message() or abandon(). Empty: they have no place.
    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes);
    // All of them have arrived. Empty, or what is wrong with them.
    std::string on_message(const mirror::message& m);
    // The state machine has heard of the message: what it had received before, and has now. Right behind it,
    // before its actions.
    void keep(log_sequence before, log_sequence received);
    // The link is gone in the middle of a message.
    void abandon();

    std::unique_ptr<held_entry> take(log_sequence entry); // it is held
    // What the last message Built had, where workers can read it. False: there is no memory.
    bool take_pack(mirror::agent_memory::block& out);
    void skip(log_sequence entry) { held_.erase(entry); }
    void clear() { held_.clear(); }

    std::size_t entries() const { return held_.size(); }
    // Of all entries that are not dropped yet, taken ones included.
    std::uint64_t stream_bytes() const { return stream_bytes_->load(); }

private:
    net::receive_buffers receive(const mirror::entries& e);
    net::receive_buffers receive(const mirror::content& c);
    void place(held_entry& e) const; // its payloads in its memory

    mirror::agent_memory& memory_;
    const std::uint32_t region_;
    const std::uint64_t hold_bytes_;
    std::unordered_map<log_sequence, std::unique_ptr<held_entry>> held_;
    std::vector<std::unique_ptr<held_entry>> incoming_; // of the message that comes just now
    std::vector<std::byte> packed_;                     // compressed content
    std::vector<std::byte> pack_;                       // of the message Built that came last
    std::span<std::byte> unpacked_to_;
    std::shared_ptr<std::atomic<std::uint64_t>> stream_bytes_ =
        std::make_shared<std::atomic<std::uint64_t>>(0);
};

} // namespace kagemusha::pair
