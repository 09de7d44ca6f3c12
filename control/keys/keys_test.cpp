// SPDX-License-Identifier: GPL-2.0-or-later
//
// What `kage keys` leaves on the disk, checked with the openssl program: it shares no code with what it
// checks.
#include "control/keys/keys.hpp"

#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

class keys_test : public testing::Test {
protected:
    keys_test() {
        auto name = (fs::temp_directory_path() / "kagemusha-keys-XXXXXX").string();
        EXPECT_TRUE(::mkdtemp(name.data()));
        directory = name;
        request.directory = directory + "/keys";
        request.hosts = {{"alpha", "10.0.0.1", "fd00::1"}, {"beta"}};
    }
    ~keys_test() override {
        std::error_code ignored;
        fs::remove_all(directory, ignored);
    }
    std::string read(const std::string& path) {
        std::ifstream file(request.directory + "/" + path);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    std::string openssl(std::vector<std::string> words) {
        words.insert(words.begin(), "openssl");
        const auto said = run_captured(words);
        EXPECT_EQ(said.status, 0) << words[1];
        return said.out;
    }
    std::string path(const std::string& name) { return request.directory + "/" + name; }

    std::string directory;
    keys_request request;
};

TEST_F(keys_test, certificates_are_good_for_both_sides_and_for_their_names) {
    const auto made = make_keys(request);
    ASSERT_EQ(made.error, "");
    EXPECT_TRUE(made.new_ca);
    EXPECT_EQ(made.host_directories, (std::vector{path("alpha"), path("beta")}));
    for (const std::string purpose : {"sslserver", "sslclient"}) {
        EXPECT_EQ(openssl({"verify", "-x509_strict", "-purpose", purpose, "-verify_ip", "10.0.0.1", "-CAfile",
                           path("alpha/ca.pem"), path("alpha/cert.pem")}),
                  path("alpha/cert.pem") + ": OK\n");
        EXPECT_EQ(openssl({"verify", "-x509_strict", "-purpose", purpose, "-verify_hostname", "beta",
                           "-CAfile", path("alpha/ca.pem"), path("beta/cert.pem")}),
                  path("beta/cert.pem") + ": OK\n");
    }
    const auto wrong = run_captured({"openssl", "verify", "-verify_hostname", "alpha", "-CAfile",
                                     path("alpha/ca.pem"), path("beta/cert.pem")});
    EXPECT_NE(wrong.status, 0);
    const auto names = openssl({"x509", "-in", path("alpha/cert.pem"), "-noout", "-subject", "-nameopt",
                                "RFC2253", "-ext", "subjectAltName"});
    EXPECT_NE(names.find("CN=alpha"), std::string::npos) << names;
    EXPECT_NE(names.find("DNS:alpha, IP Address:10.0.0.1, IP Address:FD00:0:0:0:0:0:0:1"), std::string::npos)
        << names;
    EXPECT_EQ(openssl({"pkey", "-in", path("alpha/key.pem"), "-pubout"}),
              openssl({"x509", "-in", path("alpha/cert.pem"), "-noout", "-pubkey"}));
}

TEST_F(keys_test, only_the_owner_reads_them) {
    ASSERT_EQ(make_keys(request).error, "");
    for (const auto& entry : fs::recursive_directory_iterator(request.directory)) {
        const auto mode = entry.status().permissions();
        EXPECT_EQ(mode & (fs::perms::group_all | fs::perms::others_all), fs::perms::none) << entry.path();
    }
    EXPECT_TRUE(fs::exists(path("ca/ca-key.pem")));
    EXPECT_FALSE(fs::exists(path("alpha/ca-key.pem"))) << "no host gets the CA's key";
}

TEST_F(keys_test, a_vms_certificates_are_for_one_role_and_part) {
    request.vms = {"web", "My_VM"};
    ASSERT_EQ(make_keys(request).error, "");
    const auto verify = [&](const std::string& cert, const std::string& purpose, const std::string& name) {
        return run_captured({"openssl", "verify", "-x509_strict", "-purpose", purpose, "-verify_hostname",
                             name, "-CAfile", path("beta/vm/web/qemu/ca.pem"), path(cert)})
            .status;
    };
    EXPECT_EQ(verify("alpha/vm/web/qemu/primary-cert.pem", "sslclient", "primary.qemu.web.vm.kagemusha"), 0);
    EXPECT_EQ(
        verify("beta/vm/web/supervisor/standby-cert.pem", "sslserver", "standby.supervisor.web.vm.kagemusha"),
        0);
    EXPECT_EQ(
        verify("beta/vm/My_VM/qemu/standby-cert.pem", "sslserver", "standby.qemu._my___v_m.vm.kagemusha"), 0);
    // Not the other direction, VM, role, part, or the host's own name.
    EXPECT_NE(verify("alpha/vm/web/qemu/primary-cert.pem", "sslserver", "primary.qemu.web.vm.kagemusha"), 0);
    EXPECT_NE(verify("alpha/vm/web/qemu/standby-cert.pem", "sslclient", "standby.qemu.web.vm.kagemusha"), 0);
    for (const std::string other : {"primary.qemu._my___v_m.vm.kagemusha", "standby.qemu.web.vm.kagemusha",
                                    "primary.supervisor.web.vm.kagemusha", "alpha", "primary of web (QEMU)"})
        EXPECT_NE(verify("alpha/vm/web/qemu/primary-cert.pem", "sslclient", other), 0) << other;
    EXPECT_EQ(openssl({"x509", "-in", path("alpha/vm/web/qemu/primary-cert.pem"), "-noout", "-subject",
                       "-nameopt", "RFC2253,-dn_rev"}),
              "subject=O=Kagemusha,OU=alpha,CN=primary of web (QEMU)\n")
        << "QEMU compares exactly this (control/qemu/qemu_command.cpp)";
}

TEST_F(keys_test, hosts_and_vms_are_added_later) {
    ASSERT_EQ(make_keys(request).error, "");
    const auto before = read("alpha/key.pem");
    request.hosts = {{"alpha"}, {"gamma"}};
    request.vms = {"web"};
    const auto more = make_keys(request);
    ASSERT_EQ(more.error, "");
    EXPECT_FALSE(more.new_ca);
    EXPECT_EQ(read("alpha/key.pem"), before);
    for (const auto* const host : {"alpha", "gamma"})
        EXPECT_TRUE(fs::exists(path(std::string(host) + "/vm/web/qemu/standby-key.pem"))) << host;
    EXPECT_FALSE(fs::exists(path("beta/vm")));
    request.vms = {"db", "web"};
    EXPECT_EQ(make_keys(request).error, path("alpha/vm/web") +
                                            " exists already and is not overwritten; `kage keys " +
                                            request.directory +
                                            " --renew --host alpha --vm web` makes new "
                                            "keys for it");
    EXPECT_FALSE(fs::exists(path("alpha/vm/db"))) << "all or nothing";
    request.vms = {"../x"};
    EXPECT_NE(make_keys(request).error.find("is no name of a VM"), std::string::npos);
}

TEST_F(keys_test, renewed_ones_take_the_place_of_the_old_ones) {
    request.vms = {"web"};
    ASSERT_EQ(make_keys(request).error, "");
    const auto file = "alpha/vm/web/supervisor/primary-cert.pem";
    const auto before = read(file), of_beta = read("beta/vm/web/supervisor/primary-cert.pem"),
               host = read("alpha/cert.pem");
    request.hosts = {{"alpha"}};
    request.days = 30;
    const auto renewed = renew_keys(request);
    ASSERT_EQ(renewed.error, "");
    EXPECT_EQ(renewed.host_directories, std::vector{path("alpha")});
    EXPECT_NE(read(file), before);
    EXPECT_EQ(read("beta/vm/web/supervisor/primary-cert.pem"), of_beta);
    EXPECT_EQ(read("alpha/cert.pem"), host) << "only the VM's were asked for";
    EXPECT_NE(run_captured({"openssl", "x509", "-in", path(file), "-checkend", "2592000"}).status, 0);
    request.hosts = {};
    request.vms = {};
    ASSERT_EQ(renew_keys(request).error, "");
    EXPECT_NE(read("alpha/cert.pem"), host);
    EXPECT_NE(read("beta/vm/web/supervisor/primary-cert.pem"), of_beta);
    EXPECT_NE(openssl({"x509", "-in", path("alpha/cert.pem"), "-noout", "-ext", "subjectAltName"})
                  .find("DNS:alpha, IP Address:10.0.0.1, IP Address:FD00:0:0:0:0:0:0:1"),
              std::string::npos);
    EXPECT_EQ(openssl({"verify", "-CAfile", path("ca/ca.pem"), path(file)}), path(file) + ": OK\n");
    request.hosts = {{"delta"}};
    EXPECT_EQ(renew_keys(request).error, "there is no host delta in " + request.directory);
}

TEST_F(keys_test, revoked_are_all_that_a_host_ever_had) {
    request.vms = {"web"};
    ASSERT_EQ(make_keys(request).error, "");
    const auto file = path("beta/vm/web/qemu/primary-cert.pem"), old = directory + "/old.pem";
    fs::copy_file(file, old);
    ASSERT_EQ(renew_keys(request).error, "");
    const auto refused = [&](const std::string& cert) {
        return run_captured({"openssl", "verify", "-crl_check", "-CAfile", path("ca/ca.pem"), "-CRLfile",
                             path("alpha/vm/web/qemu/crl.pem"), cert})
                   .status != 0;
    };
    EXPECT_FALSE(refused(file));
    EXPECT_FALSE(refused(old));
    request.hosts = {{"beta"}};
    request.vms = {};
    const auto revoked = revoke_keys(request);
    ASSERT_EQ(revoked.error, "");
    EXPECT_EQ(revoked.certificates.size(), 5u) << "the host's, and two roles in two parts";
    for (const auto& cert : {file, old, path("beta/cert.pem")})
        EXPECT_TRUE(refused(cert)) << cert;
    EXPECT_FALSE(refused(path("alpha/vm/web/qemu/primary-cert.pem")));
    // Again: they stay on the list. New keys are not on it.
    EXPECT_EQ(revoke_keys(request).certificates.size(), 0u);
    EXPECT_TRUE(refused(old));
    ASSERT_EQ(renew_keys(request).error, "");
    EXPECT_FALSE(refused(file));
    EXPECT_TRUE(refused(old));
    request.hosts = {{"delta"}};
    EXPECT_NE(revoke_keys(request).error.find("no certificate was ever made for the host delta"),
              std::string::npos);
}

TEST_F(keys_test, revoked_for_one_vm) {
    request.vms = {"web", "web2"};
    ASSERT_EQ(make_keys(request).error, "");
    request.hosts = {{"alpha"}};
    request.vms = {"web"};
    EXPECT_EQ(revoke_keys(request).certificates.size(), 4u);
    const auto text = openssl({"crl", "-in", path("beta/vm/web2/supervisor/crl.pem"), "-noout", "-text"});
    std::size_t serials = 0;
    for (auto at = text.find("Serial Number"); at != std::string::npos;
         at = text.find("Serial Number", at + 1))
        ++serials;
    EXPECT_EQ(serials, 4u) << text;
}

TEST_F(keys_test, nothing_is_overwritten) {
    ASSERT_EQ(make_keys(request).error, "");
    const auto before = read("alpha/key.pem"), ca = read("ca/ca.pem");
    request.hosts = {{"gamma"}, {"alpha"}};
    const auto again = make_keys(request);
    EXPECT_EQ(again.error, path("alpha") + " exists already and is not overwritten; `kage keys " +
                               request.directory + " --renew --host alpha` makes new keys for this host");
    EXPECT_FALSE(fs::exists(path("gamma"))) << "all or nothing";
    EXPECT_EQ(read("alpha/key.pem"), before);
    EXPECT_EQ(read("ca/ca.pem"), ca);
}

TEST_F(keys_test, the_same_ca_signs_further_hosts) {
    ASSERT_EQ(make_keys(request).error, "");
    request.hosts = {{"gamma"}};
    const auto more = make_keys(request);
    ASSERT_EQ(more.error, "");
    EXPECT_FALSE(more.new_ca);
    EXPECT_EQ(read("gamma/ca.pem"), read("alpha/ca.pem"));
    EXPECT_EQ(openssl({"verify", "-CAfile", path("alpha/ca.pem"), path("gamma/cert.pem")}),
              path("gamma/cert.pem") + ": OK\n");
    fs::remove(path("ca/ca-key.pem"));
    request.hosts = {{"delta"}};
    EXPECT_NE(make_keys(request).error.find("cannot be read as the CA's key"), std::string::npos);
}

TEST_F(keys_test, two_clusters_have_cas_with_different_names) {
    const auto one = make_keys(request);
    request.directory = directory + "/other";
    const auto other = make_keys(request);
    ASSERT_EQ(one.error + other.error, "");
    EXPECT_NE(one.ca_name, other.ca_name);
}

TEST_F(keys_test, names_that_are_none) {
    for (const std::string bad : {"", "ca", "../x", "a/b", "-x", ".x", "a b", "a\nb", "DNS:x", "a,b",
                                  "primary.qemu.web.vm.kagemusha", "x.VM.Kagemusha"}) {
        request.hosts = {{bad}};
        const auto made = make_keys(request);
        EXPECT_NE(made.error.find("is no name for a host"), std::string::npos) << bad;
        EXPECT_FALSE(fs::exists(request.directory)) << bad;
    }
    request.hosts = {{std::string(65, 'x')}};
    EXPECT_NE(make_keys(request).error, "");
    request.hosts = {{"alpha"}, {"alpha"}};
    EXPECT_EQ(make_keys(request).error, "the host alpha was named twice");
    request.hosts = {};
    EXPECT_EQ(make_keys(request).error, "no host was named");
}

TEST_F(keys_test, they_expire_after_the_days_that_were_asked_for) {
    request.days = 30;
    ASSERT_EQ(make_keys(request).error, "");
    const auto cert = path("alpha/cert.pem");
    EXPECT_EQ(run_captured({"openssl", "x509", "-in", cert, "-checkend", "2500000"}).status, 0); // 29 days
    EXPECT_NE(run_captured({"openssl", "x509", "-in", cert, "-checkend", "2592000"}).status, 0); // 30 days
}

TEST_F(keys_test, what_to_copy_is_said) {
    request.vms = {"web"};
    const auto made = make_keys(request);
    const auto text = keys_advice(request, made);
    for (const auto& part : {made.ca_name, path("alpha"), path("beta"), std::string("scp -rp"),
                             std::string("alpha (also 10.0.0.1, fd00::1), for web")})
        EXPECT_NE(text.find(part), std::string::npos) << part;
    EXPECT_EQ(host_names("alpha,10.0.0.1"), (std::vector<std::string>{"alpha", "10.0.0.1"}));
}

} // namespace
} // namespace kagemusha::control
