// SPDX-License-Identifier: GPL-2.0-or-later
//
// Nodes of graphs: made with what a program says of them, asked, and given other work.
#include "driver.hpp"
#include "graph_calls.hpp"
#include "node_work.hpp"

#include <algorithm>
#include <cstddef>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_nodes = 1u << 20; // of a graph

// With the lock. `edges`: null, or how the node is behind those that it needs.
CUresult read_needs(const graph& to, const CUgraphNode* needs, const CUgraphEdgeData* edges,
                    std::size_t count, std::vector<graph_node*>& out) {
    if (!read_nodes(to, needs, count, out) || to.nodes.size() >= most_nodes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!are_known(edges, count))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (std::size_t i = 0; edges && i < count; ++i)
        if (!may_leave(*out[i], &edges[i]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* needs, const CUgraphEdgeData* edges,
                  std::size_t count, std::unique_ptr<work> what) {
    return of_graph(handle, [&](graph& to) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        std::vector<graph_node*> named;
        const CUresult error = read_needs(to, needs, edges, count, named);
        if (error)
            return error;
        const CUgraphNodeType kind = what ? what->kind() : CU_GRAPH_NODE_TYPE_EMPTY;
        *out = handle_of(to.add(kind, std::move(what), std::move(named)));
        return CUDA_SUCCESS;
    });
}

// `make` gives the work, or an error.
template <class Make>
CUresult add_made(CUgraphNode* out, CUgraph to, const CUgraphNode* needs, std::size_t count,
                  Make&& make) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = make(error);
        return error ? error : add_node(out, to, needs, nullptr, count, std::move(made));
    });
}

bool is_in(const graph& inner, const graph& outer) {
    return &inner == &outer || (inner.owner && is_in(*inner.owner->in, outer));
}

CUresult add_child(CUgraphNode* out, CUgraph handle, const CUgraphNode* needs, const CUgraphEdgeData* edges,
                   std::size_t count, const CUDA_CHILD_GRAPH_NODE_PARAMS& params) {
    return of_graph(handle, [&](graph& to) {
        graph* const inner = graph_of(params.graph);
        if (!out || !inner || inner == &to || inner->is_moved || to.depth() + inner->height() > most_depth)
            return CUDA_ERROR_INVALID_VALUE;
        const bool moves = params.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
        if (moves ? inner->owner || inner->is_in_use() || is_in(to, *inner)
                  : params.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
            return CUDA_ERROR_INVALID_VALUE;
        std::vector<graph_node*> named;
        const CUresult error = read_needs(to, needs, edges, count, named);
        if (error)
            return error;
        inner->is_moved = moves;
        *out =
            handle_of(to.add_child(moves ? std::unique_ptr<graph>(inner) : inner->clone(), std::move(named)));
        return CUDA_SUCCESS;
    });
}

// Other work for a node of this kind.
template <class Make>
CUresult set_made(CUgraphNode handle, CUgraphNodeType kind, Make&& make) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = make(error);
        return error ? error : of_node(handle, [&](graph_node& node) {
            if (node.kind != kind)
                return CUDA_ERROR_INVALID_VALUE;
            node.set(std::move(made));
            return CUDA_SUCCESS;
        });
    });
}

// Work of a node of one kind; null if it is of another.
template <class Work>
Work* work_of(const graph_node& node) {
    return dynamic_cast<Work*>(node.what.get());
}

template <class Work>
std::unique_ptr<work> event_node(CUevent handle, CUresult& error) {
    auto* const one = object_of<event>(the_driver().events, handle);
    error = one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return one ? std::make_unique<Work>(*one) : nullptr;
}

// The parameters of a node are `bytes` of the union; the rest is 0, or means what is not known here.
bool has_rest(const CUgraphNodeParams& params, std::size_t bytes) {
    const auto* const first = reinterpret_cast<const unsigned char*>(&params.reserved1) + bytes;
    const auto* const last = reinterpret_cast<const unsigned char*>(&params + 1);
    return std::any_of(first, last, [](unsigned char octet) { return octet != 0; }) ||
           std::any_of(params.reserved0, params.reserved0 + 3, [](int word) { return word != 0; });
}

std::size_t bytes_of(CUgraphNodeType kind) {
    switch (kind) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return sizeof(CUDA_KERNEL_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sizeof(CUDA_MEMCPY_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return sizeof(CUDA_MEMSET_NODE_PARAMS_v2);
    case CU_GRAPH_NODE_TYPE_HOST:
        return sizeof(CUDA_HOST_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return sizeof(CUDA_CHILD_GRAPH_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return sizeof(CUevent);
    default:
        return 0;
    }
}

} // namespace

CUresult check_node(const CUgraphNodeParams* params) {
    if (!params || static_cast<unsigned>(params->type) > CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->type > CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        return CUDA_ERROR_NOT_SUPPORTED;
    return has_rest(*params, bytes_of(params->type)) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

std::unique_ptr<work> described_node(const CUgraphNodeParams& params, CUresult& error) {
    switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return kernel_node(&params.kernel, true, error);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (params.memcpy.flags == 0 && params.memcpy.reserved == 0)
            return copy_node(&params.memcpy.copyParams, error);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const auto& set = params.memset;
        const CUDA_MEMSET_NODE_PARAMS same{set.dst,         set.pitch, set.value,
                                           set.elementSize, set.width, set.height};
        return set_node(&same, error);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        return host_node(&params.host, error);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return event_node<wait_work>(params.eventWait.event, error);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return event_node<record_work>(params.eventRecord.event, error);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        error = CUDA_SUCCESS;
        return nullptr;
    default:
        break;
    }
    error = CUDA_ERROR_INVALID_VALUE;
    return nullptr;
}

std::unique_ptr<work> host_node(const CUDA_HOST_NODE_PARAMS* params, CUresult& error) {
    const bool good = params && params->fn;
    error = good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return good ? std::make_unique<host_work>(params->fn, params->userData) : nullptr;
}

std::unique_ptr<work> record_node(CUevent handle, CUresult& error) {
    return event_node<record_work>(handle, error);
}

std::unique_ptr<work> wait_node(CUevent handle, CUresult& error) {
    return event_node<wait_work>(handle, error);
}

// ---- one function for each kind

KAGEMUSHA_ANSWERED CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                    size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return kernel_node(params, true, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    return add_made(out, to, needs, count,
                    [&](CUresult& error) { return kernel_node(params, false, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                                                 CUcontext) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return set_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                 size_t count, const CUDA_MEMCPY3D* params, CUcontext) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return copy_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                               size_t count, const CUDA_HOST_NODE_PARAMS* params) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return host_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                size_t count) {
    return add_node(out, to, needs, nullptr, count, nullptr);
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                      size_t count, CUevent recorded) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return record_node(recorded, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                    size_t count, CUevent awaited) {
    return add_made(out, to, needs, count, [&](CUresult& error) { return wait_node(awaited, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                                     size_t count, CUgraph child) {
    return add_child(out, to, needs, nullptr, count, {child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE});
}

KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle,
                                                          CUDA_KERNEL_NODE_PARAMS* params) {
    return of_node(handle, [&](const graph_node& node) {
        return params && report_kernel_node(node.what.get(), *params, true) ? CUDA_SUCCESS
                                                                            : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* params) {
    return of_node(handle, [&](const graph_node& node) {
        return params && report_kernel_node(node.what.get(), *params, false) ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                                          const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_made(handle, CU_GRAPH_NODE_TYPE_KERNEL,
                    [&](CUresult& error) { return kernel_node(params, true, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeSetParams(CUgraphNode handle,
                                                       const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_made(handle, CU_GRAPH_NODE_TYPE_KERNEL,
                    [&](CUresult& error) { return kernel_node(params, false, error); });
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
    return set_made(handle, CU_GRAPH_NODE_TYPE_MEMSET,
                    [&](CUresult& error) { return set_node(params, error); });
}

KAGEMUSHA_ANSWERED CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* params) {
    return of_node(handle, [&](const graph_node& node) {
        return params && report_copy_node(node.what.get(), *params) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* params) {
    return set_made(handle, CU_GRAPH_NODE_TYPE_MEMCPY,
                    [&](CUresult& error) { return copy_node(params, error); });
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
    return set_made(handle, CU_GRAPH_NODE_TYPE_HOST,
                    [&](CUresult& error) { return host_node(params, error); });
}

namespace {

template <class Work>
CUresult get_event(CUgraphNode handle, event* Work::* which, CUevent* out) {
    return of_node(handle, [&](const graph_node& node) {
        const auto* const one = work_of<Work>(node);
        if (!out || !one)
            return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUevent>(one->*which);
        return CUDA_SUCCESS;
    });
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent* out) {
    return get_event(handle, &record_work::recorded, out);
}
KAGEMUSHA_ANSWERED CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode handle, CUevent recorded) {
    return set_made(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [&](CUresult& error) { return record_node(recorded, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent* out) {
    return get_event(handle, &wait_work::awaited, out);
}
KAGEMUSHA_ANSWERED CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode handle, CUevent awaited) {
    return set_made(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [&](CUresult& error) { return wait_node(awaited, error); });
}

// ---- one function for all kinds

KAGEMUSHA_ANSWERED CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                              const CUgraphEdgeData* edges, size_t count,
                                              CUgraphNodeParams* params) {
    return guarded([&] {
        CUresult error = check_node(params);
        if (error)
            return error;
        if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
            return add_child(out, to, needs, edges, count, params->graph);
        auto made = described_node(*params, error);
        return error ? error : add_node(out, to, needs, edges, count, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphAddNode(CUgraphNode* out, CUgraph to, const CUgraphNode* needs,
                                           size_t count, CUgraphNodeParams* params) {
    return cuGraphAddNode_v2(out, to, needs, nullptr, count, params);
}

KAGEMUSHA_ANSWERED CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* params) {
    return guarded([&] {
        const CUresult error = check_node(params);
        if (error)
            return error;
        if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) // its graph has nodes that can be set
            return CUDA_ERROR_NOT_SUPPORTED;
        return set_made(handle, params->type,
                        [&](CUresult& reason) { return described_node(*params, reason); });
    });
}

} // namespace kagemusha::cuda
