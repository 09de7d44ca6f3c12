// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter of the simulated world: its contract (arbiter_request.hpp), as short as it can be said; and the
// rules that the simulation breaks on purpose.
#pragma once

#include "control/ha/arbiter_request.hpp"

#include <cstdint>

namespace kagemusha::ha::test {

inline constexpr std::uint64_t lease_ms = 300;

// Rules that the thin layer breaks on purpose: the simulation must find each.
enum class mutation {
    none,
    unpaired_is_lost,      // neither UNPAIRED nor BELIEF ever arrives
    ready_is_lost,         // always
    gate_stays_open,       // QEMU does not look at the gate
    silence_is_proof,      // a standby hears DIED when its connection is closed
    alone_is_not_recorded, // but granted
    pair_is_not_recorded,  // but granted
    claims_need_no_lease,  // silence is enough for the arbiter
    mark_comes_late,       // reported before it is durable
    switchover_lets_run,   // the source goes on, and its gate stays open
    output_is_not_held,    // for checkpoints
    outdated_may_claim,    // also when the record says `alone`
};
inline constexpr mutation last_mutation = mutation::outdated_may_claim;

struct record {
    std::uint64_t term = 0, lease_until = 0;
    bool paired = false;
    int owner = -1; // a supervisor's run
};

class sim_arbiter {
public:
    explicit sim_arbiter(mutation broken) : broken_(broken) {}

    void forget() { record_ = {}; }
    // As if it was put back to the record of before the present term, with the lease of then. Not over a
    // change of hosts: the former one would be given the VM again (docs/operations.md, "Its record is
    // older").
    bool go_back(std::uint64_t now) {
        if (before_.term == 0 || before_.owner != record_.owner)
            return false;
        record_ = before_;
        record_.lease_until = now + lease_ms;
        return true;
    }
    const record& present() const { return record_; }
    unsigned restored() const { return restored_; }

    arbiter_answer decide(int run, const arbiter_request& q, std::uint64_t now) {
        using kind = arbiter_request::kind;
        using verdict = arbiter_answer::verdict;
        auto& r = record_;
        const bool ours = r.owner == run;
        const bool free = now >= r.lease_until || broken_ == mutation::claims_need_no_lease;
        const arbiter_answer refused{verdict::refused, q.number, r.term, 0, "another term"};
        const arbiter_answer held{verdict::held, q.number, 0, r.lease_until, "held"};
        const auto grant = [&](std::uint64_t until) {
            r.lease_until = until;
            return arbiter_answer{verdict::granted, q.number, r.term, until, {}};
        };
        if ((r.term == 0 || (r.term < q.term && q.what != kind::look)) && q.what != kind::open &&
            q.what != kind::restore)
            return {verdict::gone, q.number, 0, 0, "no record"};
        switch (q.what) {
        case kind::open:
            if (!free)
                return held;
            if (r.paired && !q.anew)
                return refused;
            r = {r.term + 1, 0, false, run};
            return grant(now + lease_ms);
        case kind::renew:
            if (!ours || r.term != q.term)
                return refused;
            r.paired = r.paired && (!q.alone || broken_ == mutation::alone_is_not_recorded);
            return grant(now + lease_ms);
        case kind::alone:
            if (!ours || r.term != q.term)
                return refused;
            r.paired = r.paired && broken_ == mutation::alone_is_not_recorded;
            return grant(now + lease_ms);
        case kind::pair:
            if (!ours || (r.term != q.term && r.term != q.new_term))
                return refused;
            if (r.term != q.new_term)
                before_ = r;
            r.term = q.new_term;
            r.paired = broken_ != mutation::pair_is_not_recorded;
            return grant(now + lease_ms);
        case kind::claim:
            if (ours && r.term == q.term + 1)
                return grant(now + lease_ms);
            if (r.term != q.term ||
                (!r.paired && !(q.proven_dead && q.unreleased) && broken_ != mutation::outdated_may_claim))
                return refused;
            if (!free && !q.proven_dead)
                return held;
            r = {r.term + 1, 0, false, run};
            return grant(now + lease_ms);
        case kind::release:
            if (!ours || r.term != q.term)
                return refused;
            r.paired = r.paired && (!q.alone || broken_ == mutation::alone_is_not_recorded);
            return grant(now);
        case kind::look:
            return {verdict::granted, q.number, r.term, 0, {}, r.paired, ours};
        case kind::restore:
            if (r.term > q.term || (r.term == q.term && (!ours || r.paired != q.paired)))
                return refused;
            if (r.term < q.term && !free)
                return held;
            ++restored_;
            r = {q.term, 0, q.paired, run};
            return grant(now + lease_ms);
        }
        return refused;
    }

    // `fence`: no record. Who has to be sure that the other one does not speak switches its host off; `off`
    // says so.
    static arbiter_answer decide_by_fencing(const arbiter_request& q, std::uint64_t now, bool& off) {
        using kind = arbiter_request::kind;
        off = (q.what == kind::alone && !q.confirmed) || (q.what == kind::claim && !q.proven_dead);
        const auto term = q.what == kind::open    ? now
                          : q.what == kind::pair  ? q.new_term
                          : q.what == kind::claim ? q.term + 1
                                                  : q.term;
        return {arbiter_answer::verdict::granted, q.number, term, UINT64_MAX, {}, true, true};
    }

private:
    mutation broken_;
    record record_, before_;
    unsigned restored_ = 0;
};

} // namespace kagemusha::ha::test
