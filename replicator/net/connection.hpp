// SPDX-License-Identifier: GPL-2.0-or-later
// connection: what all links have in common, whatever carries their bytes: frames in and out, the order of
// closing, timeouts. What is different is in plain_connection.cpp and tls_connection.cpp.
//
// For the sources of this folder only. One thread: the loop's. Handlers that are under way hold the
// connection; the user holds a handle (laned_link) and may drop it at any time, also inside a callback.
//
//   opening ──opened()──▶ open ──finish()──▶ finishing ──all written, peer's end seen──▶ closed
//      │                   │                                                               ▲
//      └───────────────────┴───────────────── fail(why) ──────────────────────────────────┘
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>

#include <array>

#include "net/frame_reader.hpp"
#include "net/link.hpp"
#include "net/send_queue.hpp"

namespace kagemusha::net {

class tls_keys;     // tls.hpp
struct tls_context; // the same

// A buffer sequence for Asio that is cheap to copy: Asio's operations keep copies of the sequence, and the
// pieces stay in the connection.
template <class Buffer>
class piece_view {
public:
    using value_type = Buffer;
    using const_iterator = const Buffer*;
    piece_view(const Buffer* first, std::size_t count) : first_(first), count_(count) {}
    const_iterator begin() const { return first_; }
    const_iterator end() const { return first_ + count_; }

private:
    const Buffer* first_;
    std::size_t count_;
};

class connection : public std::enable_shared_from_this<connection>, private frame_sink {
public:
    connection(event_loop& loop, const link_options& options);
    virtual ~connection() = default;
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;

    // The user's side (by laned_link).
    void send(const mirror::message& m, const std::vector<std::span<const std::byte>>& payload,
              std::shared_ptr<const void> keep);
    bool can_send() const { return !is_over() && queue_.bytes() < options_.max_queued_bytes; }
    std::uint64_t queued_bytes() const { return queue_.bytes(); }
    void finish();
    void abandon(); // the user is gone: closed at once, no call follows

    // What opens the connection (connect.cpp, listener.cpp).
    void set_sink(link_sink* sink) { sink_ = sink; }
    void opened(const std::string& peer); // calls on_connected; frames flow from now on
    void fail(const std::string& why);    // closed at once, on_closed
    void refuse(const std::string& why);  // the same; the peer broke a rule, and is told
    bool is_closed() const { return state_ == state::closed; }
    virtual boost::asio::generic::stream_protocol::socket& socket() = 0; // the TCP or Unix socket itself
    // Makes the socket that has connected ready for frames. `done` gets an empty string, or a sentence: what
    // is wrong.
    using handshake_done = std::function<void(const std::string& why)>;
    virtual void handshake(handshake_done done) = 0;
    // Who the peer has proved to be; empty: nobody.
    virtual std::string proven_name() const = 0;
    virtual std::shared_ptr<const tls_context> tls() const { return nullptr; }

protected:
    // What carries the bytes. A started operation ends in on_read or on_written, once. After close() of the
    // socket its pieces are not touched, whatever is still under way.
    virtual void start_read(piece_view<boost::asio::mutable_buffer> where) = 0;
    virtual void start_write(piece_view<boost::asio::const_buffer> what) = 0;
    // A read under way does not touch its pieces any more. It and a write may end with operation_aborted and
    // no bytes, and are then done again.
    virtual void release_read_pieces() = 0;
    // One write without waiting, for last words. Best effort.
    virtual void write_now(std::span<const std::byte> bytes) = 0;
    // A sentence for a failed read or write. `greeted`: the peer's hello has arrived.
    virtual std::string explain(const boost::system::error_code& error, bool greeted) const;

    bool is_delivering() const { return state_ == state::open; } // what was read is still wanted
    void on_read(const boost::system::error_code& error, std::size_t bytes);
    void on_written(const boost::system::error_code& error, std::size_t bytes);

    event_loop& loop_;
    const link_options options_;

private:
    enum class state { opening, open, finishing, closed };

    receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override;
    void on_message(const mirror::message& m) override;
    bool wants_more() const override { return state_ == state::open; }

    bool is_over() const { return state_ == state::finishing || state_ == state::closed; }
    void read();
    void write();
    void schedule_write();
    void write_failed(const std::string& why);
    void all_written();
    void watch_writing();
    void watch_hello();
    void expire_after(std::uint32_t ms, std::string why);
    link_sink* close();

    state state_ = state::opening;
    link_sink* sink_ = nullptr; // null: the user is gone
    frame_reader reader_;
    send_queue queue_;
    std::array<std::span<std::byte>, frame_reader::max_pieces> read_spans_;
    std::array<boost::asio::mutable_buffer, frame_reader::max_pieces> read_pieces_;
    static constexpr std::size_t max_write_pieces = 64; // of one system call of Asio's
    std::array<std::span<const std::byte>, max_write_pieces> write_spans_;
    std::array<boost::asio::const_buffer, max_write_pieces> write_pieces_;
    bool reading_ = false, writing_ = false, write_scheduled_ = false, watching_ = false;
    std::unique_ptr<std::byte[]> nowhere_; // for what is read and not wanted
    bool write_over_ = false;              // the peer takes nothing any more, or all was said
    std::string why_write_failed_;         // told when reading ends too: the peer may have said why
    std::uint64_t written_bytes_ = 0, watched_bytes_ = 0;
    boost::asio::steady_timer phase_timer_; // hello, finishing
    boost::asio::steady_timer write_timer_;
};

// Connects it (connect.cpp): as connect() of link.hpp.
std::shared_ptr<connection> dial(event_loop& loop, const link_options& options, link_sink& sink);

std::shared_ptr<connection> make_plain_connection(event_loop& loop, const link_options& options);
// With the keys as they are now. It ends when they change and the peer's certificate is none of the CA's any
// more, because it was revoked for example.
std::shared_ptr<connection> make_tls_connection(event_loop& loop, const link_options& options,
                                                std::shared_ptr<tls_keys> keys);
struct admitted_peer; // door.hpp
// Of a peer that a door has let in; `keys` as above, null without TLS.
std::shared_ptr<connection> make_admitted_connection(event_loop& loop, const link_options& options,
                                                     std::shared_ptr<tls_keys> keys, admitted_peer peer);

} // namespace kagemusha::net
