// SPDX-License-Identifier: GPL-2.0-or-later
//
// What server.cpp (HTTP) and websockets.cpp share. For sources of this folder only.
#pragma once

#include "control/portal/http_message.hpp"
#include "control/portal/server.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include <list>
#include <map>
#include <thread>

namespace kagemusha::control::portal {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using stream_type = beast::ssl_stream<beast::tcp_stream>;
using parser_type = http::request_parser<http::string_body>;
using limits = server_limits;

std::string error_body(std::string_view why);

struct live_page; // websockets.cpp

struct server::impl {
    // Before `io`, whose end is that of all coroutines, which use them.
    handlers on;
    std::function<void(std::size_t)> pages_open;
    live_feed feed;
    std::size_t connections = 0, websockets = 0, logins = 0;
    std::map<std::string, std::size_t> of_address;
    asio::ssl::context tls{asio::ssl::context::tls_server};
    asio::io_context io;
    asio::thread_pool worker{1}, login_workers{limits::login_threads};
    tcp::acceptor acceptor{io};
    std::thread thread;

    std::list<live_page*> pages;

    asio::awaitable<void> accept();
    asio::awaitable<void> serve(stream_type stream, std::string from);
    asio::awaitable<bool> answer_one(stream_type& stream, parser_type& parser, const std::string& from);
    asio::awaitable<reply> answer_login(const request& asked);
    asio::awaitable<bool> refuse_unread(stream_type& stream, beast::error_code error);
    asio::awaitable<bool> send(stream_type& stream, reply what, bool head, bool keep_alive);
    asio::awaitable<void> upgrade(stream_type stream, http::request<http::string_body> got, std::string from);
    asio::awaitable<void> show_page(std::shared_ptr<live_page> at, access::caller who);

    // Calls something on the other thread. `work` lives in the caller's coroutine, which waits for it.
    template <class Result>
    asio::awaitable<Result> ask(const std::function<Result()>& work) {
        return ask_at(worker, work);
    }
    template <class Result>
    asio::awaitable<Result> ask_at(asio::thread_pool& pool, const std::function<Result()>& work) {
        auto there = [&work]() -> asio::awaitable<Result> { co_return work(); };
        co_return co_await asio::co_spawn(pool, there, asio::use_awaitable);
    }
    void wake_pages(); // there is something new
};

} // namespace kagemusha::control::portal
