// SPDX-License-Identifier: GPL-2.0-or-later
// port: how the device (in QEMU) hands validated requests of one open file to whoever executes them, and gets
// answers back.
//
// Two implementations: process_port (a worker process behind a ring in shared memory, the one that users run)
// and in_process_port (the same executor on a thread of this process, only for the null and faulty backends
// in tests and benchmarks). Everything that comes out of a port is untrusted: the device checks tokens and
// records before the guest sees them.
//
// Threads: one owner thread calls every method; sinks are called from drain() on that thread.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::worker {

// A request as it crosses to the executor: the stream has been decoded and validated once by the device; the
// executor decodes it again with the same decoder (the ring is memory that a hostile worker shares, so
// nothing is trusted in either direction).
struct request_view {
    std::uint64_t token;
    std::span<const std::byte> stream;
    std::span<const kagemusha_payload> payloads;
    std::span<const kagemusha_segment> segments;
};

enum class submit_result {
    accepted,
    full, // try again after the next drain(); the caller keeps the request
    dead, // the worker is gone; drain() tells why
};

class port_sink {
public:
    virtual void on_done(std::uint64_t token, const vgpu_response& response) = 0;
    // Everything that a command writes into this payload (its place in the request's table) is in memory, and
    // nothing of this request touches it any more; the request itself is answered later. Comes before any
    // record or answer that lets the guest know of it.
    virtual void on_written(std::uint64_t token, std::uint32_t payload) = 0;
    // A record without a file number (the device fills it in); `record` starts with struct vgpu_record and
    // its length has been checked against the record's own `bytes` field and VGPU_MAX_RECORD_BYTES, nothing
    // else has.
    virtual void on_record(std::span<const std::byte> record) = 0;
    // Last call of this port, which has begun to end: it may still touch guest memory until gone().
    virtual void on_lost(vgpu_lost_reason reason, std::uint32_t detail) = 0;

protected:
    ~port_sink() = default;
};

class port {
public:
    virtual ~port() = default; // kills; waits for nobody

    virtual submit_result submit(const request_view& request) = 0;
    // Wakes the executor for what was submitted since the last call; at most one system call.
    virtual void kick() = 0;
    // Readable when drain() has something to do (an epoll or event descriptor owned by the port).
    virtual int event_fd() const = 0;
    virtual void drain(port_sink& sink) = 0;
    // Begins the executor's end and returns at once. A process that is in a driver of the kernel ends when
    // that lets go of it: in microseconds, after seconds of giving memory back, or never. drain() afterwards
    // gives nothing.
    virtual void kill() = 0;
    // After kill() or on_lost(): whether nothing of the executor is left. Until then it may touch guest
    // memory. Does not wait; event_fd() becomes readable when it is worth asking again.
    virtual bool gone() = 0;
    // Grows with every sign of life while work is pending (a command begun, a completion): the device's hang
    // watchdog compares two values.
    virtual std::uint64_t progress() const = 0;
};

} // namespace kagemusha::worker
