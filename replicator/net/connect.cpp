// SPDX-License-Identifier: GPL-2.0-or-later
// dial (connection.hpp): looks the name up, tries its addresses in turn, shakes hands; all within one timeout.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include <chrono>

#include "net/connection.hpp"
#include "net/endpoint.hpp"
#include "net/event_loop_impl.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;
using error_code = boost::system::error_code;

namespace {

// Lives as long as one of its handlers is under way. Each handler first looks whether the connection was
// closed meanwhile (by the timeout, or because its user dropped it).
class dialer : public std::enable_shared_from_this<dialer> {
public:
    dialer(event_loop& loop, const link_options& options, const address& to, std::shared_ptr<connection> c)
        : options_(options)
        , to_(to)
        , connection_(std::move(c))
        , resolver_(loop.native().io)
        , deadline_(loop.native().io) {}

    void start() {
        if (connection_->is_closed())
            return;
        deadline_.expires_after(std::chrono::milliseconds(options_.connect_timeout_ms));
        deadline_.async_wait([self = shared_from_this()](const error_code& canceled) {
            if (!canceled)
                self->give_up("no answer within " + std::to_string(self->options_.connect_timeout_ms) +
                              " ms");
        });
        if (const auto endpoint = numeric_endpoint(to_)) {
            candidates_.push_back(*endpoint);
            try_next();
            return;
        }
        resolver_.async_resolve(to_.host, std::to_string(to_.port),
                                [self = shared_from_this()](const error_code& failed,
                                                            asio::ip::tcp::resolver::results_type found) {
                                    if (self->connection_->is_closed())
                                        return;
                                    if (failed) {
                                        self->give_up("the name is not known: " + failed.message());
                                        return;
                                    }
                                    for (const auto& one : found)
                                        self->candidates_.emplace_back(one.endpoint());
                                    self->try_next();
                                });
    }

private:
    void try_next() {
        if (next_ == candidates_.size()) {
            give_up(last_failure_);
            return;
        }
        const auto& endpoint = candidates_[next_++];
        if (options_.tls.directory.empty() && !is_local(endpoint)) {
            done();
            connection_->fail(needs_tls(options_.address));
            return;
        }
        auto& socket = connection_->socket();
        error_code failed;
        socket.close(failed);
        socket.open(endpoint.protocol(), failed);
        if (failed) {
            last_failure_ = failed.message();
            try_next();
            return;
        }
        socket.async_connect(endpoint, [self = shared_from_this(), endpoint](const error_code& why) {
            if (self->connection_->is_closed())
                return;
            if (why) {
                self->last_failure_ = why.message();
                self->try_next();
                return;
            }
            set_socket_options(self->connection_->socket(), endpoint);
            self->shake_hands(endpoint_text(endpoint));
        });
    }

    void shake_hands(const std::string& where) {
        connection_->handshake([self = shared_from_this(), where](const std::string& why) {
            if (self->connection_->is_closed())
                return;
            if (!why.empty()) {
                self->give_up(why);
                return;
            }
            self->done();
            const auto name = self->connection_->proven_name();
            self->connection_->opened(name.empty() ? where : name + " (" + where + ")");
        });
    }

    void give_up(const std::string& why) {
        done();
        connection_->fail("cannot connect to " + options_.address + ": " + why);
    }

    void done() {
        deadline_.cancel();
        resolver_.cancel();
    }

    const link_options options_;
    const address to_;
    const std::shared_ptr<connection> connection_;
    asio::ip::tcp::resolver resolver_;
    asio::steady_timer deadline_;
    std::vector<stream_endpoint> candidates_;
    std::size_t next_ = 0;
    std::string last_failure_ = "the name has no address";
};

} // namespace

std::shared_ptr<connection> dial(event_loop& loop, const link_options& options, link_sink& sink) {
    std::string error;
    const auto to = parse_address(options.address, error);
    std::shared_ptr<tls_keys> keys;
    if (to && !options.tls.directory.empty())
        keys = tls_keys::open(options.tls, mirror::role::primary, error);

    std::shared_ptr<connection> c;
    if (keys)
        c = make_tls_connection(loop, options, std::move(keys));
    else
        c = make_plain_connection(loop, options);
    c->set_sink(&sink);
    if (!error.empty())
        asio::post(loop.native().io, [c, error] { c->fail(error); });
    else
        asio::post(loop.native().io, [d = std::make_shared<dialer>(loop, options, *to, c)] { d->start(); });
    return c;
}

} // namespace kagemusha::net
