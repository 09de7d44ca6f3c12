// SPDX-License-Identifier: GPL-2.0-or-later
// op_log: what the device's thread does with the log, and the copies, which it makes itself or leaves to a
// thread of their own. The replication thread's part is in op_log_link.cpp.
#include "pair/op_log.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "mirror/log/limits.hpp"
#include "pair/op_log_impl.hpp"

namespace kagemusha::pair {

namespace {

// Copies from this size on go where memory stays resident; below, the heap does that by itself.
constexpr std::uint64_t large_copy_bytes = std::uint64_t{64} << 10;

// What a release copies itself: less time than it takes to wake another thread and to be told.
constexpr std::uint64_t copied_on_release_bytes = std::uint64_t{512} << 10;

// Some thousand small requests, or one large one: what does not fit goes the other way. Small against a
// cache.
constexpr std::size_t ring_words = std::size_t{32} << 10;

// What an entry is on the ring, before its packed stream.
struct ring_entry {
    log_sequence sequence;
    std::uint32_t file, flags, op_count;
    std::uint32_t stream_words;
};
constexpr std::size_t ring_entry_words = sizeof(ring_entry) / sizeof(std::uint64_t);
static_assert(ring_entry_words * sizeof(std::uint64_t) == sizeof(ring_entry));

std::uint64_t bytes_of(const mirror::byte_pieces& p) {
    std::uint64_t sum = 0;
    for (const auto& piece : p.pieces)
        sum += piece.size();
    return sum;
}

} // namespace

op_log::op_log(const bounds& b, callbacks c, mirror::agent_memory* copies)
    : bounds_(b), callbacks_(std::move(c)), copies_(copies), ring_(ring_words) {}

op_log::~op_log() {
    // The link and whoever copies ended before.
    assert(std::all_of(used_.begin(), used_.end(), [](const auto& u) { return u.second.readers == 0; }));
}

// ---- device's thread

void op_log::queue(log_event event, attention wakes_from) {
    {
        const std::lock_guard lock(mutex_);
        absorb();
        events_.push_back(std::move(event));
        queued_.store(true, std::memory_order_relaxed);
    }
    wake(wakes_from);
}

void op_log::tell() {
    wake(attention::blocks);
}

void op_log::wake(attention from) {
    // Either this sees that nobody looks, or who stopped looking sees on his last look what was appended.
    everything_before_everything_after();
    attention now = attention_.load(std::memory_order_relaxed);
    if (now >= from && attention_.compare_exchange_strong(now, attention::spins))
        callbacks_.wake();
}

void op_log::store(stored s) {
    assert(s.meta.sequence == first_ + entries_.size());
    log_event e;
    e.what = log_event::kind::entry;
    e.sequence = s.meta.sequence;
    e.meta = s.meta;
    events_.push_back(std::move(e));
    entries_.push_back(std::move(s));
}

void op_log::absorb() {
    for (auto record = ring_.front(); !record.empty(); ring_.pop(), record = ring_.front()) {
        ring_entry head;
        std::memcpy(&head, record.data(), sizeof(head));
        stored s;
        s.meta.sequence = head.sequence;
        s.meta.file = head.file;
        s.meta.flags = head.flags;
        s.meta.op_count = head.op_count;
        s.meta.stream_bytes = head.stream_words * sizeof(std::uint64_t);
        s.stream.resize(head.stream_words);
        mirror::unpack_stream(record.subspan(ring_entry_words), s.stream);
        store(std::move(s));
    }
}

log_sequence op_log::append_packed(const mirror::entry_meta& meta, std::span<const std::uint64_t> packed) {
    assert(meta.kind == mirror::entry_kind::submit && meta.content_bytes == 0);
    std::uint64_t* const record = ring_.reserve(ring_entry_words + packed.size());
    if (!record)
        return log_sink::append_packed(meta, packed);
    const log_sequence number = appended() + 1;
    const ring_entry head{number, meta.file, meta.flags, meta.op_count,
                          static_cast<std::uint32_t>(meta.stream_bytes / sizeof(std::uint64_t))};
    std::memcpy(record, &head, sizeof(head));
    std::memcpy(record + ring_entry_words, packed.data(), packed.size_bytes());
    // Counted before anybody can take it.
    bytes_.come(meta.stream_bytes);
    count_.come(1);
    appended_.store(number, std::memory_order_relaxed);
    ring_.publish(ring_entry_words + packed.size());
    return number;
}

// Cuts what comes of a payload into pieces of one frame.
void op_log::split(log_sequence entry, late_content_of& l, std::uint32_t payload, mirror::byte_pieces bytes,
                   bool in_guest) {
    assert(payload < l.lengths.size());
    late_piece piece{payload, 0, 0, in_guest, {{}, bytes.keep}};
    const auto finish = [&] {
        piece.offset = l.arrived[payload];
        l.arrived[payload] += piece.bytes;
        assert(l.arrived[payload] <= l.lengths[payload]);
        l.in_guest += in_guest;
        l.held += piece.bytes;
        bytes_.come(piece.bytes);
        log_event e;
        e.what = log_event::kind::late_content;
        e.sequence = entry;
        e.payload = payload;
        e.bytes = piece.bytes;
        events_.push_back(std::move(e));
        l.pieces.push_back(std::move(piece));
        piece = {payload, 0, 0, in_guest, {{}, bytes.keep}};
    };
    for (std::span<const std::byte> rest : bytes.pieces) {
        while (!rest.empty()) {
            const auto part =
                rest.first(std::min<std::uint64_t>(rest.size(), mirror::sent_piece_bytes - piece.bytes));
            piece.content.pieces.push_back(part);
            piece.bytes += part.size();
            rest = rest.subspan(part.size());
            if (piece.bytes == mirror::sent_piece_bytes)
                finish();
        }
    }
    if (piece.bytes != 0)
        finish();
}

log_sequence op_log::append(mirror::log_entry entry) {
    assert(entry.content.size() <= entry.payloads.size());
    stored s;
    s.meta = entry.meta;
    s.stream = std::move(entry.stream);
    s.payloads = std::move(entry.payloads);
    s.content = std::move(entry.content);
    s.in_guest = entry.content_in_guest;
    std::uint64_t given = 0;
    for (const auto& c : s.content)
        given += mirror::rounded_up(bytes_of(c));
    if (s.in_guest && given <= mirror::copy_content_bytes) {
        for (auto& c : s.content)
            if (!c.pieces.empty())
                c = copy_of(c);
        s.in_guest = false;
    }
    if (given > mirror::max_inline_content_bytes)
        s.meta.flags |= mirror::entry_late_content;

    const bool waited_for = s.in_guest; // by the request's answer
    const log_sequence number = appended() + 1;
    s.meta.sequence = number;
    bytes_.come(s.held_bytes());
    count_.come(1);
    appended_.store(number, std::memory_order_relaxed);
    bool copy = false;
    {
        const std::lock_guard lock(mutex_);
        absorb();
        const bool late = s.late(), in_guest = s.in_guest;
        std::vector<mirror::byte_pieces> content;
        if (late) {
            content = std::exchange(s.content, {});
            s.in_guest = false; // each piece knows it for itself
        }
        store(std::move(s));
        if (late) {
            late_content_of& l = late_[number];
            l.arrived.resize(entries_.back().payloads.size());
            for (const mirror::entry_payload& p : entries_.back().payloads) {
                l.lengths.push_back(p.writable ? 0 : p.bytes);
                l.missing += l.lengths.back();
            }
            for (std::uint32_t i = 0; i < content.size(); ++i)
                split(number, l, i, content[i], in_guest);
            if (l.in_guest != 0 && callbacks_.copy_wanted)
                to_copy_.push_back(number);
        }
        copy = !to_copy_.empty();
        queued_.store(true, std::memory_order_relaxed);
    }
    wake(waited_for ? attention::polls : attention::blocks);
    if (copy)
        callbacks_.copy_wanted();
    return number;
}

bool op_log::congested() const {
    const bool now = bytes() >= bounds_.bytes || entries() >= bounds_.entries;
    if (now) {
        reported_congested_.store(true);
        // It may have ended between the look and the note: then nobody would tell.
        return bytes() >= bounds_.bytes || entries() >= bounds_.entries;
    }
    return false;
}

void op_log::outcome(log_sequence entry, std::int32_t result) {
    log_event e;
    e.what = log_event::kind::outcome;
    e.sequence = entry;
    e.result = result;
    queue(std::move(e));
}

void op_log::cancel(log_sequence entry) {
    log_event e;
    e.what = log_event::kind::cancel;
    e.sequence = entry;
    queue(std::move(e));
}

void op_log::late_content(log_sequence entry, std::uint32_t payload, mirror::byte_pieces bytes) {
    std::unique_lock lock(mutex_);
    const auto at = late_.find(entry);
    if (at == late_.end())
        return; // dropped meanwhile: nobody wants it
    absorb();
    split(entry, at->second, payload, std::move(bytes), false);
    queued_.store(true, std::memory_order_relaxed);
    lock.unlock();
    wake(attention::polls);
}

void op_log::digests(log_sequence entry, std::vector<std::uint64_t> hashes) {
    log_event e;
    e.what = log_event::kind::digests;
    e.sequence = entry;
    e.hashes = std::move(hashes);
    queue(std::move(e));
}

bool op_log::release_content(log_sequence entry) {
    for (;;) {
        std::unique_lock lock(mutex_);
        if (stored* s = find(entry); s && s->in_guest) {
            for (auto& c : s->content)
                if (!c.pieces.empty())
                    c = copy_of(c);
            s->in_guest = false;
        }
        const auto l = late_.find(entry);
        const bool left = l != late_.end() && l->second.in_guest != 0;
        std::uint64_t bytes = 0;
        if (left)
            for (const late_piece& p : l->second.pieces)
                bytes += p.in_guest && !p.copying ? p.bytes : 0;
        const bool here = bytes != 0 && (!callbacks_.copy_wanted || bytes <= copied_on_release_bytes);
        if (!here) {
            if (!left && !used_.contains(entry))
                return true;
            used_[entry].release_wanted = true;
            return false;
        }
        lock.unlock();
        copy_piece(entry);
    }
}

void op_log::built(std::uint32_t file, std::shared_ptr<const std::vector<std::byte>> pack) {
    log_event e;
    e.what = log_event::kind::built;
    e.meta.file = file;
    e.bytes = pack->size();
    e.pack = std::move(pack);
    queue(std::move(e));
}

void op_log::synced(log_sequence last) {
    log_event e;
    e.what = log_event::kind::synced;
    e.sequence = last;
    queue(std::move(e), attention::polls);
}

void op_log::failed(const std::string& why) {
    log_event e;
    e.what = log_event::kind::failed;
    e.text = why;
    queue(std::move(e), attention::polls);
}

void op_log::stopped() {
    log_event e;
    e.what = log_event::kind::stopped;
    queue(std::move(e), attention::polls);
}

// ---- copies: a thread of their own, or the device's

// The same bytes in memory of our own.
mirror::byte_pieces op_log::copy_of(const mirror::byte_pieces& p) const {
    const std::uint64_t bytes = bytes_of(p);
    mirror::byte_pieces out;
    std::byte* to = nullptr;
    if (mirror::agent_memory::block block;
        bytes >= large_copy_bytes && copies_ && copies_->allocate(bytes, block)) {
        to = block.bytes.data();
        out.keep = std::move(block.keep);
    } else {
        const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
        to = memory.get();
        out.keep = memory;
    }
    out.pieces.emplace_back(to, bytes);
    for (const auto& piece : p.pieces) {
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
    }
    return out;
}

bool op_log::in_guest(log_sequence entry) const {
    const auto l = late_.find(entry);
    return l != late_.end() && l->second.in_guest != 0;
}

bool op_log::copy_ahead() {
    for (;;) {
        log_sequence entry;
        {
            const std::lock_guard lock(mutex_);
            if (to_copy_.empty())
                return false;
            entry = to_copy_.front();
        }
        if (copy_piece(entry))
            return true;
        const std::lock_guard lock(mutex_);
        if (!to_copy_.empty() && to_copy_.front() == entry)
            to_copy_.pop_front();
    }
}

// The last one that nobody copies: the link takes from the front. False: there is none.
bool op_log::copy_piece(log_sequence entry) {
    mirror::byte_pieces from;
    std::uint32_t payload = 0;
    std::uint64_t offset = 0;
    {
        const std::lock_guard lock(mutex_);
        const auto l = late_.find(entry);
        if (l == late_.end() || l->second.in_guest == 0)
            return false;
        auto& pieces = l->second.pieces;
        const auto piece = std::find_if(pieces.rbegin(), pieces.rend(),
                                        [](const late_piece& p) { return p.in_guest && !p.copying; });
        if (piece == pieces.rend())
            return false;
        piece->copying = true;
        from = piece->content;
        payload = piece->payload;
        offset = piece->offset;
        ++used_[entry].readers;
    }
    mirror::byte_pieces copy = copy_of(from);
    {
        const std::lock_guard lock(mutex_);
        if (const auto l = late_.find(entry); l != late_.end()) {
            auto& pieces = l->second.pieces;
            const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const late_piece& p) {
                return p.payload == payload && p.offset == offset;
            });
            if (piece != pieces.end()) { // else the link was faster
                piece->content = std::move(copy);
                piece->in_guest = piece->copying = false;
                --l->second.in_guest;
            }
        }
    }
    read({entry});
    return true;
}

} // namespace kagemusha::pair
