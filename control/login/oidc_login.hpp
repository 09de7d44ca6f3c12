// SPDX-License-Identifier: GPL-2.0-or-later
//
// oidc_login: a browser goes to the provider and comes back with a code; the code becomes an ID token; the token
// becomes a name and a role (OpenID Connect, authorization code flow with PKCE). What is checked is in
// oidc_provider, id_token and oidc_visits; here it is asked for, and kept for a while: the discovery document an
// hour, the keys until a token names one that is not among them.
//
// Threads: any; begin() and finish() wait for the provider, without a lock.
#pragma once

#include "control/login/https_client.hpp"
#include "control/login/id_token.hpp"
#include "control/login/oidc_visits.hpp"

#include <functional>
#include <mutex>
#include <string>

namespace kagemusha::control::login {

// How a login ended: the portal's page has a sentence for each.
enum class oidc_end {
    in,
    stale,   // no such visit, another browser, too late: begin again
    refused, // the provider, or the person there, said no
    nobody,  // no role here
    wrong    // the provider can't be reached, or what it says is not right: the log says what
};
const char* to_text(oidc_end end); // a word for the page's address

class oidc_login {
public:
    static constexpr std::int64_t known_s = 3600, not_again_s = 5;

    // `random`: 32 bytes as text. `ask`: ask_https(), or a test's.
    struct environment {
        std::function<std::string()> random;
        std::function<std::optional<https_answer>(const https_request&, std::string& why)> ask;
    };
    oidc_login(oidc_settings ours, environment around);

    const oidc_settings& settings() const { return ours_; }

    struct departure {
        std::string location, cookie; // "": it can't begin, and `why` says why
        std::string why;
    };
    // `browser`: the cookie that it has already; "": none.
    departure begin(std::string browser, std::int64_t now_s);

    struct arrival {
        oidc_end end = oidc_end::wrong;
        person who{};
        std::string why{}; // for the daemon's log, if it is not `in`
    };
    // `query`: of the address at which it came back.
    arrival finish(std::string_view query, std::string_view browser, std::int64_t now_s);

private:
    std::optional<std::string> fetch(const std::string& url, std::string& why);
    std::optional<provider> find_provider(std::int64_t now_s, std::string& why);
    std::optional<std::vector<provider_key>> find_keys(const provider& at, bool anew, std::string& why);
    std::optional<nlohmann::json> redeem(const provider& at, std::string_view code, const visit& from,
                                         std::string& why);

    const oidc_settings ours_;
    const environment around_;
    std::mutex mutex_; // of what follows
    oidc_visits visits_;
    std::optional<provider> provider_;
    std::int64_t asked_at_s_ = 0; // for provider_, or in vain
    std::string problem_;         // of the last time in vain
    std::vector<provider_key> keys_;
};

} // namespace kagemusha::control::login
