// SPDX-License-Identifier: GPL-2.0-or-later
// limits: every bound of the path between device and worker, with its reason.
#pragma once

#include <kagemusha/device.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::worker {

// Device to worker. The largest request (a stream, a full payload table and a full segment table: 3.4 MiB)
// must fit into an empty ring, because requests are not split. Pages of the ring cost memory only once they
// were used.
inline constexpr std::size_t submission_ring_bytes = std::size_t{4} << 20;

// Worker to device. Answers and completions are below 100 bytes, text at most VGPU_MAX_RECORD_BYTES: more
// than ten thousand completions fit before the worker has to wait for the device.
inline constexpr std::size_t completion_ring_bytes = std::size_t{1} << 20;

// What precedes every record of a ring: its length and its type.
inline constexpr std::size_t ring_frame_bytes = 8;

inline constexpr std::size_t request_header_bytes = 24;
inline constexpr std::size_t max_request_bytes = request_header_bytes + VGPU_MAX_STREAM_BYTES +
                                                 VGPU_MAX_PAYLOADS * sizeof(kagemusha_payload) +
                                                 VGPU_MAX_SEGMENTS * sizeof(kagemusha_segment);

// The longest record that a worker may send: a record for the guest is the largest.
inline constexpr std::size_t max_answer_bytes = VGPU_MAX_RECORD_BYTES;

static_assert(std::has_single_bit(submission_ring_bytes) && std::has_single_bit(completion_ring_bytes));
static_assert(max_request_bytes + ring_frame_bytes <= submission_ring_bytes);
static_assert(16 * (max_answer_bytes + ring_frame_bytes) <= completion_ring_bytes);

// One drain() handles at most so many records, so that a worker that floods its ring can't keep the device's
// thread for itself; the rest is handled by the next one.
inline constexpr unsigned max_records_per_drain = 4096;

// in_process_port: what may wait between two threads of one process, in bytes of encoded records.
inline constexpr std::size_t in_process_queue_bytes = std::size_t{8} << 20;
static_assert(max_request_bytes + ring_frame_bytes <= in_process_queue_bytes);

// Regions of guest memory: RAM below and above 4 GiB, the window, and hot-plugged memory. The descriptors
// travel in one message, whose bound in Linux is 253.
inline constexpr std::size_t max_regions = 64;

// What a worker says about itself (name of the GPU, a sentence why it can't start).
inline constexpr std::size_t max_sentence_bytes = 1024;
static_assert(max_sentence_bytes <= max_answer_bytes);

// printf of kernels may fill the completion ring only to this part, so that completions always have room.
inline constexpr std::size_t text_ring_bytes = completion_ring_bytes / 2;

// A worker's private directory: caches of compiled kernels, temporary files of compilers.
inline constexpr std::size_t private_directory_bytes = std::size_t{256} << 20;

// Threads of one worker, with its broker and linker: runtimes start one or two for each CPU.
inline constexpr std::size_t max_threads = 2048;

// Lines that a worker writes to its standard error become log lines: at most so many at once, refilled at so
// many per second; the rest is counted.
inline constexpr unsigned log_burst_lines = 20;
inline constexpr unsigned log_lines_per_second = 5;
inline constexpr std::size_t max_log_line_bytes = 300;

} // namespace kagemusha::worker
