// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs: work with an order, made node by node or by capture of streams. The host knows nothing of them: what
// is instantiated is a list of work, and a launch sends it into one stream. That is an order that the graph
// permits, and the wire has nothing new.
#pragma once

#include "work.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace kagemusha::cuda {

struct graph;

struct graph_node {
    graph* in = nullptr;
    std::uint64_t number = 0;   // never the same for two
    std::uint64_t original = 0; // of a clone: the number of what it was made of
    CUgraphNodeType kind = CU_GRAPH_NODE_TYPE_EMPTY;
    std::unique_ptr<work> what;     // null: EMPTY and GRAPH
    std::unique_ptr<graph> child;   // GRAPH
    std::vector<graph_node*> needs; // each once
};

// All of it with graphs_mutex().
struct graph {
    std::vector<std::unique_ptr<graph_node>> nodes; // in the order in which they were made

    graph() = default;
    ~graph();
    graph(const graph&) = delete;
    graph& operator=(const graph&) = delete;

    graph_node* add(CUgraphNodeType kind, std::unique_ptr<work> what, std::vector<graph_node*> needs);
    std::unique_ptr<graph> clone() const;
    // Each node behind those that it needs, otherwise in the order in which they were made; none: a cycle.
    std::vector<graph_node*> sorted() const;
    bool contains(const graph_node* node) const { return node && node->in == this; }
};

std::mutex& graphs_mutex();

// One node, as it is executed. `needs` are numbers of steps of the same list.
struct graph_step {
    std::uint64_t node;
    std::unique_ptr<work> what; // null: nothing to do
    CUgraphNodeType kind;
    std::vector<std::size_t> needs;
};

// The graph as a list, its children's nodes in it; false: a cycle.
bool flatten(const graph& from, std::vector<graph_step>& to);

struct graph_exec {
    std::mutex mutex;
    std::vector<graph_step> steps;
    cuuint64_t flags = 0;
};

} // namespace kagemusha::cuda
