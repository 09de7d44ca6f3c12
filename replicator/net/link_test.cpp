// SPDX-License-Identifier: GPL-2.0-or-later
// Two links in one process, over a Unix socket as it is and over TCP with TLS: what arrives, in which order
// they end, and what bad peers cost. Who is let in: tls_test.cpp.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <netdb.h>

#include <filesystem>
#include <set>
#include <thread>

#include "control/keys/keys.hpp"
#include "net/address.hpp"
#include "net/identity.hpp"
#include "net/test_helpers.hpp"

namespace kagemusha::net::test {
namespace {

// Keys of a VM, made once: without them no port is served.
tls_files shared_keys() {
    static const temporary_directory directory;
    static const std::string host = [] {
        control::keys_request request;
        request.directory = directory.path() + "/keys";
        request.hosts = {{"localhost"}};
        request.vms = {"vm"};
        request.days = 10;
        const auto made = control::make_keys(request);
        EXPECT_EQ(made.error, "");
        return made.error.empty() ? made.host_directories[0] : std::string();
    }();
    return {keys_directory(host, "vm", link_part::qemu), "vm", link_part::qemu};
}

// Runs over both transports.
class link_test : public testing::TestWithParam<const char*> {
protected:
    link_options at(const std::string& address) {
        link_options options;
        options.address = address;
        if (address[0] != 'u')
            options.tls = shared_keys();
        return options;
    }
    std::string listening_address() {
        return GetParam() == std::string("unix") ? "unix:" + directory.path() + "/link" : "127.0.0.1:0";
    }
    bool open_pair(link_options options = {}) {
        options.address = listening_address();
        options.tls = at(options.address).tls;
        there = std::make_unique<server>(loop, options);
        EXPECT_EQ(there->error, "");
        options.address = there->listening->address();
        here = connect(loop, options, sink);
        return run_until(loop, [&] { return sink.connected && there->sink.connected; });
    }
    bool greet() {
        here->send(a_hello());
        there->connection->send(a_hello(mirror::role::standby));
        return run_until(loop, [&] { return sink.messages.size() == 1 && there->sink.messages.size() == 1; });
    }

    temporary_directory directory;
    event_loop loop;
    recording_sink sink;
    std::unique_ptr<server> there;
    std::unique_ptr<link> here;
};

TEST_P(link_test, messages_go_both_ways) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    EXPECT_EQ(there->sink.messages[0], mirror::message(a_hello()));
    for (std::uint64_t i = 0; i < 1000; ++i) {
        here->send(mirror::heartbeat{i, 0});
        there->connection->send(mirror::ack{.received = i});
    }
    ASSERT_TRUE(
        run_until(loop, [&] { return sink.messages.size() == 1001 && there->sink.messages.size() == 1001; }));
    EXPECT_EQ(sink.messages[1000], mirror::message(mirror::ack{.received = 999}));
    EXPECT_EQ(there->sink.messages[1000], mirror::message(mirror::heartbeat{999, 0}));
    EXPECT_EQ(here->queued_bytes(), 0u);
    EXPECT_GT(sink.sent, 0u);
}

TEST_P(link_test, what_is_sent_before_the_connection_is_up_goes_first) {
    there = std::make_unique<server>(loop, at(listening_address()));
    here = connect(loop, at(there->listening->address()), sink);
    here->send(a_hello());
    here->send(mirror::close_epoch{});
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 2; }));
    EXPECT_EQ(there->sink.messages[0], mirror::message(a_hello()));
}

TEST_P(link_test, large_scattered_bytes_arrive_in_place) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    there->sink.piece_bytes = 70'000;
    const auto data = pattern(mirror::content_piece_bytes);
    std::vector<std::span<const std::byte>> pieces; // pages, as guest memory has them
    for (std::size_t at = 0; at < data.size(); at += 4096)
        pieces.emplace_back(data.data() + at, 4096);
    auto keep = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = keep;
    here->send(a_content(data.size()), pieces);
    here->send(a_content(data.size(), data.size()), {data}, std::exchange(keep, nullptr));
    here->send(mirror::close_epoch{});
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 4; }));
    EXPECT_EQ(there->sink.payloads, (std::list<bytes>{data, data}));
    EXPECT_TRUE(alive.expired());
}

TEST_P(link_test, a_slow_reader_is_told_by_can_send) {
    link_options options;
    options.max_queued_bytes = 1 << 20;
    ASSERT_TRUE(open_pair(options));
    ASSERT_TRUE(greet());
    const auto data = pattern(mirror::content_piece_bytes);
    EXPECT_TRUE(here->can_send());
    here->send(a_content(data.size()), {data});
    EXPECT_FALSE(here->can_send());
    EXPECT_GE(here->queued_bytes(), data.size());
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 2; }));
    EXPECT_TRUE(here->can_send());
    EXPECT_EQ(there->sink.payloads.front(), data);
}

TEST_P(link_test, who_does_not_ask_can_send_loses_the_link_and_not_the_memory) {
    link_options options;
    options.max_queued_bytes = 1 << 20;
    ASSERT_TRUE(open_pair(options));
    ASSERT_TRUE(greet());
    const auto data = pattern(mirror::content_piece_bytes);
    for (unsigned i = 0; i < 100; ++i)
        here->send(a_content(data.size()), {data});
    EXPECT_LT(here->queued_bytes(), std::uint64_t{40} << 20);
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    EXPECT_EQ(sink.why, "more was queued for the peer than the link may hold");
}

TEST_P(link_test, a_peer_that_takes_nothing_is_given_up) {
    there = std::make_unique<server>(loop, at(listening_address()));
    link_options options = at(there->listening->address());
    options.write_timeout_ms = 50;
    options.max_queued_bytes = std::uint64_t{64} << 20;
    // Accepted by the kernel, never read.
    event_loop other;
    here = connect(other, options, sink);
    const auto data = pattern(mirror::content_piece_bytes);
    sink.when_connected = [&] {
        here->send(a_hello());
        for (unsigned i = 0; i < 16; ++i)
            here->send(a_content(data.size()), {data});
    };
    ASSERT_TRUE(run_until(other, [&] { return sink.closed == 1; }));
    EXPECT_EQ(sink.why, "the peer took no bytes for 50 ms");
    EXPECT_FALSE(here->can_send());
    here.reset();
}

TEST_P(link_test, finish_sends_everything_first) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    const auto data = pattern(mirror::content_piece_bytes);
    here->send(a_content(data.size()), {data});
    here->send(mirror::goodbye{mirror::goodbye_reason::shutdown, "enough"});
    here->finish();
    here->send(mirror::close_epoch{}); // too late
    EXPECT_FALSE(here->can_send());
    EXPECT_EQ(sink.closed, 0u) << "never from inside a call";
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
    ASSERT_EQ(there->sink.messages.size(), 3u);
    EXPECT_EQ(there->sink.messages[2],
              mirror::message(mirror::goodbye{mirror::goodbye_reason::shutdown, "enough"}));
    EXPECT_EQ(there->sink.why, "the peer closed the connection");
    EXPECT_EQ(sink.why, "closed");
}

TEST_P(link_test, both_may_finish_at_once) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    here->finish();
    there->connection->finish();
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
}

TEST_P(link_test, a_finished_link_waits_for_its_peer_only_so_long) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    // The peer goes on sending and never ends: its data is dropped, and the time is bounded.
    there->sink.when_closed = [&] { there->connection.reset(); };
    here->finish();
    const auto received = sink.messages.size();
    there->connection->send(mirror::close_epoch{});
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    EXPECT_EQ(sink.messages.size(), received);
}

TEST_P(link_test, a_finished_link_lets_go_of_the_sinks_memory) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    finish_in_the_middle_of_a_payload(loop, *here, *there, false);
}

TEST_P(link_test, a_finished_link_lets_go_of_the_sinks_memory_and_says_its_last_words) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    const auto large = finish_in_the_middle_of_a_payload(loop, *here, *there, true);
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    ASSERT_EQ(sink.messages.size(), 3u) << sink.why;
    EXPECT_EQ(sink.payloads.front(), *large) << "a canceled write is done again";
    EXPECT_TRUE(std::holds_alternative<mirror::goodbye>(sink.messages[2]));
}

TEST_P(link_test, a_destroyed_link_is_silent_and_its_peer_is_told) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    auto keep = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = keep;
    const auto data = pattern(mirror::content_piece_bytes);
    here->send(a_content(data.size()), {data}, std::exchange(keep, nullptr));
    here.reset();
    EXPECT_TRUE(alive.expired());
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1; }));
    EXPECT_EQ(sink.closed, 0u);
}

TEST_P(link_test, any_callback_may_destroy_its_link) {
    for (const int where : {0, 1, 2, 3}) {
        here.reset();
        there.reset();
        sink = recording_sink{};
        bool gone = false;
        const auto drop = [&] {
            here.reset();
            gone = true;
        };
        if (where == 0)
            sink.when_connected = drop;
        if (where == 1)
            sink.when_message = [&](const mirror::message&) { drop(); };
        if (where == 2)
            sink.when_sent = drop;
        if (where == 3)
            sink.when_closed = drop;
        there = std::make_unique<server>(loop, at(listening_address()));
        there->sink.when_connected = [&] {
            there->connection->send(a_hello());
            there->connection->send(mirror::close_epoch{});
            if (where == 3)
                there->connection->finish();
        };
        here = connect(loop, at(there->listening->address()), sink);
        here->send(a_hello());
        ASSERT_TRUE(run_until(loop, [&] { return gone; })) << where;
        EXPECT_LE(sink.messages.size(), where == 3 ? 2u : 1u);
        ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1; })) << where;
    }
}

TEST_P(link_test, no_room_for_bytes_ends_the_link) {
    ASSERT_TRUE(open_pair());
    ASSERT_TRUE(greet());
    there->sink.refuse_payload = true;
    const auto data = pattern(100'000);
    here->send(a_content(data.size()), {data});
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1 && sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "there is no room for the 100000 bytes behind a message of the peer");
    const auto* const said = std::get_if<mirror::goodbye>(&sink.messages.back());
    ASSERT_TRUE(said) << "the other side learns why";
    EXPECT_EQ(said->why, there->sink.why);
}

TEST_P(link_test, a_second_connection_may_be_refused) {
    ASSERT_TRUE(open_pair());
    recording_sink second;
    const auto other = connect(loop, at(there->listening->address()), second);
    ASSERT_TRUE(run_until(loop, [&] { return second.closed == 1; }));
    EXPECT_EQ(there->offered.size(), 2u);
    ASSERT_TRUE(greet()) << "the first one does not notice";
}

TEST_P(link_test, two_threads_and_tasks_for_each_other) {
    // As a pair of hosts works: each loop on its own thread, tasks from a third.
    event_loop standby_loop;
    auto standby = std::make_unique<server>(standby_loop, at(listening_address()));
    here = connect(loop, at(standby->listening->address()), sink);
    here->send(a_hello());
    constexpr std::uint64_t count = 2000;
    std::uint64_t next = 0;
    bool ordered = true;
    standby->sink.when_message = [&](const mirror::message& m) {
        if (const auto* beat = std::get_if<mirror::heartbeat>(&m)) {
            ordered = ordered && beat->time_ms == next++;
            if (next == count)
                standby_loop.stop();
        }
    };
    standby->sink.when_closed = [&] { standby_loop.stop(); };
    std::thread standby_thread([&] { standby_loop.run(); });
    std::thread primary_thread([&] { loop.run(); });
    for (std::uint64_t i = 0; i < count; ++i)
        loop.post([&, i] { here->send(mirror::heartbeat{i, 0}); });
    standby_thread.join();
    loop.stop();
    primary_thread.join();
    EXPECT_TRUE(ordered);
    EXPECT_EQ(next, count) << standby->sink.why;
    standby.reset();
}

INSTANTIATE_TEST_SUITE_P(transports, link_test, testing::Values("unix", "tls"),
                         [](const auto& test) { return std::string(test.param); });

// ---- bad peers: over a Unix socket, where a raw peer is least code

class bad_peer_test : public testing::Test {
protected:
    bad_peer_test() {
        options.address = "unix:" + directory.path() + "/link";
        there = std::make_unique<server>(loop, options);
    }
    // The listener takes the next connection.
    void next_peer() {
        there->connection.reset();
        there->sink = recording_sink{};
    }
    bool until_closed() {
        return run_until(loop, [&] { return there->sink.closed == 1; });
    }

    temporary_directory directory;
    event_loop loop;
    link_options options;
    std::unique_ptr<server> there;
};

TEST_F(bad_peer_test, a_conversation_may_end_at_any_byte) {
    const auto payload = pattern(40);
    bytes wire;
    std::vector<std::size_t> frame_ends{0};
    for (const auto& part : {frame(a_hello()), frame(mirror::heartbeat{5, 0}), frame(a_content(40), payload),
                             frame(mirror::close_epoch{})}) {
        wire.insert(wire.end(), part.begin(), part.end());
        frame_ends.push_back(wire.size());
    }
    for (std::size_t cut = 1; cut <= wire.size(); ++cut) {
        next_peer();
        raw_peer peer(options.address);
        peer.send(std::span(wire).first(cut));
        peer.end();
        ASSERT_TRUE(until_closed()) << cut;
        const auto whole =
            std::upper_bound(frame_ends.begin(), frame_ends.end(), cut) - frame_ends.begin() - 1;
        EXPECT_EQ(there->sink.messages.size(), static_cast<std::size_t>(whole)) << cut;
        const bool at_end = std::find(frame_ends.begin(), frame_ends.end(), cut) != frame_ends.end();
        EXPECT_EQ(there->sink.why,
                  at_end ? "the peer closed the connection" : "the connection ended in the middle of a frame")
            << cut;
    }
}

TEST_F(bad_peer_test, a_peer_may_go_at_once) {
    raw_peer(options.address).end();
    ASSERT_TRUE(until_closed());
    EXPECT_EQ(there->sink.why,
              "the peer closed the connection before its hello: its log says why (TLS on one side only?)");
}

TEST_F(bad_peer_test, garbage_costs_one_connection_and_is_answered_with_the_reason) {
    raw_peer peer(options.address);
    peer.send(pattern(1000));
    ASSERT_TRUE(until_closed());
    EXPECT_FALSE(there->sink.why.empty());
    EXPECT_FALSE(there->sink.payload_offered);
    const auto said = peer.receive();
    const auto expected = frame(mirror::goodbye{mirror::goodbye_reason::protocol_error, there->sink.why});
    EXPECT_EQ(said, expected);
}

TEST_F(bad_peer_test, lengths_beyond_the_limits_are_refused_before_anything_is_allocated) {
    for (const auto& [message_bytes, payload_bytes] : {std::pair<std::uint32_t, std::uint64_t>{0xffffffff, 0},
                                                       {mirror::max_message_bytes + 1, 0},
                                                       {10, ~std::uint64_t{0}},
                                                       {10, mirror::max_frame_payload_bytes + 1}}) {
        next_peer();
        raw_peer peer(options.address);
        bytes wire = frame(a_hello());
        const messages::frame_header header{messages::frame_magic, message_bytes, payload_bytes};
        const auto* const raw = reinterpret_cast<const std::byte*>(&header);
        wire.insert(wire.end(), raw, raw + sizeof(header));
        peer.send(wire);
        ASSERT_TRUE(until_closed());
        EXPECT_FALSE(there->sink.payload_offered);
        EXPECT_EQ(there->sink.messages.size(), 1u);
    }
}

TEST_F(bad_peer_test, a_message_before_hello_is_refused) {
    raw_peer peer(options.address);
    peer.send(frame(mirror::close_epoch{}));
    ASSERT_TRUE(until_closed());
    EXPECT_EQ(there->sink.why, "the peer's first message is no hello");
    EXPECT_TRUE(there->sink.messages.empty());
}

TEST_F(bad_peer_test, a_silent_peer_is_given_up) {
    raw_peer peer(options.address);
    ASSERT_TRUE(until_closed());
    EXPECT_EQ(there->sink.why, "the peer sent no hello within 5000 ms");
}

// ---- connecting and listening

class address_test : public testing::Test {
protected:
    std::string why_not_connected(const std::string& address, const tls_files& keys = {}) {
        link_options options;
        options.tls = keys;
        options.address = address;
        recording_sink sink;
        const auto here = connect(loop, options, sink);
        EXPECT_EQ(sink.closed, 0u) << "never from inside a call";
        EXPECT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
        EXPECT_FALSE(sink.connected);
        return sink.why;
    }
    std::string why_not_listening(const std::string& address) {
        link_options options;
        options.address = address;
        server there(loop, options);
        EXPECT_EQ(there.listening, nullptr);
        return there.error;
    }
    event_loop loop;
    temporary_directory directory;
};

TEST_F(address_test, forms) {
    std::string error;
    EXPECT_EQ(parse_address("10.0.0.2:7000", error), (address{"10.0.0.2", 7000, ""}));
    EXPECT_EQ(parse_address("[::1]:7000", error), (address{"::1", 7000, ""}));
    EXPECT_EQ(parse_address("host-b:0", error), (address{"host-b", 0, ""}));
    EXPECT_EQ(parse_address("unix:/run/x", error), (address{"", 0, "/run/x"}));
    EXPECT_EQ(parse_address("[::1]:7000", error)->text(), "[::1]:7000");
    EXPECT_EQ(parse_address("unix:/run/x", error)->text(), "unix:/run/x");
    EXPECT_EQ(error, "");
    for (const std::string bad : {"", ":7000", "host", "host:", "host:65536", "host:-1", "host:7x",
                                  "::1:7000", "[::1]7000", "[]:7", "unix:", "host:7 "}) {
        error.clear();
        EXPECT_FALSE(parse_address(bad, error)) << bad;
        EXPECT_NE(error.find("'" + bad + "' is no address"), std::string::npos) << error;
    }
    EXPECT_FALSE(parse_address("unix:" + std::string(200, 'x'), error));
}

// A minimal system has no /etc/hosts, and nobody who knows the name.
bool localhost_is_known() {
    addrinfo* found = nullptr;
    const bool known = ::getaddrinfo("localhost", nullptr, nullptr, &found) == 0;
    if (known)
        ::freeaddrinfo(found);
    return known;
}

// Each user of this machine can connect to its ports.
TEST_F(address_test, ports_need_tls) {
    EXPECT_NE(why_not_connected("127.0.0.1:7000").find("needs TLS"), std::string::npos);
    if (localhost_is_known())
        EXPECT_NE(why_not_connected("localhost:7000").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("127.0.0.1:0").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("127.8.9.10:0").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("[::1]:0").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("[::ffff:127.0.0.1]:0").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_connected("192.0.2.1:7000").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_connected("[2001:db8::1]:7000").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("0.0.0.0:0").find("needs TLS"), std::string::npos);
    EXPECT_NE(why_not_listening("[::]:0").find("needs TLS"), std::string::npos);
}

TEST_F(address_test, failures_are_sentences) {
    EXPECT_EQ(why_not_connected("unix:" + directory.path() + "/nobody"),
              "cannot connect to unix:" + directory.path() + "/nobody: No such file or directory");
    EXPECT_NE(why_not_connected("nonsense").find("is no address"), std::string::npos);
    EXPECT_NE(why_not_listening("unix:" + directory.path() + "/no/such").find("cannot listen at"),
              std::string::npos);
    EXPECT_NE(why_not_listening("localhost:0").find("numeric"), std::string::npos);
    std::string closed_port;
    {
        link_options options;
        options.address = "127.0.0.1:0";
        options.tls = shared_keys();
        closed_port = server(loop, options).listening->address();
    }
    EXPECT_EQ(why_not_connected(closed_port, shared_keys()),
              "cannot connect to " + closed_port + ": Connection refused");
}

TEST_F(address_test, a_name_is_looked_up) {
    if (!localhost_is_known())
        GTEST_SKIP() << "this machine has no name 'localhost' (/etc/hosts)";
    link_options options;
    options.address = "127.0.0.1:0";
    options.tls = shared_keys();
    server there(loop, options);
    const auto real = there.listening->address();
    options.address = "localhost" + real.substr(real.rfind(':'));
    recording_sink sink;
    const auto here = connect(loop, options, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_TRUE(sink.connected) << sink.why;
}

TEST_F(address_test, a_socket_file_left_over_is_replaced_and_one_in_use_is_not) {
    link_options options;
    options.address = "unix:" + directory.path() + "/link";
    {
        // A listener that was killed leaves its file.
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        (directory.path() + "/link").copy(name.sun_path, sizeof(name.sun_path) - 1);
        ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
        ::close(fd);
    }
    auto first = std::make_unique<server>(loop, options);
    EXPECT_EQ(first->error, "");
    EXPECT_EQ(std::filesystem::status(directory.path() + "/link").permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    EXPECT_NE(why_not_listening(options.address).find("Address already in use"), std::string::npos);
    first.reset();
    EXPECT_FALSE(std::filesystem::exists(directory.path() + "/link"));
}

// Descriptors of sockets that a program which is started now would have, too.
std::set<int> inherited_sockets() {
    std::set<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const int fd = std::stoi(entry.path().filename());
        if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:") &&
            (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0)
            found.insert(fd);
    }
    return found;
}

// Who runs a listener starts a QEMU, which would keep the address when the listener is gone.
TEST_F(address_test, programs_inherit_neither_listeners_nor_links) {
    const auto before = inherited_sockets();
    link_options options;
    options.address = "unix:" + directory.path() + "/link";
    server there(loop, options);
    recording_sink sink;
    const auto here = connect(loop, options, sink);
    ASSERT_TRUE(run_until(loop, [&] { return sink.connected || sink.closed != 0; }));
    EXPECT_TRUE(sink.connected) << sink.why;
    EXPECT_EQ(inherited_sockets(), before);
}

// ---- the loop

TEST(event_loop, tasks_keep_their_order_and_one_timer_replaces_the_last) {
    event_loop loop;
    std::vector<int> order;
    const auto now = event_loop::now_ms();
    loop.call_at(now, [&] { order.push_back(100); });
    loop.call_at(~std::uint64_t{0}, [&] { order.push_back(101); });
    loop.call_at(now + 20, [&] {
        order.push_back(3);
        loop.stop();
    });
    std::thread other([&] {
        for (int i = 0; i < 3; ++i)
            loop.post([&order, i] { order.push_back(i); });
    });
    other.join();
    loop.run();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_GE(event_loop::now_ms(), now + 20);
}

TEST(event_loop, a_stop_before_run_counts) {
    event_loop loop;
    loop.stop();
    loop.run();
    bool ran = false;
    loop.post([&] {
        ran = true;
        loop.stop();
    });
    loop.run();
    EXPECT_TRUE(ran);
}

} // namespace
} // namespace kagemusha::net::test
