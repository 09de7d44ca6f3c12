// SPDX-License-Identifier: GPL-2.0-or-later
//
// oidc_visits: browsers that were sent to the provider and have not come back. Who comes back must bring the state
// that went with it, and be the browser that left (a cookie), once and in time: so that nobody is logged in as
// somebody else by a link. Pure: time and random texts are arguments.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::login {

struct visit_limits {
    static constexpr unsigned open_s = 600;
    static constexpr std::size_t most = 1000; // each is some 400 bytes
};

// Beside the session's, because it must come along from the provider's page: SameSite=Lax. It opens nothing.
inline constexpr char visit_cookie[] = "__Host-kagemusha-login";
std::string visit_cookie_for(std::string_view browser);
std::string visit_cookie_to_forget();

struct visit {
    std::string nonce, verifier; // of PKCE
};

class oidc_visits {
public:
    // `state` and `browser` are not kept, their digests are. A full table loses its oldest.
    void leave(std::string_view state, std::string_view browser, visit what, std::int64_t now_s);
    // Nothing: no such state, not from this browser, or too late. In each case it is over.
    std::optional<visit> come_back(std::string_view state, std::string_view browser, std::int64_t now_s);
    std::size_t count() const { return table_.size(); }

private:
    struct entry {
        std::string browser; // its digest
        visit what;
        std::int64_t until_s = 0;
    };
    std::map<std::string, entry> table_;
};

} // namespace kagemusha::control::login
