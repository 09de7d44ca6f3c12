// SPDX-License-Identifier: GPL-2.0-or-later
//
// Logins from begin to end, with a provider that is a table of answers; visits alone.
#include "control/access/door.hpp"
#include "control/login/oidc_login.hpp"
#include "control/login/test_provider.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace kagemusha::control::login {
namespace {

using json = nlohmann::json;

struct oidc_flow : testing::Test {
    std::unique_ptr<test_key> key = std::make_unique<test_key>("k1");
    std::map<std::string, https_answer> answers{
        {"https://sso.example/.well-known/openid-configuration",
         {200, json{{"issuer", "https://sso.example"},
                    {"authorization_endpoint", "https://sso.example/authorize"},
                    {"token_endpoint", "https://sso.example/token"},
                    {"jwks_uri", "https://sso.example/keys"}}
                   .dump()}}};
    std::vector<https_request> asked;
    unsigned secrets = 0;
    json claims = good_claims();
    std::function<std::string(const std::string&)> change_token = [](const auto& token) { return token; };
    oidc_login login{
        good_settings(),
        {[this] { return fmt::format("{:064x}", ++secrets); },
         [this](const https_request& request, std::string& why) { return answer(request, why); }}};

    std::optional<https_answer> answer(const https_request& request, std::string& why) {
        asked.push_back(request);
        if (request.url == "https://sso.example/token")
            return https_answer{200, json{{"id_token", change_token(key->sign(claims))}}.dump()};
        const auto found = answers.find(request.url);
        if (found != answers.end())
            return found->second;
        why = "nobody is there";
        return std::nullopt;
    }
    void publish() { answers["https://sso.example/keys"] = {200, key_set({key->public_jwk()})}; }

    std::string state, browser;
    void begin(std::int64_t now_s = 1500) {
        const auto left = login.begin("", now_s);
        const auto query = left.location.substr(left.location.find('?') + 1);
        state = parameter(query, "state");
        claims["nonce"] = parameter(query, "nonce");
        browser = access::cookie_value(left.cookie.substr(0, left.cookie.find(';')), visit_cookie);
    }
    oidc_login::arrival finish(const std::string& more = "&code=c", std::int64_t now_s = 1500) {
        return login.finish("state=" + state + more, browser, now_s);
    }
    std::size_t times_asked(const std::string& part) const {
        return static_cast<std::size_t>(std::ranges::count_if(
            asked, [&](const auto& one) { return one.url.find(part) != one.url.npos; }));
    }
};

TEST_F(oidc_flow, logs_in_and_asks_for_documents_once) {
    publish();
    for (int i = 0; i < 3; ++i) {
        begin();
        ASSERT_EQ(browser.size(), 64u);
        const auto came = finish();
        EXPECT_EQ(came.end, oidc_end::in) << came.why;
        EXPECT_EQ(came.who.name, "ann");
        EXPECT_EQ(came.who.may, access::role::operates);
    }
    EXPECT_EQ(times_asked("openid-configuration"), 1u);
    EXPECT_EQ(times_asked("keys"), 1u);
    const auto& last = asked.back();
    EXPECT_TRUE(last.is_form);
    EXPECT_NE(last.body.find("code=c&"), last.body.npos);
    EXPECT_EQ(last.authorization.find("Basic "), 0u);
    begin(1500 + oidc_login::known_s);
    EXPECT_EQ(times_asked("openid-configuration"), 2u);
}

TEST_F(oidc_flow, sends_the_verifier_that_the_challenge_was_made_of) {
    publish();
    const auto left = login.begin("", 1500);
    const auto query = left.location.substr(left.location.find('?') + 1);
    browser = access::cookie_value(left.cookie.substr(0, left.cookie.find(';')), visit_cookie);
    claims["nonce"] = parameter(query, "nonce");
    ASSERT_EQ(login.finish("code=c&state=" + parameter(query, "state"), browser, 1500).end, oidc_end::in);
    const auto token = std::ranges::find_if(asked, [](const auto& one) { return one.is_form; });
    EXPECT_EQ(challenge_of(parameter(token->body, "code_verifier")), parameter(query, "code_challenge"));
}

TEST_F(oidc_flow, takes_a_state_once_and_from_its_browser) {
    publish();
    begin();
    EXPECT_EQ(finish().end, oidc_end::in);
    EXPECT_EQ(finish().end, oidc_end::stale);
    begin();
    browser.back() = browser.back() == '0' ? '1' : '0';
    EXPECT_EQ(finish().end, oidc_end::stale);
    browser.back() = browser.back() == '0' ? '1' : '0';
    EXPECT_EQ(finish().end, oidc_end::stale); // it was tried
    begin();
    browser.clear();
    EXPECT_EQ(finish().end, oidc_end::stale);
    begin();
    EXPECT_EQ(finish("&code=c", 1500 + visit_limits::open_s).end, oidc_end::stale);
    begin();
    const auto first = state;
    const auto left = login.begin(browser, 1500); // a second page of the same browser
    EXPECT_EQ(access::cookie_value(left.cookie.substr(0, left.cookie.find(';')), visit_cookie), browser);
    claims["nonce"] = "of neither";
    EXPECT_EQ(finish().end, oidc_end::wrong);
}

TEST_F(oidc_flow, asks_for_new_keys_when_a_token_is_signed_by_one) {
    publish();
    begin();
    ASSERT_EQ(finish().end, oidc_end::in);
    key = std::make_unique<test_key>("k2");
    publish();
    begin();
    EXPECT_EQ(finish().end, oidc_end::in);
    EXPECT_EQ(times_asked("keys"), 2u);
    key = std::make_unique<test_key>("k3"); // which is nowhere
    begin();
    EXPECT_EQ(finish().end, oidc_end::wrong);
    EXPECT_EQ(times_asked("keys"), 3u);
    key = std::make_unique<test_key>("k2"); // a name that is known, and another key
    begin();
    EXPECT_EQ(finish().end, oidc_end::wrong);
    EXPECT_EQ(times_asked("keys"), 3u);
}

TEST_F(oidc_flow, refuses_what_is_not_right) {
    publish();
    begin();
    EXPECT_EQ(finish("&error=access_denied").end, oidc_end::refused);
    begin();
    EXPECT_EQ(finish("").end, oidc_end::refused);
    begin();
    EXPECT_EQ(finish("&code=" + std::string(oidc_limits::code_bytes + 1, 'a')).end, oidc_end::refused);
    begin();
    EXPECT_EQ(finish("&code=c&iss=https%3A%2F%2Fevil.example").end, oidc_end::wrong);
    begin();
    EXPECT_EQ(finish("&code=c&iss=https%3A%2F%2Fsso.example").end, oidc_end::in);
    begin();
    claims["nonce"] = "another";
    EXPECT_EQ(finish().end, oidc_end::wrong);
    begin();
    claims["groups"] = json::array();
    const auto none = finish();
    EXPECT_EQ(none.end, oidc_end::nobody);
    EXPECT_EQ(none.who.name, "ann");
    change_token = [](const auto&) { return std::string("a.b.c"); };
    begin();
    EXPECT_EQ(finish().end, oidc_end::wrong);
}

TEST_F(oidc_flow, says_that_nobody_is_there_and_does_not_ask_at_once_again) {
    answers.clear();
    EXPECT_EQ(login.begin("", 1500).location, "");
    EXPECT_NE(login.begin("", 1501).why.find("nobody is there"), std::string::npos);
    EXPECT_EQ(asked.size(), 1u);
    login.begin("", 1500 + oidc_login::not_again_s);
    EXPECT_EQ(asked.size(), 2u);
}

TEST(oidc_visits, are_bounded) {
    oidc_visits all;
    for (std::size_t i = 0; i <= visit_limits::most; ++i)
        all.leave(std::to_string(i), "b", {"n", "v"}, static_cast<std::int64_t>(i) / 100);
    EXPECT_EQ(all.count(), visit_limits::most);
    EXPECT_TRUE(all.come_back(std::to_string(visit_limits::most), "b", 1));
    all.leave("late", "b", {"n", "v"}, 10000);
    EXPECT_EQ(all.count(), 1u);
}

} // namespace
} // namespace kagemusha::control::login
