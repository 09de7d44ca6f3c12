// SPDX-License-Identifier: GPL-2.0-or-later
// limits: every bound of sharing one GPU, with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kagemusha::share {

inline constexpr std::uint64_t us = 1000, ms = 1000 * us, second = 1000 * ms; // in nanoseconds

// VMs of one GPU: NVIDIA's vGPU has at most 32 on one, and a turn for each must come within a second.
inline constexpr std::uint32_t max_vms = 32;

// Processes of guests, each with a worker and a connection: the files that max_vms devices have by default
// (core/limits.hpp), and some that ask for the status.
inline constexpr std::uint32_t max_sessions_of_vm = 128;
inline constexpr std::uint32_t max_connections = 2112;

inline constexpr std::uint32_t whole_permille = 1000;
// What a VM has at least, whatever the others asked for: with less, one turn of a millisecond would come
// once in 100 ms and a VM's user would take it for dead.
inline constexpr std::uint32_t least_permille = 10;

// A turn. A switch takes 0.2 to 0.3 ms of a GPU of NVIDIA's, its own change from one process to the next: with turns
// of 9 ms, which eight VMs have, that is 3 % of it. More VMs have shorter ones, so that each has 13 of them within a
// second; 3 ms is the least, with 8 % for switches. A VM that is further behind comes before a turn's end.
inline constexpr std::uint64_t turns_of_second = 14;
inline constexpr std::uint64_t least_slice_ns = 3 * ms;
inline constexpr std::uint64_t max_slice_ns = 9 * ms;

// A limited VM begins with so much of its time at least: less would be spent on the switch.
inline constexpr std::uint64_t min_slice_ns = 1 * ms;

// A VM that is behind its share and has a gap between two tasks keeps the GPU, standing still, for so long:
// its program waits for the one to begin the other, and would else lose its turn with each gap. Only one whose
// gaps have been at most this and a quarter of the work between them, so what stands still is a fifth of
// that VM's own time.
inline constexpr std::uint64_t max_gap_ns = 200 * us;
inline constexpr std::uint64_t work_of_gap = 4;
// Of a VM that has shown none yet: several short ones must be seen before one is waited for.
inline constexpr std::uint64_t unknown_gap_ns = 4 * max_gap_ns;

// Who was given the GPU keeps it for so long before one that is further behind may have it: or two VMs of
// one kernel at a time would do nothing but switch.
inline constexpr std::uint64_t min_turn_ns = 500 * us;

// What a turn costs at least: a switch does, and a VM that gives the GPU back at once, whatever it has in
// flight, must not come again for nothing.
inline constexpr std::uint64_t least_charge_ns = 100 * us;

// What a VM may be behind when it wakes up: it gets its turn at once, and not all the time that it slept.
inline constexpr std::uint64_t sleeper_credit_ns = 4 * ms;

// A limited VM (cap, fixed) saves up so much of its time; one with a fixed share that waits for its turn so
// much: what others' longest kernels kept from it.
inline constexpr std::uint64_t saved_idle_ns = 20 * ms;
inline constexpr std::uint64_t saved_waiting_ns = 1 * second;

// Kernels are never cut. Who does not give the GPU back within this has it beside the others from then on:
// the driver of the GPU shares it between them, and it is charged for all of that time.
inline constexpr std::uint64_t patience_ns = 1 * second;

// What one VM may owe: kernels of minutes would else keep it waiting for hours after the others left.
inline constexpr std::uint64_t max_debt_ns = 10 * second;

// Priorities are 0 (lowest) to 7. A VM that waits rises by one for each of these.
inline constexpr std::uint32_t max_priority = 7;
inline constexpr std::uint64_t ageing_ns = 100 * ms;

// Work that a VM may have in the GPU's queues while others share it: what the others wait for at a switch. The
// most where its worker's threads wait for processors, the least where they run at once: as much as the worker
// takes window_reactions times to hand a task over.
inline constexpr std::uint64_t window_target_ns = 4 * ms;
inline constexpr std::uint64_t min_window_target_ns = 1 * ms;
inline constexpr std::uint64_t window_reactions = 8;
// Where one task is all of that, the next one follows so long before the end that is expected: as long as a
// wake-up and handing over take.
inline constexpr std::uint64_t window_lead_ns = 80 * us;
inline constexpr std::uint32_t max_window_tasks = 256;

// With a user event that the guest has not set, commands in flight may wait for the guest. Without an end
// among them for so long the GPU is given back.
inline constexpr std::uint64_t stall_ns = 5 * ms;

static_assert(least_slice_ns <= max_slice_ns && min_turn_ns <= least_slice_ns);
static_assert(least_permille * max_vms <= whole_permille);
static_assert(max_vms * least_slice_ns < second);

} // namespace kagemusha::share
