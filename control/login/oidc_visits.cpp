// SPDX-License-Identifier: GPL-2.0-or-later
//
// See oidc_visits.hpp.
#include "control/login/oidc_visits.hpp"

#include "control/access/cookie.hpp"
#include "control/access/secrets.hpp"

#include <algorithm>

namespace kagemusha::control::login {

std::string visit_cookie_for(std::string_view browser) {
    return access::set_cookie(visit_cookie, browser, access::same_site::lax, visit_limits::open_s);
}

std::string visit_cookie_to_forget() {
    return access::set_cookie(visit_cookie, "", access::same_site::lax, 0);
}

void oidc_visits::leave(std::string_view state, std::string_view browser, visit what, std::int64_t now_s) {
    std::erase_if(table_, [&](const auto& one) { return now_s >= one.second.until_s; });
    if (table_.size() >= visit_limits::most)
        table_.erase(std::min_element(table_.begin(), table_.end(), [](const auto& a, const auto& b) {
            return a.second.until_s < b.second.until_s;
        }));
    table_[access::digest_of(state)] = {access::digest_of(browser), std::move(what),
                                        now_s + visit_limits::open_s};
}

std::optional<visit> oidc_visits::come_back(std::string_view state, std::string_view browser,
                                            std::int64_t now_s) {
    const auto found = table_.find(access::digest_of(state));
    if (found == table_.end())
        return std::nullopt;
    const auto entry = std::move(found->second);
    table_.erase(found);
    if (now_s >= entry.until_s || browser.empty() ||
        !access::same_secret(entry.browser, access::digest_of(browser)))
        return std::nullopt;
    return entry.what;
}

} // namespace kagemusha::control::login
