// SPDX-License-Identifier: GPL-2.0-or-later
// Whoever has no place in the cluster, with raw peers over a Unix socket: refused with the reason on both sides,
// at a bounded cost.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include "net/tls_test_keys.hpp"

namespace kagemusha::net::test {
namespace {

namespace asio = boost::asio;

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
    listen();
    std::list<raw_peer> crowd;
    for (unsigned i = 0; i < 40; ++i) {
        crowd.emplace_back(options.address);
        const auto offered = there->log.size();
        // Let the listener take it: its backlog is as small as its patience.
        loop.native().io.run_for(std::chrono::milliseconds(5));
        EXPECT_LE(there->log.size(), offered + 1);
    }
    recording_sink sink;
    auto mine = options;
    mine.tls = {good("beta"), "web", qemu};
    const auto here = connect(loop, mine, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_TRUE(sink.connected) << sink.why;
    ASSERT_TRUE(run_until(loop, [&] { return !there->log.empty(); })); // their time is over
    EXPECT_LE(there->log.size(), 12u) << "lines are rate-limited";
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

} // namespace
} // namespace kagemusha::net::test
