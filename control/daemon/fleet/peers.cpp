// SPDX-License-Identifier: GPL-2.0-or-later
//
// See peers.hpp.
#include "control/daemon/fleet/peers.hpp"

#include "control/base/json_text.hpp"
#include "control/daemon/fleet/peer_tls.hpp"
#include "control/portal/accept_each.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <future>
#include <map>
#include <pthread.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using asio::local::stream_protocol;
using json = nlohmann::json;
using asio::use_awaitable;

namespace {

// A connection to an agent: bytes both ways until one end is over; then both are.
struct way_open {
    way_open(peer_stream far, stream_protocol::socket near)
        : far_end(std::move(far)), near_end(std::move(near)) {}
    peer_stream far_end;
    stream_protocol::socket near_end;
    void close() {
        beast::error_code ignored;
        ignored = near_end.close(ignored);
        beast::get_lowest_layer(far_end).close();
    }
};

template <class From, class To>
asio::awaitable<void> pass(std::shared_ptr<way_open> of, From& from, To& to) {
    std::string buffer(32 << 10, '\0');
    beast::error_code error;
    while (!error) {
        const auto got =
            co_await from.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, error));
        if (error)
            break;
        co_await asio::async_write(to, asio::buffer(buffer.data(), got),
                                   asio::redirect_error(use_awaitable, error));
    }
    of->close();
}

asio::awaitable<void> pass_both(asio::io_context& io, std::shared_ptr<way_open> of, std::string rest) {
    beast::get_lowest_layer(of->far_end).expires_never();
    co_await asio::async_write(of->near_end, asio::buffer(rest), use_awaitable);
    asio::co_spawn(io, pass(of, of->near_end, of->far_end), asio::detached);
    co_await pass(of, of->far_end, of->near_end);
}

} // namespace

struct peers::impl {
    fleet_settings own;
    std::string folder;
    handlers on;
    asio::ssl::context server_tls{asio::ssl::context::tlsv13_server},
        client_tls{asio::ssl::context::tlsv13_client};
    std::size_t connections = 0;
    asio::io_context io;
    asio::thread_pool worker{1};
    tcp::acceptor acceptor{io};
    std::map<std::string, std::shared_ptr<stream_protocol::acceptor>> ways; // by path
    std::thread thread;

    asio::awaitable<void> accept();
    asio::awaitable<void> serve(peer_stream stream);
    asio::awaitable<json> answer(json asked);
    asio::awaitable<void> serve_agent(peer_stream stream, json asked, std::string rest);
    asio::awaitable<void> accept_way(std::shared_ptr<stream_protocol::acceptor> at, std::string cluster,
                                     unsigned node);
    asio::awaitable<void> go(stream_protocol::socket near, std::string cluster, unsigned node);
    std::string open_way(const std::string& path, const std::string& cluster, unsigned node);
};

// ---- what others ask of this host

asio::awaitable<json> peers::impl::answer(json asked) {
    api_request request;
    request.method = text_in(asked, "method");
    request.target = text_in(asked, "target");
    request.if_match = text_in(asked, "if_match");
    request.body = text_in(asked, "body");
    request.who.name = text_in(asked, "user");
    request.who.may = access::role_of(text_in(asked, "role")).value_or(access::role::nobody);
    request.who.from = text_in(asked, "from");
    request.is_of_a_peer = true;
    auto work = [this, &request]() -> asio::awaitable<api_answer> { co_return on.answer(request); };
    const auto said = co_await asio::co_spawn(worker, work, use_awaitable);
    co_return json{{"status", said.status}, {"body", said.body}, {"revision", said.revision}};
}

asio::awaitable<void> peers::impl::serve_agent(peer_stream stream, json asked, std::string rest) {
    const auto cluster = text_in(asked, "cluster");
    const auto node = cluster::node_number(text_in(asked, "agent"));
    const auto path = node && cluster::is_cluster_name(cluster) ? on.agent(cluster, *node) : std::string();
    stream_protocol::socket near(io);
    beast::error_code error;
    if (!path.empty())
        co_await near.async_connect(stream_protocol::endpoint(path),
                                    asio::redirect_error(use_awaitable, error));
    const bool is_there = !path.empty() && !error;
    const auto line = as_json_text({{"status", is_there ? 200 : 404}}) + "\n";
    co_await asio::async_write(stream, asio::buffer(line), use_awaitable);
    if (is_there)
        co_await pass_both(io, std::make_shared<way_open>(std::move(stream), std::move(near)),
                           std::move(rest));
}

asio::awaitable<void> peers::impl::serve(peer_stream stream) {
    auto& lowest = beast::get_lowest_layer(stream);
    lowest.expires_after(peer_begins_within);
    watch_peer(lowest.socket());
    co_await stream.async_handshake(asio::ssl::stream_base::server, use_awaitable);
    if (!on.is_host(peer_name(stream)))
        co_return;
    std::string rest;
    const auto line = co_await read_peer_line(stream, rest);
    auto asked = json::parse(line, nullptr, false);
    if (!asked.is_object())
        co_return;
    if (asked.contains("agent")) {
        co_await serve_agent(std::move(stream), std::move(asked), std::move(rest));
        co_return;
    }
    lowest.expires_after(peer_answers_within);
    const auto said = co_await answer(std::move(asked));
    const auto text = as_json_text(said) + "\n";
    co_await asio::async_write(stream, asio::buffer(text), use_awaitable);
}

asio::awaitable<void> peers::impl::accept() {
    return accept_each(acceptor, [this](tcp::socket socket) {
        if (connections >= most_connections)
            return; // it is closed
        ++connections;
        asio::co_spawn(
            io, serve(peer_stream(beast::tcp_stream(std::move(socket)), server_tls)),
            [this](const std::exception_ptr&) { --connections; }); // why it ended is the other's matter
    });
}

// ---- what this host asks of others

asio::awaitable<void> peers::impl::go(stream_protocol::socket near, std::string cluster, unsigned node) {
    const auto to = on.place(cluster, node);
    if (!to)
        co_return; // it has just moved here, or ended: whoever connects tries again
    peer_stream far(beast::tcp_stream(io), client_tls);
    std::string rest;
    // With a name: GCC 12 ends the life of a temporary in a co_await twice.
    auto line = as_json_text({{"agent", cluster::node_name(node)}, {"cluster", cluster}}) + "\n";
    const auto said = co_await begin_with_peer(far, *to, std::move(line), rest);
    const auto answer = json::parse(said, nullptr, false);
    if (answer.is_object() && answer.value("status", json()) == 200)
        co_await pass_both(io, std::make_shared<way_open>(std::move(far), std::move(near)), std::move(rest));
}

asio::awaitable<void> peers::impl::accept_way(std::shared_ptr<stream_protocol::acceptor> at,
                                              std::string cluster, unsigned node) {
    // Not within the co_await: GCC 12 destroys such a temporary twice.
    const std::function<void(stream_protocol::socket)> take = [this, &cluster,
                                                               node](stream_protocol::socket near) {
        if (connections >= most_connections)
            return;
        ++connections;
        asio::co_spawn(io, go(std::move(near), cluster, node),
                       [this](const std::exception_ptr&) { --connections; });
    };
    co_await accept_each(*at, take); // another way may take its room, which closes `at`
}

std::string peers::impl::open_way(const std::string& path, const std::string& cluster, unsigned node) {
    if (ways.contains(path))
        return {};
    if (ways.size() >= most_ways) { // whoever used it has connected long ago, or asks again
        beast::error_code ignored;
        ignored = ways.begin()->second->close(ignored);
        ways.erase(ways.begin());
    }
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
    ::unlink(path.c_str());
    auto at = std::make_shared<stream_protocol::acceptor>(io);
    try {
        at->open(stream_protocol());
        at->bind(stream_protocol::endpoint(path));
        if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0)
            throw boost::system::system_error(errno, boost::system::system_category());
        at->listen();
    } catch (const boost::system::system_error& why) {
        return fmt::format("cannot listen at {}: {}", path, why.code().message());
    }
    asio::co_spawn(io, accept_way(at, cluster, node), asio::detached);
    ways.emplace(path, std::move(at));
    return {};
}

std::string peers::way_to(const std::string& cluster, unsigned node, std::string& error) {
    const auto path = fmt::format("{}/{}.{}", impl_->folder, cluster, cluster::node_name(node));
    std::promise<std::string> done;
    asio::post(impl_->io, [&] { done.set_value(impl_->open_way(path, cluster, node)); });
    error = done.get_future().get();
    return error.empty() ? path : std::string();
}

api_answer peers::ask(const peer_place& to, const api_request& request) {
    const json asked{{"method", request.method},     {"target", request.target},
                     {"if_match", request.if_match}, {"body", request.body},
                     {"user", request.who.name},     {"role", to_text(request.who.may)},
                     {"from", request.who.from}};
    asio::io_context io;
    peer_stream stream(beast::tcp_stream(io), impl_->client_tls);
    std::string rest, said;
    std::string why;
    asio::co_spawn(io, begin_with_peer(stream, to, as_json_text(asked) + "\n", rest),
                   [&](const std::exception_ptr& failed, std::string line) {
                       said = std::move(line);
                       try {
                           if (failed)
                               std::rethrow_exception(failed);
                       } catch (const boost::system::system_error& wrong) {
                           why = peer_sentence(to, wrong.code());
                       }
                   });
    io.run();
    if (!why.empty())
        return refuse(503, why);
    const auto answer = json::parse(said, nullptr, false);
    const auto status = answer.is_object() ? answer.find("status") : answer.end();
    if (!answer.is_object() || status == answer.end() || !status->is_number_unsigned() || *status < 200 ||
        *status > 599)
        return refuse(
            503, fmt::format("{} gave no answer that can be used: is its release another one?", to.name));
    return {status->get<unsigned>(), answer.value("body", json::object()), text_in(answer, "revision")};
}

peers::peers(std::unique_ptr<impl> own) : impl_(std::move(own)) {}

std::unique_ptr<peers> peers::listen(const fleet_settings& own, const std::string& folder, handlers on,
                                     std::string& error) {
    auto out = std::make_unique<impl>();
    auto server = peer_context(own, true, error);
    auto client = server ? peer_context(own, false, error) : std::nullopt;
    if (!client)
        return nullptr;
    out->own = own;
    out->folder = folder;
    out->on = std::move(on);
    out->server_tls = std::move(*server);
    out->client_tls = std::move(*client);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored); // of an earlier daemon
    try {
        const tcp::endpoint end(asio::ip::make_address(own.address), own.port);
        out->acceptor.open(end.protocol());
        out->acceptor.set_option(asio::socket_base::reuse_address(true));
        out->acceptor.bind(end);
        out->acceptor.listen();
    } catch (const boost::system::system_error& failed) {
        error =
            fmt::format("cannot listen for other hosts at {}: {}", own.at(own.port), failed.code().message());
        return nullptr;
    }
    auto& there = *out;
    asio::co_spawn(there.io, there.accept(), asio::detached);
    there.thread = std::thread([&there] {
        ::pthread_setname_np(::pthread_self(), "peers");
        there.io.run();
    });
    return std::unique_ptr<peers>(new peers(std::move(out)));
}

peers::~peers() {
    impl_->io.stop();
    impl_->thread.join();
    impl_->worker.join();
}

} // namespace kagemusha::control::daemon
