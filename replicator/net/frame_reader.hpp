// SPDX-License-Identifier: GPL-2.0-or-later
// frame_reader: bytes of one connection in, messages out. It owns no socket: it says where the next bytes go
// (prepare), is told how many came (commit), and calls the sink. Many small frames are read at once into one
// buffer; the bytes behind a large message go straight to where the sink wants them.
//
// The peer is hostile: a header is checked before anything is read or allocated for it, and the first message
// must be a hello (or a goodbye that refuses us) without bytes behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/messages.hpp"
#include "net/link.hpp"

namespace kagemusha::net {

class frame_sink {
public:
    virtual receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) = 0;
    virtual void on_message(const mirror::message& m) = 0;
    // Whether to go on with what has been read already (asked after each call above).
    virtual bool wants_more() const = 0;

protected:
    ~frame_sink() = default;
};

class frame_reader {
public:
    // Holds hundreds of small frames; one system call fills it.
    static constexpr std::size_t buffer_bytes = std::size_t{256} << 10;
    // Pieces that one read can fill.
    static constexpr std::size_t max_pieces = 64;
    // Before the peer's hello. A hello with every field at its limit is smaller.
    static constexpr std::uint32_t max_first_message_bytes = 128u << 10;

    frame_reader();

    // Where the next bytes go: fills `pieces` from its beginning, returns how many (never 0).
    std::size_t prepare(std::span<std::span<std::byte>, max_pieces> pieces);

    // So many bytes were put there, in order. Empty, or a sentence: the connection is of no use any more.
    std::string commit(std::size_t bytes, frame_sink& sink);

    // Nothing of a frame has arrived without its end.
    bool between_frames() const { return !has_header_ && !in_payload_ && begin_ == end_; }
    bool in_payload() const { return in_payload_; } // prepare() gives the sink's memory
    bool greeted() const { return greeted_; }

private:
    std::string parse(frame_sink& sink);
    std::string take_header();
    std::string take_message(frame_sink& sink);
    void copy_payload();
    void fill_payload(std::size_t bytes);
    std::size_t available() const { return end_ - begin_; }

    // buffer_[begin_, end_) has arrived and is not parsed.
    std::unique_ptr<std::byte[]> buffer_;
    std::size_t size_ = buffer_bytes, begin_ = 0, end_ = 0;

    bool greeted_ = false;
    bool has_header_ = false;
    messages::frame_header header_{};

    // Of the message whose bytes are arriving; the buffer is empty meanwhile.
    bool in_payload_ = false;
    mirror::message message_;
    std::vector<std::span<std::byte>> payload_;
    std::shared_ptr<const void> keep_; // the memory of these, where its user may let go of it meanwhile
    std::size_t piece_ = 0, piece_offset_ = 0; // the next byte's place
    std::uint64_t payload_left_ = 0;
};

} // namespace kagemusha::net
