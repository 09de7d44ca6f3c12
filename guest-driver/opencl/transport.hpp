// SPDX-License-Identifier: GPL-2.0-or-later
//
// How the driver's command streams reach a device: one open file of it. Abstract because there are three
// implementations: the kernel driver's character device (transport_kernel.cpp), a replicator linked into the
// same process (tests without a VM) and the recording double of the unit tests.
#pragma once

#include "send_pace.hpp"

#include "proto/abi/vgpu_protocol.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kagemusha::opencl {

// One entry of a request's payload table: memory of this process that the device reads or writes in place.
// It must stay valid until the request is answered.
struct payload {
    void* address = nullptr;
    std::uint64_t bytes = 0; // not 0
    bool device_writes = false;
    bool fills_view = false; // what a map reads into the memory that shows its own buffer
};

// Where to send what the program stored into mapped buffers, before a request.
struct flush_target {
    std::uint64_t queue = 0; // 0: nowhere
    std::uint64_t context = 0;
    bool out_of_order = false; // the queue; then the request's commands wait for the flush
};

// Memory that shows a buffer.
struct window_request {
    std::uint64_t context = 0;
    std::uint64_t memory = 0;
    std::uint64_t bytes = 0; // of the buffer, all of it
};

struct window_view {
    std::byte* address = nullptr; // null: there is none
    bool traced = false;          // what is stored there is sent by itself
};

struct submission {
    std::span<const std::byte> stream;
    std::span<const payload> payloads;
    std::uint32_t completion_count = 0; // commands of the stream that name an event
    bool waitable = false;              // the answer is wanted by wait()
    flush_target flush{};
};

// What one request and one open file may hold; asked once.
struct transport_limits {
    std::uint32_t max_stream_bytes = VGPU_MAX_STREAM_BYTES;
    std::uint64_t max_payload_bytes = std::uint64_t{VGPU_MAX_SEGMENTS} * 4096;
    std::uint32_t max_events = 4096;
    std::uint32_t max_requests = 256;
    batch_age age; // with which a batch that is not full is sent
};

class transport {
public:
    transport() = default;
    transport(const transport&) = delete;
    transport& operator=(const transport&) = delete;

    // Closes the file. No other call may be running.
    virtual ~transport() = default;

    virtual transport_limits limits() const = 0;

    // Queues one request without waiting for its answer. 0 or a negative errno: -EAGAIN when there is no
    // room now (nothing was queued, try again), -ENODEV when the file is lost. Callable from several threads
    // at once; requests are executed in the order of the sequence numbers they got.
    virtual int submit(const submission& request, std::uint64_t& sequence) = 0;

    // Waits for the answer of a waitable request and takes it. 0 or a negative errno.
    virtual int wait(std::uint64_t sequence, vgpu_response& answer) = 0;

    // Waits for records, `timeout_ms` at most unless that is negative, and stores whole ones. Their bytes, 0
    // when no more will come (after shut_down(), or when the file is lost), or a negative errno; -EAGAIN: none
    // came in time. Called by one thread at a time.
    virtual std::ptrdiff_t read_records(std::span<std::byte> buffer, int timeout_ms) = 0;

    // Memory in the VRAM window for a buffer, and giving it back: nothing is sent to the buffer any more
    // when unmap_window() returns. A transport without a window has none to give.
    virtual window_view map_window(const window_request&) { return {}; }
    virtual void unmap_window(std::byte*) noexcept {}

    // Sends what was stored into traced memory of a context to a queue, without a request. Its bytes in
    // `flushed_bytes`. 0 or a negative errno; -EAGAIN as for submit().
    virtual int flush_window(const flush_target&, std::uint64_t& flushed_bytes) {
        flushed_bytes = 0;
        return 0;
    }

    // The program will fill these bytes of traced memory, which were not read from the buffer: all of them
    // are sent, also those that look unchanged.
    virtual void discard_window(const std::byte*, std::uint64_t) noexcept {}

    // The device is about to write into this memory something else than what the buffer shown there holds.
    // Nobody traces that, so the mapping has to be written back when it ends: wrote_window() is true from
    // now on.
    virtual void note_device_write(const void*, std::uint64_t) noexcept {}
    virtual bool wrote_window(const std::byte*) const noexcept { return false; }

    // Makes read_records() return 0 from now on.
    virtual void shut_down() = 0;

    // In the child of a fork: the file belongs to the parent. Gives back the descriptors and touches nothing
    // shared; must be async-signal-safe.
    virtual void abandon_after_fork() noexcept = 0;
};

// The devices that this process may use, in a fixed order; a name stays that of its device. The translation
// unit that defines these two decides which transport the driver has: make_transport.cpp for the real one.
std::vector<std::string> device_names();

// Opens one of them. Null with a sentence in `error` if that is not possible.
std::unique_ptr<transport> make_transport(const std::string& name, std::string& error);

} // namespace kagemusha::opencl
