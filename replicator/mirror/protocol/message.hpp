// SPDX-License-Identifier: GPL-2.0-or-later
// message: what primary and standby say to each other, as plain structures. The state machines and the
// simulator know only these; replicator/messages turns them into protobuf (proto/replication) and bytes.
//
// Bytes of entries and content are not in here: a message that has some says how many, and they follow it on
// the wire. A receiver has checked lengths and counts against limits.hpp before it sees a message.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

// 1: what was released first. 2: a supervisor's DESCRIPTION has parts.
inline constexpr std::uint32_t protocol_version = 2;
inline constexpr std::uint32_t oldest_protocol_version = 1;
// What this release's device executes; a stream version that only adds commands leaves it as it is.
inline constexpr std::uint32_t oldest_stream_version = VGPU_STREAM_VERSION;

enum class role : std::uint8_t { primary = 1, standby = 2 };

// What an administrator allows a guest, of what a standby has to have for it; 0: not told.
struct guest_limits {
    std::uint32_t max_files = 0;             // open ones
    std::uint64_t max_memory_bytes = 0;      // of the GPU, all files together
    std::uint64_t max_file_memory_bytes = 0; // of one file
    friend bool operator==(const guest_limits&, const guest_limits&) = default;
};

// Both ends send it first. The highest version that both know counts.
struct hello {
    std::uint32_t version = protocol_version;
    std::uint32_t oldest_version = oldest_protocol_version;
    mirror::role role = role::primary;
    std::string vm;                                  // both must name the same
    std::uint64_t instance = 0;                      // random, of this run of this process
    std::uint32_t abi_version = VGPU_STREAM_VERSION; // of the streams: a standby executes the primary's
    std::string gpu;                                 // for people
    std::vector<std::string> capabilities; // names; unknown ones are ignored. "zstd": compressed content
    std::uint32_t heartbeat_budget_ms = 0; // silence beyond it means the sender gives the other up
    std::uint64_t hold_bytes = 0;          // standby: content and streams that it holds at most
    std::uint64_t hold_entries = 0;        // standby: the same in entries
    guest_limits limits;
    // Lowest version of the streams that its device executes. 0: a release before this field, abi_version
    std::uint32_t oldest_abi_version = oldest_stream_version;
    // Of a supervisor: the dialogue of checkpoints between both QEMUs. 0 and 0: a release before these fields
    std::uint32_t checkpoint_version = 0, oldest_checkpoint_version = 0;
    // Standby: what a further connection proves with that it is a lane of this one (net/lane.hpp). Empty, or
    // lane_token_bytes of them. Only links know of it.
    std::string lane_token;
    friend bool operator==(const hello&, const hello&) = default;
};

// Entries with consecutive numbers. Their streams follow, then their content (what is not late), each payload
// padded to 8 bytes, in order.
struct entries {
    struct entry {
        entry_meta meta; // sequence included; content_bytes counts late content too
        std::vector<entry_payload> payloads;
        friend bool operator==(const entry& a, const entry& b) = default;
    };
    std::vector<entry> list;
    friend bool operator==(const entries&, const entries&) = default;
};

// A piece of late content; the bytes follow, here or over a lane. Only links know of lanes.
struct content {
    log_sequence sequence = 0;
    std::uint32_t payload = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;            // as they will lie in memory
    std::uint64_t compressed_bytes = 0; // 0: as they are; else so many follow, zstd
    std::uint32_t lane = 0;             // 0: they follow; else over that lane of the link
    friend bool operator==(const content&, const content&) = default;
};

struct outcome {
    log_sequence sequence = 0;
    bool canceled = false; // must not run
    std::int32_t result = 0;
    friend bool operator==(const outcome&, const outcome&) = default;
};

// Everything up to `sequence` belongs to epochs up to `epoch`.
struct marker {
    std::uint64_t epoch = 0;
    log_sequence sequence = 0;
    // The epoch is committed when a checkpoint of the VM that names it was applied; else as soon as
    // everything up to `sequence` is there.
    bool checkpoint = false;
    friend bool operator==(const marker&, const marker&) = default;
};

// The state transfer is complete with this entry.
struct synced {
    log_sequence sequence = 0;
    friend bool operator==(const synced&, const synced&) = default;
};

// By the standby, whenever something of it changed (at most every few ms) and with each heartbeat.
struct ack {
    log_sequence received = 0; // every entry up to here, with its streams; late content may be missing
    log_sequence executed = 0; // every entry up to here has run (or was skipped)
    std::uint64_t committed_epoch = 0;
    // Of hold_bytes and hold_entries, since the connection began: streams and content (late content too) of
    // entries that have ended, in whatever order. Not the same as `executed`: a write that waits for a
    // guest's event may run for hours, and must not stop what other files do.
    std::uint64_t freed_bytes = 0;
    std::uint64_t freed_entries = 0;
    // The last epoch whose marker says `checkpoint` and of which everything is here: it can be committed.
    std::uint64_t complete_checkpoint = 0;
    friend bool operator==(const ack&, const ack&) = default;
};

// Primary: what its compiler has made of a file's programs; the bytes follow. Of no entry, and in no order with
// them: it may be dropped.
struct built {
    std::uint32_t file = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(const built&, const built&) = default;
};

// Either way. `time_ms` is the sender's; the answer gives it back.
struct heartbeat {
    std::uint64_t time_ms = 0;
    std::uint64_t answer_to_ms = 0; // 0: none
    friend bool operator==(const heartbeat&, const heartbeat&) = default;
};

// Primary: the digests that a compare entry gave there.
struct digests {
    log_sequence sequence = 0;
    std::vector<std::uint64_t> hashes;
    friend bool operator==(const digests&, const digests&) = default;
};

// Standby: what it found; indices into the hashes.
struct digest_result {
    log_sequence sequence = 0;
    std::vector<std::uint64_t> different;
    friend bool operator==(const digest_result&, const digest_result&) = default;
};

// Standby: can't hold more; close the epoch now.
struct close_epoch {
    friend bool operator==(const close_epoch&, const close_epoch&) = default;
};

// Standby: an entry failed here that succeeded on the primary (or its worker was lost). What it has is no
// copy any more.
struct fault {
    log_sequence sequence = 0;
    std::string why;
    friend bool operator==(const fault&, const fault&) = default;
};

enum class goodbye_reason : std::uint32_t {
    shutdown = 1,       // planned; no takeover
    refused = 2,        // wrong version, VM, role …
    protocol_error = 3, // the other broke a rule
    overloaded = 4,
    other = 5,
};

// Last message of a connection.
struct goodbye {
    goodbye_reason reason = goodbye_reason::other;
    std::string why; // a sentence for a person
    friend bool operator==(const goodbye&, const goodbye&) = default;
};

// Between the supervisors of a VM's two hosts (control/ha), on a connection of their own; the state machines
// of the GPU's mirror refuse it. docs/spec/takeover.md.
enum class supervision_kind : std::uint32_t {
    description = 1, // either: what the VM is made of must be the same
    ready = 2,       // standby: its QEMU waits for the VM
    pair = 3,        // primary: from the answer on the standby may take over with this term
    paired = 4,      // standby: it will, and only with this term
    unpaired = 5,    // primary: what the standby has is out of date
    died = 6,        // primary: its QEMU has ended, was seen to
    handed_over = 7, // primary: as died, but planned: the last checkpoint has everything
    lost = 8,        // standby: its QEMU has ended
    // Only to a peer with this capability:
    belief = 9,           // either: the term with which the standby may take over; 0: none
    running = 10,         // standby: the VM runs here
    takeover_failed = 11, // standby: the VM that was handed over does not run here, and never will
    // Only to a peer with the capability "lineage":
    lineage = 12, // either: what its disk images have. text: control/ha/disk_mark.hpp
};
inline constexpr const char* supervision_2_capability = "supervision-2";
inline constexpr const char* lineage_capability = "lineage";
// A primary's heartbeat answers the last one that the standby said.
inline constexpr const char* heartbeat_echo_capability = "heartbeat-echo";
// Of a primary that does not run the VM, and only wants to know whose disks are newer.
inline constexpr const char* only_compares_capability = "only-compares";

// One thing that the guest can see of its host, or that tells two hosts' software apart.
enum class part_rule : std::uint32_t {
    equal = 1,         // both have it, with the same value
    equal_if_both = 2, // the same, but who does not name it is of a release that does not know it
    shown = 3,         // may differ; a difference is shown to people
};
struct description_part {
    part_rule rule = part_rule::equal;
    std::string name, value; // a list is words, ascending, with spaces between them
    friend bool operator==(const description_part&, const description_part&) = default;
};

struct supervision {
    supervision_kind kind = supervision_kind::description;
    std::uint64_t term = 0;
    std::string text;
    bool unreleased = false;                  // died: nothing was let out since `alone` was asked for
    bool gpu_failed = false;                  // died: QEMU was killed because its GPU failed
    std::uint64_t recorded = 0;               // pair: the term that the arbiter's record has now; 0: not told
    std::vector<description_part> parts = {}; // description, from version 2 on
    friend bool operator==(const supervision&, const supervision&) = default;
};

// A message of a later version that is marked as safe to ignore, or an empty one.
struct unknown_message {
    friend bool operator==(const unknown_message&, const unknown_message&) = default;
};

using message = std::variant<hello, entries, content, outcome, marker, synced, ack, heartbeat, digests,
                             digest_result, close_epoch, fault, goodbye, supervision, built, unknown_message>;

} // namespace kagemusha::mirror
