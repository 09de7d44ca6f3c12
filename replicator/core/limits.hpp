// SPDX-License-Identifier: GPL-2.0-or-later
// limits: every bound of the device on QEMU's side, with its reason. The bounds of the wire format are in
// proto/abi/vgpu_protocol.h, those of the path to the worker in worker/limits.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::core {

// ---- configurable: defaults and what a configuration can't exceed ----

// A file with work is a worker process, so files are the most expensive thing that a guest can have.
inline constexpr std::uint32_t default_max_files = 64;
inline constexpr std::uint32_t hard_max_files = 4096;

// More than the elements of QEMU's default virtqueue (256), so that one busy file is not held up by this
// before the ring is.
inline constexpr std::uint32_t default_max_requests_per_file = 512;
inline constexpr std::uint32_t hard_max_requests_per_file = 4096;

// Programs enqueue thousands of commands with events before they wait. Each costs an object and the room for
// its completion record.
inline constexpr std::uint32_t default_max_events_per_file = 16384;
inline constexpr std::uint32_t hard_max_events_per_file = 1u << 20;

// 100,000 live objects must work; an object costs this process about 150 bytes.
inline constexpr std::uint32_t default_max_objects_per_file = 1u << 18;
inline constexpr std::uint32_t hard_max_objects_per_file = 1u << 22;

// Memory objects. Deliberately not the GPU's size: on a GPU that is the host's RAM (PoCL) it protects the
// host. Whoever gives a VM a larger GPU raises it.
inline constexpr std::uint64_t default_max_memory_bytes = std::uint64_t{64} << 30;
inline constexpr std::uint64_t default_max_file_memory_bytes = std::uint64_t{32} << 30;

// Host memory of one worker: its memory objects, where the GPU is the CPU, and the runtime with its compiler.
inline constexpr std::uint64_t default_max_worker_bytes =
    default_max_file_memory_bytes + (std::uint64_t{8} << 30);

// Progress is "a command began or ended". The longest steps without progress are honest: building a large
// program, or generating code at its first launch, takes minutes on a CPU device of a loaded host.
inline constexpr std::uint32_t default_hang_timeout_ms = 300'000;

// Starts of workers that the guest causes: so many at once, then so many per second. A start costs up to 280
// ms of processor time (NVIDIA's runtime), 50 ms with PoCL: at 10 per second at most 2.8 processors, on a
// guest that does nothing else. Every file that a VM may have by default starts at once.
inline constexpr std::uint32_t default_worker_start_burst = default_max_files;
inline constexpr std::uint32_t hard_worker_start_burst = hard_max_files;
inline constexpr std::uint32_t default_worker_starts_per_second = 10;
inline constexpr std::uint32_t hard_worker_starts_per_second = 1000;

// For a worker that says that it makes progress and ends nothing of the guest's. A day: who enqueues more
// than that without an event on the way raises it.
inline constexpr std::uint32_t default_end_timeout_ms = 24 * 3600 * 1000;
static_assert(default_hang_timeout_ms < default_end_timeout_ms);

static_assert(default_max_files <= hard_max_files);
static_assert(default_max_requests_per_file <= hard_max_requests_per_file);
static_assert(default_max_events_per_file <= hard_max_events_per_file);
static_assert(default_max_objects_per_file <= hard_max_objects_per_file);
static_assert(default_max_events_per_file < default_max_objects_per_file, "events are objects");
static_assert(default_max_file_memory_bytes <= default_max_memory_bytes);

// ---- fixed ----

// All files together, so that many files can't do what one may not: about 300 MB of this process.
inline constexpr std::uint64_t max_objects_of_device = std::uint64_t{1} << 21;
static_assert(default_max_objects_per_file <= max_objects_of_device);

// Commands that a quota refused: their events still become objects (so that the guest can wait for and
// destroy what it named) and their failures still become records. Both may exceed the quota by this much;
// then whole requests are answered LIMIT.
inline constexpr std::uint32_t max_refused_per_file = 4096;

// Of one request: which of its commands were refused is part of a checkpoint while the request is open. A
// guest that gets LIMIT sends the commands one by one.
inline constexpr std::uint32_t max_refused_per_request = 256;

// Ranges of guest memory that requests in flight write into: what the device has to remember until they are
// done, 24 bytes each. Twice the worst single request would do; 8 let several programs read large scattered
// buffers at once.
inline constexpr std::uint64_t max_written_ranges_of_device = std::uint64_t{8} * VGPU_MAX_SEGMENTS;

// What kernels printed and the guest has not fetched. Beyond it text is dropped and counted.
inline constexpr std::size_t max_text_queue_bytes = std::size_t{1} << 20;
static_assert(max_text_queue_bytes >= 16 * VGPU_MAX_RECORD_BYTES);

// Errors of commands without an event that the guest has not fetched; one per queue at a time, so only a
// guest with many queues, or a worker that lies, comes near.
inline constexpr std::uint32_t max_queue_errors_per_file = 4096;

// Requests that a full port could not take yet. The guest is not told to wait, so the host holds them. A file
// may have as much as is left for others (device::may_wait()), so one alone gets half: all that our driver
// sends at a time (896 streams of VGPU_MAX_STREAM_BYTES), however it is spread over files.
inline constexpr std::size_t max_waiting_bytes_of_device = std::size_t{512} << 20;
static_assert(896ull * VGPU_MAX_STREAM_BYTES <= max_waiting_bytes_of_device / 2);

// Lines of the log that a guest can cause: a burst, then one per interval.
inline constexpr std::uint32_t log_burst_lines = 20;
inline constexpr std::uint64_t log_interval_ms = 1000;

// How often a device with work looks for workers without progress.
inline constexpr std::uint32_t min_watchdog_period_ms = 10;
inline constexpr std::uint32_t max_watchdog_period_ms = 1000;

// A worker that was killed and is not gone after so long is worth a line: giving much memory back takes a
// second.
inline constexpr std::uint64_t slow_end_ms = 5000;

} // namespace kagemusha::core
