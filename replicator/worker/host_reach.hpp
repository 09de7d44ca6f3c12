// SPDX-License-Identifier: GPL-2.0-or-later
// host_reach: whether kernels on this host's GPUs can use any memory of the process that started them.
//
// A worker has all of the guest's RAM mapped, and the rings. With NVIDIA's HMM (the driver mirrors the page
// tables) or ATS (the GPU walks them) a kernel that makes a pointer out of a number reads and writes it all:
// one program of the guest the others, and the guest's kernel, with no mistake of a driver. So such a GPU is
// refused. CPU devices, where it is the same by nature, are a matter of README.md's threat model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::worker {

// What the driver says of one GPU. Fixed size: it crosses a pipe.
struct gpu_reach {
    std::uint8_t pageable;         // CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: all of the process's memory
    std::uint8_t host_page_tables; // …_USES_HOST_PAGE_TABLES: by ATS
    char name[126];                // ends with a 0
};

struct reach_facts {
    bool nvidia = false;                        // there is an NVIDIA GPU
    std::optional<std::vector<gpu_reach>> gpus; // nothing: the driver did not answer
    std::string not_answered;                   // why
    std::optional<bool> hmm_disabled;           // nvidia_uvm's parameter uvm_disable_hmm; nothing: unknown
};

enum class reach { own_memory, all_memory, unknown };

struct reach_decision {
    reach what = reach::own_memory;
    std::string sentence; // for all_memory why the start is refused, for unknown what to look at
};

// Pure.
reach_decision decide_reach(const reach_facts& facts);

// Asks the host: files below `root` ("" outside of tests), and libcuda in a process of its own, which ends
// with this call. For a process with one thread, outside of its sandbox.
reach_facts ask_host(const std::string& root);

} // namespace kagemusha::worker
