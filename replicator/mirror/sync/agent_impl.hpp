// SPDX-License-Identifier: GPL-2.0-or-later
// agent_impl: what the files of the agent share.
//   sync_agent.cpp    the public face, contexts, when what goes on
//   agent_hold.cpp      points of the order: markers, barriers, new queues
//   agent_transfer.cpp  content: rounds, reads, ordered transfers
//   agent_digest.cpp    digests, what differed, repair
//   agent_requests      what is in flight
//   agent_pieces        memory in pieces, entries
//
// How a point of the order is made on the primary (hold). A marker on each of the guest's queues; a barrier
// on the agent's queue that waits for all of them, with the agent's commands behind it; a barrier on each of
// the guest's queues that waits for a user event of the agent, which it sets when it has seen what it needs.
// So a command of the agent that fails never fails one of the guest, and the guest is held for no longer than
// needed. Everything that must see memory as it is at this point is enqueued at this point: the guest may
// destroy objects at any time after it.
//
// CUDA has no user events, and a command that fails there fails none that waits for it. So the barriers on
// the guest's queues wait for a marker behind the agent's commands instead (seal): all that must see memory
// as it is at this point has to be enqueued then.
//
// On the standby the same point is three kinds of entries: markers that the agent's queue waits for
// (log_before), the agent's commands, barriers that wait for the agent's queue (log_after). The agent's queue
// is in order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mirror/log/limits.hpp"
#include "mirror/sync/agent_pieces.hpp"
#include "mirror/sync/agent_requests.hpp"
#include "mirror/sync/digest.hpp"
#include "mirror/sync/sync_agent.hpp"

namespace kagemusha::mirror {

// How often the same bytes may fail to be read before the standby is given up.
inline constexpr std::uint32_t max_read_attempts = 3;
inline constexpr std::uint32_t max_units_per_request = 256;
// Rounds of a state transfer in a row that left nearly as much dirty as they sent: the next is the last one.
inline constexpr std::uint32_t max_futile_rounds = 2;
// Of one digest entry, whose memory gets larger chunks if it has more than max_hashes_per_entry of them.
inline constexpr std::uint32_t max_targets_per_entry = 256;
inline constexpr std::uint32_t max_entries_per_digest_part = 8;

enum class sync_phase { off, preparing, marking, reading, ready, finishing, on };
enum class digest_way { unprepared, preparing, kernel, host };

// What the agent has in a context of the guest.
struct agent_context {
    guest_id id = 0;
    std::uint64_t serial = 0;
    guest_id queue = 0;
    bool ready = false; // the queue is there, on both sides
    bool failed = false;
    digest_way way = digest_way::unprepared;
    guest_id program = 0, kernel = 0, hashes = 0;
    // For a last round with much dirty memory: it is copied in here while the guest's queues are held, and
    // read from here afterwards.
    guest_id shadow = 0;
    std::uint64_t shadow_bytes = 0;
    bool shadow_pending = false;
    bool wrote = false; // the log has commands on the agent's queue since the last log_after()
    std::vector<std::pair<vgpu_object_kind, guest_id>> made, logged; // on the primary; on the standby
};

// The guest's queues wait from a point of the order on until it is released.
struct hold {
    struct part {
        guest_id context, user_event;
        std::set<guest_id> queues;
    };
    std::vector<part> parts;
    bool marked = false; // everything before the point has run
    bool broken = false; // the guest's queues could not be held
    bool shaky = false;  // a marker failed, so what waited for it may have run too early or not at all
    std::uint32_t uses = 0;
    std::vector<std::function<void(hold&)>> then; // once marked
    step_ptr freed;                               // ends when the last barrier has let go
};
using hold_ptr = std::shared_ptr<hold>;

// Content as it is at one point of the order.
struct ordered_transfer {
    hold_ptr point;
    std::size_t left = 0;    // units
    std::size_t holding = 0; // of them: units for which the guest's queues must still be held
    bool final = false;      // of a state transfer
    bool repair = false;
    bool exact = false; // the guest will know of it, so it must arrive
    std::set<log_sequence> canceled;
    std::vector<std::pair<std::uint64_t, guest_id>> aliases; // context serial, sub-buffer: keeps memory alive
};
using transfer_ptr = std::shared_ptr<ordered_transfer>;

struct read_unit {
    piece what;
    std::uint32_t attempts = 0;
    log_sequence entry = 0; // that waits for its content; 0: gets an entry once it is read
    std::uint32_t payload = 0;
    guest_id alias = 0; // a sub-buffer of the agent that is all of the buffer
    bool in_shadow = false;
    std::uint64_t shadow_offset = 0;
};

// What one request reads.
struct read_batch {
    std::uint64_t context_serial = 0;
    std::vector<read_unit> units;
    std::uint64_t bytes = 0; // each unit rounded up to 8
    transfer_ptr order;      // null: of a round
    agent_memory::block block;
    bool chained = false; // was enqueued at its point of the order, else waits for it here
};
using batch_ptr = std::shared_ptr<read_batch>;

// What a digest covers of one memory object: `chunks` hashes from `first` on.
struct digest_target {
    piece whole;                   // kernel: the object; host: the piece that was read
    std::uint64_t chunk_bytes = 0; // 0: the piece is the chunk
    std::uint64_t first = 0, chunks = 0;
    bool written = false; // since it was compared last: not only repaired
};

struct digest_entry {
    std::uint64_t context_serial = 0;
    std::vector<digest_target> targets;
    std::uint64_t hashes = 0;
    std::uint64_t used_bytes = 0; // of block, by content
    bool told = false;            // the primary's hashes are in the log
    agent_memory::block block;
};

// Still to be compared.
struct compare_item {
    guest_id memory;
    std::uint64_t serial;
    std::size_t next_piece = 0; // where content is read and hashed on the host
    bool written = false;       // see digest_target
};

struct sync_agent::impl {
    impl(std::uint32_t file, session_shadow& state, core::mirror_port& device, log_sink& log,
         agent_memory& memory, const agent_options& options);
    ~impl() { forget_everything(); }

    const std::uint32_t file;
    session_shadow& state;
    core::mirror_port& device;
    log_sink& log;
    agent_memory& memory;
    const agent_options options;
    agent_requests requests;
    agent_counters counters;

    sync_phase phase = sync_phase::off;
    std::uint32_t rounds = 0, futile_rounds = 0; // the second: after which as much was dirty again
    std::uint64_t round_bytes = 0;               // that the running round reads
    std::vector<std::unique_ptr<agent_context>> contexts;
    std::vector<hold_ptr> holds; // not released
    std::deque<batch_ptr> reads; // wait for memory or for their point of the order
    std::uint32_t reads_in_flight = 0;
    std::uint32_t ticks = 0;
    std::uint64_t seen_queues = 0;
    bool out_of_memory = false; // agent_memory had none when it was asked last

    // Digests
    bool prepare_contexts = false; // those that are made from now on
    std::deque<compare_item> backlog;
    bool digest_running = false;
    std::map<log_sequence, digest_entry> digests;
    std::map<std::pair<std::uint64_t, std::uint64_t>, piece> repairs; // by serial and place in the object
    std::uint32_t repairs_in_flight = 0;
    struct difference {
        guest_id memory = 0;
        std::uint32_t in_a_row = 0;
    };
    std::map<std::uint64_t, difference> differed; // by serial
    std::map<std::uint64_t, guest_id> shipped;    // by serial
    std::uint32_t ships_in_flight = 0;

    // sync_agent.cpp
    void pump();
    void lost();
    void begin_without_sync();
    void forget_everything();
    void fail(const std::string& why);
    void ensure_contexts();
    void drop_dead_contexts();
    void destroy_objects(agent_context& c, bool in_log);
    agent_context* context(std::uint64_t serial);
    agent_context* live_context(std::uint64_t serial);
    bool lives(const agent_context& c) const;
    agent_context* context_of(const core::object& o) { return context(o.context); }
    bool all_contexts_ready() const;
    bool user_events_unset() const;
    const core::object* object(guest_id memory) const;
    bool same_object(const piece& p) const;
    void append_queue(codec::stream_builder& stream, const agent_context& c) const;
    // Behind what the agent has in its queue, on each of the guest's; `event`: of the new barriers.
    void append_order(codec::stream_builder& stream, const agent_context& c,
                      const std::vector<guest_id>& queues, const std::function<guest_id()>& event,
                      const std::function<void()>& flush);
    log_sequence append(const agent_entry& entry) { return log.append(entry.finish()); }
    void call(agent_context& c, codec::stream_builder& stream, vgpu_object_kind kind, guest_id id,
              const step_ptr& by);
    void log_call(agent_context& c, vgpu_object_kind kind, guest_id id,
                  const std::function<void(codec::stream_builder&)>& fill);

    // agent_hold.cpp
    hold_ptr begin_hold(const std::vector<agent_context*>& list, bool final);
    void seal(hold& h); // nothing more is enqueued at its point
    void end_use(const hold_ptr& h);
    void when_marked(const hold_ptr& h, std::function<void(hold&)> f);
    void release(hold& h);
    step_ptr mark_all(const std::vector<agent_context*>& list, std::function<void(agent_step&)> then);
    void log_before(agent_context& c);
    void log_after(agent_context& c);
    void order_new_queues();

    // agent_transfer.cpp
    void begin_round();
    void end_round();
    bool is_futile(std::uint64_t dirty) const; // as much is dirty again as the round sends
    void drop_futile_round();
    std::uint64_t dirty_bytes();
    bool dirty_out_of_reach(); // dirty memory that could not be sent now
    std::vector<piece> take_dirty();
    std::vector<batch_ptr> batches_of(const std::vector<piece>& pieces) const;
    void log_late(read_batch& batch);
    void issue(const batch_ptr& batch);
    void on_read(const batch_ptr& batch, std::int32_t error);
    void read_again(const batch_ptr& batch, std::int32_t error);
    byte_pieces bytes_of(const agent_memory::block& block, std::uint64_t at, std::uint64_t bytes) const;
    void give_late(log_sequence entry, std::uint32_t payload, const byte_pieces& bytes);
    void unit_ended(const transfer_ptr& order, const read_unit& unit);
    void end_holding(ordered_transfer& order, std::size_t units);
    void make_shadows();
    bool shadows_pending() const;
    void destroy_made(std::uint64_t context_serial, guest_id id);
    bool reserve_shadow(read_batch& batch, std::map<std::uint64_t, std::uint64_t>& used);
    void copy_to_shadow(const std::vector<batch_ptr>& batches); // all of one context
    void keep_alive(read_batch& batch, std::map<guest_id, guest_id>& aliases);
    void unit_failed(const batch_ptr& batch, const read_unit& unit, std::int32_t error);
    void pump_reads();
    bool start_ordered(const std::vector<piece>& pieces, transfer_ptr order);
    void transfer_ended(ordered_transfer& order);

    // agent_digest.cpp
    bool prepare_digests(); // of every context; true: they are prepared
    void prepare_digests(agent_context& c);
    void append_digest_program(codec::stream_builder& stream, const agent_context& c) const;
    void digests_prepared(std::uint64_t serial, const agent_memory::block& block, const agent_step& w);
    struct open_digest_entry {
        agent_context* context;
        bool host; // hashes are made there
        digest_entry entry;
    };
    using digest_part = std::vector<open_digest_entry>;
    bool next_digest_part();
    open_digest_entry* digest_entry_with_room(digest_part& part, agent_context& c, bool host,
                                              std::uint64_t hashes, std::uint64_t bytes);
    bool add_hashed_by_kernel(digest_part& part, compare_item& item, memory_info& m, agent_context& c);
    bool add_hashed_by_host(digest_part& part, compare_item& item, memory_info& m, agent_context& c);
    void start_digest_part(digest_part& part);
    void hashes_follow(agent_entry& logged, digest_entry entry, const step_ptr& read, const hold_ptr& point,
                       bool host);
    void start_kernel_entry(agent_context& c, digest_entry entry, const hold_ptr& point);
    void start_host_entry(agent_context& c, digest_entry entry, const hold_ptr& point);
    void digest_read(log_sequence entry, bool host);
    void cancel_digest(log_sequence entry, const hold& point);
    void pump_repairs();
    void compare_again(const piece& p);
    void ship();
    void ship_all();
    void add_shipped(bool computed, std::vector<piece>& pieces, std::vector<memory_info*>& objects);
};

} // namespace kagemusha::mirror
