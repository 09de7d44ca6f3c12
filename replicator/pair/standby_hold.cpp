// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/standby_hold.hpp"

#include <cassert>
#include <cstring>
#include <utility>
#include <variant>

#include "pair/compress.hpp"

namespace kagemusha::pair {

net::receive_buffers standby_hold::on_payload(const mirror::message& m, std::uint64_t bytes) {
    abandon();
    net::receive_buffers where;
    if (const auto* e = std::get_if<mirror::entries>(&m)) {
        where = receive(*e);
    } else if (const auto* c = std::get_if<mirror::content>(&m)) {
        where = receive(*c);
    } else if (const auto* b = std::get_if<mirror::built>(&m)) {
        pack_.resize(b->bytes); // bounded by a frame
        where.pieces = {pack_};
    }
    std::uint64_t room = 0;
    for (const auto& w : where.pieces)
        room += w.size();
    return room == bytes ? where : net::receive_buffers{};
}

net::receive_buffers standby_hold::receive(const mirror::entries& e) {
    std::uint64_t stream_bytes = 0;
    for (const auto& one : e.list)
        stream_bytes += one.meta.stream_bytes; // each was checked against the format's bound
    // Streams are small against content; the state machine bounds their sum with everything else, but only
    // after they were received.
    if (stream_bytes_->load() + stream_bytes > hold_bytes_)
        return {};
    net::receive_buffers where;
    // Each has memory of its own: an entry of another file, which waits for long, must not keep those that came in
    // the same message. What is counted here is never more than what the state machine does.
    for (const auto& one : e.list) {
        auto held = std::make_unique<held_entry>();
        held->meta = one.meta;
        held->payloads = one.payloads;
        if (const std::uint64_t bytes = one.meta.stream_bytes; bytes != 0) {
            stream_bytes_->fetch_add(bytes);
            auto words = std::make_unique_for_overwrite<std::uint64_t[]>(bytes / 8);
            held->words = stream_words(words.release(), {stream_bytes_, bytes});
            where.pieces.push_back(std::as_writable_bytes(std::span(held->words.get(), bytes / 8)));
        }
        incoming_.push_back(std::move(held));
    }
    for (const auto& one : incoming_) {
        const mirror::entry_meta& meta = one->meta;
        if (const std::uint64_t bytes = mirror::arena_bytes(one->payloads); bytes != 0) {
            if (!memory_.allocate(bytes, one->memory))
                return {};
        }
        if ((meta.flags & mirror::entry_late_content) != 0)
            place(*one); // its content has to find its payload; others wait until they run: it takes memory
        // Content lies first, in the order in which it comes.
        if (meta.content_bytes != 0 && (meta.flags & mirror::entry_late_content) == 0 &&
            meta.content_bytes <= one->memory.bytes.size()) {
            where.pieces.push_back(one->memory.bytes.first(meta.content_bytes));
        }
    }
    return where;
}

net::receive_buffers standby_hold::receive(const mirror::content& c) {
    const auto at = held_.find(c.sequence);
    if (at == held_.end() || c.payload >= at->second->payloads.size() || c.bytes == 0)
        return {};
    const held_entry& e = *at->second;
    const mirror::entry_payload& p = e.payloads[c.payload];
    if (p.writable || c.offset > p.bytes || c.bytes > p.bytes - c.offset ||
        (e.meta.flags & mirror::entry_late_content) == 0) {
        return {};
    }
    const std::span<std::byte> to = e.payload(c.payload).subspan(c.offset, c.bytes);
    if (c.compressed_bytes == 0)
        return {{to}, e.memory.keep};
    packed_.resize(c.compressed_bytes); // bounded by a frame
    unpacked_to_ = to;
    return {{packed_}};
}

std::string standby_hold::on_message(const mirror::message& m) {
    if (const auto* c = std::get_if<mirror::content>(&m); c && c->compressed_bytes != 0) {
        if (!decompress(packed_, unpacked_to_))
            return "compressed content that is not what it says";
    } else if (const auto* o = std::get_if<mirror::outcome>(&m)) {
        if (const auto at = held_.find(o->sequence); at != held_.end())
            at->second->failed_there = o->result != 0;
    } else if (const auto* e = std::get_if<mirror::entries>(&m)) {
        if (incoming_.empty()) // entries without any bytes
            receive(*e);
        if (incoming_.size() != e->list.size())
            return "content that this standby has no room for";
    }
    return {};
}

void standby_hold::keep(log_sequence before, log_sequence received) {
    for (auto& one : incoming_) {
        const log_sequence n = one->meta.sequence;
        if (n > before && n <= received)
            held_.emplace(n, std::move(one));
    }
    abandon();
}

void standby_hold::abandon() {
    incoming_.clear();
    unpacked_to_ = {};
}

std::unique_ptr<held_entry> standby_hold::take(log_sequence entry) {
    auto at = held_.extract(entry);
    assert(!at.empty() && "the state machine runs only what it was told of");
    std::unique_ptr<held_entry> taken = std::move(at.mapped());
    if ((taken->meta.flags & mirror::entry_late_content) == 0)
        place(*taken);
    return taken;
}

bool standby_hold::take_pack(mirror::agent_memory::block& out) {
    if (pack_.empty() || !memory_.allocate(pack_.size(), out))
        return false;
    std::memcpy(out.bytes.data(), pack_.data(), pack_.size());
    return true;
}

void standby_hold::place(held_entry& e) const {
    e.request.place(e.payloads, region_, e.memory.segment.offset);
}

} // namespace kagemusha::pair
