// SPDX-License-Identifier: GPL-2.0-or-later
// What the parts about graphs share: streams, memory and a kernel.
#pragma once

#include "check.hpp"
#include "check_source.hpp"

#include <atomic>
#include <cstdint>
#include <vector>

namespace check {

inline constexpr std::uint32_t count = 3000;

inline std::vector<std::uint32_t> read(CUdeviceptr from) {
    std::vector<std::uint32_t> made(count);
    NEED(cuMemcpyDtoH_v2(made.data(), from, count * 4));
    return made;
}

struct gate {
    std::atomic<bool> open{false}, passed{false};
};

inline void wait_at(void* data) {
    auto& at = *static_cast<gate*>(data);
    at.open.wait(false);
    at.passed = true;
}

inline std::vector<CUgraphNode> nodes_of(CUgraph graph) {
    std::size_t number = 0;
    NEED(cuGraphGetNodes(graph, nullptr, &number));
    std::vector<CUgraphNode> nodes(number);
    if (number > 0)
        NEED(cuGraphGetNodes(graph, nodes.data(), &number));
    return nodes;
}

inline CUgraphNode node_of(CUgraph graph, CUgraphNodeType wanted) {
    for (CUgraphNode node : nodes_of(graph)) {
        CUgraphNodeType type{};
        NEED(cuGraphNodeGetType(node, &type));
        if (type == wanted)
            return node;
    }
    return nullptr;
}

struct graph_bench {
    CUstream one = nullptr, other = nullptr;
    CUevent fork = nullptr, join = nullptr;
    CUdeviceptr memory = 0;
    CUmodule module = nullptr;
    CUfunction bump = nullptr;
    std::uint32_t n = count;

    graph_bench() {
        NEED(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
        NEED(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        NEED(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
        NEED(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
        NEED(cuMemAlloc_v2(&memory, count * 4));
        NEED(cuModuleLoadData(&module, bump_source));
        NEED(cuModuleGetFunction(&bump, module, "bump"));
    }
    ~graph_bench() {
        NEED(cuModuleUnload(module));
        NEED(cuMemFree_v2(memory));
        NEED(cuEventDestroy_v2(fork));
        NEED(cuEventDestroy_v2(join));
        NEED(cuStreamDestroy_v2(one));
        NEED(cuStreamDestroy_v2(other));
    }
    graph_bench(const graph_bench&) = delete;
    graph_bench& operator=(const graph_bench&) = delete;
    void add(std::uint32_t by, CUstream where) { add(memory, by, where); }
    void add(CUdeviceptr to, std::uint32_t by, CUstream where) {
        void* parameters[] = {&to, &n, &by};
        NEED(cuLaunchKernel(bump, 24, 1, 1, 128, 1, 1, 0, where, parameters, nullptr));
    }
};

inline std::vector<std::uint32_t> all(std::uint32_t value) {
    return std::vector<std::uint32_t>(count, value);
}

} // namespace check
