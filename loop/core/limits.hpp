// SPDX-License-Identifier: GPL-2.0-or-later
// limits: every bound of the host loop, with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "loop/device/loop_layout.h"

namespace kagemusha::loop {

inline constexpr std::uint64_t ms = 1'000'000; // in nanoseconds

// Events that wait for a lane. Above the first number nothing is read from its clients; the rest is for
// answers to what the lane itself has asked for, and a program that asks for more is broken.
inline constexpr std::size_t busy_events = 64;
inline constexpr std::size_t max_events = 4096;

inline constexpr std::size_t max_clients = 256;
inline constexpr std::size_t max_files = 64;

// What waits for one client. Above the first number nothing is read from it, and LOOP_SENT does not come; a
// client with more does not read its answers, and its connection is closed.
inline constexpr std::size_t busy_send_bytes = 64 * 1024;
inline constexpr std::size_t max_send_bytes = 4 * 1024 * 1024;

// How long a launch may take. Alone: kernels are never cut, so this is what a switchover or a VM that comes
// waits for. Shared: a quarter of what the share arbiter lets a VM have in flight (share/core/limits.hpp).
inline constexpr std::uint64_t launch_alone_ns = 20 * ms;
inline constexpr std::uint64_t launch_shared_ns = 1 * ms;
inline constexpr std::uint32_t max_callbacks = 1u << 20;

// Others wait for the GPU when a launch waited for so much longer than it does at best: a turn of another VM
// takes at least a millisecond, and noise of a guest's processors seldom so long.
inline constexpr std::uint64_t others_wait_ns = 1 * ms;
// Launches that are kept short after that.
inline constexpr std::uint32_t shared_launches = 32;

inline constexpr std::uint64_t max_state_bytes = 1ull << 30;

static_assert(sizeof(loop_lane_in) == 8 && sizeof(loop_event) == 32);
static_assert(sizeof(loop_request) == 32 && sizeof(loop_lane_out) == 32);
static_assert(sizeof(loop_lane_state) == 16 + 8 * LOOP_MAX_STEPS);
static_assert(sizeof(loop_event) + LOOP_DATA_BYTES <= LOOP_INBOX_BYTES, "the largest event fits");
static_assert(sizeof(loop_lane_out) + (LOOP_MAX_REQUESTS + 1) * (sizeof(loop_request) + LOOP_DATA_BYTES) <=
                  LOOP_OUTBOX_BYTES,
              "one callback's requests fit");
static_assert(busy_send_bytes + LOOP_OUTBOX_BYTES * LOOP_MAX_LANES < max_send_bytes,
              "one launch's requests for one client that reads are no reason to close it");

} // namespace kagemusha::loop
