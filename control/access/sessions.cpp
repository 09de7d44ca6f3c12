// SPDX-License-Identifier: GPL-2.0-or-later
//
// See sessions.hpp.
#include "control/access/sessions.hpp"

#include "control/access/secrets.hpp"

#include <algorithm>

namespace kagemusha::control::access {

std::string sessions::key_of(std::string_view id) {
    return digest_of(id);
}

void sessions::make_room(std::int64_t now_s) {
    std::erase_if(table_, [&](const auto& one) { return one.second.is_over(now_s); });
    if (table_.size() < session_limits::most)
        return;
    table_.erase(std::min_element(table_.begin(), table_.end(), [](const auto& a, const auto& b) {
        return a.second.used_s < b.second.used_s;
    }));
}

const session& sessions::begin(std::string_view id, session what, std::int64_t now_s) {
    make_room(now_s);
    return table_.insert_or_assign(key_of(id), entry{std::move(what), now_s, now_s}).first->second.what;
}

std::optional<session> sessions::find(std::string_view id, std::int64_t now_s) {
    const auto found = table_.find(key_of(id));
    if (found == table_.end())
        return std::nullopt;
    if (found->second.is_over(now_s)) {
        table_.erase(found);
        return std::nullopt;
    }
    found->second.used_s = now_s;
    return found->second.what;
}

bool sessions::is_alive(const std::string& key, std::int64_t now_s) const {
    const auto found = table_.find(key);
    return found != table_.end() && !found->second.is_over(now_s);
}

std::optional<session> sessions::of_key(const std::string& key) const {
    const auto found = table_.find(key);
    return found == table_.end() ? std::nullopt : std::optional(found->second.what);
}

void sessions::end_all_of(const std::string& user) {
    std::erase_if(table_, [&](const auto& one) { return one.second.what.user == user; });
}

void one_time_codes::add(std::string_view code, std::string user, std::int64_t now_s) {
    std::erase_if(table_, [&](const auto& one) { return now_s >= one.second.until_s; });
    if (table_.size() >= session_limits::most_codes)
        table_.erase(std::min_element(table_.begin(), table_.end(), [](const auto& a, const auto& b) {
            return a.second.until_s < b.second.until_s;
        }));
    table_[digest_of(code)] = {std::move(user), now_s + session_limits::code_s};
}

std::optional<std::string> one_time_codes::use(std::string_view code, std::int64_t now_s) {
    const auto found = table_.find(digest_of(code));
    if (found == table_.end())
        return std::nullopt;
    const auto entry = found->second;
    table_.erase(found);
    return now_s < entry.until_s ? std::optional(entry.user) : std::nullopt;
}

} // namespace kagemusha::control::access
