// SPDX-License-Identifier: GPL-2.0-or-later
//
// See people.hpp.
#include "control/daemon/people/people.hpp"

#include "base/hexadecimal.hpp"
#include "control/access/secrets.hpp"

#include <array>
#include <cstdlib>
#include <ctime>
#include <sys/random.h>

namespace kagemusha::control::daemon {

namespace {

// Of a clock that does not go back.
double steady_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::int64_t steady_seconds() {
    return static_cast<std::int64_t>(steady_s());
}

} // namespace

std::string new_secret() {
    std::array<char, 32> bytes;
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        std::abort(); // the kernel has no randomness
    return hexadecimal({bytes.data(), bytes.size()});
}

std::int64_t seconds_now() {
    return std::time(nullptr);
}

access::admission people::admit(const access::knock& at) {
    return door.admit(at, accounts.known(), {steady_seconds(), seconds_now(), steady_s()});
}

access::admission people::may_log_in(const std::string& from) {
    return door.may_log_in(from, steady_s());
}

std::optional<std::string> people::use_code(const std::string& code) {
    return codes.use(code, steady_seconds());
}

std::string people::begin_session(const std::string& user, access::role may) {
    auto id = new_secret();
    sessions.begin(id, {user, may, new_secret()}, steady_seconds());
    return id;
}

std::string people::new_code(const std::string& user) {
    auto code = new_secret();
    codes.add(code, user, steady_seconds());
    return code;
}

bool people::is_alive(const access::caller& who) {
    if (!who.session.empty())
        return sessions.is_alive(who.session, steady_seconds());
    const auto& tokens = accounts.known().tokens;
    const auto found = tokens.find(who.name);
    return found != tokens.end() && found->second.may >= who.may &&
           seconds_now() < found->second.expires_at_s;
}

} // namespace kagemusha::control::daemon
