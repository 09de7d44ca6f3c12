// SPDX-License-Identifier: GPL-2.0-or-later
//
// sessions: who is logged in at a browser. A session ends after a time without a request, after a time in any
// case, when its user logs out, or when its user is changed; a full table ends the one that was idle longest.
// one_time_codes: a login for whoever may start the daemon, printed by `kage portal`, good once and not long.
//
// Pure: times are seconds of any clock that does not go back; ids are random bytes of the caller's, as text.
// Tables are keyed by digests, so that a lookup's time says nothing of an id.
#pragma once

#include "control/access/role.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::access {

struct session_limits {
    static constexpr std::int64_t idle_s = 3600, whole_s = 12 * 3600;
    static constexpr std::size_t most = 1000; // each is some 300 bytes
    static constexpr std::int64_t code_s = 600;
    static constexpr std::size_t most_codes = 16;
};

struct session {
    std::string user;
    role may = role::viewer;
    std::string csrf; // what every change must carry beside the cookie
};

class sessions {
public:
    // `id` goes into the cookie, and is not kept.
    const session& begin(std::string_view id, session what, std::int64_t now_s);
    // Nothing: there is none, or it has ended. Being asked for keeps it from being idle.
    std::optional<session> find(std::string_view id, std::int64_t now_s);
    // Does not count as use: an open page alone keeps nobody logged in for ever.
    bool is_alive(const std::string& key, std::int64_t now_s) const;
    std::optional<session> of_key(const std::string& key) const; // does not count as use
    void end(std::string_view id) { end_key(key_of(id)); }
    void end_key(const std::string& key) { table_.erase(key); }
    void end_all_of(const std::string& user);
    std::size_t count() const { return table_.size(); }

    static std::string key_of(std::string_view id);

private:
    struct entry {
        session what;
        std::int64_t begun_s = 0, used_s = 0;
        bool is_over(std::int64_t now_s) const {
            return now_s >= used_s + session_limits::idle_s || now_s >= begun_s + session_limits::whole_s;
        }
    };
    void make_room(std::int64_t now_s);
    std::map<std::string, entry> table_;
};

class one_time_codes {
public:
    void add(std::string_view code, std::string user, std::int64_t now_s);
    std::optional<std::string> use(std::string_view code, std::int64_t now_s); // whose it was

private:
    struct entry {
        std::string user;
        std::int64_t until_s = 0;
    };
    std::map<std::string, entry> table_;
};

} // namespace kagemusha::control::access
