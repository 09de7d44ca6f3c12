// SPDX-License-Identifier: GPL-2.0-or-later
// vm_state: what the device's part of a checkpoint of the VM says about the GPU: which epoch of the log the
// VM is at, and what its guest waits for there (docs/spec/replication.md, "Epochs of a VM").
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/file_checkpoint.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"

namespace kagemusha::mirror {

struct vm_state {
    std::uint64_t instance = 0; // of the primary whose log it is
    std::uint64_t epoch = 0;    // 0: nobody can go on from this state
    std::vector<core::file_checkpoint> files;
    friend bool operator==(const vm_state&, const vm_state&) = default;
};

// The guest's requests without an answer, of all files, in the order in which they were made.
inline std::vector<open_request> open_requests(const vm_state& state) {
    std::vector<open_request> out;
    for (const core::file_checkpoint& f : state.files)
        for (const auto& r : f.requests)
            out.push_back({r.token, f.file, r.entries.after, r.entries.last});
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
    return out;
}

} // namespace kagemusha::mirror
