// SPDX-License-Identifier: GPL-2.0-or-later
//
// fence_fsm: what the arbiter `fence` answers, when it writes its record and when it cuts the other host off.
// Pure: a request goes in, then what became of each step; one step comes out at a time, an answer last.
//
// The rules, and what each is for:
//
//   * A host whose record says that a standby may have taken over, or that the VM ran elsewhere, does not
//     open it; nor one without a record. A person who knows better says --force-new. So a supervisor or a host
//     that comes back does not make a second VM. The record says so before a standby is told anything: a
//     renewal with `paired` announces it.
//   * Who goes on without the other host has it cut off first, and the record is on the disk before the
//     answer. Nobody is cut off who said himself that he will not run the VM (`confirmed`), or whose QEMU was
//     seen to end (`proven_dead`).
//   * A standby waits for delay_ms, so that of two that live and don't hear each other the primary is first.
//   * Who has not heard the other one for give_up_ms cuts nobody off any more: it may have been cut off
//     itself, by a switch's port that is opened later, and the other one has gone on. It waits for the other
//     host, or for a person who writes the term to PATH.confirm.
//   * A command that fails is repeated later and later.
//   * A pair is recorded, and a look granted, only while the owner's check of the command succeeds.
//
// Times are milliseconds of CLOCK_BOOTTIME.
#pragma once

#include "control/arbiter/fence_record.hpp"
#include "control/ha/arbiter_request.hpp"

#include <cstdint>
#include <string>
#include <variant>

namespace kagemusha::control {

struct fence_rules {
    std::uint32_t delay_ms = 5000, give_up_ms = 60000;
    bool has_check = false;
};

struct fence_answer {
    ha::arbiter_answer what; // without its number
    friend bool operator==(const fence_answer& a, const fence_answer& b) {
        return a.what.what == b.what.what && a.what.term == b.what.term && a.what.until_ms == b.what.until_ms;
    }
};
struct fence_write { // then written()
    fence_record record;
    friend bool operator==(const fence_write&, const fence_write&) = default;
};
struct fence_run { // the command, or the one that checks it; then ended()
    bool check = false;
    bool primary = false;       // whom it is about: the primary or the standby
    std::uint64_t limit_ms = 0; // it is killed after this
    std::string whom = {};      // arbiter_request::whom
    friend bool operator==(const fence_run&, const fence_run&) = default;
};
using fence_step = std::variant<fence_answer, fence_write, fence_run>;

class fence_fsm {
public:
    fence_fsm(const fence_rules& rules, const fence_record& record) : rules_(rules), record_(record) {}

    // `by_person`: a person says that the other host is off (PATH.confirm, for alone and claim).
    fence_step asked(const ha::arbiter_request& request, bool by_person, std::uint64_t now);
    fence_step written(const std::string& problem);                  // "": it is on the disk
    fence_step ended(const std::string& problem, std::uint64_t now); // "": it said that all is well

private:
    fence_step open();
    fence_step claim(bool by_person, std::uint64_t now);
    fence_step alone(bool by_person, std::uint64_t now);
    fence_step cut_off(bool primary, bool by_person, std::uint64_t now);
    fence_step check(std::uint64_t now);
    fence_step checked();
    fence_step write(const fence_record& record);
    fence_step grant();
    fence_step say(ha::arbiter_answer::verdict what, std::string why, std::uint64_t until_ms = 0) const;

    fence_rules rules_;
    fence_record record_;           // as it is on the disk
    ha::arbiter_request request_;   // that is being answered
    fence_record wanted_;           // what the answer needs to have on the disk
    bool mine_ = false;             // this run has the VM
    std::uint64_t checked_ms_ = 0;  // the last good check; 0: none
    unsigned failures_ = 0;         // of the command, in a row
    std::uint64_t next_try_ms_ = 0; // not before
    std::string problem_;           // of the last failure
};

} // namespace kagemusha::control
