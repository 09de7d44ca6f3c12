// SPDX-License-Identifier: GPL-2.0-or-later
//
// See etcd_record.hpp.
#include "control/arbiter/etcd_record.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

using ha::arbiter_answer;
using kind = ha::arbiter_request::kind;
using verdict = ha::arbiter_answer::verdict;

constexpr std::uint64_t poll_ms = 100; // another's lease: its end is not known

} // namespace

std::variant<etcd_put, arbiter_answer> decide_on(const etcd_record& record,
                                                 const ha::arbiter_request& request, const std::string& owner,
                                                 std::uint64_t now) {
    const bool ours = record.owner == owner;
    const bool others = !record.holder.empty() && record.holder != owner;
    const auto held = [&] {
        return arbiter_answer{verdict::held, 0, 0, now + poll_ms,
                              fmt::format("{} has a lease", record.holder)};
    };
    const auto other_term = [&] {
        return arbiter_answer{
            verdict::refused, 0, 0, 0,
            fmt::format("term {} is over: {} has term {}", request.term, record.owner, record.term)};
    };
    // A look names a term that the record may not have yet.
    if (request.what != kind::open && request.what != kind::restore &&
        (record.revision == "0" || (record.term < request.term && request.what != kind::look)))
        return arbiter_answer{
            verdict::gone, 0, 0, 0,
            record.revision == "0"
                ? "etcd has no record of this VM any more"
                : fmt::format(
                      "etcd's record of this VM is older than term {}, as if etcd was restored from a "
                      "backup",
                      request.term)};
    std::uint64_t term = record.term;
    bool paired = record.paired, nobody_holds = false;
    switch (request.what) {
    case kind::open:
        if (others)
            return held();
        if (record.paired && !request.anew)
            return arbiter_answer{
                verdict::refused, 0, 0, 0,
                "a standby holds the VM's last state and may take it over; if it is gone, start the "
                "VM anew with "
                "--force-new"};
        term = record.term + 1;
        paired = false;
        nobody_holds = record.holder.empty();
        break;
    case kind::claim:
        if (ours && record.term == request.term + 1)
            break; // done before, and the answer was lost
        if (record.term != request.term)
            return other_term();
        if (!record.paired && !(request.proven_dead && request.unreleased))
            return arbiter_answer{verdict::refused, 0, 0, 0,
                                  "the primary goes on alone: what this standby has is out of date"};
        if (others && !request.proven_dead)
            return held();
        term = request.term + 1;
        paired = false;
        nobody_holds = !request.proven_dead;
        break;
    case kind::pair:
        if (!ours || (record.term != request.term && record.term != request.new_term))
            return other_term();
        term = request.new_term;
        paired = true;
        break;
    case kind::alone:
    case kind::renew:
        if (!ours || record.term != request.term)
            return other_term();
        if (request.what == kind::alone || request.alone)
            paired = false;
        break;
    case kind::look:
        return arbiter_answer{verdict::granted, 0, record.term, 0, {}, record.paired, ours};
    case kind::restore:
        if (record.term > request.term ||
            (record.term == request.term && (!ours || record.paired != request.paired)))
            return other_term();
        if (others)
            return held();
        term = request.term;
        paired = request.paired;
        nobody_holds = record.holder.empty();
        break;
    case kind::release:
        if (!request.alone || !record.paired || !ours || record.term != request.term)
            return arbiter_answer{verdict::granted, 0, request.term, 0, {}};
        paired = false;
        break;
    }
    return etcd_put{term, paired, nobody_holds};
}

} // namespace kagemusha::control
