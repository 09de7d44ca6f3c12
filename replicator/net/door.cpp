// SPDX-License-Identifier: GPL-2.0-or-later
// See door.hpp.
#include "net/door.hpp"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/rate_limiter.hpp"
#include "net/admission.hpp"
#include "net/link.hpp"
#include "net/quiet_thread.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;
using error_code = boost::system::error_code;

owned_socket::~owned_socket() {
    if (fd_ >= 0)
        ::close(fd_);
}

namespace {

constexpr int backlog = 64;
// When accepting itself fails (no descriptors left), it is tried again after this.
constexpr auto accept_pause = std::chrono::milliseconds(100);
// Lines of the log that strangers can cause: so many at once, then one each second.
constexpr std::uint32_t log_burst = 10;
constexpr std::uint64_t log_interval_ms = 1000;
// What a refused peer had sent before it heard of that.
constexpr std::size_t linger_bytes = 64 << 10;

// One connection in its handshake. The door and the handlers under way hold it.
struct candidate {
    candidate(std::uint64_t number, stream_protocol::socket s, std::string address)
        : id(number), socket(std::move(s)), deadline(socket.get_executor()), from(std::move(address)) {}
    const std::uint64_t id;
    stream_protocol::socket socket;
    asio::steady_timer deadline;
    const std::string from;
    std::shared_ptr<const tls_context> tls;
    ssl_pointer ssl;
    std::string verify_failure;
    bool refused = false; // and why was said; it still reads the alert
    std::size_t lingered_bytes = 0;
    bool over = false;
};

// What was wrong with the peer's certificate; decides nothing.
int note_failure(int ok, X509_STORE_CTX* store) {
    auto* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* const c = static_cast<candidate*>(SSL_get_app_data(ssl));
    if (ok == 0 && c->verify_failure.empty())
        c->verify_failure =
            verify_sentence(X509_STORE_CTX_get_error(store), X509_STORE_CTX_get_current_cert(store), *c->tls);
    return ok;
}

class threaded_door final : public door {
public:
    threaded_door(std::shared_ptr<tls_keys> keys, std::uint32_t handshake_timeout_ms,
                  std::function<void(admitted_peer)> admitted, std::function<void(const std::string&)> log)
        : keys_(std::move(keys))
        , timeout_ms_(handshake_timeout_ms)
        , admitted_(std::move(admitted))
        , log_(std::move(log))
        , socket_(io_)
        , pause_(io_)
        , lines_(log_burst, log_interval_ms) {}

    ~threaded_door() override {
        if (thread_.joinable()) {
            io_.stop();
            thread_.join();
        }
        if (!path_.empty())
            ::unlink(path_.c_str());
    }

    std::string open(const address& a, const stream_endpoint& endpoint) {
        error_code failed;
        socket_.open(endpoint.protocol(), failed);
        if (!failed) // else a QEMU that is started has the address, too, and keeps it
            ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
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
        error_code ignored;
        where_ = endpoint_text(socket_.local_endpoint(ignored));
        accept();
        thread_ = quiet_thread([this] { io_.run(); });
        return {};
    }

    std::string where() const override { return where_; }

private:
    using candidate_pointer = std::shared_ptr<candidate>;

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

    void accept() {
        socket_.async_accept([this](const error_code& failed, stream_protocol::socket peer) {
            if (failed) {
                log("cannot accept a connection: " + failed.message());
                pause_.expires_after(accept_pause);
                pause_.async_wait([this](const error_code& canceled) {
                    if (!canceled)
                        accept();
                });
                return;
            }
            arrive(std::move(peer));
            accept();
        });
    }

    void arrive(stream_protocol::socket socket) {
        error_code ignored;
        const auto endpoint = socket.remote_endpoint(ignored);
        const auto id = ++last_id_;
        // Who may open our socket's file is no stranger, or was let in by a relay that knows whence he came
        // (control/relay): each counts as a source of its own.
        const auto source = is_local(endpoint) ? std::to_string(id) : source_of(*endpoint.data());
        const auto decision = admission_.on_arrival(source, id, event_loop::now_ms());
        const auto from = endpoint_text(endpoint);
        if (!decision.admitted) {
            log("refused " + from + ": too many connections from there did not prove who they are");
            return;
        }
        if (decision.ends != 0) {
            log("too many connections that have not proved who they are: the oldest one was closed");
            if (const auto at = candidates_.find(decision.ends); at != candidates_.end())
                end(candidate_pointer(at->second), false);
        }
        set_socket_options(socket, endpoint);
        socket.non_blocking(true, ignored);
        const auto c = std::make_shared<candidate>(id, std::move(socket), from);
        candidates_.emplace(id, c);
        if (!keys_) {
            admit(c);
            return;
        }
        if (const auto why = begin_tls(*c); !why.empty()) {
            log("cannot shake hands with " + from + ": " + why);
            end(c, false);
            return;
        }
        c->deadline.expires_after(std::chrono::milliseconds(timeout_ms_));
        c->deadline.async_wait([this, c](const error_code& canceled) {
            if (canceled || c->over)
                return;
            if (!c->refused)
                log(c->from + " did not prove who it is within " + std::to_string(timeout_ms_) + " ms");
            end(c, false);
        });
        shake_hands(c);
    }

    std::string begin_tls(candidate& c) {
        c.tls = keys_->current();
        if (keys_->problem() != reported_problem_) {
            reported_problem_ = keys_->problem();
            log(reported_problem_.empty() ? "the keys are in order again" : reported_problem_);
        }
        auto& context = const_cast<asio::ssl::context&>(c.tls->context);
        c.ssl.reset(SSL_new(context.native_handle()));
        if (!c.ssl || SSL_set_fd(c.ssl.get(), c.socket.native_handle()) != 1)
            return "no memory";
        if (auto why = expect_peer(c.ssl.get(), *c.tls); !why.empty())
            return why;
        SSL_set_app_data(c.ssl.get(), &c);
        SSL_set_verify(c.ssl.get(), SSL_get_verify_mode(c.ssl.get()), note_failure);
        return {};
    }

    void shake_hands(const candidate_pointer& c) {
        if (c->over)
            return;
        ERR_clear_error();
        const int result = SSL_accept(c->ssl.get());
        const int what = result == 1 ? SSL_ERROR_NONE : SSL_get_error(c->ssl.get(), result);
        switch (what) {
        case SSL_ERROR_NONE:
            admit(c);
            return;
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            c->socket.async_wait(what == SSL_ERROR_WANT_READ ? asio::socket_base::wait_read
                                                             : asio::socket_base::wait_write,
                                 [this, c](const error_code& failed) {
                                     if (!failed)
                                         shake_hands(c);
                                 });
            return;
        default:
            refuse(c, !c->verify_failure.empty() ? c->verify_failure
                      : what == SSL_ERROR_SSL    ? handshake_sentence(ERR_peek_error(), *c->tls)
                                                 : handshake_sentence(0, *c->tls));
        }
    }

    // The peer reads why in an alert, if the connection lasts until it has sent all that it wanted to send.
    void refuse(const candidate_pointer& c, const std::string& why) {
        log("refused " + c->from + ": " + why);
        c->refused = true;
        error_code ignored;
        c->socket.shutdown(asio::socket_base::shutdown_send, ignored);
        linger(c);
    }
    void linger(const candidate_pointer& c) {
        if (c->over)
            return;
        c->socket.async_read_some(asio::buffer(nowhere_), [this, c](const error_code& failed, std::size_t n) {
            c->lingered_bytes += n;
            if (failed || c->lingered_bytes > linger_bytes)
                end(c, false);
            else
                linger(c);
        });
    }

    void admit(const candidate_pointer& c) {
        error_code ignored;
        const auto protocol = c->socket.local_endpoint(ignored).protocol();
        if (c->ssl) {
            // Whoever goes on with it reads the socket by other means.
            if (SSL_has_pending(c->ssl.get()) != 0) {
                refuse(c, "it sent more than its handshake");
                return;
            }
            SSL_set_app_data(c->ssl.get(), nullptr);
            SSL_set_verify(c->ssl.get(), SSL_get_verify_mode(c->ssl.get()), nullptr);
        }
        c->deadline.cancel();
        admitted_peer peer{owned_socket(c->socket.release(ignored), protocol), c->from, c->tls,
                           std::move(c->ssl)};
        end(c, true);
        admitted_(std::move(peer));
    }

    void end(const candidate_pointer& c, bool proved) {
        if (std::exchange(c->over, true))
            return;
        c->deadline.cancel();
        c->ssl.reset();
        error_code ignored;
        c->socket.close(ignored);
        candidates_.erase(c->id);
        admission_.on_end(c->id, proved);
    }

    void log(const std::string& line) {
        if (!lines_.allow(event_loop::now_ms()))
            return;
        const auto suppressed = lines_.take_suppressed();
        log_(suppressed == 0 ? line : line + " (" + std::to_string(suppressed) + " lines were left out)");
    }

    const std::shared_ptr<tls_keys> keys_;
    const std::uint32_t timeout_ms_;
    const std::function<void(admitted_peer)> admitted_;
    const std::function<void(const std::string&)> log_;
    std::string path_;  // of our socket file
    std::string where_; // we listen
    std::thread thread_;

    // The door's thread, once it runs.
    asio::io_context io_{1};
    asio::basic_socket_acceptor<stream_protocol> socket_;
    asio::steady_timer pause_;
    admission admission_;
    std::unordered_map<std::uint64_t, candidate_pointer> candidates_;
    std::uint64_t last_id_ = 0;
    std::array<std::byte, 4096> nowhere_;
    base::rate_limiter lines_;
    std::string reported_problem_; // of the keys
};

} // namespace

std::unique_ptr<door> open_door(const address& at, const stream_endpoint& endpoint,
                                std::shared_ptr<tls_keys> keys, std::uint32_t handshake_timeout_ms,
                                std::function<void(admitted_peer)> admitted,
                                std::function<void(const std::string&)> log, std::string& error) {
    auto made = std::make_unique<threaded_door>(std::move(keys), handshake_timeout_ms, std::move(admitted),
                                                std::move(log));
    error = made->open(at, endpoint);
    return error.empty() ? std::move(made) : nullptr;
}

} // namespace kagemusha::net
