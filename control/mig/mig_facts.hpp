// SPDX-License-Identifier: GPL-2.0-or-later
//
// What NVIDIA's management library tells of this host's GPUs that can be cut into instances (MIG), as plain values.
// Memory in bytes; sizes and places of instances in the hardware's slices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

// A kind of instance that a GPU can have, as "1g.10gb".
struct mig_profile {
    std::uint32_t id = 0; // the library's
    std::string name;
    std::uint32_t compute_slices = 0;
    std::uint64_t memory_bytes = 0;
    std::uint32_t free = 0; // so many more fit now
};

struct mig_instance {
    std::string
        uuid; // "MIG-…": what a description's `gpu` names; "": it has no compute instance, nobody can use it
    std::uint32_t id = 0;
    std::string profile;
    std::uint64_t memory_bytes = 0;
    std::uint32_t start = 0, size = 0; // in slices of memory
    std::vector<std::uint32_t> processes;
};

enum class mig_mode { impossible, off, on };

struct mig_gpu {
    std::uint32_t index = 0;
    std::string uuid, name;
    std::string pci; // "0000:17:00.0"; "": not known
    std::uint64_t memory_bytes = 0, used_bytes = 0;
    mig_mode mode = mig_mode::impossible, pending = mig_mode::impossible;
    std::vector<std::uint32_t> processes; // of the whole GPU, and of its instances
    std::vector<mig_profile> profiles;
    std::vector<mig_instance> instances;
};

} // namespace kagemusha::control
