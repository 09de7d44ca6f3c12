// SPDX-License-Identifier: GPL-2.0-or-later
// A host's keys on the disk: what is wrong with them is said, and new ones, revoked ones and another CA count
// while somebody listens.
#include <filesystem>
#include <fstream>
#include <map>

#include "net/tls_test_keys.hpp"

namespace kagemusha::net::test {
namespace {

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

} // namespace
} // namespace kagemusha::net::test
