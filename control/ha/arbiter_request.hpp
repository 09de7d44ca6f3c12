// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the arbiter of a VM is asked, and what it answers. It keeps one record for each VM:
//
//   term     counts up whenever another host gets the right to run the VM, or another standby the right to
//            take it over
//   paired   a standby may take over: the one that was told this term. Otherwise the primary goes on alone,
//            and what a standby has is out of date
//   lease    the holder may let output out until then. Who finds it expired may claim a paired VM
//
// What was done already is granted again to the same asker: an answer can get lost.
//
// A record is only changed by who names its present term, in one step, so of two that try one wins
// (control/arbiter has the ways to keep it). Times are of CLOCK_BOOTTIME, in milliseconds.
//
// A keeper can lose its memory (etcd restored from a backup, keys deleted). Then it says `gone`, which is not
// `refused`: nobody else was given the VM. Who may know that nobody took over has the record made again
// (`restore`); until then nothing leaves the VM.
#pragma once

#include <cstdint>
#include <string>

namespace kagemusha::ha {

struct arbiter_request {
    enum class kind {
        open,    // start the VM anew: nobody holds a lease, no standby is paired → term + 1, alone
        renew,   // term is ours → the lease is longer, and the record says what the asker knows
        alone,   // term is ours → no standby may take over any more
        pair,    // term is ours → new_term (larger), paired
        claim,   // a standby: term is the one it was told, paired, and the lease expired (or the holder is
                 // known to be dead) → term + 1, alone, ours
        release, // term is ours → the lease ends now, and the record says what the asker knows
        look,    // what does the record say? Changes nothing. A standby asks it, to know that its claim would
                 // reach the arbiter. For `fence`: could the command be run?
        restore, // there is no record, or one of a smaller term on which nobody has a lease → term and
                 // `paired` become as named, ours. What it says already is granted again
    };
    kind what = kind::open;
    std::uint64_t number = 0; // comes back with the answer
    std::uint64_t term = 0;
    std::uint64_t new_term = 0; // pair
    bool proven_dead = false; // claim: the holder itself said that its QEMU has ended, or stands still for us
    bool anew = false;        // open: although a standby is paired (it is known to be gone)
    // claim, with proven_dead: the holder asked for `alone` before it died and never learned the answer, so
    // it has let nothing out since. Granted also if the record says that the holder of this very term is
    // alone.
    bool unreleased = false;
    // alone: the standby itself said that it will not take over, so nobody has to be cut off for that
    // (fence).
    bool confirmed = false;
    // restore. renew: a standby is told its term next. `fence` writes that down, so that a supervisor that
    // comes back does not open a VM that the standby may have taken over.
    bool paired = false;
    // renew, release: the asker goes on alone, or ended alone, and the record said so. One that says
    // `paired` was put back, and says `alone` again: the standby of that time is out of date.
    bool alone = false;
    // alone, pair: the address of the standby's supervisor, for the command of `fence`
    std::string whom = {};
    // alone, claim: when the other host surely lived last; 0: never. `fence` cuts nobody off for what is
    // older than its owner allows: meanwhile the other one may have done the same to us.
    std::uint64_t heard_ms = 0;
    friend bool operator==(const arbiter_request&, const arbiter_request&) = default;
};

struct arbiter_answer {
    enum class verdict {
        granted,
        refused,     // never: the record says another term, or that the holder goes on alone
        held,        // somebody's lease is still valid: ask again
        unreachable, // nothing is known. What was asked may have been done
        gone, // there is no record, or one of a smaller term than the asker's, whoever has a lease in it:
              // the keeper lost its memory. Not to open and restore, which make one
    };
    verdict what = verdict::unreachable;
    std::uint64_t number = 0;
    std::uint64_t term = 0;     // granted: the record's
    std::uint64_t until_ms = 0; // granted: end of our lease (UINT64_MAX: none is needed; look: 0). held: when
                                // to ask again
    std::string why;            // a sentence, unless granted
    bool paired = false;        // look: the record's
    bool ours = false;          // look: the asker is who got it last
};

const char* to_text(arbiter_request::kind what);
const char* to_text(arbiter_answer::verdict what);

} // namespace kagemusha::ha
