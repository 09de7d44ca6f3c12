// SPDX-License-Identifier: GPL-2.0-or-later
// What one simulated schedule is made of: the cluster, its times, the mix of faults, and which rule is broken
// on purpose. Everything but the seed, the command line's wishes and `broken` is drawn from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::world {

enum class arbiter_kind : std::uint8_t { lock, etcd, fence };
const char* name_of(arbiter_kind kind);
bool parse(const std::string& name, arbiter_kind& out);

// To show that the checkers can fail: each breaks one rule of what surrounds the state machines.
enum class mutation : std::uint8_t {
    none,
    gate_stays_open,         // QEMU does not look at the gate
    held_output_leaves,      // filter-buffer releases before the checkpoint is committed
    goes_on_unasked,         // a lost stream releases held output before the arbiter recorded `alone`
    survives_refusal,        // a primary that the arbiter refused keeps its VM
    ignores_lease,           // the arbiter grants a claim while the primary's lease is valid
    forgets_alone,           // … does not record that the primary goes on alone
    grants_old_terms,        // … grants a claim with a term that is over
    loads_half_a_checkpoint, // a standby goes on with a checkpoint that has arrived in part
    forgets_received,        // … drops one that it acknowledged and has not loaded
    forgets_dirty_disk,      // a checkpoint lacks what the guest wrote to its disk
    forgets_flush,           // the guest is told of a flush that was not made
    forgets_reads_in_flight, // a checkpoint lacks what the GPU read into memory in an in-flight request
    reads_again,             // a resumed request reads a second time over memory that the guest owns
    runs_gpu_tail,           // a takeover runs log entries behind its checkpoint
    commits_without_gpu,     // a checkpoint is committed before the standby's GPU has the log up to it
    forgets_lost_copy,       // nobody notices that the standby's GPU has no copy
    no_mark_protected,       // a primary's image is not marked before a standby may take over
    no_mark_copy,            // a standby's image is not marked
    no_mark_taken_over,      // a VM that was taken over speaks before its images say so
    forgets_marks,           // a standby does not look at its images' marks before it is overwritten
    marks_unflushed,         // an image is marked as the newest before what was written to it is durable
    loses_unpaired,          // UNPAIRED never arrives
    never_reconnects,        // a closed connection is not made again
    counts_former_ends,      // the end of a QEMU is reported as that of the one that was started since
    cuts_off_the_wanted,     // `fence`: the command cuts off the standby that is wanted, not the one that was
                             // told
    last = cuts_off_the_wanted,
};
const char* name_of(mutation m);
bool parse(const std::string& name, mutation& out);

enum class fault_kind : std::uint8_t {
    kill_qemu,
    kill_supervisor,
    power_off,   // the host: memory and unflushed writes are gone, its links fall silent, it boots later
    freeze_host, // its processes and QEMU stand still
    freeze_supervisor, //
    freeze_qemu,
    cut,               // links of two hosts drop silently, one or both directions, one port or all
    reset,             // connections of two hosts are reset, one port or all
    slow,              // messages of two hosts take longer
    unplug,            // a host reaches nobody: no host, no arbiter, no client
    arbiter_away,      // nobody reaches the arbiter
    arbiter_parted,    // one host does not reach it
    arbiter_forgets,   // what is asked is done, the answer is lost
    arbiter_slow,      //
    member_dies,       // etcd: the member that is asked first does not answer
    primary_gpu,       // a worker dies
    standby_gpu,       // the copy is lost
    disk_slow,         //
    disk_hangs,        //
    disk_fails,        // writes and flushes fail
    load_fails,        // the next checkpoint can't be loaded
    stop,              // a person: kage stop; later the VM is started again
    switchover,        //
    protect,           // kage protect of the present standby, or of the third host
    upgrade,           // a switchover, then the left host's supervisor starts anew
    reboot,            // in order: SIGTERM to the supervisor, then the host is off for a while
    power_off_all,     //
    arbiter_goes_back, // lock, etcd: it is put back to an older record, as from a backup
    last = arbiter_goes_back,
};
constexpr std::size_t fault_kinds = static_cast<std::size_t>(fault_kind::last) + 1;
const char* name_of(fault_kind kind);

enum class port : std::uint8_t { supervision, state, gpu };
constexpr std::size_t ports = 3;
const char* name_of(port p);

struct fault {
    std::uint32_t at_ms = 0;
    std::uint32_t lasts_ms = 0;
    fault_kind kind = fault_kind::kill_qemu;
    std::uint8_t host = 0, other = 0;
    std::uint8_t directions = 3;  // bit 0: host to other, bit 1: back
    std::uint8_t which_ports = 7; // bits of port
    std::uint32_t extra = 0;      // slow: added to each message's way, in ms
};
std::string to_text(const fault& f);

struct options {
    std::uint64_t seed = 1;
    arbiter_kind arbiter = arbiter_kind::lock;
    std::uint8_t hosts = 2;
    mutation broken = mutation::none;

    // Of the VM's description
    std::uint32_t heartbeat_ms = 50, heartbeat_budget_ms = 500, lease_ms = 300, qemu_budget_ms = 2000;
    bool stop_without_standby = false;
    std::uint32_t epoch_ms = 50;
    bool units_restart = true; // the system starts a supervisor again that failed

    // Of the machines
    std::uint32_t latency_us = 500, jitter_us = 2000;
    std::uint32_t state_ms = 200; // the first transfer of the VM's state
    std::uint32_t load_ms = 4;    // of a checkpoint
    std::uint32_t flush_ms = 3;
    std::uint32_t restart_ms = 500, boot_ms = 1500;
    std::int32_t drift_ppm[3] = {};
    std::uint64_t boot_clock_ms[3] = {}; // what CLOCK_BOOTTIME says at the beginning
    bool old_release[3] = {};            // the host's supervisor does not know the newest messages

    std::uint32_t heal_ms = 8000; // from then on nothing is broken
    std::vector<fault> faults;    // in the order of at_ms
};

// hosts: 0 draws it. The arbiter is drawn when `any_arbiter`.
options drawn(std::uint64_t seed, bool any_arbiter, arbiter_kind arbiter, std::uint8_t hosts);

} // namespace kagemusha::world
