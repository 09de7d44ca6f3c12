// SPDX-License-Identifier: GPL-2.0-or-later
//
// How functions about graphs begin: handles to objects, with the lock of all graphs; and what they give back.
#pragma once

#include "driver.hpp"
#include "graph.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::cuda {

inline graph* graph_of(CUgraph handle) {
    return object_of<graph>(the_driver().graphs, handle);
}

inline graph_node* node_of(CUgraphNode handle) {
    return object_of<graph_node>(the_driver().graph_nodes, handle);
}

inline CUgraphNode handle_of(const graph_node* node) {
    return reinterpret_cast<CUgraphNode>(const_cast<graph_node*>(node));
}

inline CUgraph handle_of(const graph* one) {
    return reinterpret_cast<CUgraph>(const_cast<graph*>(one));
}

// Runs a function about graphs, with the lock of all of them.
template <class Body>
CUresult with_graphs(Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        const std::lock_guard held(graphs_mutex());
        return body();
    });
}

template <class Body>
CUresult of_graph(CUgraph handle, Body&& body) noexcept {
    return with_graphs([&] {
        graph* const one = graph_of(handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_VALUE;
    });
}

template <class Body>
CUresult of_node(CUgraphNode handle, Body&& body) noexcept {
    return with_graphs([&] {
        graph_node* const one = node_of(handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_VALUE;
    });
}

// Nodes that a program names: of this graph, each once. graphs_mutex() is held.
inline bool read_nodes(const graph& of, const CUgraphNode* handles, std::size_t count,
                       std::vector<graph_node*>& out) {
    if (count > of.nodes.size() || (count > 0 && !handles))
        return false;
    for (std::size_t i = 0; i < count; ++i) {
        graph_node* const one = node_of(handles[i]);
        if (!of.contains(one) || std::find(out.begin(), out.end(), one) != out.end())
            return false;
        out.push_back(one);
    }
    return true;
}

// Whether a program says of its edges what they can be: that the node before has ended, or, behind a kernel, that it
// has begun or lets others begin. A kernel that may begin before the one before has ended begins behind it here, as
// with launches, so all edges are kept as plain ones. Null: nothing was said.
inline bool are_known(const CUgraphEdgeData* edges, std::size_t count) {
    for (std::size_t i = 0; edges && i < count; ++i) {
        CUgraphEdgeData rest = edges[i];
        const bool early = rest.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
                           (rest.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC ||
                            rest.from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER);
        if (early)
            rest.type = rest.from_port = 0;
        static constexpr CUgraphEdgeData plain{};
        if (std::memcmp(&rest, &plain, sizeof plain) != 0)
            return false;
    }
    return true;
}

// Only kernels let others begin early.
inline bool may_leave(const graph_node& before, const CUgraphEdgeData* edge) {
    return !edge || edge->type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT ||
           before.kind == CU_GRAPH_NODE_TYPE_KERNEL;
}

// Gives a list to a program: without room only its length, and null where there is more room than list.
template <class List>
CUresult give(const List& list, CUgraphNode* out, std::size_t* count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!out) {
        *count = list.size();
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < *count; ++i)
        out[i] = i < list.size() ? handle_of(&*list[i]) : nullptr;
    *count = std::min(*count, list.size());
    return CUDA_SUCCESS;
}

} // namespace kagemusha::cuda
