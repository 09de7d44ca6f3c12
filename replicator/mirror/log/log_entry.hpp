// SPDX-License-Identifier: GPL-2.0-or-later
// log_entry: one numbered entry of the op log, as it leaves the primary's device and as it arrives at the
// standby's.
//
// The unit of the log is a request, not a single op: a stream of commands in the wire format of
// proto/abi/vgpu_protocol.h, validated by the primary's device and rewritten for a standby
// (mirror/shadow/session_shadow.hpp): reads and queries are not in it, a read's place is taken by a marker with
// the same wait list and event. So what a standby executes is again a stream for the one decoder, the one
// validator and the one executor.
//
// Ids. Guest ids are the same on both sides. Ids with VGPU_HOST_ID_BIT (agent_id_bit) belong to the
// replication itself: queues, programs, markers that the agent (mirror/sync/sync_agent.hpp) puts between
// the guest's commands. A guest that uses one is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codec/op.hpp"

namespace kagemusha::mirror {

// 1, 2, 3 … without a gap, in the order in which the device took requests off the guest's ring; 0: none.
using log_sequence = std::uint64_t;

inline constexpr codec::guest_id agent_id_bit = VGPU_HOST_ID_BIT;

enum class entry_kind : std::uint8_t {
    open_file = 1,
    close_file = 2,
    submit = 3,       // a stream
    lose_session = 4, // the primary's worker of this file was lost: the standby ends its own
    reset = 5,        // every file ends; also the first entry of a state transfer
};

// Bits of log_entry::flags.
enum entry_flag : std::uint32_t {
    // The stream is one call that can fail. Its result on the primary follows (outcome); until then it does
    // not run on the standby, unless the primary is dead: then it was in flight and runs.
    entry_awaits_outcome = 1,
    // None of the content travels with the entry: that of every payload that is not writable follows in
    // pieces; until all of it is there the entry does not run.
    entry_late_content = 2,
    // Of the agent, not of the guest.
    entry_agent = 4,
    // The stream ends with reads of digests: the standby executes them and compares with the primary's.
    entry_compare = 8,
    // With entry_compare, for GPUs that run no kernels: the reads are not of hashes but of content, and the
    // hash
    // of each payload (mirror/sync/digest.hpp, chunk_hash) is its digest.
    entry_hash_content = 16,
    // The call leaves state behind also when it fails (build, compile, link): it runs whatever its outcome
    // was. Its failure on the standby is a fault only if the outcome said that it succeeded on the primary.
    entry_may_fail = 32,
    entry_all_flags = 63,
};

// Bytes somewhere, kept alive by `keep` (which may end on any thread).
struct byte_pieces {
    std::vector<std::span<const std::byte>> pieces;
    std::shared_ptr<const void> keep;
    // What is to be sent is not there yet (mirror/capture/late_writes.hpp): this payload of the request.
    std::optional<std::uint32_t> to_come = {};
};

// A copy of the pieces, one behind the other.
inline std::shared_ptr<const std::vector<std::byte>>
gathered(const std::vector<std::span<const std::byte>>& pieces) {
    std::size_t bytes = 0;
    for (const auto& piece : pieces)
        bytes += piece.size();
    auto copy = std::make_shared<std::vector<std::byte>>();
    copy->reserve(bytes);
    for (const auto& piece : pieces)
        copy->insert(copy->end(), piece.begin(), piece.end());
    return copy;
}

struct entry_payload {
    std::uint64_t bytes = 0;
    bool writable = false; // of a compare entry: the GPU writes it, no content crosses
    friend bool operator==(const entry_payload&, const entry_payload&) = default;
};

// What can be said of an entry without its bytes; what the state machines work with.
struct entry_meta {
    log_sequence sequence = 0;
    entry_kind kind = entry_kind::submit;
    std::uint32_t file = 0;
    std::uint32_t flags = 0;
    std::uint32_t op_count = 0;      // commands in the stream
    std::uint64_t stream_bytes = 0;  // multiple of 8
    std::uint64_t content_bytes = 0; // of all payloads that cross, each rounded up to 8
    friend bool operator==(const entry_meta&, const entry_meta&) = default;
};

struct log_entry {
    entry_meta meta;
    std::vector<std::uint64_t> stream;
    std::vector<entry_payload> payloads; // as the stream's commands name them by index
    // content[i] belongs to payloads[i]; empty pieces where nothing crosses (writable, or late).
    std::vector<byte_pieces> content;
    // Pieces of `content` lie in guest memory: they are valid until the log says that it is done with them
    // (log_sink::release_content). Otherwise `keep` owns them.
    bool content_in_guest = false;
    // Instead of `stream`, of an entry without payloads: packed (mirror/log/packed_stream.hpp), in memory of
    // whoever made the entry, which is valid until he makes the next one.
    std::span<const std::uint64_t> packed;
};

inline constexpr std::uint64_t rounded_up(std::uint64_t bytes) {
    return (bytes + 7) & ~std::uint64_t{7};
}

} // namespace kagemusha::mirror
