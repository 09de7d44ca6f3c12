// SPDX-License-Identifier: GPL-2.0-or-later
// See send_queue.hpp.
#include "net/send_queue.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "messages/messages.hpp"

namespace kagemusha::net {

namespace {

constexpr std::size_t chunk_bytes = std::size_t{64} << 10;

} // namespace

struct send_queue::chunk {
    explicit chunk(std::size_t bytes)
        : memory(std::make_unique_for_overwrite<std::byte[]>(bytes)), size(bytes) {}
    std::unique_ptr<std::byte[]> memory;
    std::size_t size, used = 0;
};

void send_queue::push(const mirror::message& m, const std::vector<std::span<const std::byte>>& payload,
                      std::shared_ptr<const void> keep) {
    scratch_.clear();
    messages::encode(m, scratch_);
    append_copy(scratch_);
    std::uint64_t payload_bytes = 0;
    segment* last_referred = nullptr; // a deque's elements stay where they are while it grows
    for (const auto& piece : payload) {
        payload_bytes += piece.size();
        if (piece.size() <= tiny_piece_bytes) {
            append_copy(piece);
        } else {
            segments_.push_back({piece, {}, {}});
            bytes_ += piece.size();
            last_referred = &segments_.back();
        }
    }
    assert(payload_bytes == messages::payload_bytes_of(m));
    if (last_referred)
        last_referred->keep = std::move(keep);
}

void send_queue::append_copy(std::span<const std::byte> bytes) {
    if (bytes.empty())
        return;
    if (!chunk_ || chunk_->size - chunk_->used < bytes.size()) {
        if (chunk_ && chunk_.use_count() == 1 && chunk_->size >= bytes.size())
            chunk_->used = 0; // all of it was written
        else
            chunk_ = std::make_shared<chunk>(std::max(chunk_bytes, bytes.size()));
    }
    std::byte* const place = chunk_->memory.get() + chunk_->used;
    std::memcpy(place, bytes.data(), bytes.size());
    chunk_->used += bytes.size();
    bytes_ += bytes.size();
    if (!segments_.empty()) {
        auto& last = segments_.back();
        if (last.own == chunk_ && last.bytes.data() + last.bytes.size() == place) {
            last.bytes = {last.bytes.data(), last.bytes.size() + bytes.size()};
            return;
        }
    }
    segments_.push_back({{place, bytes.size()}, chunk_, {}});
}

std::size_t send_queue::gather(std::span<std::span<const std::byte>> pieces) const {
    const std::size_t count = std::min(pieces.size(), segments_.size());
    for (std::size_t i = 0; i < count; ++i)
        pieces[i] = segments_[i].bytes;
    return count;
}

void send_queue::consume(std::uint64_t bytes) {
    assert(bytes <= bytes_);
    bytes_ -= bytes;
    while (bytes > 0) {
        auto& first = segments_.front();
        if (bytes < first.bytes.size()) {
            first.bytes = first.bytes.subspan(static_cast<std::size_t>(bytes));
            return;
        }
        bytes -= first.bytes.size();
        segments_.pop_front();
    }
}

void send_queue::clear() {
    segments_.clear();
    bytes_ = 0;
}

} // namespace kagemusha::net
