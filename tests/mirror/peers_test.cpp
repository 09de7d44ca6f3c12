// SPDX-License-Identifier: GPL-2.0-or-later
// Two devices in one process with everything that a link between hosts has: keys of `kage keys`, TCP,
// compression. And who is not let in: with wrong keys, of another VM, of another version. Both sides say why
// in their status, because whoever has to mend it looks at one of them.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "control/keys/keys.hpp"
#include "net/test_helpers.hpp"
#include "tests/support/guest.hpp"

namespace kagemusha::test {
namespace {

// What is decided here has nothing to do with GPUs. Memory of this one holds what was written.
const backend_case backend = {"null", "null", "memory=1", true, false};
constexpr std::uint64_t bytes = 4u << 20;

class peers : public testing::Test {
protected:
    // One cluster with the host of this machine and one that has no address, and another cluster.
    static void SetUpTestSuite() {
        keys_ = new net::test::temporary_directory;
        make_keys("ours", {{"here"}, {"elsewhere"}});
        make_keys("theirs", {{"here"}});
    }
    static void TearDownTestSuite() { delete std::exchange(keys_, nullptr); }
    static void make_keys(const std::string& name, const std::vector<std::vector<std::string>>& hosts) {
        control::keys_request request;
        request.directory = keys_->path() + "/" + name;
        request.hosts = hosts;
        request.vms = {"a-vm", "another-vm"};
        request.days = 10;
        EXPECT_EQ(control::make_keys(request).error, "");
    }
    static std::string keys(const std::string& of, const std::string& vm = "a-vm") {
        return net::keys_directory(keys_->path() + "/" + of, vm, net::link_part::qemu);
    }

    void TearDown() override {
        primary.reset();
        standby.reset();
    }
    static std::string unix_address() { return "unix:" + keys_->path() + "/link"; }
    // Who has no keys neither serves a port nor connects to one.
    void start_standby(const std::string& tls, bool compression = false) {
        start_standby_at(tls.empty() ? unix_address() : "127.0.0.1:0", tls, compression);
    }
    void start_standby_at(const std::string& at, const std::string& tls, bool compression = false) {
        auto c = config_of(backend);
        c.standby_listen = at.c_str();
        c.tls_directory = tls.c_str();
        c.compression = compression;
        standby = std::make_unique<host>(c);
        address = kagemusha_device_standby_address(standby->device());
    }
    void start_primary(const std::string& to, const std::string& tls, const char* vm = nullptr,
                       bool compression = false) {
        auto c = config_of(backend);
        c.replicate_to = to.c_str();
        c.tls_directory = tls.c_str();
        c.vm_id = vm ? vm : c.vm_id;
        c.compression = compression;
        c.replicable = 1;
        primary = std::make_unique<guest>(c);
    }
    static bool says(const host& h, const char* part) {
        return std::strstr(h.status().degraded, part) != nullptr;
    }
    // Both status say their part of it, and nothing was let in.
    void expect_refused(const char* primary_says, const char* standby_says) {
        host::wait([&] { return says(*primary, primary_says); }, primary_says);
        host::wait([&] { return says(*standby, standby_says); }, standby_says);
        EXPECT_FALSE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
        EXPECT_EQ(standby->status().received, 0u);
    }

    static net::test::temporary_directory* keys_;
    std::unique_ptr<guest> primary;
    std::unique_ptr<host> standby;
    std::string address;
};

net::test::temporary_directory* peers::keys_ = nullptr;

class protected_by : public peers, public testing::WithParamInterface<std::tuple<bool, bool, bool>> {};

// Compression needs both ends; what arrives is the same with and without it.
TEST_P(protected_by, tls_and_compression) {
    const auto [tls, here, there] = GetParam();
    start_primary("", tls ? keys("ours/here") : "", nullptr, here);
    const auto context = primary->context(), queue = primary->queue(context);
    const auto buffer = primary->buffer(context, bytes);
    auto* words = primary->memory_as<std::uint32_t>();
    for (std::uint32_t i = 0; i < bytes / 4; ++i)
        words[i] = i / 64;
    primary->write(queue, buffer, 0, bytes);
    start_standby(tls ? keys("ours/here") : "", there);
    char error[256];
    ASSERT_EQ(kagemusha_device_replicate_to(primary->device(), address.c_str(), error, sizeof error), 0);
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    host::wait([this] { return standby->is(KAGEMUSHA_REPLICATION_READY); }, "a ready standby");
    EXPECT_STREQ(primary->status().degraded, "");
    EXPECT_STREQ(standby->status().degraded, "");

    ASSERT_EQ(kagemusha_device_request_digest(primary->device(), 1), 0);
    host::wait([this] { return primary->status().digests_compared != 0; }, "a comparison");
    EXPECT_EQ(primary->status().digests_different, 0u);
    const auto s = primary->status();
    EXPECT_GE(s.transferred_bytes, bytes);
    if (here && there) {
        EXPECT_GT(s.compression_saved_bytes, bytes / 2);
        EXPECT_LT(s.sent_bytes, bytes / 2);
    } else {
        EXPECT_EQ(s.compression_saved_bytes, 0u);
        EXPECT_GE(s.sent_bytes, bytes);
    }
}

// A payload in pieces of 4 MiB: what can be compressed, and a short rest, go another way than the others.
TEST_P(protected_by, copies_of_any_length) {
    const auto [tls, here, there] = GetParam();
    start_standby(tls ? keys("ours/here") : "", there);
    start_primary(address, tls ? keys("ours/here") : "", nullptr, here);
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    constexpr std::uint64_t large = 3 * bytes + 4096;
    const auto context = primary->context(), queue = primary->queue(context);
    const auto buffer = primary->buffer(context, large);
    auto* words = primary->memory_as<std::uint32_t>();
    std::uint32_t random = 1;
    for (std::uint32_t i = 0; i < large / 4; ++i) {
        random = random * 1664525 + 1013904223;
        words[i] = i / (bytes / 4) == 1 ? 7 : random; // the second piece is worth compressing
    }
    for (int i = 0; i < 8; ++i)
        primary->write(queue, buffer, 0, large);
    primary->finish(queue);
    host::wait([this] { return primary->status().lag_entries == 0; }, "a standby that has it all");
    EXPECT_EQ(primary->status().connections, 1u);
    EXPECT_TRUE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING)) << primary->status().degraded;
}

std::string name_of_case(const testing::TestParamInfo<protected_by::ParamType>& info) {
    const auto [tls, here, there] = info.param;
    return std::string(tls ? "tls" : "plain") + (here ? "_primary_compresses" : "") +
           (there ? "_standby_decompresses" : "");
}

using one = std::tuple<bool, bool, bool>;
INSTANTIATE_TEST_SUITE_P(links, protected_by,
                         testing::Values(one{true, true, true}, one{true, false, false},
                                         one{false, true, true}, one{false, true, false},
                                         one{false, false, true}),
                         name_of_case);

TEST_F(peers, of_another_cluster) {
    start_standby(keys("ours/here"));
    EXPECT_STREQ(standby->status().degraded, "no primary has connected yet");
    start_primary(address, keys("theirs/here"));
    expect_refused("is not signed by 'kagemusha cluster ",
                   "the peer does not accept this host's certificate");
    EXPECT_TRUE(says(*standby, "no primary has connected yet; refused 127.0.0.1:"));
}

// Each host that may run the VM has a key of its own for it.
TEST_F(peers, with_the_key_of_another_host) {
    start_standby(keys("ours/elsewhere"));
    start_primary(address, keys("ours/here"));
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
}

TEST_F(peers, without_keys_where_keys_are_wanted) {
    start_standby_at(unix_address(), keys("ours/here"));
    start_primary(address, "");
    expect_refused("TLS on one side only?", "the peer does not speak TLS as expected");
}

TEST_F(peers, with_keys_where_none_are) {
    start_standby("");
    start_primary(address, keys("ours/here"));
    expect_refused("the peer does not speak TLS as expected",
                   "the peer speaks TLS, but this end was set up without keys");
}

// Who mends his keys is let in, and the refusal is no longer told.
TEST_F(peers, with_the_right_keys_after_all) {
    start_standby(keys("ours/here"));
    start_primary(address, keys("theirs/here"));
    expect_refused("is not signed by", "does not accept");
    primary.reset();
    start_primary(address, keys("ours/here"));
    host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
    host::wait([this] { return standby->is(KAGEMUSHA_REPLICATION_READY); }, "a ready standby");
    EXPECT_STREQ(standby->status().degraded, "");
    primary.reset();
    host::wait([this] { return standby->is(KAGEMUSHA_REPLICATION_LISTENING); }, "the primary's end");
    EXPECT_FALSE(says(*standby, "refused")) << standby->status().degraded;
}

TEST_F(peers, of_another_vm) {
    start_standby(keys("ours/here"));
    start_primary(address, keys("ours/here", "another-vm"), "another-vm");
    expect_refused("the peer's certificate ('standby of a-vm (QEMU) at here', issued by ",
                   "its name or purpose is not the one");
}

TEST_F(peers, of_another_vm_without_keys) {
    start_standby("");
    start_primary(address, "", "another-vm");
    const char* why = "the peer is of VM \"another-vm\", this is VM \"a-vm\": check the addresses";
    expect_refused(why, why);
}

// ---- of another version: one end is a device, the other one says a hello that no device here says

constexpr const char* versions = "protocol version 7 to 9 there, 1 to 2 here: upgrade this host";

mirror::hello of_version_9(mirror::role role) {
    mirror::hello h = net::test::a_hello(role);
    h.vm = "a-vm";
    h.version = 9;
    h.oldest_version = 7;
    h.hold_bytes = 1u << 20;
    h.hold_entries = 100;
    h.heartbeat_budget_ms = 500;
    return h;
}

bool is_refused(const net::test::recording_sink& sink) {
    for (const auto& m : sink.messages)
        if (const auto* bye = std::get_if<mirror::goodbye>(&m))
            return bye->reason == mirror::goodbye_reason::refused && bye->why.find(versions) == 0;
    return false;
}

TEST_F(peers, a_primary_of_another_version) {
    start_standby(keys("ours/here"));
    net::event_loop loop;
    net::test::recording_sink sink;
    net::link_options options;
    options.address = address;
    options.tls = {keys("ours/here"), "a-vm", net::link_part::qemu};
    const auto link = net::connect(loop, options, sink);
    link->send(of_version_9(mirror::role::primary));
    host::wait(
        [&] {
            loop.native().io.poll();
            return sink.closed != 0;
        },
        "a refusal");
    EXPECT_TRUE(is_refused(sink)) << sink.why;
    host::wait([this] { return says(*standby, versions); }, versions);
    EXPECT_TRUE(standby->is(KAGEMUSHA_REPLICATION_LISTENING));
}

TEST_F(peers, a_standby_of_another_version) {
    net::event_loop loop;
    net::link_options options;
    options.address = "127.0.0.1:0";
    options.tls = {keys("ours/here"), "a-vm", net::link_part::qemu};
    net::test::server there(loop, options);
    ASSERT_EQ(there.error, "");
    there.sink.when_connected = [&] { there.connection->send(of_version_9(mirror::role::standby)); };
    start_primary(there.listening->address(), keys("ours/here"));
    host::wait(
        [&] {
            loop.native().io.poll();
            return there.sink.closed != 0;
        },
        "a refusal");
    EXPECT_TRUE(is_refused(there.sink)) << there.sink.why;
    host::wait(
        [&] {
            loop.native().io.poll();
            return says(*primary, versions);
        },
        versions);
}

} // namespace
} // namespace kagemusha::test
