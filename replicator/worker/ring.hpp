// SPDX-License-Identifier: GPL-2.0-or-later
// ring: a queue of records in memory that two processes share; one writes, the other reads, neither trusts
// the other.
//
// The mental model: each side owns one index, keeps the truth of it in private memory and only publishes
// copies. It loads the other side's index once per operation, with acquire, and checks it against its own
// before it uses it. Records are copied out before anything but their frame is looked at, and the frame is
// loaded once. So the other side can make its own records nonsense or stop the traffic, and nothing else.
//
// Sleeping: a reader that found nothing says so in shared memory, looks once more, and waits at its doorbell
// (doorbell.hpp). The writer, after it published, asks whether the reader sleeps: busy traffic needs no
// system calls.
//
// Threads: one thread writes, one thread reads; several writers hold a lock of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/wire.hpp"

namespace kagemusha::worker {

// The shared part of a ring. Fields that different sides write lie on different cache lines.
struct ring_control {
    alignas(64) std::atomic<std::uint64_t> written; // bytes, ever; by the writer
    alignas(64) std::atomic<std::uint64_t> read;    // bytes, ever; by the reader
    std::atomic<std::uint32_t> reader_sleeps;       // set by the reader, cleared by whoever wakes it
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(ring_control) == 128);

// `data` has a power of two of bytes and is 8-byte aligned.
struct ring_memory {
    ring_control* control;
    std::span<std::byte> data;
};

enum class ring_status {
    ok,
    nothing, // writer: no room; reader: no record
    broken,  // the other side broke the rules; nothing sensible comes any more
};

class ring_writer {
public:
    explicit ring_writer(ring_memory memory) : memory_(memory) {}

    // Writes one record or nothing. A record longer than the ring is a programmer's error.
    ring_status write(record_type type, parts record);
    // After one or several writes: true if the reader sleeps and has to be woken (by the caller, once).
    bool reader_needs_wake();
    // Bytes that the reader has not taken yet; the whole ring if it lies.
    std::size_t backlog() const;

private:
    void copy_in(std::uint64_t position, std::span<const std::byte> bytes);

    ring_memory memory_;
    std::uint64_t written_ = 0;
};

class ring_reader {
public:
    // `max_record_bytes`: a longer record is a broken ring.
    ring_reader(ring_memory memory, std::size_t max_record_bytes);

    // Copies the next record out; it is valid until the next read().
    ring_status read(record_type& type, std::span<const std::byte>& record);
    // There is something to read, or the ring is broken.
    bool has_news() const { return memory_.control->written.load(std::memory_order_acquire) != read_; }
    // Announces that the reader is about to wait. False: there is something to read after all, don't wait.
    bool prepare_sleep();
    void cancel_sleep();

private:
    ring_memory memory_;
    std::size_t max_record_bytes_;
    std::uint64_t read_ = 0;
    std::vector<std::uint64_t> copy_; // words, for the alignment
};

// ---- one shared memory file with both rings, as device and worker map it

struct channel_memory {
    ring_control submission;
    ring_control completion;
    alignas(64) std::atomic<std::uint64_t> progress; // by the worker; only compared with itself
    alignas(4096) std::byte submission_data[submission_ring_bytes];
    std::byte completion_data[completion_ring_bytes];

    ring_memory submission_ring() { return {&submission, submission_data}; }
    ring_memory completion_ring() { return {&completion, completion_data}; }
};

} // namespace kagemusha::worker
