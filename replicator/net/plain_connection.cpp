// SPDX-License-Identifier: GPL-2.0-or-later
// A connection whose bytes go as they are: Unix sockets only (connect.cpp, listener.cpp see to
// that).
#include "net/connection.hpp"
#include "net/event_loop_impl.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;

namespace {

class plain_connection final : public connection {
public:
    plain_connection(event_loop& loop, const link_options& options)
        : connection(loop, options), socket_(loop.native().io) {}

    asio::generic::stream_protocol::socket& socket() override { return socket_; }
    void handshake(handshake_done done) override { done({}); }
    std::string proven_name() const override { return {}; }

private:
    std::shared_ptr<plain_connection> self() {
        return std::static_pointer_cast<plain_connection>(shared_from_this());
    }

    void start_read(piece_view<asio::mutable_buffer> where) override {
        socket_.async_read_some(where, [self = self()](const boost::system::error_code& error,
                                                       std::size_t bytes) { self->on_read(error, bytes); });
    }

    void start_write(piece_view<asio::const_buffer> what) override {
        socket_.async_write_some(what,
                                 [self = self()](const boost::system::error_code& error, std::size_t bytes) {
                                     self->on_written(error, bytes);
                                 });
    }

    // What was waiting has moved no byte; what has moved some is not waiting.
    void release_read_pieces() override {
        boost::system::error_code ignored;
        socket_.cancel(ignored);
    }

    void write_now(std::span<const std::byte> bytes) override {
        boost::system::error_code ignored;
        socket_.non_blocking(true, ignored);
        socket_.write_some(asio::buffer(bytes.data(), bytes.size()), ignored);
    }

    asio::generic::stream_protocol::socket socket_;
};

} // namespace

std::shared_ptr<connection> make_plain_connection(event_loop& loop, const link_options& options) {
    return std::make_shared<plain_connection>(loop, options);
}

} // namespace kagemusha::net
