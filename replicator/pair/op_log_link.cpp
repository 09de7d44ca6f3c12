// SPDX-License-Identifier: GPL-2.0-or-later
// op_log: what the replication thread does with the log: takes events and what goes to the link, and drops
// what the standby has.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "messages/messages.hpp"
#include "pair/op_log_impl.hpp"

namespace kagemusha::pair {

namespace {

// A room that begins again only here: a device that stops and goes on for each entry would crawl.
constexpr std::uint64_t room_numerator = 3, room_denominator = 4;

// Bytes up to this are gathered in one buffer: a copy of a few cache lines is cheaper than an entry of a
// scatter-gather list.
constexpr std::size_t gathered_bytes = 2048;

constexpr std::byte padding[8] = {};

} // namespace

void op_log::take_events(std::vector<log_event>& out, attention next) {
    out.clear();
    attention_.store(next);
    everything_before_everything_after();
    const std::lock_guard lock(mutex_);
    absorb();
    queued_.store(false, std::memory_order_relaxed);
    std::swap(out, events_);
}

bool op_log::take_entries(log_sequence& first, log_sequence last, outgoing& out) {
    auto b = std::make_shared<batch>(*this);
    mirror::entries message;
    messages::entries_budget budget;
    std::size_t small_bytes = 0;
    {
        const std::lock_guard lock(mutex_);
        first = std::max(first, first_);
        for (; first <= last; ++first) {
            stored* s = find(first);
            if (!s || !budget.take(s->meta, s->payloads.size()))
                break;
            assert(!s->taken);
            message.list.push_back({s->meta, std::move(s->payloads)});
            stored& moved = b->entries.emplace_back();
            moved.meta = s->meta;
            moved.in_guest = s->in_guest;
            moved.stream = std::move(s->stream);
            moved.content = std::move(s->content);
            s->taken = true;
            if (std::exchange(s->in_guest, false)) {
                ++used_[first].readers;
                b->guest_entries.push_back(first);
            }
            if (moved.stream.size() * 8 <= gathered_bytes)
                small_bytes += moved.stream.size() * 8;
            if (s->inline_bytes() <= gathered_bytes)
                small_bytes += s->inline_bytes();
        }
    }
    if (message.list.empty())
        return false;

    b->gathered.reserve(small_bytes); // so that spans into it stay valid
    out.payload.clear();
    const auto gather = [&](std::span<const std::byte> bytes) {
        const std::byte* end = b->gathered.data() + b->gathered.size();
        b->gathered.insert(b->gathered.end(), bytes.begin(), bytes.end());
        assert(b->gathered.size() <= small_bytes);
        if (!out.payload.empty() && out.payload.back().data() + out.payload.back().size() == end)
            out.payload.back() = {out.payload.back().data(), out.payload.back().size() + bytes.size()};
        else if (!bytes.empty())
            out.payload.push_back({end, bytes.size()});
    };
    for (const stored& s : b->entries) {
        const auto bytes = std::as_bytes(std::span(s.stream));
        if (bytes.size() <= gathered_bytes)
            gather(bytes);
        else
            out.payload.push_back(bytes);
    }
    for (const stored& s : b->entries) {
        const bool small = s.meta.content_bytes <= gathered_bytes;
        for (const auto& c : s.content) {
            std::uint64_t length = 0;
            for (const auto& piece : c.pieces) {
                small ? gather(piece) : out.payload.push_back(piece);
                length += piece.size();
            }
            if (const std::size_t pad = mirror::rounded_up(length) - length; pad != 0) {
                const std::span<const std::byte> zeros(padding, pad);
                small ? gather(zeros) : out.payload.push_back(zeros);
            }
        }
    }
    out.what = std::move(message);
    out.keep = std::move(b);
    return true;
}

bool op_log::take_content(const mirror::content& piece, outgoing& out) {
    auto b = std::make_shared<batch>(*this);
    {
        const std::lock_guard lock(mutex_);
        const auto l = late_.find(piece.sequence);
        if (l == late_.end())
            return false;
        auto& pieces = l->second.pieces;
        const auto at = std::find_if(pieces.begin(), pieces.end(), [&](const late_piece& p) {
            return p.payload == piece.payload && p.offset == piece.offset;
        });
        assert(at != pieces.end() && at->bytes == piece.bytes);
        b->piece = std::move(at->content);
        if (at->in_guest) {
            --l->second.in_guest;
            ++used_[piece.sequence].readers;
            b->guest_entries.push_back(piece.sequence);
        }
        pieces.erase(at);
        l->second.held -= piece.bytes;
        l->second.missing -= piece.bytes;
        bytes_.go(piece.bytes);
        if (l->second.missing == 0)
            late_.erase(l);
    }
    report_room();
    out.what = piece;
    out.payload = b->piece.pieces;
    out.keep = std::move(b);
    return true;
}

void op_log::read(const std::vector<log_sequence>& guest_entries) {
    std::vector<log_sequence> released;
    {
        const std::lock_guard lock(mutex_);
        for (const log_sequence entry : guest_entries) {
            const auto at = used_.find(entry);
            assert(at != used_.end() && at->second.readers != 0);
            if (--at->second.readers != 0 || (at->second.release_wanted && in_guest(entry)))
                continue;
            if (at->second.release_wanted)
                released.push_back(entry);
            used_.erase(at);
        }
    }
    report_released(released);
}

void op_log::report_released(const std::vector<log_sequence>& entries) {
    for (const log_sequence entry : entries)
        callbacks_.content_released(entry);
}

void op_log::drop(log_sequence up_to) {
    std::vector<stored> dropped; // these end outside the lock
    std::unordered_map<log_sequence, late_content_of> late;
    std::vector<log_sequence> released;
    {
        const std::lock_guard lock(mutex_);
        absorb();
        std::uint64_t freed = 0, count = 0;
        for (; first_ <= up_to && !entries_.empty(); ++first_, ++count) {
            freed += entries_.front().held_bytes();
            if (!entries_.front().taken)
                dropped.push_back(std::move(entries_.front()));
            entries_.pop_front();
        }
        if (up_to == UINT64_MAX) {
            late.swap(late_);
            to_copy_.clear();
            for (const auto& [number, l] : late)
                freed += l.held;
            std::erase_if(used_, [&](const auto& u) {
                if (u.second.readers != 0)
                    return false; // told by the last of them
                released.push_back(u.first);
                return true;
            });
        }
        bytes_.go(freed);
        count_.go(count);
    }
    report_released(released);
    report_room();
}

void op_log::drop_content(log_sequence entry) {
    decltype(late_)::node_type dropped; // ends outside the lock
    std::vector<log_sequence> released;
    {
        const std::lock_guard lock(mutex_);
        dropped = late_.extract(entry);
        if (dropped)
            bytes_.go(dropped.mapped().held);
        if (const auto at = used_.find(entry); at != used_.end() && at->second.readers == 0) {
            released.push_back(entry);
            used_.erase(at);
        }
    }
    report_released(released);
    report_room();
}

void op_log::report_room() {
    if (reported_congested_.load() && bytes() <= bounds_.bytes / room_denominator * room_numerator &&
        entries() <= bounds_.entries / room_denominator * room_numerator &&
        reported_congested_.exchange(false)) {
        callbacks_.room();
    }
}

} // namespace kagemusha::pair
