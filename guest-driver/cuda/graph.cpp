// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs as programs build and ask about them. How they are executed: graph_exec.cpp.
#include "graph.hpp"

#include "driver.hpp"
#include "node_work.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

std::atomic<std::uint64_t> last_node{0};

constexpr std::size_t most_nodes = 1u << 20; // of a graph, with its children's

graph* graph_of(CUgraph handle) {
    return object_of<graph>(the_driver().graphs, handle);
}

graph_node* node_of(CUgraphNode handle) {
    return object_of<graph_node>(the_driver().graph_nodes, handle);
}

CUgraphNode handle_of(const graph_node* node) {
    return reinterpret_cast<CUgraphNode>(const_cast<graph_node*>(node));
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

// Nodes that a program names: of this graph, each once.
bool read_nodes(const graph& of, const CUgraphNode* handles, std::size_t count,
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

CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, std::size_t count,
                  std::unique_ptr<work> what) {
    return of_graph(handle, [&](graph& to) {
        std::vector<graph_node*> needs;
        if (!out || !read_nodes(to, dependencies, count, needs) || to.nodes.size() >= most_nodes)
            return CUDA_ERROR_INVALID_VALUE;
        const CUgraphNodeType kind = what ? what->kind() : CU_GRAPH_NODE_TYPE_EMPTY;
        *out = handle_of(to.add(kind, std::move(what), std::move(needs)));
        return CUDA_SUCCESS;
    });
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

} // namespace

std::mutex& graphs_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

graph::~graph() {
    driver& self = the_driver();
    for (const auto& one : nodes) {
        self.graph_nodes.remove(one.get());
        if (one->child)
            self.graphs.remove(one->child.get());
    }
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

std::unique_ptr<graph> graph::clone() const {
    auto made = std::make_unique<graph>();
    std::map<const graph_node*, graph_node*> twin;
    for (const auto& one : nodes) {
        graph_node* const copy = made->add(one->kind, one->what ? one->what->copy() : nullptr, {});
        copy->original = one->number;
        if (one->child)
            copy->child = one->child->clone();
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
        the_driver().graphs.add(made.get());
        *out = reinterpret_cast<CUgraph>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphDestroy(CUgraph handle) {
    return of_graph(handle, [](graph& dead) {
        delete &dead;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
    return of_graph(handle, [&](const graph& one) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        auto made = one.clone();
        the_driver().graphs.add(made.get());
        *out = reinterpret_cast<CUgraph>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                    size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = kernel_node(params, true, error);
        return error ? error : add_node(out, to, needs, count, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = kernel_node(params, false, error);
        return error ? error : add_node(out, to, needs, count, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                                                 CUcontext) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = set_node(params, error);
        return error ? error : add_node(out, to, needs, count, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_MEMCPY3D* params, CUcontext) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = copy_node(params, error);
        return error ? error : add_node(out, to, needs, count, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                               size_t count, const CUDA_HOST_NODE_PARAMS* params) {
    return guarded([&] {
        if (!params || !params->fn)
            return CUDA_ERROR_INVALID_VALUE;
        return add_node(out, to, needs, count, std::make_unique<host_work>(params->fn, params->userData));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                size_t count) {
    return add_node(out, to, needs, count, nullptr);
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                      size_t count, CUevent recorded) {
    return guarded([&] {
        auto* const one = object_of<event>(the_driver().events, recorded);
        return one ? add_node(out, to, needs, count, std::make_unique<record_work>(*one))
                   : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                    size_t count, CUevent awaited) {
    return guarded([&] {
        auto* const one = object_of<event>(the_driver().events, awaited);
        return one ? add_node(out, to, needs, count, std::make_unique<wait_work>(*one))
                   : CUDA_ERROR_INVALID_VALUE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph handle,
                                                     const CUgraphNode* needs, size_t count, CUgraph child) {
    return of_graph(handle, [&](graph& to) {
        const graph* const inner = graph_of(child);
        std::vector<graph_node*> named;
        if (!out || !inner || inner == &to || !read_nodes(to, needs, count, named))
            return CUDA_ERROR_INVALID_VALUE;
        auto copy = inner->clone();
        the_driver().graphs.add(copy.get());
        graph_node* const made = to.add(CU_GRAPH_NODE_TYPE_GRAPH, nullptr, std::move(named));
        made->child = std::move(copy);
        *out = handle_of(made);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphDestroyNode(CUgraphNode handle) {
    return of_node(handle, [](graph_node& dead) {
        auto& nodes = dead.in->nodes;
        for (const auto& one : nodes)
            std::erase(one->needs, &dead);
        the_driver().graph_nodes.remove(&dead);
        if (dead.child)
            the_driver().graphs.remove(dead.child.get());
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
        *child = reinterpret_cast<CUgraph>(one.child.get());
        return CUDA_SUCCESS;
    });
}

// ---- parameters of nodes

namespace {

// Work of a node of one kind; null if it is of another.
template <class Work>
Work* work_of(const graph_node& node) {
    return dynamic_cast<Work*>(node.what.get());
}

CUresult set_kernel(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* params, bool whole) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = kernel_node(params, whole, error);
        return error ? error : of_node(handle, [&](graph_node& node) {
            if (node.kind != CU_GRAPH_NODE_TYPE_KERNEL)
                return CUDA_ERROR_INVALID_VALUE;
            node.what = std::move(made);
            return CUDA_SUCCESS;
        });
    });
}

CUresult get_kernel(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params, bool whole) {
    return of_node(handle, [&](const graph_node& node) {
        return params && report_kernel_node(node.what.get(), *params, whole) ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle,
                                                          CUDA_KERNEL_NODE_PARAMS* params) {
    return get_kernel(handle, params, true);
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
    return get_kernel(handle, params, false);
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                                          const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_kernel(handle, params, true);
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeSetParams(CUgraphNode handle,
                                                       const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_kernel(handle, params, false);
}

KAGEMUSHA_ANSWERED CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* params) {
    return of_node(handle, [&](const graph_node& node) {
        const auto* const set = work_of<set_work>(node);
        if (!params || !set)
            return CUDA_ERROR_INVALID_VALUE;
        *params = set->params;
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle,
                                                       const CUDA_MEMSET_NODE_PARAMS* params) {
    return of_node(handle, [&](graph_node& node) {
        CUresult error = CUDA_SUCCESS;
        auto made = set_node(params, error);
        if (!error && !work_of<set_work>(node))
            error = CUDA_ERROR_INVALID_VALUE;
        if (!error)
            node.what = std::move(made);
        return error;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* params) {
    return of_node(handle, [&](const graph_node& node) {
        return params && report_copy_node(node.what.get(), *params) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* params) {
    return of_node(handle, [&](graph_node& node) {
        CUresult error = CUDA_SUCCESS;
        auto made = copy_node(params, error);
        if (!error && node.kind != CU_GRAPH_NODE_TYPE_MEMCPY)
            error = CUDA_ERROR_INVALID_VALUE;
        if (!error)
            node.what = std::move(made);
        return error;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* params) {
    return of_node(handle, [&](const graph_node& node) {
        const auto* const host = work_of<host_work>(node);
        if (!params || !host)
            return CUDA_ERROR_INVALID_VALUE;
        *params = {host->function, host->data};
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphHostNodeSetParams(CUgraphNode handle,
                                                     const CUDA_HOST_NODE_PARAMS* params) {
    return of_node(handle, [&](graph_node& node) {
        if (!params || !params->fn || !work_of<host_work>(node))
            return CUDA_ERROR_INVALID_VALUE;
        node.what = std::make_unique<host_work>(params->fn, params->userData);
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

KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* out, size_t* count) {
    return of_node(handle, [&](const graph_node& one) { return give(one.needs, out, count); });
}

KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* out,
                                                         size_t* count) {
    return of_node(handle, [&](const graph_node& one) {
        std::vector<graph_node*> behind;
        for (const auto& node : one.in->nodes)
            if (std::find(node->needs.begin(), node->needs.end(), &one) != node->needs.end())
                behind.push_back(node.get());
        return give(behind, out, count);
    });
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

KAGEMUSHA_ANSWERED CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from,
                                                   const CUgraphNode* to, size_t count) {
    return of_graph(handle, [&](graph& one) {
        if (count > 0 && (!from || !to))
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            graph_node *const before = node_of(from[i]), *const behind = node_of(to[i]);
            if (!one.contains(before) || !one.contains(behind) || before == behind ||
                std::find(behind->needs.begin(), behind->needs.end(), before) != behind->needs.end())
                return CUDA_ERROR_INVALID_VALUE;
            behind->needs.push_back(before);
        }
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode* from,
                                                      const CUgraphNode* to, size_t count) {
    return of_graph(handle, [&](graph& one) {
        if (count > 0 && (!from || !to))
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            graph_node* const behind = node_of(to[i]);
            if (!one.contains(behind) || std::erase(behind->needs, node_of(from[i])) == 0)
                return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
