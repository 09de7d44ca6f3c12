// SPDX-License-Identifier: GPL-2.0-or-later
// A connection through mutual TLS 1.3: who connects shakes hands here, who listens at its door. No frame is
// read or written before both certificates were verified by this end; that the peer refuses ours is known to
// a client only from the first read on (TLS 1.3).
//
// The end is TCP's, not TLS's close_notify: frames have lengths, and goodbye is the protocol's last word, so
// a cut is never taken for an end.
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/ssl/verify_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <chrono>

#include "net/connection.hpp"
#include "net/door.hpp"
#include "net/event_loop_impl.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;
using error_code = boost::system::error_code;

namespace {

constexpr std::size_t record_bytes = 16384; // of plain text in a TLS record, at most

// How soon a certificate that was revoked ends the connections that it opened.
constexpr auto look_period = std::chrono::seconds(1);

asio::generic::stream_protocol::socket adopt(event_loop& loop, owned_socket& socket) {
    return {loop.native().io, socket.protocol(), socket.release()};
}

class tls_connection final : public connection {
public:
    tls_connection(event_loop& loop, const link_options& options, std::shared_ptr<tls_keys> keys)
        : connection(loop, options)
        , keys_(std::move(keys))
        , tls_(keys_->current())
        , trusted_by_(tls_)
        , look_(loop.native().io)
        , stream_(loop.native().io, const_cast<asio::ssl::context&>(tls_->context)) {}
    // Of a peer that has proved who it is (door.hpp).
    tls_connection(event_loop& loop, const link_options& options, std::shared_ptr<tls_keys> keys,
                   admitted_peer& peer)
        : connection(loop, options)
        , keys_(std::move(keys))
        , tls_(std::move(peer.tls))
        , trusted_by_(tls_)
        , look_(loop.native().io)
        , stream_(adopt(loop, peer.socket), peer.ssl.release()) {}

    asio::generic::stream_protocol::socket& socket() override { return stream_.next_layer(); }

    void handshake(handshake_done done) override {
        if (const auto why = expect_name(); !why.empty()) {
            done(why);
            return;
        }
        stream_.async_handshake(asio::ssl::stream_base::client,
                                [self = self(), done = std::move(done)](const error_code& error) {
                                    if (!error)
                                        self->watch_keys();
                                    done(self->handshake_result(error));
                                });
    }

    std::string proven_name() const override {
        X509* const certificate = peer_certificate();
        return certificate ? subject_name(X509_get_subject_name(certificate)) : std::string{};
    }

    std::shared_ptr<const tls_context> tls() const override { return tls_; }

    // Holds nobody: it ends with the connection.
    void watch_keys() {
        look_.expires_after(look_period);
        look_.async_wait([weak = std::weak_ptr(self())](const error_code& canceled) {
            if (const auto self = weak.lock(); self && !canceled && !self->is_closed())
                self->look_at_keys();
        });
    }

private:
    std::shared_ptr<tls_connection> self() {
        return std::static_pointer_cast<tls_connection>(shared_from_this());
    }

    X509* peer_certificate() const {
        auto& stream = const_cast<asio::ssl::stream<asio::generic::stream_protocol::socket>&>(stream_);
        return SSL_get0_peer_certificate(stream.native_handle());
    }

    void look_at_keys() {
        // Keys that are of no use now are the listener's or the next connection's to tell.
        if (const auto now = keys_->current(); now != trusted_by_) {
            trusted_by_ = now;
            X509* const certificate = peer_certificate();
            if (const auto why = certificate ? why_not_trusted(*now, certificate) : std::string();
                !why.empty()) {
                fail(why);
                return;
            }
        }
        watch_keys();
    }

    std::string expect_name() {
        error_code failed;
        // Keeps what was wrong for handshake_result; decides nothing.
        stream_.set_verify_callback(
            [this](bool ok, asio::ssl::verify_context& context) {
                X509_STORE_CTX* const store = context.native_handle();
                if (!ok && verify_failure_.empty())
                    verify_failure_ = verify_sentence(X509_STORE_CTX_get_error(store),
                                                      X509_STORE_CTX_get_current_cert(store), *tls_);
                return ok;
            },
            failed);
        if (failed)
            return failed.message();
        return expect_peer(stream_.native_handle(), *tls_);
    }

    std::string handshake_result(const error_code& error) {
        if (!error)
            return {};
        if (!verify_failure_.empty())
            return verify_failure_;
        if (error == asio::error::eof || error == asio::ssl::error::stream_truncated ||
            error == asio::error::connection_reset)
            return handshake_sentence(0, *tls_);
        if (error.category() == asio::error::get_ssl_category())
            return handshake_sentence(static_cast<unsigned long>(error.value()), *tls_);
        return error.message();
    }

    // Asio's TLS operations go on with their buffers after a cancel or close, when a part of them had already
    // arrived. So they get buffers of ours, one TLS record large; that also makes whole records of scattered
    // pieces. The copy is little beside the encryption.
    void start_read(piece_view<asio::mutable_buffer> where) override {
        const std::size_t room = std::min(asio::buffer_size(where), record_bytes);
        stream_.async_read_some(asio::buffer(read_record_.get(), room),
                                [self = self(), where](const error_code& error, std::size_t bytes) {
                                    if (self->is_delivering())
                                        asio::buffer_copy(where,
                                                          asio::buffer(self->read_record_.get(), bytes));
                                    const bool ended = error == asio::ssl::error::stream_truncated;
                                    self->on_read(ended ? error_code(asio::error::eof) : error, bytes);
                                });
    }

    void start_write(piece_view<asio::const_buffer> what) override {
        const std::size_t bytes = asio::buffer_copy(asio::buffer(write_record_.get(), record_bytes), what);
        stream_.async_write_some(asio::buffer(write_record_.get(), bytes),
                                 [self = self()](const error_code& error, std::size_t written) {
                                     self->on_written(error, written);
                                 });
    }

    void release_read_pieces() override {}

    void write_now(std::span<const std::byte> bytes) override {
        error_code ignored;
        socket().non_blocking(true, ignored);
        stream_.write_some(asio::buffer(bytes.data(), bytes.size()), ignored);
    }

    std::string explain(const error_code& error, bool greeted) const override {
        if (error.category() == asio::error::get_ssl_category())
            return tls_sentence(static_cast<unsigned long>(error.value()), *tls_, false);
        return connection::explain(error, greeted);
    }

    const std::shared_ptr<tls_keys> keys_;
    const std::shared_ptr<const tls_context> tls_;
    std::shared_ptr<const tls_context> trusted_by_; // the keys that the peer's certificate was verified with
    asio::steady_timer look_;
    std::string verify_failure_;
    const std::unique_ptr<std::byte[]> read_record_ = std::make_unique<std::byte[]>(record_bytes);
    const std::unique_ptr<std::byte[]> write_record_ = std::make_unique<std::byte[]>(record_bytes);
    asio::ssl::stream<asio::generic::stream_protocol::socket> stream_;
};

} // namespace

std::shared_ptr<connection> make_tls_connection(event_loop& loop, const link_options& options,
                                                std::shared_ptr<tls_keys> keys) {
    return std::make_shared<tls_connection>(loop, options, std::move(keys));
}

std::shared_ptr<connection> make_admitted_connection(event_loop& loop, const link_options& options,
                                                     std::shared_ptr<tls_keys> keys, admitted_peer peer) {
    if (!peer.ssl) {
        auto c = make_plain_connection(loop, options);
        c->socket() = adopt(loop, peer.socket);
        return c;
    }
    auto c = std::make_shared<tls_connection>(loop, options, std::move(keys), peer);
    c->watch_keys();
    return c;
}

} // namespace kagemusha::net
