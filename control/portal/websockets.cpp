// SPDX-License-Identifier: GPL-2.0-or-later
//
// The WebSockets of server.hpp: live pages, and terminals in nodes. Without compression, which a page on loopback
// does not need, and which would be one more thing to bound.
#include "control/portal/console.hpp"
#include "control/portal/server_impl.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/stream.hpp>

namespace kagemusha::control::portal {

namespace websocket = beast::websocket;
using socket_type = websocket::stream<stream_type, false>;
using node_socket = asio::local::stream_protocol::socket;

// Its writer waits for `wake`, which is cancelled when there is something to do.
struct live_page {
    explicit live_page(stream_type stream, asio::io_context& io) : socket(std::move(stream)), wake(io) {}
    socket_type socket;
    asio::steady_timer wake;
    live_feed::reader reader;
    bool is_over = false;
};

namespace {

asio::awaitable<void> hear_page(std::shared_ptr<live_page> at) {
    at->socket.read_message_max(limits::page_message);
    beast::flat_buffer buffer(limits::page_message);
    beast::error_code error;
    for (std::size_t i = 0; i < limits::page_messages && !error; ++i) {
        buffer.clear();
        co_await at->socket.async_read(buffer, asio::redirect_error(asio::use_awaitable, error));
    }
    at->is_over = true;
    at->wake.cancel();
}

// The node's end → the page, until the last message or an end.
asio::awaitable<void> pass_output(std::shared_ptr<socket_type> page, std::shared_ptr<node_socket> node) {
    lan::exec_reader reader;
    std::string buffer(32 << 10, '\0');
    beast::error_code error;
    console_output out;
    while (!error && out.last.empty()) {
        const auto got = co_await node->async_read_some(asio::buffer(buffer),
                                                        asio::redirect_error(asio::use_awaitable, error));
        reader.feed({buffer.data(), got});
        std::string bytes;
        while (const auto frame = reader.next()) {
            out = console_text(*frame);
            bytes += out.binary;
            if (!out.last.empty())
                break;
        }
        if (out.last.empty() && (error || reader.broken()))
            out.last = nlohmann::json{{"error", "the connection to the node was lost"}}.dump();
        if (!bytes.empty()) {
            page->binary(true);
            co_await page->async_write(asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
        }
    }
    error = {};
    page->text(true);
    co_await page->async_write(asio::buffer(out.last), asio::redirect_error(asio::use_awaitable, error));
    co_await page->async_close(websocket::close_code::normal,
                               asio::redirect_error(asio::use_awaitable, error));
    beast::get_lowest_layer(*page).close();
}

asio::awaitable<void> show_console(asio::io_context& io, socket_type socket, opening to) {
    const auto page = std::make_shared<socket_type>(std::move(socket));
    const auto node = std::make_shared<node_socket>(io);
    page->read_message_max(longest_console_message);
    beast::flat_buffer buffer(longest_console_message);
    beast::error_code error;
    co_await node->async_connect(asio::local::stream_protocol::endpoint(to.socket),
                                 asio::redirect_error(asio::use_awaitable, error));
    bool is_first = true;
    if (error) {
        const auto last = error_body("the node's network does not answer: it is not up yet");
        page->text(true);
        co_await page->async_write(asio::buffer(last), asio::redirect_error(asio::use_awaitable, error));
        co_await page->async_close(websocket::close_code::normal,
                                   asio::redirect_error(asio::use_awaitable, error));
        co_return;
    }
    asio::co_spawn(io, pass_output(page, node), asio::detached);
    while (!error) {
        buffer.clear();
        co_await page->async_read(buffer, asio::redirect_error(asio::use_awaitable, error));
        if (error)
            break;
        const std::string_view message(static_cast<const char*>(buffer.cdata().data()), buffer.size());
        const auto frames =
            is_first ? console_greeting(to.secret, message) : console_frames(message, page->got_text());
        if (!frames)
            break;
        is_first = false;
        co_await asio::async_write(*node, asio::buffer(*frames),
                                   asio::redirect_error(asio::use_awaitable, error));
    }
    beast::error_code ignored;
    ignored = node->close(ignored); // which ends its shell
}

} // namespace

void server::impl::wake_pages() {
    for (auto* one : pages)
        one->wake.cancel();
}

asio::awaitable<void> server::impl::show_page(std::shared_ptr<live_page> at, access::caller who) {
    pages.push_back(at.get());
    const auto place = std::prev(pages.end());
    pages_open(pages.size());
    asio::co_spawn(io, hear_page(at), asio::detached);
    const std::function<bool()> is_alive = [&] { return on.is_alive(who); };
    auto looked_at = std::chrono::steady_clock::now();
    beast::error_code error;
    at->socket.text(true);
    while (!at->is_over && !error) {
        if (std::chrono::steady_clock::now() - looked_at > std::chrono::seconds(limits::look_s)) {
            looked_at = std::chrono::steady_clock::now();
            if (!co_await ask(is_alive)) {
                co_await at->socket.async_close({websocket::close_code::policy_error, "logged out"},
                                                asio::redirect_error(asio::use_awaitable, error));
                break;
            }
        }
        const auto news = feed.news(at->reader, limits::live_bytes);
        if (news.empty()) {
            at->wake.expires_after(std::chrono::seconds(limits::look_s));
            beast::error_code woken;
            co_await at->wake.async_wait(asio::redirect_error(asio::use_awaitable, woken));
            continue;
        }
        std::string message = "[";
        for (const auto& one : news)
            message += (message.size() > 1 ? "," : "") + *one;
        message += ']';
        co_await at->socket.async_write(asio::buffer(message),
                                        asio::redirect_error(asio::use_awaitable, error));
    }
    pages.erase(place);
    pages_open(pages.size());
    beast::get_lowest_layer(at->socket).close(); // who still reads from it ends, too
}

asio::awaitable<void> server::impl::upgrade(stream_type stream, http::request<http::string_body> got,
                                            std::string from) {
    const auto asked = to_request(got, from);
    opening to;
    if (websockets >= limits::websockets) {
        to.refusal = {503, "application/json", error_body("too many pages are open: close some")};
    } else {
        const std::function<opening()> work = [&] { return on.open(asked); };
        to = co_await ask(work);
    }
    if (to.what == opening::kind::refused) {
        co_await send(stream, std::move(to.refusal), false, false);
        co_return;
    }
    beast::get_lowest_layer(stream).expires_never(); // websocket::stream has its own timeouts
    auto at = std::make_shared<live_page>(std::move(stream), io);
    auto& socket = at->socket;
    socket.set_option(websocket::stream_base::timeout{std::chrono::seconds(limits::request_s),
                                                      std::chrono::seconds(limits::idle_s), true});
    beast::error_code error;
    co_await socket.async_accept(got, asio::redirect_error(asio::use_awaitable, error));
    if (error)
        co_return;
    struct counted {
        std::size_t& count;
        explicit counted(std::size_t& of) : count(of) { ++count; }
        counted(const counted&) = delete;
        counted& operator=(const counted&) = delete;
        ~counted() { --count; }
    } const open(websockets);
    if (to.what == opening::kind::live) {
        co_await show_page(at, std::move(to.who));
        co_return;
    }
    co_await show_console(io, std::move(socket), std::move(to));
}

} // namespace kagemusha::control::portal
