// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which ID tokens count, which do not, and for what reason; what a provider's documents may say.
#include "control/login/base64url.hpp"
#include "control/login/test_provider.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace kagemusha::control::login {
namespace {

using json = nlohmann::json;

std::vector<provider_key> keys_in(const std::string& text) {
    std::string why;
    auto out = parse_keys(text, why);
    EXPECT_TRUE(out) << why;
    return out.value_or(std::vector<provider_key>());
}

struct id_token : testing::Test {
    static const test_key& rsa() {
        static const test_key key("r1");
        return key;
    }
    static const test_key& curve() {
        static const test_key key("e1", "ES256");
        return key;
    }
    std::vector<provider_key> keys = keys_in(key_set({rsa().public_jwk(), curve().public_jwk()}));
    json claims;
    std::string why;
    signature check(const std::string& token) { return check_signature(token, keys, claims, why); }
};

TEST_F(id_token, is_one_with_a_signature_of_either_kind) {
    for (const auto* key : {&rsa(), &curve()}) {
        ASSERT_EQ(check(key->sign(good_claims())), signature::fits) << why;
        EXPECT_EQ(claims, good_claims());
        EXPECT_EQ(check(key->sign(good_claims(), "")), signature::fits); // no kid, and one key of this kind
    }
}

TEST_F(id_token, is_none_if_a_byte_of_it_is_another) {
    const auto token = rsa().sign(good_claims());
    for (std::size_t at = 0; at < token.size(); at += 7) {
        auto other = token;
        other[at] = other[at] == 'A' ? 'B' : 'A';
        if (at + 1 == token.size())
            continue; // its last letter has bits that are no part of it
        EXPECT_NE(check(other), signature::fits) << at;
    }
    EXPECT_EQ(check(token.substr(0, token.size() - 10)), signature::wrong);
}

TEST_F(id_token, is_none_of_another_key) {
    const test_key other("r1");
    EXPECT_EQ(check(other.sign(good_claims())), signature::wrong);
    EXPECT_NE(why.find("does not fit"), why.npos);
    EXPECT_EQ(check(other.sign(good_claims(), "r2")), signature::unknown_key);
    EXPECT_EQ(check(curve().sign(good_claims(), "r1")), signature::unknown_key); // r1 is for RS256
    keys.push_back(keys[0]);
    EXPECT_EQ(check(rsa().sign(good_claims())), signature::unknown_key); // two of one name
}

TEST_F(id_token, is_none_without_a_signature_or_with_one_by_what_is_public) {
    const auto body = to_base64url(good_claims().dump());
    for (const auto* algorithm : {"none", "None", "HS256", "RS512", "PS256", ""}) {
        const auto head = to_base64url(json{{"alg", algorithm}, {"kid", "r1"}}.dump());
        EXPECT_EQ(check(head + "." + body + "."), signature::wrong) << algorithm;
        EXPECT_EQ(check(head + "." + body + "." + to_base64url(std::string(256, 'x'))), signature::wrong)
            << algorithm;
    }
    // HMAC with the public key's text as its secret.
    cjose_err error{};
    const auto secret = keys[0].jwk;
    auto* const key = cjose_jwk_create_oct_spec(reinterpret_cast<const std::uint8_t*>(secret.data()),
                                                secret.size(), &error);
    auto* const header = cjose_header_new(&error);
    cjose_header_set(header, "alg", "HS256", &error);
    cjose_header_set(header, "kid", "r1", &error);
    const auto text = good_claims().dump();
    auto* const made =
        cjose_jws_sign(key, header, reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), &error);
    const char* token = nullptr;
    ASSERT_TRUE(cjose_jws_export(made, &token, &error));
    EXPECT_EQ(check(token), signature::wrong);
    cjose_jws_release(made);
    cjose_header_release(header);
    cjose_jwk_release(key);
}

TEST_F(id_token, is_none_in_another_shape) {
    const auto token = rsa().sign(good_claims());
    for (const auto& other : {std::string(), std::string("."), std::string(".."), "a." + token, token + ".a",
                              token + "=", " " + token, std::string(oidc_limits::token_bytes + 1, 'a')})
        EXPECT_EQ(check(other), signature::wrong) << other.substr(0, 20);
    EXPECT_EQ(check(rsa().sign_text("[1]", "r1")), signature::wrong);
    EXPECT_EQ(check(rsa().sign_text("{", "r1")), signature::wrong);
    EXPECT_EQ(check(rsa().sign(good_claims(), "r1", "crit", "[\"b64\"]")), signature::wrong);
}

TEST_F(id_token, is_none_of_a_short_key) {
    const test_key small("r1", "RS256", 1024);
    keys = keys_in(key_set({small.public_jwk()}));
    EXPECT_EQ(check(small.sign(good_claims())), signature::wrong);
    EXPECT_NE(why.find("2048"), why.npos);
}

// glewlwyd leaves out a coordinate's zeros in front: of one key in 128.
TEST_F(id_token, is_one_of_a_key_whose_coordinate_lacks_its_leading_zero) {
    for (bool met = false; !met;) {
        const test_key short_one("e1", "ES256");
        auto jwk = short_one.public_jwk();
        for (const auto* member : {"x", "y"}) {
            auto bytes = from_base64url(jwk[member].get<std::string>());
            met = met || bytes[0] == '\0';
            jwk[member] = to_base64url(bytes.substr(bytes.find_first_not_of('\0')));
        }
        keys = keys_in(key_set({jwk}));
        ASSERT_EQ(check(short_one.sign(good_claims())), signature::fits) << why << jwk;
    }
}

// ---- claims

std::string said_of(const std::function<void(json&)>& change, std::int64_t now_s = 1500) {
    auto claims = good_claims();
    change(claims);
    return why_not(claims, {"https://sso.example", "kagemusha", "n", now_s});
}

TEST(id_claims, are_those_of_this_login) {
    EXPECT_EQ(said_of([](json&) {}), "");
    EXPECT_EQ(said_of([](json& c) { c["aud"] = {"kagemusha"}; }), "");
    EXPECT_EQ(said_of([](json& c) { c["aud"] = {"x", "kagemusha"}, c["azp"] = "kagemusha"; }), "");
    EXPECT_EQ(said_of([](json&) {}, 940), ""); // clocks may differ by a minute
    EXPECT_EQ(said_of([](json&) {}, 2059), "");
    EXPECT_EQ(said_of([](json& c) { c["exp"] = 2000.5; }), "");
}

TEST(id_claims, are_refused_for_each_reason) {
    const struct {
        const char* part;
        std::function<void(json&)> change;
        std::int64_t now_s = 1500;
    } all[] = {
        {"another issuer", [](json& c) { c["iss"] = "https://sso.example/"; }},
        {"another issuer", [](json& c) { c.erase("iss"); }},
        {"another client", [](json& c) { c["aud"] = "kagemushb"; }},
        {"another client", [](json& c) { c["aud"] = json::array(); }},
        {"another client", [](json& c) { c["aud"] = 5; }},
        {"another client", [](json& c) { c.erase("aud"); }},
        {"another client", [](json& c) { c["aud"] = {"x", "kagemusha"}; }},
        {"another client", [](json& c) { c["aud"] = {"x", "kagemusha"}, c["azp"] = "x"; }},
        {"another client", [](json& c) { c["azp"] = "x"; }},
        {"another client", [](json& c) { c["azp"] = 1; }},
        {"expired", [](json&) {}, 2060},
        {"expired", [](json& c) { c["exp"] = "2000"; }},
        {"expired", [](json& c) { c["exp"] = 1e300; }},
        {"expired", [](json& c) { c["exp"] = -1; }},
        {"expired", [](json& c) { c.erase("exp"); }},
        {"future", [](json&) {}, 939},
        {"future", [](json& c) { c.erase("iat"); }},
        {"not count yet", [](json& c) { c["nbf"] = 1561; }},
        {"not count yet", [](json& c) { c["nbf"] = "1"; }},
        {"another login", [](json& c) { c["nonce"] = "m"; }},
        {"another login", [](json& c) { c.erase("nonce"); }},
        {"names nobody", [](json& c) { c["sub"] = ""; }},
        {"names nobody", [](json& c) { c["sub"] = 5; }},
    };
    for (const auto& one : all)
        EXPECT_NE(said_of(one.change, one.now_s).find(one.part), std::string::npos)
            << one.part << " / " << said_of(one.change, one.now_s);
    EXPECT_NE(why_not(good_claims(), {"https://sso.example", "kagemusha", "", 1500}), "");
}

TEST(id_claims, give_a_name_and_the_highest_role) {
    auto ours = good_settings();
    std::string why;
    auto claims = good_claims();
    const auto role_now = [&] { return person_of(claims, ours, why)->may; };
    EXPECT_EQ(person_of(claims, ours, why)->name, "ann");
    EXPECT_EQ(role_now(), access::role::operates);
    claims["groups"] = "root";
    EXPECT_EQ(role_now(), access::role::admin);
    for (const auto& none :
         {json("rooot"), json(5), json({5, nullptr, {"root"}}), json({{"root", true}}), json()}) {
        claims["groups"] = none;
        EXPECT_EQ(role_now(), access::role::nobody) << none;
    }
    claims.erase("groups");
    EXPECT_EQ(role_now(), access::role::nobody);
    ours.role_claim = "realm_access.roles";
    claims["realm_access"]["roles"] = {"staff"};
    EXPECT_EQ(role_now(), access::role::viewer);
    claims["realm_access.roles"] = "gpu"; // the whole name comes first
    EXPECT_EQ(role_now(), access::role::operates);
    for (const auto& other :
         {json(""), json("<b>"), json("a b"), json("a\nb"), json(5), json(std::string(200, 'a'))}) {
        claims["preferred_username"] = other;
        EXPECT_EQ(person_of(claims, ours, why)->name, "12345") << other;
    }
    claims["sub"] = "\x1b[2J";
    EXPECT_FALSE(person_of(claims, ours, why));
}

// ---- documents

json good_discovery() {
    return {{"issuer", "https://sso.example"},
            {"authorization_endpoint", "https://sso.example/authorize?tenant=1"},
            {"token_endpoint", "https://sso.example/token"},
            {"jwks_uri", "https://keys.example/jwks"}};
}

TEST(oidc_documents, say_where_a_provider_is) {
    std::string why;
    auto found = parse_discovery(good_discovery().dump(), "https://sso.example", why);
    ASSERT_TRUE(found) << why;
    EXPECT_EQ(found->keys, "https://keys.example/jwks");
    EXPECT_TRUE(found->takes_basic);
    auto other = good_discovery();
    other["token_endpoint_auth_methods_supported"] = {"client_secret_post"};
    EXPECT_FALSE(parse_discovery(other.dump(), "https://sso.example", why)->takes_basic);
    const auto url = authorization_url(*found, good_settings(), "s", "n", "v");
    EXPECT_EQ(
        url.find("https://sso.example/authorize?tenant=1&response_type=code&client_id=kagemusha&redirect_uri="
                 "https%3A%2F%2Fgpu.example%3A7443%2Fv1%2Flogin%2Foidc%2Fcallback&scope=openid%20profile&"),
        0u)
        << url;
    // RFC 7636, appendix B.
    EXPECT_EQ(challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
              "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    const auto basic = request_for(*found, good_settings(), "c o", "v");
    EXPECT_EQ(basic.authorization, "Basic " + to_base64("kagemusha:geheim%26%3D"));
    EXPECT_NE(basic.body.find("&code=c%20o&"), basic.body.npos);
    EXPECT_EQ(basic.body.find("geheim"), basic.body.npos);
    found->takes_basic = false;
    EXPECT_NE(request_for(*found, good_settings(), "c", "v").body.find("&client_secret=geheim%26%3D"),
              std::string::npos);
}

TEST(oidc_documents, are_refused_for_each_reason) {
    const std::function<void(json&)> changes[] = {
        [](json& d) { d["issuer"] = "https://sso.example/"; },
        [](json& d) { d.erase("issuer"); },
        [](json& d) { d["token_endpoint"] = "http://sso.example/token"; },
        [](json& d) { d["token_endpoint"] = "https://user@sso.example/token"; },
        [](json& d) { d["authorization_endpoint"] = "https://sso.example/a\r\nSet-Cookie: a=b"; },
        [](json& d) { d["authorization_endpoint"] = "javascript:alert(1)"; },
        [](json& d) { d["jwks_uri"] = "file:///etc/passwd"; },
        [](json& d) { d["jwks_uri"] = 5; },
        [](json& d) { d["code_challenge_methods_supported"] = {"plain"}; },
        [](json& d) { d = json::array(); },
        [](json& d) { d["x"] = std::string(oidc_limits::answer_bytes, 'x'); },
    };
    for (const auto& change : changes) {
        auto document = good_discovery();
        change(document);
        std::string why;
        EXPECT_FALSE(parse_discovery(document.dump(), "https://sso.example", why))
            << document.dump().substr(0, 300);
        EXPECT_NE(why, "");
    }
}

TEST(oidc_documents, give_keys_for_signatures_alone) {
    const test_key key("a");
    auto for_encryption = key.public_jwk(), other_algorithm = key.public_jwk(), symmetric = key.public_jwk(),
         strange = key.public_jwk();
    for_encryption["use"] = "enc";
    other_algorithm["alg"] = "RS512";
    symmetric["kty"] = "oct";
    strange["n"] = "\"}";
    std::string why;
    EXPECT_FALSE(parse_keys(key_set({for_encryption, other_algorithm, symmetric, strange, 5}), why));
    EXPECT_EQ(keys_in(key_set({for_encryption, key.public_jwk()})).size(), 1u);
    EXPECT_FALSE(parse_keys(key_set(std::vector<json>(oidc_limits::keys + 1, key.public_jwk())), why));
    EXPECT_FALSE(parse_keys("{\"keys\": {}}", why));
    EXPECT_FALSE(parse_keys("", why));
}

TEST(oidc_documents, answer_for_a_code) {
    std::string why;
    EXPECT_EQ(parse_token_answer(200, R"({"id_token": "a.b.c"})", why), "a.b.c");
    for (const auto& [status, text] : {std::pair{400u, R"({"id_token": "a.b.c"})"},
                                       {200u, R"({"id_token": ""})"},
                                       {200u, R"({"id_token": 5})"},
                                       {200u, "[]"},
                                       {200u, ""},
                                       {400u, R"({"error": "invalid_grant"})"}})
        EXPECT_FALSE(parse_token_answer(status, text, why)) << text;
    EXPECT_NE(why.find("invalid_grant"), why.npos);
}

TEST(oidc_documents, have_parameters_once) {
    EXPECT_EQ(parameter("state=a&code=b%2Bc+d", "code"), "b+c d");
    EXPECT_EQ(parameter("code=a&code=b", "code"), "");
    EXPECT_EQ(parameter("xcode=a&code", "code"), "");
    EXPECT_EQ(parameter("code=%", "code"), "%");
    EXPECT_EQ(parameter("code=%g1%4", "code"), "%g1%4");
    EXPECT_EQ(parameter("", "code"), "");
}

} // namespace
} // namespace kagemusha::control::login
