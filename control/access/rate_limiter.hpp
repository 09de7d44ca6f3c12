// SPDX-License-Identifier: GPL-2.0-or-later
//
// rate_limiter: how often one name (an address, a user) may do something: so many at once, and so many a second
// in the long run. Pure: time is an argument, in seconds of any clock that does not go back.
//
// The table is bounded. When it is full, names that have all they may have are forgotten, which changes
// nothing; if there are none, strangers share one entry.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace kagemusha::control::access {

class rate_limiter {
public:
    struct rule {
        double at_once, per_s;
    };
    explicit rate_limiter(rule how, std::size_t most_names = 4096) : rule_(how), most_(most_names) {}

    // True: it may, and it is counted.
    bool allow(const std::string& name, double now_s);
    // After a refusal: when to come again, at least 1.
    unsigned retry_after_s() const;
    std::size_t names() const { return table_.size(); }

private:
    struct bucket {
        double left, at_s;
    };
    bucket& of(const std::string& name, double now_s);
    double left_of(const bucket& one, double now_s) const;

    const rule rule_;
    const std::size_t most_;
    std::map<std::string, bucket> table_;
};

} // namespace kagemusha::control::access
