// SPDX-License-Identifier: GPL-2.0-or-later
//
// Who has asked for which change, from where, and what came of it: a line of JSON for each, in a file of the
// state folder. Two files of at most a MiB; the older one goes.
//
// One thread at a time uses it.
#pragma once

#include "control/access/role.hpp"

#include <nlohmann/json.hpp>

#include <deque>
#include <string>

namespace kagemusha::control::daemon {

class audit_log {
public:
    static constexpr std::size_t most_bytes = 1 << 20, most_shown = 200;

    explicit audit_log(std::string path); // reads what earlier daemons wrote

    void add(const access::caller& who, const std::string& method, const std::string& target,
             unsigned status);
    nlohmann::json last() const;                            // an array, the oldest first
    const std::string& problem() const { return problem_; } // it can't be written: a sentence

private:
    void write(const std::string& line);
    const std::string path_;
    std::deque<nlohmann::json> shown_;
    std::string problem_;
};

} // namespace kagemusha::control::daemon
