// SPDX-License-Identifier: GPL-2.0-or-later
#include "scenario/ha_arbiter.hpp"

#include <fmt/format.h>

#include <utility>

#include "scenario/ha_text.hpp"

namespace kagemusha::scenario {

using ha::arbiter_answer;
using ha::arbiter_request;
using kind = arbiter_request::kind;
using verdict = arbiter_answer::verdict;

namespace {

const char* role_name(const control::fence_record& r) {
    using role = control::fence_record::role;
    return r.is == role::none      ? "none"
           : r.is == role::standby ? "standby"
           : r.paired              ? "primary, paired"
                                   : "primary";
}

} // namespace

void ha_arbiter::ask(int host, const std::string& process, const arbiter_request& q) {
    pending_[at(host)].push_back({process, q});
}

void ha_arbiter::process_ended(int host, bool power_lost) {
    fences_of_[at(host)].reset();
    commanding_[at(host)] = false;
    if (power_lost)
        pending_[at(host)].clear();
}

std::optional<arbiter_answer> ha_arbiter::answer(int host, std::uint64_t now) {
    if (!can_answer(host))
        return std::nullopt;
    const auto q = pending_[at(host)].front();
    if (fences_) {
        auto& fence = fences_of_[at(host)];
        if (!fence)
            fence.emplace(rules_, fence_records_[at(host)]);
        return go_on(host, fence->asked(q.what, std::exchange(person_confirms[at(host)], false), now));
    }
    pending_[at(host)].pop_front();
    const arbiter_answer unreachable{verdict::unreachable, q.what.number, 0, 0,
                                     "the arbiter can't be reached"};
    if (moods[at(host)] == mood::away) {
        tell(host, q, unreachable);
        return unreachable;
    }
    const auto a = decide(host, q, now);
    tell(host, q, a);
    if (moods[at(host)] != mood::loses_answers)
        return a;
    say_("    and the answer is lost");
    return unreachable;
}

void ha_arbiter::tell(int host, const question& q, const arbiter_answer& a) {
    say_(fmt::format("arbiter to {}: {}", host_names[host], answer_text(q.what, a)));
}

arbiter_answer ha_arbiter::decide(int host, const question& q, std::uint64_t now) {
    if (const auto other = other_term[at(host)]; other != 0 && q.what.what == kind::look)
        return {verdict::granted, q.what.number, other, 0, {}, false, false};
    auto& r = record_;
    if (now >= r.lease_until)
        r.holder.clear();
    const control::etcd_record seen{r.term, r.paired, r.owner, std::to_string(r.revision), r.holder};
    const auto decided = control::decide_on(seen, q.what, q.process, now);
    if (const auto* said = std::get_if<arbiter_answer>(&decided)) {
        auto a = *said;
        a.number = q.what.number;
        if (q.what.what == kind::release && r.holder == q.process)
            r.lease_until = now;
        return a;
    }
    const auto& put = std::get<control::etcd_put>(decided);
    if (put.nobody_holds && !r.holder.empty())
        return {verdict::held, q.what.number, 0, now + 100, r.holder + " has a lease"};
    if (q.what.what == kind::pair && r.term != put.term)
        before_ = r;
    const auto until = q.what.what == kind::release ? now : now + lease_ms;
    r = {put.term, r.revision + 1, until, put.paired, q.process, q.process};
    return {verdict::granted, q.what.number, r.term, r.lease_until, {}};
}

// ---- fence

std::optional<arbiter_answer> ha_arbiter::go_on(int host, control::fence_step step) {
    auto& fence = *fences_of_[at(host)];
    while (const auto* write = std::get_if<control::fence_write>(&step)) {
        fence_records_[at(host)] = write->record;
        say_(fmt::format("fence: the {}'s host records term {}, {}", host_names[host], write->record.term,
                         role_name(write->record)));
        step = fence.written({});
    }
    if (const auto* run = std::get_if<control::fence_run>(&step)) {
        commanding_[at(host)] = true;
        const char* const verb = run->check ? "checks" : "runs";
        say_(fmt::format("fence: the {}'s host {} the command that cuts the {}'s off", host_names[host], verb,
                         host_names[run->primary ? 0 : 1]));
        return std::nullopt;
    }
    auto a = std::get<control::fence_answer>(step).what;
    const auto q = pending_[at(host)].front();
    pending_[at(host)].pop_front();
    a.number = q.what.number;
    tell(host, q, a);
    return a;
}

// A check that succeeds cuts nobody off.
bool ha_arbiter::is_checking(int host) const {
    const auto what = pending_[at(host)].front().what.what;
    return commanding_[at(host)] && (what == kind::look || what == kind::pair);
}

std::optional<arbiter_answer> ha_arbiter::command_ended(int host, const std::string& problem,
                                                        std::uint64_t now) {
    if (!commanding_[at(host)])
        return std::nullopt;
    commanding_[at(host)] = false;
    return go_on(host, fences_of_[at(host)]->ended(problem, now));
}

// ---- what happens to its record

bool ha_arbiter::go_back(std::uint64_t now) {
    if (before_.term == 0)
        return false;
    const auto revision = record_.revision + 1;
    record_ = before_;
    record_.revision = revision;
    record_.holder = record_.owner; // leases come back with a backup
    record_.lease_until = now + lease_ms;
    return true;
}

void ha_arbiter::give(const std::string& owner, std::uint64_t until) {
    record_ = {record_.term + 1, record_.revision + 1, until, false, owner, owner};
}

std::string ha_arbiter::text(std::uint64_t now) const {
    if (fences_)
        return fmt::format("term {}, {} at the primary's host; term {}, {} at the standby's",
                           fence_records_[0].term, role_name(fence_records_[0]), fence_records_[1].term,
                           role_name(fence_records_[1]));
    const auto& r = record_;
    if (r.revision == 0)
        return "none";
    return fmt::format("term {}, {}, {}'s{}", r.term, r.paired ? "paired" : "alone", r.owner,
                       now < r.lease_until ? fmt::format(", lease until {}", r.lease_until)
                                           : std::string(", no lease"));
}

} // namespace kagemusha::scenario
