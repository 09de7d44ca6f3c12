// SPDX-License-Identifier: GPL-2.0-or-later
// Links through mutual TLS: they carry what plain links do, and both sides hear why a peer of another cluster,
// VM or part is refused. Keys are those of `kage keys`. Raw peers: tls_strangers_test.cpp; keys on the disk:
// tls_keys_test.cpp.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "net/tls_test_keys.hpp"

namespace kagemusha::net::test {
namespace {

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
