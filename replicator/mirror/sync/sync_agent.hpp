// SPDX-License-Identifier: GPL-2.0-or-later
// sync_agent: the replication's own work on the GPU of one file: content for a standby that attaches,
// digests, repair. Pure: it makes streams and takes completions, the device carries them.
//
// The mental model: at a point q of the file's order the agent may put commands between the guest's. A marker
// on each of the guest's queues, the agent's command on a queue of its own that waits for the markers, and a
// barrier on each of the guest's queues that waits for the agent's command: so the agent sees memory exactly
// as it is after all commands up to q, and disturbs nothing but the order of queues. It does so only while
// the file has no unset user event: one may hold up a queue until the guest, which may wait for another
// queue, sets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mirror_tap.hpp"
#include "mirror/log/log_sink.hpp"
#include "mirror/shadow/session_shadow.hpp"

namespace kagemusha::mirror {

// Host memory that workers can write and the log can send from: the agent's reads land here. Allocation is
// bounded; the thin layer provides it (a memfd that is a region of the workers).
class agent_memory {
public:
    struct block {
        kagemusha_segment segment; // for the worker
        std::span<std::byte> bytes;
        std::shared_ptr<const void> keep; // frees it, on any thread
    };
    virtual bool allocate(std::uint64_t bytes,
                          block& out) = 0; // false: none free now, try after a completion
    virtual std::uint64_t capacity() const = 0;

protected:
    ~agent_memory() = default;
};

struct agent_options {
    // The guest's GPU speaks CUDA. It has no user events and no sub-buffers, and its kernels are PTX.
    bool cuda = false;
    std::uint64_t content_chunk_bytes = std::uint64_t{4} << 20; // one read of a state transfer
    std::uint64_t digest_chunk_bytes = std::uint64_t{256} << 10;
    std::uint32_t max_sync_rounds = 8; // of dirty content, before the rest is sent in order
    std::uint64_t final_round_bytes = std::uint64_t{16} << 20; // few enough dirty bytes for the last round
    // A chunk whose digest differed in so many comparisons in a row is no longer re-executed: see
    // after_submit().
    std::uint32_t differences_before_shipping = 3;
    std::size_t max_repairs = 65536; // chunks that wait for repair; the next digest finds what is beyond
    // Of content. OpenCL's runtimes do one transfer after the other, and a guest's commands behind them. With
    // CUDA a read is a short copy to pinned memory, and what follows is the worker's: more of them keep it busy.
    std::uint32_t max_reads_in_flight = 2;
    static constexpr std::uint32_t cuda_reads_in_flight = 6;
    // What kernels wrote is shipped after each request that reads, from the first one on: see after_read().
    bool ship = false;
    std::uint64_t first_id = 0; // behind agent_id_bit: what it makes is numbered from here
    // For agent_counters::final_round_ns; without it that is not measured. Nothing is decided by it.
    std::function<std::uint64_t()> now_ns = {};
};

struct agent_counters {
    std::uint64_t digests = 0; // comparisons of a file
    std::uint64_t chunks_compared = 0;
    std::uint64_t chunks_different = 0;
    std::uint64_t chunks_repaired = 0; // shipped because of a difference
    std::uint64_t memory_shipped =
        0; // memory objects whose content is shipped after each launch that may write them
    std::uint64_t content_bytes = 0;  // of state transfers
    std::uint64_t final_round_ns = 0; // longest time that guest commands were held back by a last round
};

class sync_agent {
public:
    sync_agent(std::uint32_t file, session_shadow& state, core::mirror_port& device, log_sink& log,
               agent_memory& memory, const agent_options& options);
    ~sync_agent();

    // State transfer. The file's objects were restored in the log just now; content follows in rounds.
    void start_sync();
    // Everything but a last round has crossed: finish_sync() may be called. It takes the last round at this
    // point of the order; the caller switches the file's mode to `on` right after it.
    bool ready_to_finish() const;
    void finish_sync();
    void stop(); // no standby any more: forget what is in flight, destroy the agent's objects

    // The guest has a new context: what digests need is made in it now, while nothing of the guest runs
    // there. A GPU's runtime takes 0.1 s and more to build their kernel, and the guest's commands would wait
    // for it.
    void prepare();
    // A digest at this point of the order, of what was written since the last one (or of everything). False:
    // not now (an unset user event, one in flight, no memory).
    bool take_digest(bool everything);
    // What the standby found: indices into the hashes of that entry. Empty: all agree.
    void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different);

    // First thing when the guest's next request comes (before rewrite() and before its entries): queues
    // that are new are put in order with what the agent has in flight. One comparison when there is nothing
    // to do.
    void before_submit();
    // The guest's request is in the log with these entries: ships what has to be shipped after it (memory
    // that differed repeatedly and may have been written).
    void after_submit();

    // That request reads: what kernels may have written before is shipped now, in the place that this point
    // of the order has in the log, so that the standby has what the guest will know. Only while ships(), and
    // not while a user event of the guest is unset.
    void after_read();
    // Results of kernels are shipped: because of agent_options::ship, because a kernel ran that was named, or
    // because some memory differed again and again.
    bool ships() const;

    void on_done(std::uint64_t token, const vgpu_response& response);
    void on_record(std::span<const std::byte> record);
    void on_lost();
    // Goes on with what waited for something that nobody tells of (agent_memory that the log gave back, a
    // user event that the guest set). Every few ms while !idle() or syncing; cheap when there is nothing to
    // do.
    void on_tick();

    // Why a state transfer or repairs do not go on right now, for a person; empty: they do, or there are
    // none.
    std::string waiting() const;
    // A state transfer does not go on before the guest sets a user event.
    bool waits_for_guest() const;
    // Nothing of the agent is in flight on the GPU and nothing is queued.
    bool idle() const;
    const agent_counters& counters() const;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::mirror
