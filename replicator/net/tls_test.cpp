// SPDX-License-Identifier: GPL-2.0-or-later
// Links through mutual TLS: they carry what plain links do, and whoever has no place in the cluster is
// refused with the reason on both sides. Keys are those of `kage keys`.
#include <gtest/gtest.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include <map>

#include "control/keys.hpp"
#include "net/test_helpers.hpp"

namespace kagemusha::net::test {
namespace {

namespace asio = boost::asio;

// Made once: they are only read.
struct cluster {
    static const cluster& get() {
        static const cluster one;
        return one;
    }
    cluster() {
        make("good", {{"alpha", "127.0.0.1", "::1", "localhost"}, {"beta"}});
        make("other", {{"alpha", "127.0.0.1"}});
    }
    void make(const std::string& name, const std::vector<std::vector<std::string>>& hosts,
              std::uint32_t days = 10, std::int64_t starts_in_s = -3600) const {
        control::keys_request request;
        request.directory = directory.path() + "/" + name;
        request.hosts = hosts;
        request.days = days;
        request.starts_in_s = starts_in_s;
        EXPECT_EQ(control::make_keys(request).error, "");
    }
    std::string of(const std::string& cluster, const std::string& host) const {
        return directory.path() + "/" + cluster + "/" + host;
    }
    temporary_directory directory;
};

class tls_test : public testing::TestWithParam<const char*> {
protected:
    std::string listening_address() {
        return GetParam() == std::string("unix") ? "unix:" + directory.path() + "/link" : "127.0.0.1:0";
    }
    void listen_as(const std::string& keys, const std::string& peer_name = {}) {
        link_options options;
        options.address = listening_address();
        options.tls = {keys, peer_name};
        there = std::make_unique<server>(loop, options);
        ASSERT_EQ(there->error, "");
    }
    void connect_as(const std::string& keys, const std::string& peer_name = {}) {
        link_options options;
        options.address = there->listening->address();
        options.tls = {keys, peer_name};
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
    static std::string good(const std::string& host) { return cluster::get().of("good", host); }

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
    EXPECT_SAYS(there->offered.at(0), "beta (");
    EXPECT_SAYS(sink.peer, "alpha (");
    const auto data = pattern(mirror::content_piece_bytes);
    std::vector<std::span<const std::byte>> pieces;
    for (std::size_t at = 0; at < data.size(); at += 4096)
        pieces.emplace_back(data.data() + at, 4096);
    there->sink.piece_bytes = sink.piece_bytes = 70'000;
    for (std::uint64_t i = 0; i < 500; ++i) {
        here->send(mirror::heartbeat{i, 0});
        there->connection->send(mirror::ack{i, 0, 0, 0});
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
    EXPECT_SAYS(sink.why, "the peer's certificate ('alpha', issued by 'kagemusha cluster ");
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
    cluster::get().make("expired-" + std::string(GetParam()), {{"alpha"}}, 1, -2 * 86400);
    listen_as(good("alpha"));
    connect_as(cluster::get().of("expired-" + std::string(GetParam()), "alpha"));
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    EXPECT_SAYS(sink.why, "/ca.pem expired on 20");
}

TEST_P(tls_test, names_are_verified) {
    listen_as(good("beta")); // has no address among its names
    connect_as(good("alpha"), "alpha");
    ASSERT_TRUE(refused());
    EXPECT_SAYS(sink.why, "the peer's certificate ('beta', issued by ");
    EXPECT_SAYS(sink.why, "is not for 'alpha'");
    EXPECT_SAYS(there->log[0], "its name or purpose is not the one expected");
}

TEST_P(tls_test, the_name_that_was_asked_for_is_let_in) {
    listen_as(good("beta"), "alpha");
    connect_as(good("alpha"), "beta");
    ASSERT_TRUE(both_greet());
    EXPECT_EQ(sink.why, "");
}

TEST_P(tls_test, a_listener_may_want_one_peer_only) {
    listen_as(good("alpha"), "gamma");
    connect_as(good("beta"));
    ASSERT_TRUE(refused());
    EXPECT_SAYS(there->log[0], "is not for 'gamma'");
    EXPECT_SAYS(sink.why, "the peer does not accept this host's certificate");
    EXPECT_TRUE(there->offered.empty());
}

TEST_P(tls_test, a_plain_peer_at_a_tls_port) {
    listen_as(good("alpha"));
    connect_as({});
    ASSERT_TRUE(refused());
    EXPECT_SAYS(there->log[0], "the peer does not speak TLS");
    EXPECT_SAYS(sink.why, "before its hello: its log says why (TLS on one side only?)");
}

TEST_P(tls_test, a_tls_peer_at_a_plain_port) {
    link_options options;
    options.address = listening_address();
    there = std::make_unique<server>(loop, options);
    connect_as(good("beta"));
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "the peer speaks TLS, but this end was set up without keys");
    EXPECT_SAYS(sink.why, "the peer does not speak TLS");
}

INSTANTIATE_TEST_SUITE_P(transports, tls_test, testing::Values("unix", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// ---- strangers, with raw peers over a Unix socket

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
    void listen(std::uint32_t timeout_ms = 2000) {
        options.address = "unix:" + directory.path() + "/link";
        options.tls.directory = cluster::get().of("good", "alpha");
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
    cluster::get().make("good", {{"late"}}, 1, -2 * 86400); // by the CA that is still valid
    const auto keys = cluster::get().of("good", "late");
    listen();
    asio::ssl::context context(asio::ssl::context::tls_client);
    context.use_certificate_file(keys + "/cert.pem", asio::ssl::context::pem);
    context.use_private_key_file(keys + "/key.pem", asio::ssl::context::pem);
    tls_stream client(loop.native().io, context);
    const auto result = refusal_of(client);
    EXPECT_SAYS(there->log.at(0), "the peer's certificate ('late', issued by 'kagemusha cluster ");
    EXPECT_SAYS(there->log.at(0), "expired on 20");
    EXPECT_SAYS(result.message(), "certificate expired");
    EXPECT_TRUE(there->offered.empty());
}

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
    EXPECT_FALSE(there->log.empty());
    EXPECT_LE(there->log.size(), 12u) << "lines are rate-limited";
    recording_sink sink;
    auto mine = options;
    mine.tls.directory = cluster::get().of("good", "beta");
    const auto here = connect(loop, mine, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_TRUE(sink.connected) << sink.why;
}

// ---- keys on the disk

class key_files_test : public testing::Test {
protected:
    key_files_test() {
        std::filesystem::copy(cluster::get().of("good", "alpha"), keys,
                              std::filesystem::copy_options::recursive);
    }
    std::string why_not() {
        link_options options;
        options.address = "unix:" + directory.path() + "/link";
        options.tls.directory = keys;
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
    EXPECT_EQ(why_not(), "");
    std::filesystem::permissions(keys + "/key.pem", std::filesystem::perms::group_read,
                                 std::filesystem::perm_options::add);
    EXPECT_SAYS(why_not(), "can be read by others than its owner: chmod 600");
    std::filesystem::permissions(keys + "/key.pem", std::filesystem::perms::group_read,
                                 std::filesystem::perm_options::remove);
    copy_from(all.of("good", "beta"), "key.pem");
    EXPECT_SAYS(why_not(), "key.pem does not belong to");
    copy_from(all.of("other", "alpha"), "cert.pem");
    EXPECT_SAYS(why_not(), "cert.pem is not signed by the CA in");
    std::filesystem::resize_file(keys + "/ca.pem", 10);
    EXPECT_SAYS(why_not(), "ca.pem holds no certificate");
    std::filesystem::remove(keys + "/ca.pem");
    EXPECT_SAYS(why_not(), "ca.pem: No such file or directory; make keys with `kage keys`");
}

} // namespace
} // namespace kagemusha::net::test
