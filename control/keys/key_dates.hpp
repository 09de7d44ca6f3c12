// SPDX-License-Identifier: GPL-2.0-or-later
//
// When the certificates of a VM end. One that ends takes the protection away, on a day that nobody thinks of:
// so the supervisors warn two weeks ahead, and status and metrics say how many days are left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

struct key_date {
    std::string name;              // "standby of web (QEMU)", "the cluster's CA"
    std::int64_t expires_at_s = 0; // since 1970; 0: it can't be read

    std::int64_t days_left(std::int64_t now_s) const; // rounded down; negative: since when it counts no more
};

// Of `directory` (the description's 'tls', a host's directory of `kage keys`), those that this VM uses: both
// parts, both roles, and the CA. Reads files.
std::vector<key_date> key_dates(const std::string& directory, const std::string& vm);

// Names those that end within 14 days or have ended, and says what to do; empty: none. Pure.
std::string key_warning(const std::vector<key_date>& dates, std::int64_t now_s);

} // namespace kagemusha::control
