// SPDX-License-Identifier: GPL-2.0-or-later
// op_log: the entries that a standby has not acknowledged, by number, with their bytes. The device's thread
// appends; the replication thread sends and drops.
//
// Content of writes stays where the guest has it and is sent from there, without a copy. That lasts until the
// guest's request is answered: then release_content() makes the log independent of the guest's memory, by
// copying what was not sent yet. Small content is copied at once: that is cheaper than to remember where it
// is. Much content is copied by a thread of its own, which begins when it comes and at its end, while the
// link sends from its front: so they have met when a GPU has it too, also where the link is the slower one.
//
//   entry in guest memory:  unsent ──taken──▶ being sent ──done──▶ sent
//                              └─release: copied (true)  └─release: false, told when done   └─release: true
//                       much of it: copied by copy_ahead() (false, told when done)
//
// What was sent is never needed again (a link that ends means a new state transfer), so an entry that was
// sent keeps nothing but its size until it is dropped. Late content stays beyond its entry, until it was sent
// or nobody wants it any more.
//
// A packed stream, which nearly every request is, comes over a ring. Whoever takes the lock takes what is in
// there first, so that there is one order.
//
// Threads: one lock, held for a bounded time: no content is copied under it but that of one entry's frame,
// and what the ring has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mirror/log/log_sink.hpp"
#include "mirror/protocol/message.hpp"
#include "mirror/sync/sync_agent.hpp"
#include "pair/entry_ring.hpp"

namespace kagemusha::pair {

using mirror::log_sequence;

// What the device's thread did, in its order, for the replication thread.
struct log_event {
    enum class kind : std::uint8_t {
        entry,
        outcome,
        cancel,
        late_content, // one piece
        digests,
        built,
        synced,
        failed,
        stopped, // the device has obeyed a "stop": no entry before this one counts
    };
    kind what = kind::entry;
    std::int32_t result = 0;
    std::uint32_t payload = 0;
    log_sequence sequence = 0;
    std::uint64_t bytes = 0;
    mirror::entry_meta meta;
    std::vector<std::uint64_t> hashes;
    std::string text;
    std::shared_ptr<const std::vector<std::byte>> pack; // built, of meta.file
};

// A message and what follows it on the wire.
struct outgoing {
    mirror::message what;
    std::vector<std::span<const std::byte>> payload;
    std::shared_ptr<const void> keep;
};

class op_log final : public mirror::log_sink {
public:
    struct bounds {
        std::uint64_t bytes = 0;
        std::uint64_t entries = 0;
    };
    struct callbacks {
        // Device's thread: there are events, and who takes them does not look by himself.
        std::function<void()> wake;
        std::function<void(log_sequence)> content_released; // any other thread, after a false
        std::function<void()> room;                         // replication thread: no longer congested
        // Device's thread: copy_ahead() has something to do. Null: nobody calls that, release_content()
        // copies everything itself.
        std::function<void()> copy_wanted = {};
    };
    // `copies`: where copies go, as long as it has room; null: anywhere. Outlives the log's users.
    op_log(const bounds& b, callbacks c, mirror::agent_memory* copies = nullptr);
    ~op_log();
    op_log(const op_log&) = delete;
    op_log& operator=(const op_log&) = delete;

    // ---- device's thread
    log_sequence append(mirror::log_entry entry) override;
    log_sequence append_packed(const mirror::entry_meta& meta,
                               std::span<const std::uint64_t> packed) override;
    void tell() override;
    bool congested() const override;
    void outcome(log_sequence entry, std::int32_t result) override;
    void late_content(log_sequence entry, std::uint32_t payload, mirror::byte_pieces bytes) override;
    void cancel(log_sequence entry) override;
    void digests(log_sequence entry, std::vector<std::uint64_t> hashes) override;
    bool release_content(log_sequence entry) override;
    void built(std::uint32_t file, std::shared_ptr<const std::vector<std::byte>> pack) override;
    void synced(log_sequence last) override;
    void failed(const std::string& why) override;
    void stopped();

    // ---- replication thread
    // Whether whoever takes events comes again without being woken.
    enum class attention : std::uint8_t {
        spins, // at once
        polls, // soon; what somebody waits for wakes him
        blocks,
    };
    // Replaces the content of `out`.
    void take_events(std::vector<log_event>& out, attention next = attention::blocks);
    bool has_events() const { return ring_.has_records() || queued_.load(std::memory_order_relaxed); }
    // One message with entries from `first` on, at most up to `last`; `first` becomes the next one. Entries
    // that were dropped are left out. False: there was none.
    bool take_entries(log_sequence& first, log_sequence last, outgoing& out);
    // A piece of late content as it was told in an event. False: it was dropped.
    bool take_content(const mirror::content& piece, outgoing& out);
    // Entries up to this number, whether sent or not; UINT64_MAX: all, and all late content.
    void drop(log_sequence up_to);
    void drop_content(log_sequence entry); // late content that was not taken

    // ---- a thread that copies
    bool copy_ahead(); // one piece of content; false: there is none

    // ---- any thread
    std::uint64_t bytes() const { return bytes_.now(); }
    std::uint64_t entries() const { return count_.now(); }
    log_sequence appended() const { return appended_.load(std::memory_order_relaxed); }

private:
    struct late_piece;
    struct late_content_of;
    struct stored;
    struct batch;
    struct use {
        std::uint32_t readers = 0; // of this entry's guest memory: frames that the link has, running copies
        bool release_wanted = false;
    };

    // What there is of something: one thread says what comes, another what goes.
    class balance {
    public:
        void come(std::uint64_t n) {
            come_.store(come_.load(std::memory_order_relaxed) + n, std::memory_order_release);
        }
        // In one order with whoever looks at now() and then sleeps.
        void go(std::uint64_t n) { gone_.store(gone_.load(std::memory_order_relaxed) + n); }
        std::uint64_t now() const {
            const std::uint64_t gone = gone_.load(); // before what came: there is never less than nothing
            return come_.load(std::memory_order_acquire) - gone;
        }

    private:
        alignas(64) std::atomic<std::uint64_t> come_ = 0;
        alignas(64) std::atomic<std::uint64_t> gone_ = 0;
    };

    void absorb(); // what the ring has; locked
    void store(stored s);
    stored* find(log_sequence entry);
    void queue(log_event event, attention wakes_from = attention::blocks); // locks, wakes
    void wake(attention from);
    void split(log_sequence entry, late_content_of& l, std::uint32_t payload, mirror::byte_pieces bytes,
               bool in_guest);
    bool copy_piece(log_sequence entry);
    mirror::byte_pieces copy_of(const mirror::byte_pieces& p) const;
    bool in_guest(log_sequence entry) const;                   // some of its late content, not taken
    void read(const std::vector<log_sequence>& guest_entries); // the readers have ended
    void report_released(const std::vector<log_sequence>& entries);
    void report_room();

    const bounds bounds_;
    const callbacks callbacks_;
    mirror::agent_memory* const copies_;

    mutable std::mutex mutex_;   // everything up to the atomics
    std::deque<stored> entries_; // front is number first_
    log_sequence first_ = 1;
    std::unordered_map<log_sequence, late_content_of> late_; // until all of it was taken
    std::unordered_map<log_sequence, use> used_;             // entries whose guest memory is read or awaited
    std::deque<log_sequence> to_copy_;                       // entries with late content in guest memory
    std::vector<log_event> events_;

    entry_ring ring_;                  // read under the lock
    std::atomic<bool> queued_ = false; // something is in events_ that did not come over the ring
    std::atomic<attention> attention_ = attention::blocks;

    balance bytes_, count_;
    alignas(64) std::atomic<log_sequence> appended_ = 0; // by the device's thread
    mutable std::atomic<bool> reported_congested_ = false;
};

} // namespace kagemusha::pair
