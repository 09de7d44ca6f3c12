// SPDX-License-Identifier: GPL-2.0-or-later
//
// Everybody who may use the API, in one place: accounts, who is logged in, codes that log in once, the door,
// and the audit log; with the clock and the randomness that control/access takes as arguments.
//
// One thread at a time uses it.
#pragma once

#include "control/access/door.hpp"
#include "control/daemon/people/account_store.hpp"
#include "control/daemon/people/audit_log.hpp"

namespace kagemusha::control::daemon {

struct people {
    people(const etcd_process& etcd, const std::string& audit_path) : accounts(etcd), audit(audit_path) {}

    account_store accounts;
    access::sessions sessions;
    access::one_time_codes codes;
    access::door door{sessions};
    audit_log audit;

    access::admission admit(const access::knock& at);
    access::admission may_log_in(const std::string& from);
    std::optional<std::string> use_code(const std::string& code);
    // A new session's id, for the cookie.
    std::string begin_session(const std::string& user, access::role may);
    std::string new_code(const std::string& user);
    // Whether a page that is open may stay so.
    bool is_alive(const access::caller& who);
};

// 32 random bytes, hexadecimal.
std::string new_secret();
std::int64_t seconds_now(); // since 1970

} // namespace kagemusha::control::daemon
