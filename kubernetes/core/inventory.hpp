// SPDX-License-Identifier: GPL-2.0-or-later
//
// The GPUs of this node and whether they can be allocated. A GPU that was seen once stays: the kubelet must hear
// that it is gone, because pods may have it. Where max_gpus are known, one that is gone makes room for a new one:
// each MIG instance that is made has a name of its own. Pure.
#pragma once

#include "kubernetes/core/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

// A driver that is busy may not answer once; twice in a row it is gone.
inline constexpr std::uint32_t failures_until_gone = 2;

struct known_gpu {
    found_gpu gpu;
    bool listed = false;  // its driver lists it
    bool arbiter = false; // its share arbiter answers

    bool healthy() const { return listed && arbiter; }
    // Why it can't be allocated, as a sentence; "": it can.
    std::string trouble() const;
};

class inventory {
public:
    // What the drivers list now; nothing: they did not answer. A single failure says nothing about a GPU.
    void looked(const std::optional<std::vector<found_gpu>>& listed);
    // Whether the share arbiter of this GPU answered.
    void asked(std::string_view id, bool answers);

    const std::vector<known_gpu>& gpus() const { return gpus_; }
    const known_gpu* find(std::string_view id) const;
    // Of those that are listed, how many can't be allocated because there is no room for them.
    std::size_t left_out() const { return left_out_; }
    // Grows with each change of what is advertised.
    std::uint64_t version() const { return version_; }

private:
    bool make_room();

    std::vector<known_gpu> gpus_; // at most max_gpus
    std::size_t left_out_ = 0;
    std::uint32_t failures_ = 0;
    std::uint64_t version_ = 1;
};

} // namespace kagemusha::kubernetes
