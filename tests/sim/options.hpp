// SPDX-License-Identifier: GPL-2.0-or-later
// What one simulated schedule may do: sizes, faults with their chances, and which rule is broken on purpose.
#pragma once

#include <cstdint>
#include <string>

namespace kagemusha::sim {

// To show that the checkers can fail: each breaks one rule between the state machines and what they command.
enum class mutation : std::uint32_t {
    none,
    runs_before_commit, // the standby's device runs an entry as soon as it arrives
    drops_entry,        // … says that it ran one that it did not run
    runs_twice,
    runs_out_of_order,
    frees_early,      // the primary's log frees what was not sent
    never_frees,      // … or nothing
    ignores_hold,     // the primary believes that the standby holds four times as much
    corrupts_content, // a bit of a write's content changes on its way
    loses_outcome,    // the message does not arrive, others do
    loses_content,
    lies_in_acks,          // the standby says that it received more
    runs_tail_at_takeover, // what was dropped runs even so
    forgets_running,       // the standby never says that an entry has ended
    last = forgets_running,
};
const char* name_of(mutation m);
bool parse(const std::string& name, mutation& out);

struct options {
    std::uint64_t seed = 1;
    std::uint32_t guest_steps = 40; // requests and calls of the guest
    std::uint32_t files = 2;        // open at the same time, at most

    // Sizes
    std::uint64_t hold_bytes = 2048, hold_entries = 64;
    std::uint64_t log_bytes = 4096, log_entries = 128;
    std::uint64_t window_bytes = 1024;
    std::uint32_t running_per_file = 4;
    std::uint32_t device_queue = 8;  // entries between the primary's threads
    std::uint32_t epoch_ms = 5;      // 0: checkpoints close epochs and commit them, from the start
    std::uint32_t switch_epochs = 0; // per 10,000 steps: from then on checkpoints do, or time does again
    bool lanes = false;              // of the link: what is behind content may come before it

    // How the steps are drawn: the larger, the more often.
    std::uint32_t weight_guest = 6, weight_device = 6, weight_network = 8, weight_gpu = 6, weight_time = 3;
    std::uint32_t time_step_ms = 2;

    // Of what the guest does
    bool late_content = true, events = true, digests = true, losses = true, resets = true;
    bool nondeterminism = false;

    // Faults, per 10,000 steps
    std::uint32_t cut = 0;             // the connection ends, what was under way is lost in part
    std::uint32_t silent_cut = 0;      // the same, and nobody is told
    std::uint32_t stall = 0;           // one direction delivers nothing for a while
    std::uint32_t duplicate = 0;       // a broken peer: a message comes twice
    std::uint32_t restart_standby = 0; // a new process, empty
    std::uint32_t restart_primary = 0; // a new process with a new guest
    std::uint32_t standby_fault = 0;   // a worker of the standby dies
    std::uint32_t late_connect = 0;    // per 10,000 attempts: nobody listens
    bool ends_with_takeover = false;
    std::uint32_t kill_at = 0; // 0: never; else the step at which the primary dies and the standby takes over

    mutation broken = mutation::none;
};

// Everything but the seed and `broken` drawn from the seed.
options drawn(std::uint64_t seed);
// A file with lines "name = value" (# begins a comment) over `base`. False: why.
bool read_file(const std::string& path, options& o, std::string& error);

} // namespace kagemusha::sim
