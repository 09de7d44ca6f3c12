// SPDX-License-Identifier: GPL-2.0-or-later
// What leaves the VM.
//
//   one speaker     once a later life of the VM has said something, no earlier one does
//   output commit   what was told is part of the history of whoever speaks after it. Only a VM that was
//                   started from its disk begins another history, and newest_disk.hpp says when it may
//   exactly once    each request was done once: in memory (by the CPU and by the GPU), on the disk, on the
//   GPU
#pragma once

#include <cstdint>
#include <vector>

#include "world/guest.hpp"

namespace kagemusha::world {

class world;

class output_checker {
public:
    explicit output_checker(world& w) : w_(w) { nodes_.reserve(1024); }

    // The history: a tree of steps; a VM that boots is a root.
    std::uint32_t new_root();
    std::uint32_t new_node(std::uint32_t parent);
    std::uint32_t new_run() { return ++runs_; } // a life of the VM in one QEMU

    void spoke(std::uint8_t host, std::uint32_t run, const packet& p);

    std::uint32_t reported_request() const { return reported_request_; }
    bool has_all_that_was_told(std::uint32_t node) const {
        return reported_ == 0 || is_before(reported_, node);
    }

private:
    struct node {
        std::uint32_t parent, depth, root;
    };
    bool is_before(std::uint32_t earlier, std::uint32_t later) const; // or the same
    void check_reply(const packet& p);

    world& w_;
    std::vector<node> nodes_{{0, 0, 0}};
    std::uint32_t runs_ = 0, speaker_ = 0;
    std::uint32_t reported_ = 0, reported_request_ = 0;
};

} // namespace kagemusha::world
