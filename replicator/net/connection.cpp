// SPDX-License-Identifier: GPL-2.0-or-later
// See connection.hpp.
#include "net/connection.hpp"

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <cassert>
#include <chrono>

#include "mirror/log/limits.hpp"
#include "net/event_loop_impl.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;

namespace {

// How long a closing connection waits for the peer's end of it.
constexpr std::uint32_t finish_timeout_ms = 2000;

constexpr std::size_t nowhere_bytes = 16384;

// Whoever sends in spite of can_send() may go beyond the bound by this: heartbeats, a goodbye, one request.
constexpr std::uint64_t excess_bytes = 2 * mirror::max_frame_payload_bytes;

} // namespace

connection::connection(event_loop& loop, const link_options& options)
    : loop_(loop), options_(options), phase_timer_(loop.native().io), write_timer_(loop.native().io) {}

// ---- the user's side

void connection::send(const mirror::message& m, const std::vector<std::span<const std::byte>>& payload,
                      std::shared_ptr<const void> keep) {
    if (is_over() || write_over_)
        return;
    queue_.push(m, payload, std::move(keep));
    if (queue_.bytes() > 2 * options_.max_queued_bytes + excess_bytes) {
        // Not from inside send(): the caller is not prepared for on_closed.
        write_over_ = true;
        asio::post(loop_.native().io, [self = shared_from_this()] {
            self->fail("more was queued for the peer than the link may hold");
        });
        return;
    }
    schedule_write();
}

void connection::finish() {
    if (is_over())
        return;
    if (state_ == state::opening) {
        asio::post(loop_.native().io,
                   [self = shared_from_this()] { self->fail("closed before it was connected"); });
        return;
    }
    state_ = state::finishing;
    // A read that is under way must not go on writing to where the sink wanted a payload: the sink need not
    // keep that any more.
    if (reading_ && reader_.in_payload())
        release_read_pieces();
    expire_after(finish_timeout_ms + options_.write_timeout_ms, "the peer did not take everything in time");
    schedule_write();
}

void connection::abandon() {
    sink_ = nullptr;
    close();
}

// ---- opening and closing

void connection::opened(const std::string& peer) {
    if (state_ != state::opening)
        return;
    state_ = state::open;
    watch_hello();
    sink_->on_connected(peer);
    if (state_ == state::closed)
        return;
    read();
    schedule_write();
}

// Whom to tell, if anybody is left.
link_sink* connection::close() {
    if (state_ == state::closed)
        return nullptr;
    state_ = state::closed;
    phase_timer_.cancel();
    write_timer_.cancel();
    boost::system::error_code ignored;
    socket().close(ignored); // operations under way end with an error
    queue_.clear();
    return std::exchange(sink_, nullptr);
}

void connection::fail(const std::string& why) {
    const auto self = shared_from_this(); // on_closed may drop the last handle
    if (auto* const sink = close())
        sink->on_closed(why);
}

// The peer broke a rule: it learns which, when nothing of ours is in the way.
void connection::refuse(const std::string& why) {
    if (!writing_ && !write_over_ && queue_.bytes() == 0) {
        send_queue last_words;
        last_words.push(mirror::goodbye{mirror::goodbye_reason::protocol_error, why}, {}, {});
        std::array<std::span<const std::byte>, 1> piece;
        last_words.gather(piece);
        write_now(piece[0]);
    }
    fail(why);
}

void connection::expire_after(std::uint32_t ms, std::string why) {
    phase_timer_.expires_after(std::chrono::milliseconds(ms));
    phase_timer_.async_wait(
        [self = shared_from_this(), why = std::move(why)](const boost::system::error_code& canceled) {
            if (!canceled)
                self->fail(why);
        });
}

void connection::watch_hello() {
    phase_timer_.expires_after(std::chrono::milliseconds(mirror::hello_timeout_ms));
    phase_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& canceled) {
        if (!canceled && self->state_ == state::open && !self->reader_.greeted())
            self->fail("the peer sent no hello within " + std::to_string(mirror::hello_timeout_ms) + " ms");
    });
}

// ---- reading

void connection::read() {
    if (reading_ || state_ == state::closed || state_ == state::opening)
        return;
    std::size_t count = 1;
    if (state_ == state::finishing) {
        // What still comes is read only to see the peer's end.
        if (!nowhere_)
            nowhere_ = std::make_unique<std::byte[]>(nowhere_bytes);
        read_pieces_[0] = asio::buffer(nowhere_.get(), nowhere_bytes);
    } else {
        count = reader_.prepare(read_spans_);
        for (std::size_t i = 0; i < count; ++i)
            read_pieces_[i] = asio::buffer(read_spans_[i].data(), read_spans_[i].size());
    }
    reading_ = true;
    start_read({read_pieces_.data(), count});
}

void connection::on_read(const boost::system::error_code& error, std::size_t bytes) {
    reading_ = false;
    if (state_ == state::open && bytes > 0) {
        const auto why = reader_.commit(bytes, *this);
        if (state_ == state::open && !why.empty()) {
            refuse(why);
            return;
        }
    }
    if (state_ == state::closed)
        return;
    if (!error || (state_ == state::finishing && error == asio::error::operation_aborted)) {
        read();
        return;
    }
    // A failed read that says more than that the connection is gone (TLS does) goes before a failed write.
    const bool says_little =
        error == asio::error::eof || error.category() == boost::system::system_category();
    if (!why_write_failed_.empty() && says_little)
        fail(why_write_failed_);
    else if (state_ == state::finishing && write_over_)
        fail("closed"); // the peer saw the end, too
    else if (error == asio::error::eof && !reader_.greeted() && reader_.between_frames())
        fail("the peer closed the connection before its hello: its log says why (TLS on one side only?)");
    else if (error == asio::error::eof)
        fail(reader_.between_frames() ? "the peer closed the connection"
                                      : "the connection ended in the middle of a frame");
    else
        fail(explain(error, reader_.greeted()));
}

receive_buffers connection::on_payload(const mirror::message& m, std::uint64_t bytes) {
    return sink_->on_payload(m, bytes);
}

void connection::on_message(const mirror::message& m) {
    sink_->on_message(m);
}

// ---- writing

// Once the running task is over: what it sends goes out together.
void connection::schedule_write() {
    if (writing_ || write_scheduled_ || write_over_ || state_ == state::opening || state_ == state::closed)
        return;
    write_scheduled_ = true;
    asio::post(loop_.native().io, [self = shared_from_this()] {
        self->write_scheduled_ = false;
        self->write();
    });
}

void connection::write() {
    if (writing_ || write_over_ || state_ == state::opening || state_ == state::closed)
        return;
    const std::size_t count = queue_.gather(write_spans_);
    if (count == 0) {
        all_written();
        return;
    }
    for (std::size_t i = 0; i < count; ++i)
        write_pieces_[i] = asio::buffer(write_spans_[i].data(), write_spans_[i].size());
    writing_ = true;
    if (!watching_)
        watch_writing();
    start_write({write_pieces_.data(), count});
}

void connection::on_written(const boost::system::error_code& error, std::size_t bytes) {
    writing_ = false;
    if (state_ == state::closed)
        return;
    queue_.consume(bytes);
    written_bytes_ += bytes;
    if (error && !(state_ == state::finishing && error == asio::error::operation_aborted)) {
        write_failed(explain(error, reader_.greeted()));
        return;
    }
    if (state_ == state::open && bytes > 0)
        sink_->on_sent(bytes);
    write();
}

// The peer takes nothing any more, but what it said before that can still be read: why, perhaps.
void connection::write_failed(const std::string& why) {
    write_over_ = true;
    why_write_failed_ = why;
    queue_.clear();
    expire_after(finish_timeout_ms, why);
}

void connection::all_written() {
    if (state_ != state::finishing)
        return;
    write_over_ = true;
    boost::system::error_code ignored;
    socket().shutdown(asio::socket_base::shutdown_send, ignored); // the peer sees the end
    expire_after(finish_timeout_ms, "closed");
}

// One look per interval instead of a timer per write.
void connection::watch_writing() {
    watching_ = true;
    watched_bytes_ = written_bytes_;
    write_timer_.expires_after(std::chrono::milliseconds(options_.write_timeout_ms));
    write_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& canceled) {
        self->watching_ = false;
        if (canceled || !self->writing_)
            return;
        if (self->written_bytes_ == self->watched_bytes_)
            self->fail("the peer took no bytes for " + std::to_string(self->options_.write_timeout_ms) +
                       " ms");
        else
            self->watch_writing();
    });
}

std::string connection::explain(const boost::system::error_code& error, bool) const {
    if (error == asio::error::connection_reset || error == asio::error::broken_pipe)
        return "the peer broke the connection off";
    return "the connection is lost: " + error.message();
}

} // namespace kagemusha::net
