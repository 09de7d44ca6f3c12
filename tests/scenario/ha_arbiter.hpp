// SPDX-License-Identifier: GPL-2.0-or-later
// ha_arbiter: the arbiter of a scenario of the supervisors. It answers when it is told to, with what the real
// rules say: those of etcd's record (control/arbiter/etcd_record), or of each host's own record and command
// (control/arbiter/fence_fsm).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "control/arbiter/etcd_record.hpp"
#include "control/arbiter/fence_fsm.hpp"
#include "control/ha/arbiter_request.hpp"

namespace kagemusha::scenario {

inline constexpr std::uint64_t lease_ms = 4000;
inline constexpr const char* host_names[] = {"primary", "standby"};

class ha_arbiter {
public:
    // How it treats a host.
    enum class mood {
        answers,
        away,          // nothing is done, and the host knows that it is not reached
        silent,        // nothing is done, and no answer comes
        loses_answers, // done, and the host knows nothing
    };

    ha_arbiter(bool fences, bool has_check, std::function<void(const std::string&)> say)
        : fences_(fences), say_(std::move(say)) {
        rules_.has_check = has_check;
        fence_records_[0].is = control::fence_record::role::primary; // the VM ran there before
    }

    void ask(int host, const std::string& process, const ha::arbiter_request& q);
    bool is_asked(int host) const { return !pending_[at(host)].empty(); }
    // Whether an answer could come now: the command of `fence` is told when it ends.
    bool can_answer(int host) const {
        return is_asked(host) && !commanding_[at(host)] && moods[at(host)] != mood::silent;
    }
    // Nothing: silence, or a command is run first.
    std::optional<ha::arbiter_answer> answer(int host, std::uint64_t now);
    bool is_commanding(int host) const { return commanding_[at(host)]; }
    bool is_checking(int host) const;
    std::optional<ha::arbiter_answer> command_ended(int host, const std::string& problem, std::uint64_t now);
    // What it asked before it died is still done, unless its host lost its power.
    void process_ended(int host, bool power_lost);

    void forget() { record_ = {}; }
    bool go_back(std::uint64_t now); // to what was before the pair was recorded. False: there was none
    void give(const std::string& owner, std::uint64_t until);
    std::string text(std::uint64_t now) const;

    std::array<mood, 2> moods{};
    std::array<bool, 2> person_confirms{}; // fence: writes the term to PATH.confirm on this host; used once
    std::array<std::uint64_t, 2> other_term{}; // this host reads another arbiter's record, with this term

private:
    struct question {
        std::string process;
        ha::arbiter_request what;
    };
    struct kept {
        std::uint64_t term = 0, revision = 0, lease_until = 0;
        bool paired = false;
        std::string owner, holder;
    };
    static std::size_t at(int host) { return static_cast<std::size_t>(host); }
    ha::arbiter_answer decide(int host, const question& q, std::uint64_t now);
    std::optional<ha::arbiter_answer> go_on(int host, control::fence_step step);
    void tell(int host, const question& q, const ha::arbiter_answer& a);

    bool fences_;
    control::fence_rules rules_;
    std::function<void(const std::string&)> say_;
    std::array<std::deque<question>, 2> pending_; // one after the other
    kept record_, before_;
    std::array<control::fence_record, 2> fence_records_; // on the hosts' disks
    std::array<std::optional<control::fence_fsm>, 2> fences_of_;
    std::array<bool, 2> commanding_{};
};

} // namespace kagemusha::scenario
