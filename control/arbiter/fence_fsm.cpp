// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fence_fsm.hpp.
#include "control/arbiter/fence_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::control {

namespace {

using kind = ha::arbiter_request::kind;
using verdict = ha::arbiter_answer::verdict;
using role = fence_record::role;

// A command that hangs must not stop the supervisor for ever; power switches take seconds.
constexpr std::uint64_t longest_run_ms = 60000, longest_check_ms = 10000;
constexpr std::uint64_t check_again_ms = 30000;
constexpr std::uint64_t first_pause_ms = 1000, longest_pause_ms = 60000;
constexpr std::uint64_t poll_ms = 1000; // where only the other host or a person can change anything

const char* name_of(bool primary) {
    return primary ? "primary" : "standby";
}

} // namespace

fence_step fence_fsm::say(verdict what, std::string why, std::uint64_t until_ms) const {
    ha::arbiter_answer answer;
    answer.what = what;
    answer.why = std::move(why);
    answer.until_ms = until_ms;
    return fence_answer{std::move(answer)};
}

// No lease: the other one runs the command before it takes anything.
fence_step fence_fsm::grant() {
    ha::arbiter_answer answer;
    answer.what = verdict::granted;
    answer.term = record_.term;
    answer.until_ms = UINT64_MAX;
    if (request_.what == kind::look) {
        // Of a standby: nobody else keeps anything, so its term is as good as it was told.
        answer.term = mine_ ? record_.term : request_.term;
        answer.until_ms = 0;
        answer.paired = !mine_ || record_.paired;
        answer.ours = mine_;
    }
    return fence_answer{std::move(answer)};
}

fence_step fence_fsm::write(const fence_record& record) {
    wanted_ = record;
    return record == record_ ? written({}) : fence_step(fence_write{record});
}

fence_step fence_fsm::written(const std::string& problem) {
    if (!problem.empty())
        return say(verdict::unreachable, problem);
    record_ = wanted_;
    if (request_.what == kind::open || request_.what == kind::claim || request_.what == kind::restore)
        mine_ = true;
    return grant();
}

fence_step fence_fsm::asked(const ha::arbiter_request& request, bool by_person, std::uint64_t now) {
    request_ = request;
    const bool needs_ours =
        request.what == kind::renew || request.what == kind::alone || request.what == kind::pair;
    const bool repeated = request.what == kind::pair && record_.term == request.new_term && record_.paired;
    if (needs_ours && (!mine_ || (record_.term != request.term && !repeated)))
        return say(verdict::refused, fmt::format("term {} is over: this host's fencing record has term {}",
                                                 request.term, record_.term));
    switch (request.what) {
    case kind::open:
        return open();
    case kind::claim:
        return claim(by_person, now);
    case kind::alone:
        return alone(by_person, now);
    case kind::pair:
        return check(now);
    case kind::look:
        return check(now);
    case kind::restore:
        return write({request.term, role::primary, request.paired});
    case kind::renew:
        return request.paired ? write({record_.term, role::primary, true}) : grant();
    case kind::release:
        return grant();
    }
    return say(verdict::unreachable, "the arbiter does not know the request");
}

fence_step fence_fsm::open() {
    if (!request_.anew) {
        if (record_.is == role::none)
            return say(verdict::refused, "this host has no fencing record of the VM, and can't ask anybody "
                                         "whether it runs elsewhere. If it runs nowhere: --force-new");
        if (record_.is == role::standby)
            return say(
                verdict::refused,
                fmt::format("this host stood by for the VM (term {}) and did not take it over: it ran "
                            "elsewhere last. Start it there; if that host is gone for good: --force-new",
                            record_.term));
        if (record_.paired)
            return say(
                verdict::refused,
                fmt::format("the VM had a standby when it ended here (term {}), which may have gone on "
                            "with it. If the standby's fencing record says 'role standby', it did not: "
                            "start the VM here with --force-new. Else start it there",
                            record_.term));
    }
    return write({record_.term + 1, role::primary, false});
}

fence_step fence_fsm::claim(bool by_person, std::uint64_t now) {
    if (mine_ && record_.term > request_.term)
        return grant(); // done before, and the answer was lost
    if (request_.proven_dead)
        return ended({}, now);
    // Of two that live the primary is first.
    if (const auto from = request_.heard_ms + rules_.delay_ms; now < from && !by_person)
        return say(
            verdict::held,
            fmt::format("a primary that lives is given {} ms to cut this host off first", rules_.delay_ms),
            from);
    return cut_off(true, by_person, now);
}

fence_step fence_fsm::alone(bool by_person, std::uint64_t now) {
    if (request_.confirmed)
        return ended({}, now);
    return cut_off(false, by_person, now);
}

fence_step fence_fsm::cut_off(bool primary, bool by_person, std::uint64_t now) {
    if (by_person)
        return ended({}, now);
    const auto last = request_.heard_ms == 0 ? 0 : request_.heard_ms + rules_.give_up_ms;
    if (now >= last)
        return say(
            verdict::held,
            fmt::format("the {} was {}, and may have cut this host off and gone on since: only a person "
                        "can know. If it is off and did not go on, write the term, {}, to the file of the "
                        "fencing record with '.confirm' behind its name{}{}",
                        name_of(primary),
                        request_.heard_ms == 0
                            ? "never heard"
                            : fmt::format("heard {} s ago", (now - request_.heard_ms) / 1000),
                        request_.term, problem_.empty() ? "" : ". ", problem_),
            now + poll_ms);
    if (now < next_try_ms_)
        return say(verdict::held, problem_, std::min(next_try_ms_, last));
    return fence_run{false, primary, std::min(longest_run_ms, last - now), request_.whom};
}

// A command that can't be run when it is needed protects nobody.
fence_step fence_fsm::check(std::uint64_t now) {
    if (!rules_.has_check || (checked_ms_ != 0 && now < checked_ms_ + check_again_ms))
        return checked();
    return fence_run{true, !mine_, longest_check_ms, request_.whom};
}

fence_step fence_fsm::checked() {
    if (request_.what == kind::pair)
        return write({request_.new_term, role::primary, true});
    // From here on this host has a copy of a VM that runs elsewhere.
    if (!mine_ && request_.term != 0)
        return write({request_.term, role::standby, false});
    return grant();
}

fence_step fence_fsm::ended(const std::string& problem, std::uint64_t now) {
    const bool checking = request_.what == kind::pair || request_.what == kind::look;
    if (checking) {
        checked_ms_ = problem.empty() ? now : 0;
        return problem.empty() ? checked() : say(verdict::unreachable, problem);
    }
    if (!problem.empty()) {
        const auto pause = std::min(longest_pause_ms, first_pause_ms << std::min(failures_, 10u));
        ++failures_;
        next_try_ms_ = now + pause;
        problem_ = fmt::format("{}; it is tried again after {} s", problem, pause / 1000);
        return say(verdict::unreachable, problem_);
    }
    failures_ = 0;
    next_try_ms_ = 0;
    problem_.clear();
    if (request_.what == kind::claim)
        return write({std::max(record_.term, request_.term) + 1, role::primary, false});
    return write({record_.term, role::primary, false});
}

} // namespace kagemusha::control
