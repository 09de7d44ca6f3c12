// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keys of a provider for tests, and what they sign (libcjose). For tests of this folder only.
#pragma once

#include "control/login/id_token.hpp"

#include <cjose/cjose.h>

#include <cstdlib>
#include <string>

namespace kagemusha::control::login {

class test_key {
public:
    // RS256 or ES256. `bits`: of RSA.
    explicit test_key(std::string id, const std::string& algorithm = "RS256", std::size_t bits = 2048)
        : id_(std::move(id)), algorithm_(algorithm) {
        cjose_err error{};
        key_ = algorithm == "ES256" ? cjose_jwk_create_EC_random(CJOSE_JWK_EC_P_256, &error)
                                    : cjose_jwk_create_RSA_random(bits, nullptr, 0, &error);
        if (!key_)
            std::abort();
    }
    ~test_key() { cjose_jwk_release(key_); }
    test_key(const test_key&) = delete;
    test_key& operator=(const test_key&) = delete;

    nlohmann::json public_jwk() const {
        cjose_err error{};
        char* const text = cjose_jwk_to_json(key_, false, &error);
        auto out = nlohmann::json::parse(text);
        cjose_get_dealloc()(text);
        out["kid"] = id_;
        return out;
    }
    // `more`: of the header, a name and JSON.
    std::string sign(const nlohmann::json& claims, const std::string& id, const char* more = nullptr,
                     const char* value = nullptr) const {
        return sign_text(claims.dump(), id, more, value);
    }
    std::string sign(const nlohmann::json& claims) const { return sign(claims, id_); }
    std::string sign_text(const std::string& text, const std::string& id, const char* more = nullptr,
                          const char* value = nullptr) const {
        cjose_err error{};
        auto* const header = cjose_header_new(&error);
        cjose_header_set(header, "alg", algorithm_.c_str(), &error);
        if (!id.empty())
            cjose_header_set(header, "kid", id.c_str(), &error);
        if (more)
            cjose_header_set_raw(header, more, value, &error);
        auto* const made = cjose_jws_sign(key_, header, reinterpret_cast<const std::uint8_t*>(text.data()),
                                          text.size(), &error);
        const char* out = nullptr;
        if (!made || !cjose_jws_export(made, &out, &error))
            std::abort();
        const std::string whole = out;
        cjose_jws_release(made);
        cjose_header_release(header);
        return whole;
    }

private:
    std::string id_, algorithm_;
    cjose_jwk_t* key_ = nullptr;
};

inline std::string key_set(const std::vector<nlohmann::json>& keys) {
    return nlohmann::json{{"keys", keys}}.dump();
}

inline nlohmann::json good_claims() {
    return {{"iss", "https://sso.example"},
            {"aud", "kagemusha"},
            {"sub", "12345"},
            {"exp", 2000},
            {"iat", 1000},
            {"nonce", "n"},
            {"preferred_username", "ann"},
            {"groups", {"gpu", "staff"}}};
}

inline oidc_settings good_settings() {
    oidc_settings out;
    out.issuer = "https://sso.example";
    out.client_id = "kagemusha";
    out.client_secret = "geheim&=";
    out.portal = "https://gpu.example:7443";
    out.roles = {{"staff"}, {"gpu"}, {"root"}};
    return out;
}

} // namespace kagemusha::control::login
