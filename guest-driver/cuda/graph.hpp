// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs: work with an order, made node by node or by capture of streams. The host knows nothing of them: what
// is instantiated is a list of work, and a launch sends it into one stream. That is an order that the graph
// permits, and the wire has nothing new.
#pragma once

#include "user_object.hpp"
#include "work.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
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

    // Other work of the same kind. What is no parameter of a node stays as it was.
    void set(std::unique_ptr<work> other);
};

// All of it with graphs_mutex(). A program may have the handle of any, also of a child.
struct graph {
    std::vector<std::unique_ptr<graph_node>> nodes; // in the order in which they were made
    graph_node* owner = nullptr;                    // it is the child of this node
    bool is_moved = false;                          // it was a graph of the program before
    user_references held;                           // of the program's objects
    bool is_captured = false;                       // a capture goes on in it, and knows its nodes

    graph();
    ~graph();
    graph(const graph&) = delete;
    graph& operator=(const graph&) = delete;

    graph_node* add(CUgraphNodeType kind, std::unique_ptr<work> what, std::vector<graph_node*> needs);
    graph_node* add_child(std::unique_ptr<graph> child, std::vector<graph_node*> needs);
    std::unique_ptr<graph> clone() const;
    // Each node behind those that it needs, otherwise in the order in which they were made; none: a cycle.
    std::vector<graph_node*> sorted() const;
    bool contains(const graph_node* node) const { return node && node->in == this; }
    // A capture goes on in it or in a child: it stays, and all of its nodes.
    bool is_in_use() const;
    // So many graphs, each in the other: it and its children, and those that it is a child of.
    unsigned height() const;
    unsigned depth() const;
    // The references of it and of its children, for something else that needs them.
    void share(user_references& with) const;
};

std::mutex& graphs_mutex();

constexpr unsigned most_depth = 64; // of graphs in graphs

// One node, as it is executed. `needs` are numbers of steps of the same list.
struct graph_step {
    std::uint64_t node;
    std::unique_ptr<work> what; // null: nothing to do
    CUgraphNodeType kind;
    std::vector<std::size_t> needs;
    bool is_enabled = true;
};

// The steps of a child, which follow each other; so do its own children, behind it in the list of all.
struct child_steps {
    std::uint64_t node;
    std::size_t first, count;
    std::size_t children;
};

// A graph as a list, its children's nodes in it.
struct flat_graph {
    std::vector<graph_step> steps;
    std::vector<child_steps> children;

    bool read(const graph& from); // false: a cycle, or too much
    child_steps all() const { return {0, 0, steps.size(), children.size()}; }
    // Whether a graph differs from a part of this one in more than what its nodes do. `behind`: the first of the
    // part's children in the list of all.
    CUgraphExecUpdateResult compare(const child_steps& part, std::size_t behind,
                                    const flat_graph& other) const;
    // Takes that graph's work for this part.
    void take(const child_steps& part, flat_graph& other);
};

struct graph_exec {
    std::mutex mutex;
    flat_graph list;
    // By the numbers of the nodes of the graph that it was instantiated from.
    std::unordered_map<std::uint64_t, std::size_t> steps, children;
    std::shared_ptr<const user_references> held; // never null
    cuuint64_t flags = 0;
};

} // namespace kagemusha::cuda
