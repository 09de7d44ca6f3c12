// SPDX-License-Identifier: GPL-2.0-or-later
// What op_log.cpp (the device's thread, copies) and op_log_link.cpp (the replication thread) share of op_log:
// how it holds entries and content.
#pragma once

#include "pair/op_log.hpp"

namespace kagemusha::pair {

#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan" // which does not know it; no data is handed over by it
#endif
inline void everything_before_everything_after() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

struct op_log::late_piece {
    std::uint32_t payload;
    std::uint64_t offset;
    std::uint64_t bytes;
    bool in_guest;
    mirror::byte_pieces content;
    bool copying = false; // by another thread; in_guest until that has ended
};

struct op_log::late_content_of {
    std::vector<std::uint64_t> lengths; // of its payloads; 0 where nothing crosses
    std::vector<std::uint64_t> arrived; // of each, so far
    std::uint64_t missing = 0;          // not taken yet, arrived or not
    std::uint64_t held = 0;             // arrived and not taken
    std::uint32_t in_guest = 0;         // of `pieces`
    std::deque<late_piece> pieces;      // not taken yet
};

struct op_log::stored {
    mirror::entry_meta meta;
    bool in_guest = false; // `content` lies in guest memory
    bool taken = false;    // stream and content went to the link
    std::vector<std::uint64_t> stream;
    std::vector<mirror::entry_payload> payloads;
    std::vector<mirror::byte_pieces> content;

    bool late() const { return (meta.flags & mirror::entry_late_content) != 0; }
    std::uint64_t inline_bytes() const { return late() ? 0 : meta.content_bytes; }
    std::uint64_t held_bytes() const { return meta.stream_bytes + inline_bytes(); }
};

inline op_log::stored* op_log::find(log_sequence entry) {
    return entry >= first_ && entry - first_ < entries_.size() ? &entries_[entry - first_] : nullptr;
}

// What the link sends at this moment.
struct op_log::batch {
    op_log& owner;
    std::vector<stored> entries; // their bytes, moved out of the log
    std::vector<std::byte> gathered;
    mirror::byte_pieces piece;
    std::vector<log_sequence> guest_entries;

    explicit batch(op_log& o) : owner(o) {}
    batch(const batch&) = delete;
    ~batch() {
        if (!guest_entries.empty())
            owner.read(guest_entries);
    }
};

} // namespace kagemusha::pair
