// SPDX-License-Identifier: GPL-2.0-or-later
// Every bound of replication, with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::mirror {

// ---- one frame ----

// The protobuf part. The largest is a list of entries or of hashes.
inline constexpr std::uint32_t max_message_bytes = 1u << 20;
// What follows it. Content beyond this goes as several `content` messages.
inline constexpr std::uint64_t max_frame_payload_bytes = std::uint64_t{8} << 20;
inline constexpr std::uint32_t max_entries_per_message = 4096;
inline constexpr std::uint32_t max_hashes_per_message = 65536;
inline constexpr std::uint32_t max_text_bytes = 1024; // names and sentences
inline constexpr std::uint32_t max_capabilities = 64;
// Of the description that supervisors compare: disks, cards and files of a VM; the words of a list.
inline constexpr std::uint32_t max_description_parts = 192;
inline constexpr std::uint32_t max_part_value_bytes = 4096;
static_assert(max_description_parts * (max_text_bytes + max_part_value_bytes + 32) < max_message_bytes);

// Content up to this travels with its entry, more of it behind, in pieces.
inline constexpr std::uint64_t max_inline_content_bytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t content_piece_bytes = std::uint64_t{4} << 20;
// Of a guest's content a primary sends smaller ones, so that a write of 16 MiB keeps all lanes busy.
inline constexpr std::uint64_t sent_piece_bytes = content_piece_bytes / 2;
static_assert(VGPU_MAX_STREAM_BYTES + max_inline_content_bytes <= max_frame_payload_bytes);
static_assert(content_piece_bytes <= max_frame_payload_bytes);
static_assert(max_hashes_per_message * 8 < max_message_bytes);

// Lanes: further connections of a link, for large pieces of content. A piece from min_lane_bytes on is worth
// the way; smaller ones are no more than a few frames. A peer that announces more pieces than max_lane_pieces
// whose bytes have not come is broken: a primary's queues hold fewer.
inline constexpr std::uint32_t max_lanes = 8;
inline constexpr std::uint64_t min_lane_bytes = std::uint64_t{64} << 10;
inline constexpr std::size_t lane_token_bytes = 16;
inline constexpr std::size_t max_lane_pieces = 8192;

// What a compiler has made (message Built): one message, what the primary's agents take at a time, what the
// link may have queued before more of it is left out, and what a standby holds until its workers have it. It is
// never needed, so beyond a bound it is dropped.
inline constexpr std::uint64_t max_built_pack_bytes = content_piece_bytes;
inline constexpr std::uint32_t max_built_takes = 8, max_built_takes_per_file = 2;
inline constexpr std::uint64_t max_built_queue_bytes = std::uint64_t{24} << 20;
inline constexpr std::uint64_t max_held_built_bytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t max_held_built = 4096;

// What an entry may claim to carry: far beyond what any standby holds (its own bound is hold_bytes), and
// small enough that no sum of lengths of one message leaves 64 bits.
inline constexpr std::uint64_t max_payload_bytes = std::uint64_t{1} << 40;
// What the GPU writes in a compare entry, which both sides must have memory for: hashes, or, with
// entry_hash_content, the content itself.
inline constexpr std::uint64_t max_compared_bytes = std::uint64_t{max_hashes_per_message} * 8;
inline constexpr std::uint64_t max_hashed_content_bytes = std::uint64_t{64} << 20;
// Numbers of entries and epochs end here, so that a number of the peer plus a count can't overflow.
inline constexpr std::uint64_t max_sequence = std::uint64_t{1} << 62;

// ---- the log ----

// What a primary keeps that the standby has not acknowledged. Reaching it stops the guest's submits (the last
// resort), so it is large against one epoch and small against a host.
inline constexpr std::uint64_t default_log_bytes = std::uint64_t{512} << 20;
inline constexpr std::uint64_t default_log_entries = std::uint64_t{1} << 18;

// What a standby holds: beyond the last committed epoch, or committed and not executed. One request of a
// guest can carry 512 MiB, and must fit.
inline constexpr std::uint64_t default_hold_bytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t default_hold_entries = std::uint64_t{1} << 18;
static_assert(default_hold_bytes >= std::uint64_t{VGPU_MAX_SEGMENTS} * 4096 + VGPU_MAX_STREAM_BYTES);

// Requests of one file that a standby's device works on at the same time. More than a primary's device
// accepts from a guest (core::default_max_requests_per_file), because all of those may be writes that wait
// for a user event which the next request sets; the standby's device must accept as many.
inline constexpr std::uint32_t default_running_per_file = 1024;

// What the primary's state machine hands to the link ahead of its socket: keeps a socket busy, and heartbeats
// timely.
inline constexpr std::uint64_t link_window_bytes = std::uint64_t{8} << 20;

// Open files that a standby lets a primary have: what a device can have at most (core::hard_max_files). Its
// administrator may allow less (standby_config::limits).
inline constexpr std::uint32_t max_mirrored_files = 4096;
// Memory that agents have on a standby's GPU: room for the hashes of one digest entry in each context that is
// hashed by a kernel. A file's further contexts are read and hashed on the host.
inline constexpr std::uint64_t max_hashes_per_entry = 32768;
inline constexpr std::uint32_t max_hashing_contexts = 64;
inline constexpr std::uint64_t max_agent_bytes_per_file = max_hashing_contexts * max_hashes_per_entry * 8;
static_assert(max_hashes_per_entry <= max_hashes_per_message);
// Closed epochs that were not committed, and comparisons whose other half is missing: beyond it the primary
// is broken.
inline constexpr std::uint32_t max_pending_markers = 65536;
inline constexpr std::uint32_t max_pending_comparisons = 65536;
inline constexpr std::uint64_t max_pending_hashes = std::uint64_t{1} << 22;
// Payloads whose late content is missing: each costs a standby's bookkeeping some bytes, however short it is.
inline constexpr std::uint64_t max_late_payloads = std::uint64_t{1} << 20;

// Payloads of all entries that are held, late or not: each costs a standby 16 bytes until its entry runs, and
// may have no bytes itself. 64 for each entry that may be held by default.
inline constexpr std::uint64_t max_held_payloads = 64 * default_hold_entries;
static_assert(max_held_payloads >= max_late_payloads);

// What the primary remembers of live objects to make them elsewhere: some 400 bytes for each, and the source
// of programs. A guest that goes beyond it is not mirrored any more.
inline constexpr std::uint64_t max_registry_bytes = std::uint64_t{1} << 30;

// Content up to this is copied into the log at once instead of being referred to in guest memory.
inline constexpr std::uint64_t copy_content_bytes = std::uint64_t{16} << 10;

// ---- time ----

inline constexpr std::uint32_t default_epoch_ms = 50;
inline constexpr std::uint32_t default_heartbeat_ms = 50;
inline constexpr std::uint32_t default_heartbeat_budget_ms = 500;
inline constexpr std::uint32_t min_reconnect_ms = 100;
inline constexpr std::uint32_t max_reconnect_ms = 5000;
inline constexpr std::uint32_t hello_timeout_ms = 5000;
// A standby that is full and frees nothing for so long is given up: what it holds may wait for a user event
// whose setting lies behind what does not fit any more, and then it would wait for ever.
inline constexpr std::uint32_t default_stall_budget_ms = 10'000;
// How far the standby's GPU may be behind the primary's before the guest has to wait for it: a takeover first
// does what is missing. Many epochs, so that ordinary lateness costs nobody anything.
inline constexpr std::uint32_t default_max_behind_ms = 2000;
// A standby with a complete copy protects when it keeps up with that, but not later than so: one that lags loses
// a takeover some seconds, one that does not protect yet loses the VM. It never keeps up where what is next waits
// for the guest (a user event), or where its GPU is no faster than the primary's and the guest never pauses.
inline constexpr std::uint32_t default_keep_up_wait_ms = 10'000;
// A guest that has waited for the standby's GPU for so long: people are told.
inline constexpr std::uint32_t lag_note_ms = 5000;
// A state transfer waits while a program has a user event that is not set, and the VM has no standby
// meanwhile. Nothing obliges the program to set it, so after this time the program is lost, and not the VM's
// protection.
inline constexpr std::uint32_t default_transfer_wait_ms = 300'000;
// Acks are collected for so long, unless an epoch was committed or much was freed.
inline constexpr std::uint32_t ack_delay_ms = 2;
static_assert(default_heartbeat_budget_ms >= 3 * default_heartbeat_ms, "one lost heartbeat is no death");

} // namespace kagemusha::mirror
