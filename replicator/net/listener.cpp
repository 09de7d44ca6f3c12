// SPDX-License-Identifier: GPL-2.0-or-later
// listen (link.hpp): accepts, shakes hands, offers. Strangers cost little: at most max_half_open connections
// are in their handshake, each for a bounded time; when one more comes, the oldest of them ends.
#include <boost/asio/basic_socket_acceptor.hpp>

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <deque>

#include "base/rate_limiter.hpp"
#include "net/connection.hpp"
#include "net/endpoint.hpp"
#include "net/event_loop_impl.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;
using error_code = boost::system::error_code;

namespace {

constexpr std::size_t max_half_open = 16;
constexpr int backlog = 16;
// When accepting itself fails (no descriptors left), it is tried again after this.
constexpr auto accept_pause = std::chrono::milliseconds(100);
// Lines of the log that strangers can cause: so many at once, then one each second.
constexpr std::uint32_t log_burst = 10;
constexpr std::uint64_t log_interval_ms = 1000;

// The work of a listener; its handlers hold it, and do nothing once it was closed.
class acceptor : public std::enable_shared_from_this<acceptor> {
public:
    acceptor(event_loop& loop, const link_options& options, std::shared_ptr<tls_keys> keys,
             accept_function accepted, std::function<void(const std::string&)> log)
        : loop_(loop)
        , options_(options)
        , keys_(std::move(keys))
        , accepted_(std::move(accepted))
        , log_(std::move(log))
        , socket_(loop.native().io)
        , pause_(loop.native().io)
        , lines_(log_burst, log_interval_ms) {}

    std::string open(const address& a, const stream_endpoint& endpoint) {
        error_code failed;
        socket_.open(endpoint.protocol(), failed);
        if (!failed && a.is_unix())
            remove_stale(a.path);
        if (!failed && !a.is_unix())
            socket_.set_option(asio::socket_base::reuse_address(true), failed);
        if (!failed)
            socket_.bind(endpoint, failed);
        if (!failed && a.is_unix()) {
            path_ = a.path;
            // Nobody can connect before listen(), so nobody gets in between.
            if (::chmod(a.path.c_str(), S_IRUSR | S_IWUSR) != 0)
                failed.assign(errno, boost::system::system_category());
        }
        if (!failed)
            socket_.listen(backlog, failed);
        if (failed)
            return "cannot listen at " + a.text() + ": " + failed.message();
        return {};
    }

    std::string where() const {
        error_code ignored;
        return endpoint_text(socket_.local_endpoint(ignored));
    }

    void accept() {
        socket_.async_accept(
            [self = shared_from_this()](const error_code& failed, stream_protocol::socket peer) {
                if (self->closed_)
                    return;
                if (failed) {
                    self->log("cannot accept a connection: " + failed.message());
                    self->pause_.expires_after(accept_pause);
                    self->pause_.async_wait([self](const error_code& canceled) {
                        if (!canceled && !self->closed_)
                            self->accept();
                    });
                    return;
                }
                self->shake_hands(std::move(peer));
                if (!self->closed_)
                    self->accept();
            });
    }

    void close() {
        if (std::exchange(closed_, true))
            return;
        error_code ignored;
        socket_.close(ignored);
        pause_.cancel();
        if (!path_.empty())
            ::unlink(path_.c_str());
        for (auto& one : half_open_)
            one->drop();
        half_open_.clear();
    }

private:
    struct half_open {
        half_open(asio::io_context& io, std::shared_ptr<connection> c) : peer(std::move(c)), deadline(io) {}
        void drop() {
            deadline.cancel();
            peer->abandon();
        }
        std::shared_ptr<connection> peer;
        asio::steady_timer deadline;
    };

    // A socket file that nobody listens at any more is left over from a process that was killed.
    static void remove_stale(const std::string& path) {
        struct stat found;
        if (::lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode))
            return;
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        path.copy(name.sun_path, sizeof(name.sun_path) - 1);
        if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 &&
            errno == ECONNREFUSED)
            ::unlink(path.c_str());
        ::close(fd);
    }

    void shake_hands(stream_protocol::socket socket) {
        error_code ignored;
        const auto endpoint = socket.remote_endpoint(ignored);
        const auto from = endpoint_text(endpoint);
        set_socket_options(socket, endpoint);
        if (keys_ && keys_->current() && keys_->problem() != told_problem_) {
            told_problem_ = keys_->problem();
            log(told_problem_.empty() ? "the keys are in order again" : told_problem_);
        }
        auto c = keys_ ? make_tls_connection(loop_, options_, keys_) : make_plain_connection(loop_, options_);
        c->socket() = std::move(socket);
        if (half_open_.size() >= max_half_open) {
            log("too many connections that have not proved who they are: the oldest one was closed");
            half_open_.front()->drop();
            half_open_.pop_front();
        }
        auto entry = std::make_shared<half_open>(loop_.native().io, c);
        half_open_.push_back(entry);
        entry->deadline.expires_after(std::chrono::milliseconds(options_.connect_timeout_ms));
        entry->deadline.async_wait([self = shared_from_this(), entry, from](const error_code& canceled) {
            if (!canceled && self->forget(entry))
                self->log(from + " did not prove who it is within " +
                          std::to_string(self->options_.connect_timeout_ms) + " ms");
        });
        c->handshake(true, [self = shared_from_this(), entry, from](const std::string& why) {
            const auto peer = entry->peer;
            if (peer->is_closed())
                return;
            if (!why.empty()) {
                self->forget(entry);
                self->log("refused " + from + ": " + why);
                return;
            }
            entry->deadline.cancel();
            std::erase(self->half_open_, entry);
            self->offer(peer, from);
        });
    }

    // Closes it. False: was done already.
    bool forget(const std::shared_ptr<half_open>& entry) {
        entry->drop();
        return std::erase(half_open_, entry) > 0;
    }

    void offer(const std::shared_ptr<connection>& c, const std::string& from) {
        const auto name = c->proven_name();
        const auto peer = name.empty() ? from : name + " (" + from + ")";
        // Null: refused. Then the link is gone already, or closes with the last handle.
        auto* const sink = accepted_(std::make_unique<connection_link>(c), peer);
        if (!sink) {
            c->abandon();
            return;
        }
        if (c->is_closed())
            return;
        c->set_sink(sink);
        c->opened(peer);
    }

    void log(const std::string& line) {
        if (!lines_.allow(event_loop::now_ms()))
            return;
        const auto suppressed = lines_.take_suppressed();
        log_(suppressed == 0 ? line : line + " (" + std::to_string(suppressed) + " lines were left out)");
    }

    event_loop& loop_;
    const link_options options_;
    const std::shared_ptr<tls_keys> keys_;
    const accept_function accepted_;
    const std::function<void(const std::string&)> log_;
    asio::basic_socket_acceptor<stream_protocol> socket_;
    std::string path_; // of our socket file
    asio::steady_timer pause_;
    std::deque<std::shared_ptr<half_open>> half_open_; // oldest first
    base::rate_limiter lines_;
    std::string told_problem_; // of the keys
    bool closed_ = false;
};

class open_listener final : public listener {
public:
    open_listener(std::shared_ptr<acceptor> a, std::string address)
        : acceptor_(std::move(a)), address_(std::move(address)) {}
    ~open_listener() override { acceptor_->close(); }
    std::string address() const override { return address_; }

private:
    std::shared_ptr<acceptor> acceptor_;
    std::string address_;
};

} // namespace

std::unique_ptr<listener> listen(event_loop& loop, const link_options& options, accept_function accepted,
                                 std::function<void(const std::string&)> log, std::string& error) {
    const auto at = parse_address(options.address, error);
    if (!at)
        return nullptr;
    const auto endpoint = numeric_endpoint(*at);
    if (!endpoint) {
        error =
            "cannot listen at " + options.address + ": the host must be a numeric address of this machine";
        return nullptr;
    }
    std::shared_ptr<tls_keys> keys;
    if (!options.tls.directory.empty()) {
        keys = tls_keys::open(options.tls, mirror::role::standby, error);
        if (!keys)
            return nullptr;
    } else if (!is_local(*endpoint)) {
        error = needs_tls(options.address);
        return nullptr;
    }
    auto a = std::make_shared<acceptor>(loop, options, std::move(keys), std::move(accepted), std::move(log));
    error = a->open(*at, *endpoint);
    if (!error.empty()) {
        a->close();
        return nullptr;
    }
    a->accept();
    auto where = at->is_unix() ? at->text() : a->where();
    return std::make_unique<open_listener>(std::move(a), std::move(where));
}

} // namespace kagemusha::net
