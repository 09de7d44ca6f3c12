// SPDX-License-Identifier: GPL-2.0-or-later
//
// See server.hpp. Everything here runs on the thread of the sockets but what ask() hands to the other one.
#include "control/access/secrets.hpp"
#include "control/portal/accept_each.hpp"
#include "control/portal/server_impl.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <fmt/format.h>

#include <pthread.h>

namespace kagemusha::control::portal {

std::string error_body(std::string_view why) {
    return nlohmann::json{{"error", why}}.dump() + "\n";
}

asio::awaitable<bool> server::impl::send(stream_type& stream, reply what, bool head, bool keep_alive) {
    auto response = to_response(std::move(what), head, keep_alive);
    beast::error_code error;
    beast::get_lowest_layer(stream).expires_after(std::chrono::seconds(limits::request_s));
    co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
    co_return !error && keep_alive;
}

// What could not be read as a request. False: the connection is over.
asio::awaitable<bool> server::impl::refuse_unread(stream_type& stream, beast::error_code error) {
    reply said{400, "application/json", error_body("this is no HTTP request")};
    if (error == http::error::body_limit || error == http::error::header_limit ||
        error == http::error::buffer_overflow)
        said = {413, "application/json",
                error_body(fmt::format("a request has at most {} KiB", limits::body_bytes >> 10))};
    else if (error.category() != boost::system::error_code(http::error::bad_method).category())
        co_return false; // the connection's end, or its time is over
    co_await send(stream, std::move(said), false, false);
    co_return false;
}

// A login may wait for others: it has threads of its own, and only so many wait for one.
asio::awaitable<reply> server::impl::answer_login(const request& asked) {
    reply said{503, "application/json", error_body("many log in just now: try again in a moment")};
    if (logins >= limits::logins)
        co_return said;
    const std::function<reply()> work = [&] { return on.answer(asked); };
    {
        struct counted {
            std::size_t& of;
            explicit counted(std::size_t& n) : of(n) { ++of; }
            counted(const counted&) = delete;
            counted& operator=(const counted&) = delete;
            ~counted() { --of; } // also when this connection is given up
        } const one(logins);
        said = co_await ask_at(login_workers, work);
    }
    if (said.hold.count() > 0) {
        asio::steady_timer pause(io, said.hold);
        co_await pause.async_wait(asio::use_awaitable);
    }
    co_return said;
}

asio::awaitable<bool> server::impl::answer_one(stream_type& stream, parser_type& parser,
                                               const std::string& from) {
    const bool head = parser.get().method() == http::verb::head, keep_alive = parser.get().keep_alive();
    auto asked = to_request(parser.get(), from);
    // With a name: GCC 12 ends the life of a temporary in a co_await twice.
    const std::function<reply()> work = [&] { return on.answer(asked); };
    const bool is_login = on.is_login(asked);
    reply said;
    if (is_login) // not ?:, for the same reason
        said = co_await answer_login(asked);
    else
        said = co_await ask(work);
    if (is_login)
        access::forget(asked.body); // it may have a password
    co_return co_await send(stream, std::move(said), head, keep_alive);
}

asio::awaitable<void> server::impl::serve(stream_type stream, std::string from) {
    auto& lowest = beast::get_lowest_layer(stream);
    beast::error_code error;
    lowest.expires_after(std::chrono::seconds(limits::request_s));
    co_await stream.async_handshake(asio::ssl::stream_base::server,
                                    asio::redirect_error(asio::use_awaitable, error));
    if (error)
        co_return;
    beast::flat_buffer buffer(limits::header_bytes + limits::body_bytes);
    for (bool goes_on = true, first = true; goes_on; first = false) {
        parser_type parser;
        parser.header_limit(limits::header_bytes);
        parser.body_limit(limits::body_bytes);
        if (!first && buffer.size() == 0) { // the next request may take its time to begin
            lowest.expires_after(std::chrono::seconds(limits::idle_s));
            const auto got = co_await stream.async_read_some(
                buffer.prepare(4096), asio::redirect_error(asio::use_awaitable, error));
            if (error)
                break;
            buffer.commit(got);
        }
        lowest.expires_after(std::chrono::seconds(limits::request_s));
        co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
        if (error) {
            goes_on = co_await refuse_unread(stream, error);
            continue;
        }
        if (beast::websocket::is_upgrade(parser.get())) {
            co_await upgrade(std::move(stream), parser.release(), std::move(from));
            co_return;
        }
        goes_on = co_await answer_one(stream, parser, from);
    }
    lowest.expires_after(std::chrono::seconds(1)); // nobody waits long for a farewell
    co_await stream.async_shutdown(asio::redirect_error(asio::use_awaitable, error));
}

asio::awaitable<void> server::impl::accept() {
    return accept_each(acceptor, [this](tcp::socket socket) {
        beast::error_code error;
        const auto end = socket.remote_endpoint(error);
        const auto from = error ? std::string() : end.address().to_string();
        if (from.empty() || connections >= limits::connections || of_address[from] >= limits::of_one_address)
            return; // it is closed
        socket.set_option(tcp::no_delay(true), error);
        ++connections;
        ++of_address[from];
        asio::co_spawn(io, serve(stream_type(beast::tcp_stream(std::move(socket)), tls), from),
                       [this, from](const std::exception_ptr&) {
                           --connections;
                           if (--of_address[from] == 0)
                               of_address.erase(from);
                       });
    });
}

server::server(std::unique_ptr<impl> own) : impl_(std::move(own)) {}

std::unique_ptr<server> server::listen(const server_address& at, const std::string& certificate,
                                       const std::string& key, handlers answer,
                                       std::function<void(std::size_t)> pages_open, std::string& error) {
    auto own = std::make_unique<impl>();
    own->on = std::move(answer);
    own->pages_open = std::move(pages_open);
    try {
        own->tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                             asio::ssl::context::no_tlsv1_1);
        own->tls.use_certificate_chain_file(certificate);
        own->tls.use_private_key_file(key, asio::ssl::context::pem);
        const tcp::endpoint end(asio::ip::make_address(at.address), at.port);
        own->acceptor.open(end.protocol());
        own->acceptor.set_option(asio::socket_base::reuse_address(true));
        own->acceptor.bind(end);
        own->acceptor.listen();
    } catch (const boost::system::system_error& failed) {
        error = fmt::format("the portal can't listen at {} port {}: {}", at.address, at.port,
                            failed.code().message());
        return nullptr;
    }
    auto& there = *own;
    asio::co_spawn(there.io, there.accept(), asio::detached);
    there.thread = std::thread([&there] {
        ::pthread_setname_np(::pthread_self(), "portal");
        there.io.run();
    });
    return std::unique_ptr<server>(new server(std::move(own)));
}

server::~server() {
    impl_->io.stop();
    impl_->thread.join();
    impl_->worker.join();
    impl_->login_workers.join();
}

std::uint16_t server::port() const {
    return impl_->acceptor.local_endpoint().port();
}

void server::change_feed(std::function<void(live_feed&)> change) {
    asio::post(impl_->io, [own = impl_.get(), change = std::move(change)] {
        change(own->feed);
        own->wake_pages();
    });
}

} // namespace kagemusha::control::portal
