// SPDX-License-Identifier: GPL-2.0-or-later
//
// See http_server.hpp. Two threads: one has all sockets, the other one the API, which may wait for etcd.
#include "control/daemon/http_server.hpp"

#include "control/base/json_text.hpp"
#include "control/portal/accept_each.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <pthread.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using socket_type = asio::local::stream_protocol::socket;
using stream_type = beast::basic_stream<asio::local::stream_protocol>;

namespace {

using response_type = http::response<http::string_body>;

response_type to_response(const api_answer& answer, unsigned version, bool keep_alive) {
    response_type out{static_cast<http::status>(answer.status), version};
    out.set(http::field::content_type, "application/json");
    out.set(http::field::cache_control, "no-store");
    if (!answer.revision.empty())
        out.set(http::field::etag, fmt::format("\"{}\"", answer.revision));
    out.keep_alive(keep_alive);
    out.body() = as_json_text(answer.body) + "\n";
    out.prepare_payload();
    return out;
}

} // namespace

struct http_server::impl {
    asio::io_context io;
    asio::thread_pool worker{1};
    asio::local::stream_protocol::acceptor acceptor{io};
    handler answer;
    std::string path;
    std::size_t connections = 0;
    std::thread thread;

    asio::awaitable<void> accept();
    asio::awaitable<void> serve(stream_type stream);
    asio::awaitable<api_answer> ask(api_request request);
};

asio::awaitable<api_answer> http_server::impl::ask(api_request request) {
    // `request` lives in this coroutine, which waits for the other one.
    auto work = [this, &request]() -> asio::awaitable<api_answer> { co_return answer(request); };
    co_return co_await asio::co_spawn(worker, work, asio::use_awaitable);
}

asio::awaitable<void> http_server::impl::serve(stream_type stream) {
    beast::flat_buffer buffer(http_limits::header_bytes + http_limits::body_bytes);
    for (bool goes_on = true; goes_on;) {
        http::request_parser<http::string_body> parser;
        parser.header_limit(http_limits::header_bytes);
        parser.body_limit(http_limits::body_bytes);
        beast::error_code error;
        stream.expires_after(std::chrono::seconds(http_limits::request_s));
        co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
        if (error == http::error::end_of_stream || error == beast::error::timeout)
            break;
        api_answer said;
        if (error == http::error::body_limit || error == http::error::header_limit ||
            error == http::error::buffer_overflow)
            said = {413,
                    {{"error", fmt::format("a request has at most {} KiB", http_limits::body_bytes >> 10)}}};
        else if (error)
            said = {400, {{"error", "this is no HTTP request"}}};
        const bool readable = !error;
        if (readable) {
            // With a name: GCC 12 ends the life of a temporary in a co_await twice.
            auto& got = parser.get();
            api_request request{std::string(got.method_string()),
                                std::string(got.target()),
                                revision_of(got[http::field::if_match]),
                                std::move(got.body()),
                                {},
                                false};
            said = co_await ask(std::move(request));
        }
        goes_on = readable && parser.get().keep_alive();
        auto response = to_response(said, 11, goes_on);
        stream.expires_after(std::chrono::seconds(http_limits::request_s));
        co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
        if (error)
            break;
    }
    beast::error_code ignored;
    ignored = stream.socket().shutdown(socket_type::shutdown_send, ignored);
}

asio::awaitable<void> http_server::impl::accept() {
    return accept_each(acceptor, [this](socket_type socket) {
        if (connections >= http_limits::connections)
            return; // it is closed
        ++connections;
        asio::co_spawn(io, serve(stream_type(std::move(socket))),
                       [this](const std::exception_ptr&) { --connections; });
    });
}

http_server::http_server(std::unique_ptr<impl> own) : impl_(std::move(own)) {}

std::unique_ptr<http_server> http_server::listen(const std::string& path, handler answer,
                                                 std::string& error) {
    auto own = std::make_unique<impl>();
    own->answer = std::move(answer);
    own->path = path;
    ::unlink(path.c_str());
    try {
        own->acceptor.open(asio::local::stream_protocol());
        own->acceptor.bind(asio::local::stream_protocol::endpoint(path));
        if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0)
            throw boost::system::system_error(errno, boost::system::system_category());
        own->acceptor.listen();
    } catch (const boost::system::system_error& failed) {
        error = fmt::format("cannot listen at {}: {}", path, failed.code().message());
        return nullptr;
    }
    auto& at = *own;
    asio::co_spawn(at.io, at.accept(), asio::detached);
    at.thread = std::thread([&at] {
        ::pthread_setname_np(::pthread_self(), "http");
        at.io.run();
    });
    return std::unique_ptr<http_server>(new http_server(std::move(own)));
}

http_server::~http_server() {
    impl_->io.stop();
    impl_->thread.join();
    impl_->worker.join();
    ::unlink(impl_->path.c_str());
}

} // namespace kagemusha::control::daemon
