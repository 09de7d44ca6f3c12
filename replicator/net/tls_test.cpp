// SPDX-License-Identifier: GPL-2.0-or-later
// Links through mutual TLS: they carry what plain links do, and whoever has no place in the cluster is
// refused with the reason on both sides. Keys are those of `kage keys`.
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "control/keys/certificates.hpp"
#include "control/keys/keys.hpp"
#include "net/test_helpers.hpp"
#include "net/tls.hpp"

namespace kagemusha::net::test {
namespace {

namespace asio = boost::asio;

constexpr link_part qemu = link_part::qemu, supervisor = link_part::supervisor;

// Made once: they are only read.
struct cluster {
    static const cluster& get() {
        static const cluster one;
        return one;
    }
    cluster() {
        make("good", {{"alpha"}, {"beta"}}, {"web", "db"});
        make("other", {{"alpha"}}, {"web"});
    }
    void make(const std::string& name, const std::vector<std::vector<std::string>>& hosts,
              const std::vector<std::string>& vms, std::uint32_t days = 10, std::uint32_t ca_days = 10,
              std::int64_t starts_in_s = -3600) const {
        control::keys_request request;
        request.directory = directory.path() + "/" + name;
        request.hosts = hosts;
        request.vms = vms;
        request.days = days;
        request.ca_days = ca_days;
        request.starts_in_s = starts_in_s;
        EXPECT_EQ(control::make_keys(request).error, "");
    }
    std::string of(const std::string& cluster, const std::string& host, const std::string& vm = "web",
                   link_part part = qemu) const {
        return keys_directory(directory.path() + "/" + cluster + "/" + host, vm, part);
    }
    temporary_directory directory;
};

std::string good(const std::string& host, const std::string& vm = "web", link_part part = qemu) {
    return cluster::get().of("good", host, vm, part);
}

class tls_test : public testing::TestWithParam<const char*> {
protected:
    std::string unix_address() { return "unix:" + directory.path() + "/link"; }
    std::string listening_address() {
        return GetParam() == std::string("unix") ? unix_address() : "127.0.0.1:0";
    }
    void listen_as(const std::string& keys) { listen_as(keys, listening_address()); }
    void listen_as(const std::string& keys, const std::string& address) {
        link_options options;
        options.address = address;
        options.tls = {keys, keys.empty() ? "" : "web", qemu};
        there = std::make_unique<server>(loop, options);
        ASSERT_EQ(there->error, "");
    }
    void connect_as(const std::string& keys, const std::string& vm = "web", link_part part = qemu) {
        link_options options;
        options.address = there->listening->address();
        options.tls = {keys, vm, part};
        here = connect(loop, options, sink);
        here->send(a_hello());
    }
    bool both_greet() {
        there->sink.when_connected = [&] { there->connection->send(a_hello(mirror::role::standby)); };
        return run_until(loop, [&] {
            return (sink.messages.size() == 1 && there->sink.messages.size() == 1) || sink.closed != 0;
        });
    }
    // Both ends know that it does not work.
    bool refused() {
        return run_until(loop, [&] { return sink.closed == 1 && !there->log.empty(); });
    }

    temporary_directory directory;
    event_loop loop;
    recording_sink sink;
    std::unique_ptr<server> there;
    std::unique_ptr<link> here;
};

#define EXPECT_SAYS(text, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text)

TEST_P(tls_test, carries_small_and_large_both_ways) {
    listen_as(good("alpha"));
    connect_as(good("beta"));
    ASSERT_TRUE(both_greet());
    ASSERT_EQ(sink.why, "");
    EXPECT_SAYS(there->offered.at(0), "primary of web (QEMU) at beta (");
    EXPECT_SAYS(sink.peer, "standby of web (QEMU) at alpha (");
    const auto data = pattern(mirror::content_piece_bytes);
    std::vector<std::span<const std::byte>> pieces;
    for (std::size_t at = 0; at < data.size(); at += 4096)
        pieces.emplace_back(data.data() + at, 4096);
    there->sink.piece_bytes = sink.piece_bytes = 70'000;
    for (std::uint64_t i = 0; i < 500; ++i) {
        here->send(mirror::heartbeat{i, 0});
        there->connection->send(mirror::ack{.received = i});
    }
    here->send(a_content(data.size()), pieces);
    there->connection->send(a_content(data.size()), {data});
    ASSERT_TRUE(
        run_until(loop, [&] { return sink.messages.size() == 502 && there->sink.messages.size() == 502; }));
    EXPECT_EQ(sink.payloads.front(), data);
    EXPECT_EQ(there->sink.payloads.front(), data);
    EXPECT_TRUE(there->log.empty());
}

TEST_P(tls_test, finish_sends_everything_first) {
    listen_as(good("alpha"));
    connect_as(good("beta"));
    ASSERT_TRUE(both_greet());
    const auto data = pattern(mirror::content_piece_bytes);
    here->send(a_content(data.size()), {data});
    here->send(mirror::goodbye{mirror::goodbye_reason::shutdown, "enough"});
    here->finish();
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.messages.size(), 3u);
    EXPECT_EQ(there->sink.why, "the peer closed the connection");
    EXPECT_EQ(sink.why, "closed");
}

TEST_P(tls_test, a_finished_link_lets_go_of_the_sinks_memory) {
    for (const bool writing : {false, true}) {
        here.reset();
        there.reset();
        sink = recording_sink{};
        listen_as(good("alpha"));
        connect_as(good("beta"));
        ASSERT_TRUE(both_greet());
        finish_in_the_middle_of_a_payload(loop, *here, *there, writing);
    }
}

TEST_P(tls_test, a_peer_of_another_cluster_is_refused_on_both_sides) {
    listen_as(good("alpha"));
    connect_as(cluster::get().of("other", "alpha"));
    ASSERT_TRUE(refused());
    EXPECT_SAYS(sink.why, "the peer's certificate ('standby of web (QEMU) at alpha', issued by 'kagemusha");
    EXPECT_SAYS(sink.why, "is not signed by 'kagemusha cluster ");
    EXPECT_SAYS(sink.why, "`kage keys`");
    EXPECT_SAYS(there->log[0], "the peer does not accept this host's certificate");
    EXPECT_TRUE(there->offered.empty());
}

TEST_P(tls_test, a_client_that_only_pretends_to_know_the_ca_is_refused_on_both_sides) {
    // The CA's certificate is no secret; a key signed by it is what counts.
    const auto& keys = cluster::get();
    const auto forged = directory.path() + "/forged";
    namespace fs = std::filesystem;
    fs::copy(keys.of("other", "alpha"), forged, fs::copy_options::recursive);
    fs::copy_file(good("beta") + "/ca.pem", forged + "/ca.pem", fs::copy_options::overwrite_existing);
    listen_as(good("alpha"));
    connect_as(forged);
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    EXPECT_SAYS(sink.why, "is not signed by the CA in") << "said before anything is sent";
}

TEST_P(tls_test, an_expired_certificate_is_not_used) {
    const auto name = "expired-" + std::string(GetParam());
    cluster::get().make(name, {{"alpha"}}, {"web"}, 1, 1, -2 * 86400);
    listen_as(good("alpha"));
    connect_as(cluster::get().of(name, "alpha"));
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    EXPECT_SAYS(sink.why, "/ca.pem expired on 20");
}

TEST_P(tls_test, another_vm_or_part_is_refused_on_both_sides) {
    listen_as(good("beta"));
    for (const auto& [vm, part, wanted] : {std::tuple("db", qemu, "'standby of db (QEMU)'"),
                                           std::tuple("web", supervisor, "'standby of web (supervisor)'")}) {
        sink = recording_sink{};
        there->log.clear();
        connect_as(good("alpha", vm, part), vm, part);
        ASSERT_TRUE(refused());
        EXPECT_SAYS(sink.why, "the peer's certificate ('standby of web (QEMU) at beta', issued by ");
        EXPECT_SAYS(sink.why, std::string("is not that of ") + wanted);
        EXPECT_SAYS(there->log[0], "its name or purpose is not the one expected");
        here.reset();
    }
    EXPECT_TRUE(there->offered.empty());
}

// Our own end without keys goes to Unix sockets only.
TEST_P(tls_test, a_plain_peer_where_tls_is_spoken) {
    listen_as(good("alpha"), unix_address());
    connect_as({});
    ASSERT_TRUE(refused());
    EXPECT_SAYS(there->log[0], "the peer does not speak TLS");
    EXPECT_SAYS(sink.why, "before its hello: its log says why (TLS on one side only?)");
}

TEST_P(tls_test, a_tls_peer_where_it_is_not) {
    link_options options;
    options.address = unix_address();
    there = std::make_unique<server>(loop, options);
    connect_as(good("beta"));
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "the peer speaks TLS, but this end was set up without keys");
    EXPECT_SAYS(sink.why, "the peer does not speak TLS");
}

INSTANTIATE_TEST_SUITE_P(transports, tls_test, testing::Values("unix", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// ---- strangers, with raw peers over a Unix socket

void use(asio::ssl::context& context, const std::string& keys) {
    context.use_certificate_file(keys + "cert.pem", asio::ssl::context::pem);
    context.use_private_key_file(keys + "key.pem", asio::ssl::context::pem);
}

using tls_stream = asio::ssl::stream<asio::local::stream_protocol::socket>;

class stranger_test : public testing::Test {
protected:
    // What a client that is no link is told, once the listener has refused it. With TLS 1.3 a client learns
    // that from its first read.
    boost::system::error_code refusal_of(tls_stream& client) {
        client.next_layer().connect(asio::local::stream_protocol::endpoint(directory.path() + "/link"));
        boost::system::error_code result;
        bool ended = false;
        char byte = 0;
        client.async_handshake(asio::ssl::stream_base::client, [&](const boost::system::error_code&) {
            client.async_read_some(asio::buffer(&byte, 1),
                                   [&](const boost::system::error_code& error, std::size_t) {
                                       result = error;
                                       ended = true;
                                   });
        });
        EXPECT_TRUE(run_until(loop, [&] { return ended && !there->log.empty(); }));
        return result;
    }
    void listen(std::uint32_t timeout_ms = 2000, const std::string& address = {}) {
        options.address = address.empty() ? "unix:" + directory.path() + "/link" : address;
        options.tls = {good("alpha"), "web", qemu};
        options.connect_timeout_ms = timeout_ms;
        there = std::make_unique<server>(loop, options);
        ASSERT_EQ(there->error, "");
    }
    temporary_directory directory;
    event_loop loop;
    link_options options;
    std::unique_ptr<server> there;
};

TEST_F(stranger_test, a_client_without_a_certificate_is_refused_on_both_sides) {
    listen();
    asio::ssl::context context(asio::ssl::context::tls_client);
    tls_stream client(loop.native().io, context);
    const auto result = refusal_of(client);
    EXPECT_SAYS(there->log.at(0), "the peer showed no certificate");
    EXPECT_SAYS(result.message(), "certificate required");
    EXPECT_TRUE(there->offered.empty());
}

TEST_F(stranger_test, an_expired_certificate_is_refused_on_both_sides) {
    cluster::get().make("good", {{"late"}}, {"web"}, 1, 10, -2 * 86400); // by the CA that is still valid
    const auto keys = good("late");
    listen();
    asio::ssl::context context(asio::ssl::context::tls_client);
    use(context, keys + "/primary-");
    tls_stream client(loop.native().io, context);
    const auto result = refusal_of(client);
    EXPECT_SAYS(there->log.at(0),
                "the peer's certificate ('primary of web (QEMU) at late', issued by 'kagemusha cluster ");
    EXPECT_SAYS(there->log.at(0), "expired on 20");
    EXPECT_SAYS(result.message(), "certificate expired");
    EXPECT_TRUE(there->offered.empty());
}

// Hosts of the cluster that have a good certificate, and none for this end. They do not care who we are.
struct intruder {
    const char* keys; // below a host's directory
    const char* says;
};

class intruder_test : public stranger_test, public testing::WithParamInterface<intruder> {
protected:
    static std::string keys() { return cluster::get().directory.path() + "/good/beta/" + GetParam().keys; }
};

TEST_P(intruder_test, is_refused_by_the_listener) {
    listen();
    asio::ssl::context context(asio::ssl::context::tls_client);
    use(context, keys());
    tls_stream client(loop.native().io, context);
    const auto result = refusal_of(client);
    EXPECT_SAYS(there->log.at(0), GetParam().says);
    EXPECT_TRUE(result) << "it is told";
    EXPECT_TRUE(there->offered.empty());
}

class standby_intruder_test : public intruder_test {};

TEST_P(standby_intruder_test, is_refused_by_who_connects) {
    const auto path = directory.path() + "/link";
    asio::ssl::context context(asio::ssl::context::tls_server);
    use(context, keys());
    asio::local::stream_protocol::acceptor acceptor(loop.native().io,
                                                    asio::local::stream_protocol::endpoint(path));
    tls_stream theirs(loop.native().io, context);
    acceptor.async_accept(theirs.next_layer(), [&](const boost::system::error_code& failed) {
        ASSERT_FALSE(failed);
        theirs.async_handshake(asio::ssl::stream_base::server, [](const boost::system::error_code&) {});
    });
    link_options mine;
    mine.address = "unix:" + path;
    mine.tls = {good("alpha"), "web", qemu};
    recording_sink sink;
    const auto here = connect(loop, mine, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_FALSE(sink.connected);
    EXPECT_SAYS(sink.why, GetParam().says);
}

INSTANTIATE_TEST_SUITE_P(
    a_primary, intruder_test,
    testing::Values(intruder{"vm/db/qemu/primary-", "is not that of 'primary of web (QEMU)'"},
                    intruder{"vm/web/supervisor/primary-", "is not that of 'primary of web (QEMU)'"},
                    intruder{"vm/web/qemu/standby-", "'primary of web (QEMU)'"},
                    intruder{"", "is not that of 'primary of web (QEMU)'"}));
INSTANTIATE_TEST_SUITE_P(
    a_standby, standby_intruder_test,
    testing::Values(intruder{"vm/db/qemu/standby-", "is not that of 'standby of web (QEMU)'"},
                    intruder{"vm/web/supervisor/standby-", "is not that of 'standby of web (QEMU)'"},
                    intruder{"vm/web/qemu/primary-", "'standby of web (QEMU)'"},
                    intruder{"", "is not that of 'standby of web (QEMU)'"}));

TEST_F(stranger_test, tls_1_2_is_refused) {
    listen();
    asio::ssl::context context(asio::ssl::context::tlsv12_client);
    tls_stream client(loop.native().io, context);
    client.next_layer().connect(asio::local::stream_protocol::endpoint(directory.path() + "/link"));
    bool ended = false;
    client.async_handshake(asio::ssl::stream_base::client,
                           [&](const boost::system::error_code& error) { ended = static_cast<bool>(error); });
    ASSERT_TRUE(run_until(loop, [&] { return ended && !there->log.empty(); }));
    EXPECT_SAYS(there->log[0], "the peer does not speak TLS 1.3");
}

TEST_F(stranger_test, garbage_costs_one_line) {
    listen();
    raw_peer peer(options.address);
    peer.send(pattern(1000));
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); }));
    EXPECT_SAYS(there->log[0], "the peer does not speak TLS");
    EXPECT_TRUE(there->offered.empty());
}

TEST_F(stranger_test, who_says_nothing_is_given_up) {
    listen(100);
    raw_peer peer(options.address);
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); }));
    EXPECT_SAYS(there->log[0], "did not prove who it is within 100 ms");
}

TEST_F(stranger_test, many_who_say_nothing_do_not_keep_others_out) {
    listen(60'000);
    std::list<raw_peer> crowd;
    for (unsigned i = 0; i < 40; ++i) {
        crowd.emplace_back(options.address);
        const auto offered = there->log.size();
        // Let the listener take it: its backlog is as small as its patience.
        loop.native().io.run_for(std::chrono::milliseconds(5));
        EXPECT_LE(there->log.size(), offered + 1);
    }
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); }));
    EXPECT_LE(there->log.size(), 12u) << "lines are rate-limited";
    recording_sink sink;
    auto mine = options;
    mine.tls = {good("beta"), "web", qemu};
    const auto here = connect(loop, mine, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_TRUE(sink.connected) << sink.why;
}

// Handshakes cost signatures, and anybody can begin one: they take nothing from the thread with the
// heartbeats.
TEST_F(stranger_test, handshakes_need_nothing_of_the_loop) {
    listen();
    event_loop other; // the listener's does not run
    asio::ssl::context context(asio::ssl::context::tls_client);
    use(context, good("beta") + "/primary-");
    tls_stream client(other.native().io, context);
    client.next_layer().connect(asio::local::stream_protocol::endpoint(directory.path() + "/link"));
    bool done = false;
    client.async_handshake(asio::ssl::stream_base::client,
                           [&](const boost::system::error_code& failed) { done = !failed; });
    ASSERT_TRUE(run_until(other, [&] { return done; }));
    EXPECT_TRUE(there->offered.empty());
    ASSERT_TRUE(run_until(loop, [&] { return there->offered.size() == 1; }));
}

// A host that can reach the port and has no keys.
TEST_F(stranger_test, a_crowd_of_one_source_ends_no_handshake_of_another) {
    namespace ip = asio::ip;
    listen(60'000, "127.0.0.1:0");
    const auto port = ip::port_type(std::stoi(there->listening->address().substr(10)));
    const ip::tcp::endpoint to(ip::make_address("127.0.0.1"), port);
    event_loop other;
    asio::ssl::context context(asio::ssl::context::tls_client);
    use(context, good("beta") + "/primary-");
    asio::ssl::stream<ip::tcp::socket> primary(other.native().io, context);
    primary.next_layer().connect(to);
    loop.native().io.run_for(std::chrono::milliseconds(20));
    std::list<ip::tcp::socket> crowd;
    for (unsigned i = 0; i < 40; ++i) {
        auto& stranger = crowd.emplace_back(other.native().io, ip::tcp::v4());
        stranger.bind({ip::make_address("127.0.0.2"), 0});
        stranger.connect(to);
        loop.native().io.run_for(std::chrono::milliseconds(5));
    }
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); }));
    EXPECT_SAYS(there->log[0], "too many connections that have not proved who they are");
    bool done = false, failed = false;
    primary.async_handshake(asio::ssl::stream_base::client, [&](const boost::system::error_code& error) {
        done = true;
        failed = static_cast<bool>(error);
    });
    ASSERT_TRUE(run_until(loop, [&] {
        other.native().io.poll();
        return (done && there->offered.size() == 1) || failed;
    }));
    EXPECT_FALSE(failed);
}

// Its peers are relayed from ports, where each had to get in.
TEST_F(stranger_test, over_a_unix_socket_a_crowd_ends_no_handshake) {
    listen(60'000);
    event_loop other;
    asio::ssl::context context(asio::ssl::context::tls_client);
    use(context, good("beta") + "/primary-");
    const asio::local::stream_protocol::endpoint to(directory.path() + "/link");
    tls_stream primary(other.native().io, context);
    primary.next_layer().connect(to);
    loop.native().io.run_for(std::chrono::milliseconds(20));
    std::list<asio::local::stream_protocol::socket> crowd;
    for (unsigned i = 0; i < 40; ++i)
        crowd.emplace_back(other.native().io).connect(to);
    loop.native().io.run_for(std::chrono::milliseconds(20));
    bool done = false, failed = false;
    primary.async_handshake(asio::ssl::stream_base::client, [&](const boost::system::error_code& error) {
        done = true;
        failed = static_cast<bool>(error);
    });
    ASSERT_TRUE(run_until(loop, [&] {
        other.native().io.poll();
        return (done && there->offered.size() == 1) || failed;
    }));
    EXPECT_FALSE(failed);
    EXPECT_TRUE(there->log.empty()) << there->log[0];
}

// ---- keys on the disk

class key_files_test : public testing::Test {
protected:
    key_files_test() { std::filesystem::copy(good("alpha"), keys, std::filesystem::copy_options::recursive); }
    std::string why_not() {
        link_options options;
        options.address = "unix:" + directory.path() + "/link";
        options.tls = {keys, "web", qemu};
        event_loop loop;
        return server(loop, options).error;
    }
    void copy_from(const std::string& where, const std::string& file) {
        std::filesystem::copy_file(where + "/" + file, keys + "/" + file,
                                   std::filesystem::copy_options::overwrite_existing);
    }
    temporary_directory directory;
    std::string keys = directory.path() + "/keys";
};

TEST_F(key_files_test, what_is_wrong_with_them_is_said_before_anybody_connects) {
    const auto& all = cluster::get();
    const auto key = keys + "/standby-key.pem";
    EXPECT_EQ(why_not(), "");
    std::filesystem::permissions(key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
    EXPECT_SAYS(why_not(), "can be read by others than its owner: chmod 600");
    std::filesystem::permissions(key, std::filesystem::perms::group_read,
                                 std::filesystem::perm_options::remove);
    copy_from(good("alpha", "db"), "standby-cert.pem");
    EXPECT_SAYS(why_not(), "standby-key.pem does not belong to");
    copy_from(good("alpha", "db"), "standby-key.pem");
    EXPECT_SAYS(why_not(),
                "is that of 'standby of db (QEMU) at alpha', and 'standby of web (QEMU)' is needed");
    copy_from(all.of("other", "alpha"), "standby-cert.pem");
    EXPECT_SAYS(why_not(), "standby-cert.pem is not signed by the CA in");
    std::filesystem::resize_file(keys + "/crl.pem", 10);
    EXPECT_SAYS(why_not(), "crl.pem holds no list of revoked certificates");
    std::filesystem::resize_file(keys + "/ca.pem", 10);
    EXPECT_SAYS(why_not(), "ca.pem holds no certificate");
    std::filesystem::remove(keys + "/ca.pem");
    EXPECT_SAYS(why_not(), "ca.pem: No such file or directory; make keys with `kage keys`");
}

TEST_F(key_files_test, a_hosts_keys_alone_are_of_no_use) {
    keys = cluster::get().directory.path() + "/good/alpha";
    EXPECT_SAYS(why_not(), "has the keys of a host, and no standby-cert.pem of the VM 'web'");
    EXPECT_SAYS(why_not(), "`kage keys DIRECTORY --host HOST --vm web`");
}

// ---- keys that change while somebody listens

class rotation_test : public testing::Test {
protected:
    rotation_test() {
        request.directory = directory.path() + "/keys";
        request.hosts = {{"alpha"}, {"beta"}};
        request.vms = {"web"};
        EXPECT_EQ(control::make_keys(request).error, "");
        link_options options = at("alpha");
        options.address = "unix:" + directory.path() + "/link";
        there = std::make_unique<server>(loop, options);
        EXPECT_EQ(there->error, "");
    }
    link_options at(const std::string& host) {
        link_options options;
        options.address = "unix:" + directory.path() + "/link";
        options.tls = {keys_directory(request.directory + "/" + host, "web", qemu), "web", qemu};
        return options;
    }
    // Whether this host is let in now.
    bool greets(const std::string& host) { return greets(at(host)); }
    bool greets(const link_options& options) {
        sink = recording_sink{};
        there->connection.reset();
        there->sink = recording_sink{};
        there->sink.when_connected = [&] { there->connection->send(a_hello(mirror::role::standby)); };
        here = connect(loop, options, sink);
        here->send(a_hello());
        EXPECT_TRUE(run_until(loop, [&] { return !sink.messages.empty() || sink.closed != 0; }));
        return !sink.messages.empty();
    }
    control::keys_request for_host(const std::string& host) const {
        auto one = request;
        one.hosts = {{host}};
        return one;
    }

    temporary_directory directory;
    control::keys_request request;
    event_loop loop;
    recording_sink sink;
    std::unique_ptr<server> there;
    std::unique_ptr<link> here;
};

TEST_F(rotation_test, renewed_keys_count_from_the_next_connection_on) {
    ASSERT_TRUE(greets("beta"));
    // Both ends get other keys, one after the other; an old one counts until it is revoked.
    for (const auto* const host : {"beta", "alpha"}) {
        ASSERT_EQ(control::renew_keys(for_host(host)).error, "");
        EXPECT_TRUE(greets("beta")) << sink.why;
    }
    // The listener shows its new one: the old one, revoked, would be refused.
    ASSERT_EQ(control::revoke_keys(for_host("alpha")).error, "");
    EXPECT_FALSE(greets("beta"));
    EXPECT_SAYS(sink.why, "was revoked (");
    ASSERT_EQ(control::renew_keys(for_host("alpha")).error, "");
    EXPECT_TRUE(greets("beta")) << sink.why;
}

TEST_F(rotation_test, a_revoked_host_is_put_out_and_not_let_in_again) {
    ASSERT_TRUE(greets("beta"));
    ASSERT_EQ(control::revoke_keys(for_host("beta")).error, "");
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed != 0; }));
    EXPECT_SAYS(there->sink.why, "the peer's certificate ('primary of web (QEMU) at beta', issued by ");
    EXPECT_SAYS(there->sink.why, "was revoked (");
    EXPECT_FALSE(greets("beta"));
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); }));
    EXPECT_SAYS(there->log.back(), "was revoked (");
    EXPECT_SAYS(sink.why, "it was revoked; renew this host's keys");
    EXPECT_TRUE(greets("alpha")) << sink.why;
}

TEST_F(rotation_test, a_change_that_is_none_of_the_peers_does_not_end_a_connection) {
    ASSERT_TRUE(greets("alpha"));
    ASSERT_EQ(control::renew_keys(request).error, "");
    ASSERT_EQ(control::revoke_keys(for_host("beta")).error, "");
    std::string error;
    const auto now = load_tls(at("alpha").tls, mirror::role::standby, error);
    ASSERT_TRUE(now) << error;
    for (const auto& [host, refused] : {std::pair("alpha", false), std::pair("beta", true)}) {
        const auto shown = control::read_certificate(at(host).tls.directory + "/primary-cert.pem");
        EXPECT_EQ(!why_not_trusted(*now, shown.get()).empty(), refused) << host;
    }
}

TEST_F(rotation_test, keys_of_no_use_leave_the_former_ones_in_force) {
    const auto mine = at("alpha").tls.directory;
    std::filesystem::resize_file(mine + "/standby-key.pem", 10);
    EXPECT_TRUE(greets("beta")) << sink.why;
    EXPECT_SAYS(there->log.at(0),
                "the keys were changed and are of no use now, so the former ones still count: ");
    EXPECT_TRUE(greets("beta")) << sink.why;
    EXPECT_EQ(there->log.size(), 1u) << "said once";
    ASSERT_EQ(control::renew_keys(for_host("alpha")).error, "");
    EXPECT_TRUE(greets("beta")) << sink.why;
    EXPECT_EQ(there->log.at(1), "the keys are in order again");
}

// One CA after another, without a moment in which a host is shut out.
TEST_F(rotation_test, another_ca) {
    auto next = request;
    next.directory = directory.path() + "/next";
    ASSERT_EQ(control::make_keys(next).error, "");
    const auto append = [](const std::string& from, const std::string& to) {
        std::ofstream(to, std::ios::app) << std::ifstream(from).rdbuf();
    };
    const auto ends = {at("alpha").tls.directory, at("beta").tls.directory};
    for (const auto& end : ends) // 1. both trust both
        for (const auto* const file : {"/ca.pem", "/crl.pem"})
            append(next.directory + "/ca" + file, end + file);
    EXPECT_TRUE(greets("beta")) << sink.why;
    for (const auto* const host : {"alpha", "beta"}) { // 2. one end after the other shows the new CA's
        for (const auto* const file :
             {"standby-key.pem", "standby-cert.pem", "primary-key.pem", "primary-cert.pem"})
            std::filesystem::copy_file(keys_directory(next.directory + "/" + host, "web", qemu) + "/" + file,
                                       at(host).tls.directory + "/" + file,
                                       std::filesystem::copy_options::overwrite_existing);
        EXPECT_TRUE(greets("beta")) << sink.why;
    }
    for (const auto& end : ends) // 3. the old one is forgotten
        for (const auto* const file : {"/ca.pem", "/crl.pem"})
            std::filesystem::copy_file(next.directory + "/ca" + file, end + file,
                                       std::filesystem::copy_options::overwrite_existing);
    EXPECT_TRUE(greets("beta")) << sink.why;
}

// ---- the end of QEMU

tls_files files_at_exit;

void connections_at_exit() {
    std::string error;
    if (!tls_keys::open(files_at_exit, mirror::role::primary, error)) {
        fprintf(stderr, "in the exit handler: %s\n", error.c_str());
        _exit(1);
    }
}

// Devices are ended in an exit handler that is older than all that their connections have made, and these
// work on until then. In a process of its own.
TEST(exit_test, the_library_is_there_until_the_devices_are_ended) {
    constexpr const char* variable = "KAGEMUSHA_TEST_KEYS";
    if (std::getenv(variable) == nullptr) // made here, not there: that would be older
        setenv(variable, good("alpha").c_str(), 1);
    files_at_exit = {std::getenv(variable), "web", qemu};
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            std::atexit(connections_at_exit);
            std::string error;
            const auto keys = tls_keys::open(files_at_exit, mirror::role::primary, error);
            std::exit(keys ? 0 : 2);
        },
        testing::ExitedWithCode(0), "");
    unsetenv(variable);
}

// ---- names

TEST(identity, two_vms_never_share_a_name) {
    const auto name = [](const std::string& vm) {
        return certificate_name({vm, mirror::role::primary, supervisor});
    };
    EXPECT_EQ(name("web-1.x"), "primary.supervisor.web-1.x.vm.kagemusha");
    EXPECT_EQ(name("Web_1"), "primary.supervisor._web__1.vm.kagemusha");
    EXPECT_NE(name("_web"), name("Web"));
    EXPECT_NE(name("__w"), name("_W"));
    EXPECT_TRUE(is_certified_name(std::string(32, 'x')));
    for (const std::string bad : {"", ".", "..", "-x", "a/b", "a b", "a,b", "\xc3\xa4"})
        EXPECT_FALSE(is_certified_name(bad)) << bad;
    EXPECT_FALSE(is_certified_name(std::string(33, 'x')));
}

} // namespace
} // namespace kagemusha::net::test
