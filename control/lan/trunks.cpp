// SPDX-License-Identifier: GPL-2.0-or-later
//
// See trunks.hpp.
#include "control/lan/trunks.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/base/tcp_watch.hpp"
#include "control/keys/certificates.hpp"
#include "control/lan/frames.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <list>
#include <map>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

namespace kagemusha::control::lan {

using json = nlohmann::json;

namespace {

constexpr std::size_t most_peers = trunks::most_links;

std::int64_t now_ms() {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

struct free_ssl {
    void operator()(SSL* one) const { SSL_free(one); }
    void operator()(SSL_CTX* one) const { SSL_CTX_free(one); }
};

struct socket_address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
};

std::optional<socket_address> address_of(const std::string& address, std::uint16_t port) {
    socket_address out;
    auto& v4 = reinterpret_cast<sockaddr_in&>(out.bytes);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out.bytes);
    if (::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        out.size = sizeof v4;
        return out;
    }
    if (::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        out.size = sizeof v6;
        return out;
    }
    return std::nullopt;
}

constexpr tcp_watch watched{.idle_s = 5, .each_s = 3, .times = 3, .unacknowledged_ms = 15'000};

struct one_link {
    enum class stage { connecting, handshake, open } at = stage::connecting;
    unique_fd fd;
    std::unique_ptr<SSL, free_ssl> tls;
    std::string peer; // "": who it is shows in the handshake
    std::int64_t until_ms = 0;
    std::uint32_t number = 0; // once it is open
    bool wants_write = false;
    ethernet_reader reader;
    std::string unsent;
    std::size_t sent = 0; // of it
};

} // namespace

json to_json(const trunk_configuration& from) {
    json peers = json::array();
    for (const auto& one : from.peers)
        peers.push_back({{"name", one.name}, {"address", one.address}, {"port", one.port}});
    return {{"name", from.name}, {"address", from.address}, {"keys", from.keys}, {"peers", std::move(peers)}};
}

std::optional<trunk_configuration> parse_trunks(const json& from) {
    if (!from.is_object())
        return std::nullopt;
    trunk_configuration out{text_in(from, "name"), text_in(from, "address"), text_in(from, "keys"), {}};
    const auto peers = from.find("peers");
    if (out.name.empty() || !address_of(out.address, 0) || peers == from.end() || !peers->is_array() ||
        peers->size() > most_peers)
        return std::nullopt;
    for (const auto& one : *peers) {
        if (!one.is_object())
            return std::nullopt;
        const auto port = one.find("port");
        if (port == one.end() || !port->is_number_unsigned() || *port > 65535 ||
            !address_of(text_in(one, "address"), 0) || text_in(one, "name").empty())
            return std::nullopt;
        out.peers.push_back({text_in(one, "name"), text_in(one, "address"), port->get<std::uint16_t>()});
    }
    return out;
}

struct trunks::impl {
    handlers on;
    trunk_configuration has;
    std::unique_ptr<SSL_CTX, free_ssl> context;
    unique_fd listener;
    std::list<one_link> links;
    std::map<std::string, std::int64_t> tried_ms; // by peer
    std::vector<one_link*> polled;                // what add_to() appended
    std::size_t begin = 0;

    std::string load_keys(const std::string& folder);
    std::string listen(const std::string& address);
    bool is_peer(const std::string& name) const {
        return std::any_of(has.peers.begin(), has.peers.end(), [&](const auto& p) { return p.name == name; });
    }
    void dial(const trunk_peer& to);
    void dial_missing();
    void accept();
    bool proceed(one_link& link, short events); // false: it is over
    bool shake_hands(one_link& link);
    bool begin_link(one_link& link);
    bool read(one_link& link);
    bool write(one_link& link);
    void close(std::list<one_link>::iterator link);
};

// ---- who is there

std::string trunks::impl::load_keys(const std::string& folder) {
    context.reset(SSL_CTX_new(TLS_method()));
    if (!context)
        return "no TLS: " + openssl_says();
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context.get(), 0);
    if (SSL_CTX_load_verify_locations(context.get(), (folder + "/ca.pem").c_str(), nullptr) != 1 ||
        SSL_CTX_use_certificate_file(context.get(), (folder + "/cert.pem").c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context.get(), (folder + "/key.pem").c_str(), SSL_FILETYPE_PEM) != 1) {
        context.reset();
        return fmt::format("the keys in {} can't be used: {}", folder, openssl_says());
    }
    return {};
}

std::string trunks::impl::listen(const std::string& address) {
    const auto at = address_of(address, 0);
    if (!at)
        return fmt::format("'{}' is no address", address);
    listener = unique_fd(::socket(at->bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener || ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at->bytes), at->size) != 0 ||
        ::listen(listener.get(), 16) != 0) {
        const auto why = fmt::format("cannot listen at {}: {}", address, std::strerror(errno));
        listener.reset();
        return why;
    }
    return {};
}

void trunks::impl::close(std::list<one_link>::iterator link) {
    const auto number = link->number;
    links.erase(link);
    if (number != 0)
        on.closed(number);
}

void trunks::impl::dial(const trunk_peer& to) {
    const auto at = address_of(to.address, to.port);
    if (!at || links.size() >= most_links)
        return;
    one_link link;
    link.fd = unique_fd(::socket(at->bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!link.fd || (::connect(link.fd.get(), reinterpret_cast<const sockaddr*>(&at->bytes), at->size) != 0 &&
                     errno != EINPROGRESS))
        return;
    watch_tcp(link.fd.get(), watched);
    link.tls.reset(SSL_new(context.get()));
    if (!link.tls || SSL_set_fd(link.tls.get(), link.fd.get()) != 1)
        return;
    SSL_set_connect_state(link.tls.get());
    link.peer = to.name;
    link.until_ms = now_ms() + begins_within_ms;
    link.wants_write = true;
    links.push_back(std::move(link));
}

void trunks::impl::dial_missing() {
    if (!context)
        return;
    const auto now = now_ms();
    for (const auto& peer : has.peers) {
        if (peer.name <= has.name)
            continue; // it connects to us
        const bool is_there =
            std::any_of(links.begin(), links.end(), [&](const auto& l) { return l.peer == peer.name; });
        auto& tried = tried_ms[peer.name];
        if (is_there || now < tried + again_ms)
            continue;
        tried = now;
        dial(peer);
    }
}

void trunks::impl::accept() {
    unique_fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd || !context || links.size() >= most_links)
        return; // it is closed
    watch_tcp(fd.get(), watched);
    one_link link;
    link.fd = std::move(fd);
    link.tls.reset(SSL_new(context.get()));
    if (!link.tls || SSL_set_fd(link.tls.get(), link.fd.get()) != 1)
        return;
    SSL_set_accept_state(link.tls.get());
    link.at = one_link::stage::handshake;
    link.until_ms = now_ms() + begins_within_ms;
    links.push_back(std::move(link));
}

// ---- one link

bool trunks::impl::shake_hands(one_link& link) {
    ERR_clear_error();
    const int done = SSL_do_handshake(link.tls.get());
    if (done != 1) {
        const int why = SSL_get_error(link.tls.get(), done);
        link.wants_write = why == SSL_ERROR_WANT_WRITE;
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
    }
    return begin_link(link);
}

// The certificate is of the cluster's CA; its name must be that of the host that was called, or of one that
// calls us.
bool trunks::impl::begin_link(one_link& link) {
    const net::x509_ptr certificate(SSL_get1_peer_certificate(link.tls.get()));
    const auto name = certificate ? common_name(certificate.get()) : std::string();
    if (!is_peer(name) || (!link.peer.empty() && link.peer != name) ||
        (link.peer.empty() && name >= has.name))
        return false;
    // It was made again before the end of the old one was noticed.
    for (auto other = links.begin(); other != links.end(); ++other)
        if (&*other != &link && other->peer == name) {
            std::replace(polled.begin(), polled.end(), &*other, static_cast<one_link*>(nullptr));
            close(other);
            break;
        }
    link.peer = name;
    link.number = on.opened();
    link.at = one_link::stage::open;
    link.wants_write = false;
    return link.number != 0 && read(link);
}

bool trunks::impl::read(one_link& link) {
    char buffer[16384];
    for (int i = 0; i < 16; ++i) { // others have their turn, too
        ERR_clear_error();
        const int got = SSL_read(link.tls.get(), buffer, sizeof buffer);
        if (got <= 0) {
            const int why = SSL_get_error(link.tls.get(), got);
            return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
        }
        link.reader.feed({buffer, static_cast<std::size_t>(got)});
        while (const auto frame = link.reader.next())
            on.frame(link.number, frame->payload);
        if (link.reader.broken())
            return false;
    }
    return true;
}

bool trunks::impl::write(one_link& link) {
    link.wants_write = false;
    while (link.sent < link.unsent.size()) {
        ERR_clear_error();
        const auto left = std::min<std::size_t>(link.unsent.size() - link.sent, 1 << 20);
        const int done = SSL_write(link.tls.get(), link.unsent.data() + link.sent, static_cast<int>(left));
        if (done <= 0) {
            const int why = SSL_get_error(link.tls.get(), done);
            link.wants_write = why == SSL_ERROR_WANT_WRITE;
            return link.wants_write || why == SSL_ERROR_WANT_READ;
        }
        link.sent += static_cast<std::size_t>(done);
    }
    link.unsent.clear();
    link.sent = 0;
    return true;
}

bool trunks::impl::proceed(one_link& link, short events) {
    if (link.at != one_link::stage::open && now_ms() > link.until_ms)
        return false;
    if (events == 0)
        return true;
    if (link.at == one_link::stage::connecting) {
        int error = 0;
        socklen_t size = sizeof error;
        if (::getsockopt(link.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
            return false;
        link.at = one_link::stage::handshake;
    }
    if (link.at == one_link::stage::handshake)
        return shake_hands(link);
    return ((events & POLLOUT) == 0 || write(link)) && ((events & ~POLLOUT) == 0 || read(link));
}

// ---- the loop's part

trunks::trunks(handlers on) : impl_(std::make_unique<impl>()) {
    impl_->on = std::move(on);
}

trunks::~trunks() = default;

std::string trunks::configure(const trunk_configuration& wanted) {
    auto& own = *impl_;
    if (!own.context || own.has.keys != wanted.keys)
        if (auto why = own.load_keys(wanted.keys); !why.empty())
            return why;
    if (!own.listener || own.has.address != wanted.address)
        if (auto why = own.listen(wanted.address); !why.empty())
            return why;
    const auto was = std::exchange(own.has, wanted);
    for (auto link = own.links.begin(); link != own.links.end();) {
        const auto next = std::next(link);
        const auto same = [&](const trunk_peer& p) { return p.name == link->peer; };
        const auto before = std::find_if(was.peers.begin(), was.peers.end(), same);
        const auto now = std::find_if(wanted.peers.begin(), wanted.peers.end(), same);
        // A switch that listens elsewhere has been started anew.
        const bool goes_on = now != wanted.peers.end() && before != was.peers.end() &&
                             before->port == now->port && before->address == now->address;
        if (!link->peer.empty() && !goes_on)
            own.close(link);
        link = next;
    }
    std::erase_if(own.tried_ms, [&](const auto& one) { return !own.is_peer(one.first); });
    own.polled.clear();
    return {};
}

std::uint16_t trunks::port() const {
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    if (!impl_->listener ||
        ::getsockname(impl_->listener.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
        return 0;
    return ntohs(at.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(at).sin_port
                                         : reinterpret_cast<sockaddr_in6&>(at).sin6_port);
}

std::size_t trunks::open_links() const {
    return static_cast<std::size_t>(
        std::count_if(impl_->links.begin(), impl_->links.end(), [](const auto& l) { return l.number != 0; }));
}

bool trunks::send(std::uint32_t number, std::string_view frame) {
    const auto link = std::find_if(impl_->links.begin(), impl_->links.end(),
                                   [&](const one_link& one) { return one.number == number; });
    if (link == impl_->links.end() || link->unsent.size() - link->sent + frame.size() + 4 > most_unsent_bytes)
        return false;
    // A record that is being sent must be offered again as it was: what was sent is cut off only at its end.
    if (link->sent > most_unsent_bytes)
        link->unsent.erase(0, std::exchange(link->sent, 0));
    put_length(link->unsent, frame.size());
    link->unsent += frame;
    impl_->write(*link); // a fault shows when it is read
    return true;
}

void trunks::add_to(std::vector<pollfd>& fds, int& timeout_ms) {
    auto& own = *impl_;
    own.dial_missing();
    own.begin = fds.size();
    own.polled.clear();
    fds.push_back({own.listener ? own.listener.get() : -1, POLLIN, 0});
    for (auto& link : own.links) {
        const bool only_write = link.at == one_link::stage::connecting;
        fds.push_back({link.fd.get(),
                       static_cast<short>((only_write ? 0 : POLLIN) | (link.wants_write ? POLLOUT : 0)), 0});
        own.polled.push_back(&link);
    }
    const bool waits = own.context && (own.polled.size() < own.has.peers.size() ||
                                       std::any_of(own.links.begin(), own.links.end(), [](const auto& l) {
                                           return l.at != one_link::stage::open;
                                       }));
    if (waits && (timeout_ms < 0 || timeout_ms > again_ms))
        timeout_ms = again_ms;
}

void trunks::handle(const std::vector<pollfd>& fds, bool failed) {
    auto& own = *impl_;
    for (std::size_t i = 0; i < own.polled.size(); ++i) {
        auto* const which = own.polled[i];
        if (!which) // closed meanwhile
            continue;
        if (own.proceed(*which, failed ? short{0} : fds[own.begin + 1 + i].revents))
            continue;
        const auto link = std::find_if(own.links.begin(), own.links.end(),
                                       [&](const one_link& one) { return &one == which; });
        own.close(link);
    }
    if (!failed && fds[own.begin].revents != 0)
        own.accept();
}

} // namespace kagemusha::control::lan
