// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the file of settings may say, and what PAM's process may.
#include "control/login/pam_login.hpp"
#include "control/login/settings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

namespace kagemusha::control::login {
namespace {

std::optional<std::string> secret_of(const std::string& path, std::string& why) {
    if (path == "/etc/kagemusha/secret")
        return "geheim\n";
    why = "is not there";
    return std::nullopt;
}

settings parse(const std::string& text, std::vector<std::string>& errors) {
    return parse_settings(text, "/etc/kagemusha/login.toml", secret_of, errors);
}

constexpr char oidc[] = R"(
[oidc]
issuer = "https://sso.example/realms/a"
client-id = "kagemusha"
client-secret-file = "secret"
portal = "https://gpu.example:7443/"
admins = ["root"]
)";

TEST(login_settings, are_read) {
    std::vector<std::string> errors;
    const auto got = parse(std::string("[pam]\nviewers = [\"staff\"]\n") + oidc, errors);
    ASSERT_TRUE(errors.empty()) << errors[0];
    EXPECT_EQ(got.pam->service, "kagemusha");
    EXPECT_EQ(got.pam->roles.viewers, std::vector<std::string>{"staff"});
    EXPECT_EQ(got.oidc->client_secret, "geheim");
    EXPECT_EQ(got.oidc->redirect_uri(), "https://gpu.example:7443/v1/login/oidc/callback");
    EXPECT_EQ(got.oidc->scopes, (std::vector<std::string>{"openid", "profile"}));
    EXPECT_EQ(parse(std::string(oidc) + "scopes = [\"openid\"]\n", errors).oidc->scopes,
              std::vector<std::string>{"openid"});
    EXPECT_FALSE(parse("", errors).pam);
    EXPECT_TRUE(errors.empty());
}

TEST(login_settings, are_nothing_with_one_error) {
    const std::pair<std::string, const char*> all[] = {
        {"[pam]\n", "nobody would get in"},
        {"[pam]\nviewers = []\n", "nobody would get in"},
        {"[pam]\nviewers = \"staff\"\n", "viewers"},
        {"[pam]\nviewer = [\"staff\"]\n", "'viewer' is no key"},
        {"[pam]\nviewers = [\"a\"]\nservice = \"../x\"\n", "/etc/pam.d"},
        {"[ldap]\n", "'ldap' is no key"},
        {"[pam\n", "login.toml:"},
        {std::string(oidc) + "issuer = \"https://b\"\n", "login.toml:"},
        {std::string(oidc) + "scopes = [\"profile\"]\n", "openid"},
        {std::string(oidc) + "role-claim = 5\n", "role-claim"},
        {"[oidc]\nissuer = \"http://sso.example\"\nclient-id = \"a\"\nportal = \"https://b\"\nadmins = "
         "[\"a\"]\n",
         "https://"},
        {"[oidc]\nissuer = \"https://a\"\nclient-id = \"a\"\nportal = \"https://b/c\"\nadmins = [\"a\"]\n",
         "without a path"},
        {"[oidc]\nissuer = \"https://a\"\nclient-id = \"a\"\nadmins = [\"a\"]\n", "portal"},
        {"[oidc]\nissuer = \"https://a\"\nclient-id = \"a\"\nportal = \"https://b\"\nadmins = [\"a\"]\n"
         "client-secret-file = \"none\"\n",
         "is not there"}};
    for (const auto& [text, part] : all) {
        std::vector<std::string> errors;
        const auto got = parse("[pam]\nadmins = [\"sudo\"]\n" + text, errors);
        std::vector<std::string> alone;
        const auto also = text.starts_with("[pam") ? parse(text, alone) : got;
        auto& said = text.starts_with("[pam") ? alone : errors;
        ASSERT_FALSE(said.empty()) << text;
        EXPECT_TRUE(std::ranges::any_of(said, [&](const auto& one) { return one.find(part) != one.npos; }))
            << text << said[0];
        EXPECT_FALSE(also.pam || also.oidc) << text;
    }
}

TEST(login_settings, are_in_a_file_that_others_can_not_change) {
    namespace fs = std::filesystem;
    const auto folder = fs::path(testing::TempDir()) / "login-settings";
    fs::create_directories(folder);
    const auto file = folder / "login.toml", secret = folder / "secret";
    std::ofstream(secret) << "geheim";
    std::ofstream(file) << oidc;
    const auto errors_now = [&] {
        std::vector<std::string> errors;
        const auto got = load_settings(file, errors);
        EXPECT_EQ(errors.empty(), got.oidc.has_value());
        return errors.empty() ? std::string() : errors[0];
    };
    fs::permissions(file, fs::perms(0644));
    fs::permissions(secret, fs::perms(0600));
    EXPECT_EQ(errors_now(), "");
    fs::permissions(secret, fs::perms(0640));
    EXPECT_NE(errors_now().find("0600"), std::string::npos);
    fs::permissions(secret, fs::perms(0600));
    fs::permissions(file, fs::perms(0664));
    EXPECT_NE(errors_now().find("0644"), std::string::npos);
    fs::permissions(file, fs::perms(0644));
    std::ofstream(file) << std::string(100'000, '#');
    EXPECT_NE(errors_now().find("longer"), std::string::npos);
    fs::remove_all(folder);
    std::vector<std::string> errors;
    EXPECT_FALSE(load_settings(file, errors).oidc);
    EXPECT_TRUE(errors.empty());
}

TEST(login_roles, are_the_highest_of_all_groups) {
    const role_rules rules{{"staff"}, {"gpu"}, {"sudo", "wheel"}};
    EXPECT_EQ(role_by(rules, {"staff", "gpu"}), access::role::operates);
    EXPECT_EQ(role_by(rules, {"staff", "wheel"}), access::role::admin);
    EXPECT_EQ(role_by(rules, {"users", ""}), access::role::nobody);
    EXPECT_EQ(role_by(rules, {}), access::role::nobody);
    EXPECT_EQ(role_by({}, {"sudo"}), access::role::nobody);
}

TEST(pam_process, is_asked_about_names_and_passwords_that_can_be_some) {
    ::signal(SIGPIPE, SIG_IGN); // as the daemon has it: who is asked may be gone
    for (const auto* name : {"ann", "Ann.B-c_1", "ann@corp.example", "CORP\\ann", "host$"})
        EXPECT_TRUE(is_pam_name(name)) << name;
    for (const auto& name :
         {std::string(), std::string("-ann"), std::string("../ann"), std::string("a/b"), std::string("a b"),
          std::string("a\0b", 3), std::string("a\n"), std::string(65, 'a')})
        EXPECT_FALSE(is_pam_name(name)) << name;
    EXPECT_TRUE(is_pam_password("пароль ✓"));
    for (const auto& password : {std::string(), std::string("a\0b", 3), std::string(257, 'a')})
        EXPECT_FALSE(is_pam_password(password));
    EXPECT_EQ(ask_pam("/nowhere", "s", "a/b", "x", "").what, pam_answer::kind::wrong_password);
    EXPECT_EQ(ask_pam("/nowhere", "s", "ann", "x", "").what, pam_answer::kind::failed);
    EXPECT_EQ(ask_pam("/bin/true", "s", "ann", "x", "").what, pam_answer::kind::failed);
}

TEST(pam_process, answers_in_one_way) {
    using kind = pam_answer::kind;
    EXPECT_EQ(read_pam_answer(R"({"user": "ann", "groups": ["gpu"]})").groups,
              std::vector<std::string>{"gpu"});
    EXPECT_EQ(read_pam_answer(R"({"refused": "password", "why": "x"})").what, kind::wrong_password);
    EXPECT_EQ(read_pam_answer(R"({"refused": "account", "why": "x"})").what, kind::account_refused);
    for (const auto* other : {"", "{}", "[]", R"({"user": "ann"})", R"({"user": "a b", "groups": []})",
                              R"({"user": "ann", "groups": 5})", R"({"refused": "x"})", R"({"refused": 5})",
                              R"({"refused": "system", "user": "ann", "groups": ["gpu"]})"})
        EXPECT_EQ(read_pam_answer(other).what, kind::failed) << other;
}

} // namespace
} // namespace kagemusha::control::login
