// SPDX-License-Identifier: GPL-2.0-or-later
// The few functions of NVIDIA's driver that bench/peers calls, loaded at run time: a machine without that
// driver builds and starts the bench all the same. Signatures, structures and states are those of the "CUDA
// Driver API" reference, sections "CUDA Checkpointing", "Context Management", "Memory Management" and "Error
// Handling" (https://docs.nvidia.com/cuda/cuda-driver-api/, 13.x); the checkpoint functions are in drivers
// from 570 on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kagemusha::bench::cuda {

using result = int; // CUresult; 0: success
using device = int;
using context = struct context_object*;
using memory = unsigned long long; // CUdeviceptr

enum process_states : int { running = 0, locked = 1, checkpointed = 2, failed = 3 };

// All three are 64 bytes; what is reserved must be zero.
struct lock_arguments {
    unsigned int timeout_ms; // 0: none
    unsigned int reserved0;
    std::uint64_t reserved1[7];
};
struct unlock_arguments {
    std::uint64_t reserved[8];
};
struct checkpoint_arguments {
    std::uint64_t reserved[8];
};
struct uuid {
    unsigned char bytes[16];
};
struct gpu_pair {
    uuid from, to;
};
struct restore_arguments {
    gpu_pair* gpu_pairs; // null: onto the GPU where it was
    unsigned int gpu_pairs_count;
    char reserved[64 - sizeof(void*) - sizeof(unsigned int)];
};
static_assert(sizeof(lock_arguments) == 64 && sizeof(unlock_arguments) == 64 &&
              sizeof(checkpoint_arguments) == 64 && sizeof(restore_arguments) == 64);

struct driver {
    // Why it can't be used, or "".
    std::string load();
    // "" for a success; else what was called and what the driver says of it.
    std::string wrong(const char* what, result r) const;

    result (*init)(unsigned int flags) = nullptr;
    result (*version)(int* out) = nullptr;
    result (*device_get)(device* out, int ordinal) = nullptr;
    result (*device_name)(char* out, int bytes, device) = nullptr;
    result (*device_uuid)(uuid* out, device) = nullptr;
    result (*context_retain)(context* out, device) = nullptr;
    result (*context_set)(context) = nullptr;
    result (*allocate)(memory* out, std::size_t bytes) = nullptr;
    result (*to_device)(memory, const void*, std::size_t bytes) = nullptr;
    result (*to_host)(void*, memory, std::size_t bytes) = nullptr;
    result (*error_name)(result, const char** out) = nullptr;
    result (*error_text)(result, const char** out) = nullptr;
    // Of a process that has used the driver; called by another one.
    result (*process_state)(int pid, int* out) = nullptr;
    result (*process_lock)(int pid, lock_arguments*) = nullptr;
    result (*process_checkpoint)(int pid, checkpoint_arguments*) = nullptr;
    result (*process_restore)(int pid, restore_arguments*) = nullptr;
    result (*process_unlock)(int pid, unlock_arguments*) = nullptr;
};

} // namespace kagemusha::bench::cuda
