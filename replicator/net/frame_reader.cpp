// SPDX-License-Identifier: GPL-2.0-or-later
// See frame_reader.hpp.
#include "net/frame_reader.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace kagemusha::net {

namespace {

constexpr std::size_t header_bytes = sizeof(messages::frame_header);

// Behind a large payload only so much is read along: enough for the next header and message, and what then
// has to be copied of the next payload is little.
constexpr std::size_t tail_bytes = 4096;
constexpr std::uint64_t large_payload_bytes = 64 << 10;

// First bytes of a TLS record: handshake or alert, version 3.x.
bool looks_like_tls(const std::byte* first) {
    return (first[0] == std::byte{0x16} || first[0] == std::byte{0x15}) && first[1] == std::byte{0x03};
}

} // namespace

frame_reader::frame_reader() : buffer_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)) {}

std::size_t frame_reader::prepare(std::span<std::span<std::byte>, max_pieces> pieces) {
    std::size_t count = 0;
    std::size_t tail = size_ - end_;
    if (in_payload_) {
        assert(begin_ == end_);
        std::size_t offset = piece_offset_;
        std::size_t i = piece_;
        for (; i < payload_.size() && count + 1 < max_pieces; ++i, offset = 0)
            if (payload_[i].size() > offset)
                pieces[count++] = payload_[i].subspan(offset);
        if (i < payload_.size())
            return count; // more pieces than fit: nothing may come behind them
        if (payload_left_ >= large_payload_bytes)
            tail = std::min(tail, tail_bytes);
    }
    pieces[count++] = {buffer_.get() + end_, tail};
    return count;
}

std::string frame_reader::commit(std::size_t bytes, frame_sink& sink) {
    if (in_payload_) {
        const auto direct = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, payload_left_));
        fill_payload(direct);
        bytes -= direct;
    }
    end_ += bytes;
    assert(end_ <= size_);
    auto why = parse(sink);
    // What is left of the last frame moves to the front, so that there is room behind it.
    if (begin_ == end_) {
        begin_ = end_ = 0;
    } else if (begin_ > 0) {
        std::memmove(buffer_.get(), buffer_.get() + begin_, available());
        end_ -= begin_;
        begin_ = 0;
    }
    return why;
}

std::string frame_reader::parse(frame_sink& sink) {
    while (sink.wants_more()) {
        if (in_payload_) {
            copy_payload();
            if (payload_left_ > 0)
                return {};
            in_payload_ = false;
            payload_.clear();
            keep_.reset();
            const mirror::message m = std::move(message_);
            sink.on_message(m);
            continue;
        }
        if (!has_header_) {
            if (available() < header_bytes) {
                if (available() >= 2 && looks_like_tls(buffer_.get() + begin_))
                    return "the peer speaks TLS, but this end was set up without keys";
                return {};
            }
            if (auto why = take_header(); !why.empty())
                return why;
        }
        if (available() < header_.message_bytes)
            return {};
        if (auto why = take_message(sink); !why.empty())
            return why;
    }
    return {};
}

std::string frame_reader::take_header() {
    const std::byte* const first = buffer_.get() + begin_;
    if (looks_like_tls(first))
        return "the peer speaks TLS, but this end was set up without keys";
    std::memcpy(&header_, first, header_bytes);
    if (auto why = messages::check(header_); !why.empty())
        return why;
    if (!greeted_ && (header_.message_bytes > max_first_message_bytes || header_.payload_bytes != 0))
        return "the peer's first message is too large for a hello";
    begin_ += header_bytes;
    has_header_ = true;
    if (header_.message_bytes > size_) {
        // Once in the life of a connection, and bounded: check() knows the largest message.
        auto larger = std::make_unique_for_overwrite<std::byte[]>(mirror::max_message_bytes + header_bytes);
        std::memcpy(larger.get(), buffer_.get() + begin_, available());
        end_ -= begin_;
        begin_ = 0;
        buffer_ = std::move(larger);
        size_ = mirror::max_message_bytes + header_bytes;
    }
    return {};
}

std::string frame_reader::take_message(frame_sink& sink) {
    const std::span<const std::byte> bytes(buffer_.get() + begin_, header_.message_bytes);
    mirror::message m;
    if (auto why = messages::decode(header_, bytes, m); !why.empty())
        return why;
    begin_ += header_.message_bytes;
    has_header_ = false;
    if (!greeted_ && !std::holds_alternative<mirror::hello>(m) && !std::holds_alternative<mirror::goodbye>(m))
        return "the peer's first message is no hello";
    greeted_ = true;
    if (header_.payload_bytes == 0) {
        sink.on_message(m);
        return {};
    }
    receive_buffers where = sink.on_payload(m, header_.payload_bytes);
    if (!sink.wants_more())
        return {};
    if (where.pieces.empty())
        return "there is no room for the " + std::to_string(header_.payload_bytes) +
               " bytes behind a message of the peer";
    std::uint64_t room = 0;
    for (const auto& piece : where.pieces)
        room += piece.size();
    assert(room == header_.payload_bytes);
    message_ = std::move(m);
    payload_ = std::move(where.pieces);
    keep_ = std::move(where.keep);
    piece_ = piece_offset_ = 0;
    payload_left_ = header_.payload_bytes;
    in_payload_ = true;
    return {};
}

// What was read along with the message.
void frame_reader::copy_payload() {
    auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(available(), payload_left_));
    while (bytes > 0) {
        const auto& piece = payload_[piece_];
        const std::size_t part = std::min(bytes, piece.size() - piece_offset_);
        if (part > 0)
            std::memcpy(piece.data() + piece_offset_, buffer_.get() + begin_, part);
        begin_ += part;
        bytes -= part;
        fill_payload(part);
    }
    if (begin_ == end_)
        begin_ = end_ = 0;
}

void frame_reader::fill_payload(std::size_t bytes) {
    payload_left_ -= bytes;
    piece_offset_ += bytes;
    while (piece_ < payload_.size() && piece_offset_ >= payload_[piece_].size()) {
        piece_offset_ -= payload_[piece_].size();
        ++piece_;
    }
}

} // namespace kagemusha::net
