// SPDX-License-Identifier: GPL-2.0-or-later
//
// A GPU of this node as Kubernetes knows it: how it is named, what a container needs to use a part of it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

// The resource that pods ask for, and the kind of our CDI devices. One unit is one percent of one GPU.
inline constexpr char resource_name[] = "kagemusha.io/gpu";
inline constexpr std::uint32_t units_of_gpu = 100;
// GPUs of a node, instances counted as such: more are not advertised. Their units are one message of ListAndWatch, below gRPC's 4 MiB.
inline constexpr std::size_t max_gpus = 64;

// "kagemusha.io/mig-1g.10gb": one unit is one whole instance. Of profiles like "1g.10gb+me" the '+' becomes a '.'.
std::string mig_resource(std::string_view profile);

struct found_gpu {
    std::string id;                 // "gpu-HASH": its arbiter's socket, too
    std::string name;               // of its driver
    std::string selector;           // means this GPU in every process
    std::uint64_t memory_bytes = 0; // 0: not known
    std::vector<std::string> nodes; // its files in /dev
    int numa = -1;                  // -1: none
    // Of a MIG instance, which is a GPU of its own for everybody but its driver: "1g.10gb", and the selector of the GPU
    // that it is a part of. "": a whole GPU.
    std::string profile = {}, parent = {};

    bool operator==(const found_gpu&) const = default;
};

// What every container with a part of a GPU gets besides the GPU's nodes.
struct node_paths {
    std::string share_directory = "/run/kagemusha/share"; // with the arbiters' sockets, on the node
    std::vector<std::string> nodes;                       // /dev/kvm, if the node has it
};
// Where that directory is in a container.
inline constexpr char share_directory_inside[] = "/run/kagemusha/share";

} // namespace kagemusha::kubernetes
