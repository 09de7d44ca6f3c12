// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter `etcd` against a real server (Debian's etcd-server; skipped where there is none).
#include "control/arbiter/arbiter_test_helpers.hpp"
#include "control/arbiter/etcd_arbiter.hpp"
#include "control/base/base64.hpp"
#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fcntl.h>
#include <filesystem>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {
namespace {

using kind = ha::arbiter_request::kind;
using verdict = ha::arbiter_answer::verdict;
using namespace std::chrono_literals;
using namespace test;

int free_port() {
    const unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
        return 0;
    return ntohs(address.sin_port);
}

struct etcd : testing::Test {
    void SetUp() override {
        if (!std::filesystem::exists("/usr/bin/etcd"))
            GTEST_SKIP() << "no etcd on this machine (package etcd-server)";
        first.what = verdict::unreachable;
        // A port that was free may be another process's by now; the server then ends.
        for (int attempt = 0; attempt < 5 && first.what == verdict::unreachable; ++attempt)
            start(fmt::format("{}/{}", directory.path, attempt));
        ASSERT_EQ(first.what, verdict::granted) << first.why;
    }
    // Returns when the server has granted the lease, or has ended, or a minute is over.
    void start(const std::string& files) {
        const auto client = fmt::format("http://127.0.0.1:{}", free_port());
        const auto peer = fmt::format("http://127.0.0.1:{}", free_port());
        const unique_fd log(::open((files + ".log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        std::string error;
        server.reset();
        server = child_process::start(
            {{"/usr/bin/etcd", "--data-dir", files, "--listen-client-urls", client, "--advertise-client-urls",
              client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
              "default=" + peer},
             {},
             -1,
             log.get(),
             log.get(),
             {},
             false},
            error);
        ASSERT_TRUE(server) << error;
        described.what = described_arbiter::kind::etcd;
        described.endpoints = {client};
        described.lease_ms = 2000;
        p = std::make_unique<etcd_arbiter>(described, arbiter_identity{"vm", "p", false}, of_p.answers());
        s = std::make_unique<etcd_arbiter>(described, arbiter_identity{"vm", "s", true}, of_s.answers());
        for (int i = 0; i < 600; ++i) {
            first = of_p.ask(*p, request(kind::open));
            if (first.what != verdict::unreachable || server->wait_for(100ms))
                break;
        }
    }
    temporary_directory directory;
    std::optional<child_process> server;
    described_arbiter described;
    asker of_p, of_s;
    std::unique_ptr<etcd_arbiter> p, s;
    ha::arbiter_answer first;
};

TEST_F(etcd, keeps_the_contract) {
    EXPECT_EQ(first.term, 1u);
    EXPECT_EQ(of_s.ask(*s, request(kind::open)).what, verdict::held);
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 1)).what, verdict::granted);
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 1)).what, verdict::refused) << "not paired";
    EXPECT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    EXPECT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).what, verdict::granted) << "an answer can get lost";
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 1)).what, verdict::refused) << "another term";
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 2)).what, verdict::held);
    auto claim = request(kind::claim, 2);
    claim.proven_dead = true;
    EXPECT_EQ(of_s.ask(*s, claim).term, 3u);
    EXPECT_EQ(of_s.ask(*s, claim).what, verdict::granted) << "an answer can get lost";
    EXPECT_EQ(of_p.ask(*p, request(kind::alone, 2)).what, verdict::refused);
}

TEST_F(etcd, a_lease_that_ran_out_is_claimed_and_its_holder_learns_it) {
    of_p.ask(*p, request(kind::pair, 1, 2));
    ha::arbiter_answer a;
    do { // p is silent
        a = of_s.ask(*s, request(kind::claim, 2));
        std::this_thread::sleep_for(50ms);
    } while (a.what == verdict::held ||
             a.what == verdict::unreachable); // etcd's disk may be slow: it is asked again
    EXPECT_EQ(a.what, verdict::granted) << a.why;
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::refused);
}

TEST_F(etcd, a_lease_that_ran_out_and_was_not_claimed_is_had_again) {
    of_p.ask(*p, request(kind::pair, 1, 2));
    while (boot_ms() < first.until_ms + 3000)
        std::this_thread::sleep_for(100ms);
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::granted);
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 2)).what, verdict::held);
}

TEST_F(etcd, no_child_gets_its_connections) {
    unsigned connections = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int fd = std::stoi(entry.path().filename());
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
            address.ss_family == AF_INET) {
            ++connections;
            EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
        }
    }
    EXPECT_NE(connections, 0u);
}

TEST_F(etcd, a_server_that_is_gone_is_unreachable) {
    server.reset();
    const auto a = of_p.ask(*p, request(kind::renew, 1));
    EXPECT_EQ(a.what, verdict::unreachable);
    EXPECT_NE(a.why.find("can't be reached"), std::string::npos) << a.why;
}

// Connections are made, and nothing ever comes back: a member that is stuck, or a host whose kernel still
// lives.
struct silent_member {
    silent_member() {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(::listen(fd.get(), 64), 0);
        EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
        url = fmt::format("http://127.0.0.1:{}", ntohs(address.sin_port));
    }
    unique_fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    std::string url;
};

// Answers each request with the next of these, and keeps what it was asked.
struct scripted_member : silent_member {
    explicit scripted_member(std::vector<std::string> responses)
        : thread([this, responses = std::move(responses)] {
            for (const auto& response : responses) {
                const unique_fd peer(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
                std::string request(65536, '\0');
                request.resize(static_cast<std::size_t>(
                    std::max<ssize_t>(0, ::recv(peer.get(), request.data(), request.size(), 0))));
                requests.push_back(request);
                EXPECT_EQ(::send(peer.get(), response.data(), response.size(), MSG_NOSIGNAL),
                          static_cast<ssize_t>(response.size()));
            }
        }) {}
    static std::string response(int status, const std::string& body) {
        return fmt::format("HTTP/1.1 {} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
                           "Connection: close\r\n\r\n{}",
                           status, body.size(), body);
    }
    std::vector<std::string> requests; // complete after join()
    std::thread thread;
};

// What etcd 3.5.16 (Debian 13) says has no "error", as that of 3.4 (Debian 12) has. A token that had run out
// was taken for a record that is gone.
TEST(etcd_client, an_error_is_no_answer_in_whatever_words) {
    for (
        const std::string refusal :
        {R"({"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16})",
         R"({"code":16, "message":"etcdserver: invalid auth token"})"}) {
        const auto answer = scripted_member::response;
        scripted_member member({answer(200, R"({"header":{},"token":"one"})"), answer(401, refusal),
                                answer(200, R"({"header":{},"token":"two"})"),
                                answer(200, R"({"header":{},"kvs":[]})"),
                                answer(400, R"({"code":3, "message":"etcdserver: user name is empty"})"),
                                answer(400, R"({"code":3, "message":"etcdserver: authentication failed"})")});
        described_arbiter described;
        described.endpoints = {member.url};
        described.lease_ms = 30000;
        described.user = "root";
        described.password = "secret";
        etcd_client client(described);
        const auto found = client.ask("/v3/kv/range", {{"key", "YQ=="}});
        ASSERT_TRUE(found) << client.problem();
        EXPECT_TRUE(found->contains("kvs"));
        EXPECT_FALSE(client.ask("/v3/kv/range", {{"key", "YQ=="}}));
        EXPECT_NE(client.problem().find("authentication failed"), std::string::npos) << client.problem();
        member.thread.join();
        ASSERT_EQ(member.requests.size(), 6u);
        EXPECT_NE(member.requests[3].find("Authorization: two"), std::string::npos);
    }
}

// Asked one after the other, for a third of a lease each, the lease is over when its number arrives.
TEST_F(etcd, members_that_are_silent_cost_no_lease) {
    silent_member one, two;
    auto cluster = described;
    cluster.endpoints = {one.url, two.url, described.endpoints.front()};
    cluster.lease_ms = 6000;
    asker of_q;
    etcd_arbiter q(cluster, arbiter_identity{"other", "q", false}, of_q.answers());
    const auto opened = of_q.ask(q, request(kind::open));
    ASSERT_EQ(opened.what, verdict::granted) << opened.why;
    EXPECT_GT(opened.until_ms, boot_ms());
    const auto renewed = of_q.ask(q, request(kind::renew, 1));
    ASSERT_EQ(renewed.what, verdict::granted) << renewed.why;
    EXPECT_GT(renewed.until_ms, boot_ms());
}

TEST_F(etcd, a_cluster_of_silent_members_is_unreachable) {
    silent_member one, two;
    auto cluster = described;
    cluster.endpoints = {one.url, two.url};
    asker of_q;
    etcd_arbiter q(cluster, arbiter_identity{"other", "q", false}, of_q.answers());
    const auto a = of_q.ask(q, request(kind::open));
    EXPECT_EQ(a.what, verdict::unreachable);
    EXPECT_FALSE(a.why.empty());
}

TEST_F(etcd, a_record_that_is_gone_is_found_while_the_lease_lives) {
    ASSERT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    ASSERT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::granted);
    etcd_client person(described);
    ASSERT_TRUE(person.ask("/v3/kv/deleterange", {{"key", to_base64("/kagemusha/vm/state")}}))
        << person.problem();
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::gone);
    auto again = request(kind::restore, 2);
    again.paired = true;
    EXPECT_EQ(of_p.ask(*p, again).what, verdict::granted);
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::granted);
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 2)).what, verdict::held);
}

TEST_F(etcd, a_record_that_is_anothers_is_found_while_the_lease_lives) {
    ASSERT_EQ(of_p.ask(*p, request(kind::renew, 1)).what, verdict::granted);
    etcd_client person(described);
    ASSERT_TRUE(person.ask(
        "/v3/kv/put", {{"key", to_base64("/kagemusha/vm/state")}, {"value", to_base64("5 alone somebody")}}));
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 1)).what, verdict::refused);
}

TEST_F(etcd, who_ends_alone_has_that_written_again) {
    ASSERT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    ASSERT_EQ(of_p.ask(*p, request(kind::alone, 2)).what, verdict::granted);
    etcd_client person(described);
    ASSERT_TRUE(person.ask("/v3/kv/put",
                           {{"key", to_base64("/kagemusha/vm/state")}, {"value", to_base64("2 paired p")}}));
    auto release = request(kind::release, 2);
    release.alone = true;
    ASSERT_EQ(of_p.ask(*p, release).what, verdict::granted);
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 2)).what, verdict::refused);
    EXPECT_EQ(of_s.ask(*s, request(kind::open)).what, verdict::granted) << "the lease has ended";
}

TEST_F(etcd, a_record_that_was_put_back_to_paired_says_alone_again) {
    ASSERT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    ASSERT_EQ(of_p.ask(*p, request(kind::alone, 2)).what, verdict::granted);
    auto renew = request(kind::renew, 2);
    renew.alone = true;
    ASSERT_EQ(of_p.ask(*p, renew).what, verdict::granted);
    etcd_client person(described);
    ASSERT_TRUE(person.ask("/v3/kv/put",
                           {{"key", to_base64("/kagemusha/vm/state")}, {"value", to_base64("2 paired p")}}));
    ASSERT_EQ(of_p.ask(*p, renew).what, verdict::granted);
    EXPECT_FALSE(of_s.ask(*s, request(kind::look, 2)).paired);
    auto claim = request(kind::claim, 2);
    claim.proven_dead = true;
    EXPECT_EQ(of_s.ask(*s, claim).what, verdict::refused);
}

TEST_F(etcd, a_holder_that_was_deleted_is_written_again) {
    of_p.ask(*p, request(kind::pair, 1, 2));
    etcd_client person(described);
    ASSERT_TRUE(person.ask("/v3/kv/deleterange", {{"key", to_base64("/kagemusha/vm/holder")}}));
    ASSERT_EQ(of_p.ask(*p, request(kind::renew, 2)).what, verdict::granted);
    EXPECT_EQ(of_s.ask(*s, request(kind::claim, 2)).what, verdict::held);
}

TEST_F(etcd, texts_of_the_record_have_no_control_characters) {
    etcd_client person(described);
    ASSERT_TRUE(person.ask("/v3/kv/put", {{"key", to_base64("/kagemusha/vm/state")},
                                          {"value", to_base64("5 alone some\x1b[2Jbody\xff")}}));
    EXPECT_EQ(of_p.ask(*p, request(kind::renew, 1)).why, "term 1 is over: some?[2Jbody? has term 5");
}

TEST_F(etcd, a_user_logs_in) {
    etcd_client admin(described);
    const auto set = [&](const char* path, const nlohmann::json& body) {
        ASSERT_TRUE(admin.ask(path, body)) << path << ": " << admin.problem();
    };
    set("/v3/auth/user/add", {{"name", "root"}, {"password", "secret"}});
    set("/v3/auth/role/add", {{"name", "root"}});
    set("/v3/auth/user/grant", {{"user", "root"}, {"role", "root"}});
    set("/v3/auth/enable", nlohmann::json::object());
    const auto stranger = of_p.ask(*p, request(kind::renew, 1));
    EXPECT_EQ(stranger.what, verdict::unreachable);
    auto known = described;
    known.user = "root";
    known.password = "secret";
    known.lease_ms = 30000; // a password is long compared on purpose, and longer on a busy machine
    asker of_q;
    {
        etcd_arbiter q(known, arbiter_identity{"other", "q", false}, of_q.answers());
        EXPECT_EQ(of_q.ask(q, request(kind::open)).term, 1u);
        EXPECT_EQ(of_q.ask(q, request(kind::renew, 1)).what, verdict::granted);
    }
    known.password = "wrong";
    etcd_arbiter q(known, arbiter_identity{"other", "q", false}, of_q.answers());
    const auto wrong = of_q.ask(q, request(kind::open));
    EXPECT_EQ(wrong.what, verdict::unreachable);
    EXPECT_NE(wrong.why.find("authentication failed"), std::string::npos) << wrong.why;
    EXPECT_EQ(wrong.why.find("secret"), std::string::npos);
}

// etcd was put back to when the holder still had a standby.
TEST(etcd_record, who_goes_on_alone_has_that_written_again) {
    const etcd_record record{2, true, "p", "7", "p"};
    auto renew = request(kind::renew, 2);
    EXPECT_TRUE(std::get<etcd_put>(decide_on(record, renew, "p", 5)).paired);
    renew.alone = true;
    const auto put = std::get<etcd_put>(decide_on(record, renew, "p", 5));
    EXPECT_EQ(put.term, 2u);
    EXPECT_FALSE(put.paired);
}

TEST(etcd_record, who_ends_alone_has_that_written_again) {
    auto release = request(kind::release, 2);
    const auto decide = [&](const etcd_record& record) { return decide_on(record, release, "p", 5); };
    const auto is_put = [](const auto& decided) { return std::holds_alternative<etcd_put>(decided); };
    EXPECT_FALSE(is_put(decide({2, true, "p", "7", "p"}))) << "a standby may go on";
    release.alone = true;
    ASSERT_TRUE(is_put(decide({2, true, "p", "7", "p"})));
    EXPECT_FALSE(std::get<etcd_put>(decide({2, true, "p", "7", "p"})).paired);
    EXPECT_FALSE(is_put(decide({2, false, "p", "7", "p"}))) << "it says so already";
    EXPECT_FALSE(is_put(decide({3, true, "s", "7", "s"}))) << "somebody else's";
}

TEST(etcd_record, a_standby_claims_only_what_it_was_told_and_nobody_holds) {
    etcd_record record{2, true, "p", "7", "p"};
    auto claim = request(kind::claim, 2);
    EXPECT_EQ(std::get<ha::arbiter_answer>(decide_on(record, claim, "s", 5)).what, verdict::held);
    record.holder.clear();
    const auto put = std::get<etcd_put>(decide_on(record, claim, "s", 5));
    EXPECT_EQ(put.term, 3u);
    EXPECT_FALSE(put.paired);
    EXPECT_TRUE(put.nobody_holds);
    record.paired = false;
    EXPECT_EQ(std::get<ha::arbiter_answer>(decide_on(record, claim, "s", 5)).what, verdict::refused);
    record.revision = "0";
    EXPECT_EQ(std::get<ha::arbiter_answer>(decide_on(record, claim, "s", 5)).what, verdict::gone);
}

// etcd was put back to before the pair, or to before a takeover. Leases come back with their whole length,
// and the one who keeps its own alive keeps the old record's.
TEST(etcd_record, an_older_one_is_no_refusal_whoever_has_a_lease_in_it) {
    for (const std::string owner : {"p", "s"}) {
        const etcd_record record{1, false, owner, "7", owner};
        for (const auto what : {kind::renew, kind::alone, kind::pair, kind::claim})
            EXPECT_EQ(std::get<ha::arbiter_answer>(decide_on(record, request(what, 2, 3), "p", 5)).what,
                      verdict::gone)
                << owner << ha::to_text(what);
    }
    const auto seen =
        std::get<ha::arbiter_answer>(decide_on({1, false, "p", "7", "p"}, request(kind::look, 2), "s", 5));
    EXPECT_EQ(seen.what, verdict::granted) << "the term that comes next is looked for before it is recorded";
    EXPECT_EQ(seen.term, 1u);
    auto again = request(kind::restore, 2);
    again.paired = true;
    const auto put = std::get<etcd_put>(decide_on({1, false, "p", "7", "p"}, again, "p", 5));
    EXPECT_EQ(put.term, 2u);
    EXPECT_TRUE(put.paired);
    EXPECT_EQ(std::get<ha::arbiter_answer>(decide_on({1, false, "s", "7", "s"}, again, "p", 5)).what,
              verdict::held)
        << "its lease has to run out first";
}

} // namespace
} // namespace kagemusha::control
