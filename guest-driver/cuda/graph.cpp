// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs as programs make them and ask about them. Their nodes: graph_nodes.cpp. How they are executed:
// graph_exec.cpp.
#include "graph.hpp"

#include "driver.hpp"
#include "graph_calls.hpp"
#include "node_work.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

std::atomic<std::uint64_t> last_node{0};

} // namespace

std::mutex& graphs_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

void graph_node::set(std::unique_ptr<work> other) {
    if (auto* const launch = dynamic_cast<kernel_work*>(other.get()))
        if (const auto* const before = dynamic_cast<const kernel_work*>(what.get()))
            launch->keep_attributes(*before);
    what = std::move(other);
}

graph::graph() {
    the_driver().graphs.add(this);
}

graph::~graph() {
    driver& self = the_driver();
    for (const auto& one : nodes)
        self.graph_nodes.remove(one.get());
    self.graphs.remove(this);
}

graph_node* graph::add(CUgraphNodeType kind, std::unique_ptr<work> what, std::vector<graph_node*> needs) {
    auto made = std::make_unique<graph_node>();
    made->in = this;
    made->number = ++last_node;
    made->kind = kind;
    made->what = std::move(what);
    made->needs = std::move(needs);
    nodes.push_back(std::move(made));
    the_driver().graph_nodes.add(nodes.back().get());
    return nodes.back().get();
}

graph_node* graph::add_child(std::unique_ptr<graph> child, std::vector<graph_node*> needs) {
    graph_node* const made = add(CU_GRAPH_NODE_TYPE_GRAPH, nullptr, std::move(needs));
    child->owner = made;
    made->child = std::move(child);
    return made;
}

bool graph::is_in_use() const {
    return is_captured || std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
               return node->child && node->child->is_in_use();
           });
}

unsigned graph::height() const {
    unsigned below = 0;
    for (const auto& node : nodes)
        if (node->child)
            below = std::max(below, node->child->height());
    return below + 1;
}

unsigned graph::depth() const {
    return owner ? owner->in->depth() + 1 : 1;
}

void graph::share(user_references& with) const {
    with.add(held);
    for (const auto& node : nodes)
        if (node->child)
            node->child->share(with);
}

std::unique_ptr<graph> graph::clone() const {
    auto made = std::make_unique<graph>();
    made->held.add(held);
    std::map<const graph_node*, graph_node*> twin;
    for (const auto& one : nodes) {
        graph_node* const copy = one->child
                                     ? made->add_child(one->child->clone(), {})
                                     : made->add(one->kind, one->what ? one->what->copy() : nullptr, {});
        copy->original = one->number;
        twin[one.get()] = copy;
    }
    for (const auto& one : nodes)
        for (graph_node* need : one->needs)
            twin[one.get()]->needs.push_back(twin[need]);
    return made;
}

std::vector<graph_node*> graph::sorted() const {
    std::map<const graph_node*, std::size_t> missing;
    std::map<const graph_node*, std::vector<graph_node*>> behind;
    std::map<std::uint64_t, graph_node*> ready; // by number: the order in which they were made
    for (const auto& one : nodes) {
        missing[one.get()] = one->needs.size();
        for (graph_node* need : one->needs)
            behind[need].push_back(one.get());
        if (one->needs.empty())
            ready[one->number] = one.get();
    }
    std::vector<graph_node*> order;
    while (!ready.empty()) {
        graph_node* const next = ready.begin()->second;
        ready.erase(ready.begin());
        order.push_back(next);
        for (graph_node* one : behind[next])
            if (--missing[one] == 0)
                ready[one->number] = one;
    }
    return order.size() == nodes.size() ? order : std::vector<graph_node*>();
}

KAGEMUSHA_ANSWERED CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
    return with_graphs([&] {
        if (!out || flags != 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<graph>();
        *out = reinterpret_cast<CUgraph>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphDestroy(CUgraph handle) {
    return of_graph(handle, [](graph& dead) {
        if (dead.owner || dead.is_in_use())
            return CUDA_ERROR_INVALID_VALUE;
        delete &dead;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
    return of_graph(handle, [&](const graph& one) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        auto made = one.clone();
        *out = reinterpret_cast<CUgraph>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphDestroyNode(CUgraphNode handle) {
    return of_node(handle, [](graph_node& dead) {
        if (dead.in->is_captured || (dead.child && dead.child->is_in_use()))
            return CUDA_ERROR_INVALID_VALUE;
        auto& nodes = dead.in->nodes;
        for (const auto& one : nodes)
            std::erase(one->needs, &dead);
        the_driver().graph_nodes.remove(&dead);
        std::erase_if(nodes, [&](const auto& one) { return one.get() == &dead; });
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
    return of_node(original, [&](const graph_node& wanted) {
        const graph* const in = graph_of(clone);
        if (!out || !in)
            return CUDA_ERROR_INVALID_VALUE;
        const auto found = std::find_if(in->nodes.begin(), in->nodes.end(),
                                        [&](const auto& one) { return one->original == wanted.number; });
        if (found == in->nodes.end())
            return CUDA_ERROR_INVALID_VALUE;
        *out = handle_of(found->get());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    return of_node(handle, [&](const graph_node& one) {
        if (!type)
            return CUDA_ERROR_INVALID_VALUE;
        *type = one.kind;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* child) {
    return of_node(handle, [&](const graph_node& one) {
        if (!child || !one.child)
            return CUDA_ERROR_INVALID_VALUE;
        *child = handle_of(one.child.get());
        return CUDA_SUCCESS;
    });
}

// ---- what a graph consists of

KAGEMUSHA_ANSWERED CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
    return of_graph(handle, [&](const graph& one) { return give(one.nodes, out, count); });
}

KAGEMUSHA_ANSWERED CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
    return of_graph(handle, [&](const graph& one) {
        std::vector<graph_node*> roots;
        for (const auto& node : one.nodes)
            if (node->needs.empty())
                roots.push_back(node.get());
        return give(roots, out, count);
    });
}

namespace {

// With what an edge is, where the program asks: each is a plain one.
CUresult give_edges(const std::vector<graph_node*>& list, CUgraphNode* out, CUgraphEdgeData* edges,
                    std::size_t* count) {
    const CUresult error = give(list, out, count);
    if (!error && out && edges)
        std::fill_n(edges, *count, CUgraphEdgeData{});
    return error;
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* out,
                                                          CUgraphEdgeData* edges, size_t* count) {
    return of_node(handle, [&](const graph_node& one) { return give_edges(one.needs, out, edges, count); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* out, size_t* count) {
    return cuGraphNodeGetDependencies_v2(handle, out, nullptr, count);
}

KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* out,
                                                            CUgraphEdgeData* edges, size_t* count) {
    return of_node(handle, [&](const graph_node& one) {
        std::vector<graph_node*> behind;
        for (const auto& node : one.in->nodes)
            if (std::find(node->needs.begin(), node->needs.end(), &one) != node->needs.end())
                behind.push_back(node.get());
        return give_edges(behind, out, edges, count);
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* out,
                                                         size_t* count) {
    return cuGraphNodeGetDependentNodes_v2(handle, out, nullptr, count);
}

KAGEMUSHA_ANSWERED CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                               CUgraphEdgeData* data, size_t* count) {
    return of_graph(handle, [&](const graph& one) {
        std::vector<graph_node*> froms, tos;
        for (const auto& node : one.nodes)
            for (graph_node* need : node->needs) {
                froms.push_back(need);
                tos.push_back(node.get());
            }
        if (!count || !from != !to)
            return CUDA_ERROR_INVALID_VALUE;
        std::size_t room = *count;
        const CUresult error = give(froms, from, count);
        if (!error && to)
            give(tos, to, &room);
        for (std::size_t i = 0; data && from && i < *count; ++i)
            data[i] = {};
        return error;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                            size_t* count) {
    return cuGraphGetEdges_v2(handle, from, to, nullptr, count);
}

KAGEMUSHA_ANSWERED CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                                      const CUgraphNode* to, const CUgraphEdgeData* edges,
                                                      size_t count) {
    return of_graph(handle, [&](graph& one) {
        if (count > 0 && (!from || !to))
            return CUDA_ERROR_INVALID_VALUE;
        if (!are_known(edges, count))
            return CUDA_ERROR_NOT_SUPPORTED;
        for (std::size_t i = 0; i < count; ++i) {
            graph_node *const before = node_of(from[i]), *const behind = node_of(to[i]);
            if (!one.contains(before) || !may_leave(*before, edges ? &edges[i] : nullptr) ||
                !one.contains(behind) || before == behind ||
                std::find(behind->needs.begin(), behind->needs.end(), before) != behind->needs.end())
                return CUDA_ERROR_INVALID_VALUE;
            behind->needs.push_back(before);
        }
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from,
                                                   const CUgraphNode* to, size_t count) {
    return cuGraphAddDependencies_v2(handle, from, to, nullptr, count);
}

KAGEMUSHA_ANSWERED CUresult cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                                         const CUgraphNode* to, const CUgraphEdgeData* edges,
                                                         size_t count) {
    return of_graph(handle, [&](graph& one) {
        if (count > 0 && (!from || !to))
            return CUDA_ERROR_INVALID_VALUE;
        if (!are_known(edges, count)) // there is no such edge
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            graph_node* const behind = node_of(to[i]);
            if (!one.contains(behind) || std::erase(behind->needs, node_of(from[i])) == 0)
                return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from,
                                                      const CUgraphNode* to, size_t count) {
    return cuGraphRemoveDependencies_v2(handle, from, to, nullptr, count);
}

} // namespace kagemusha::cuda
