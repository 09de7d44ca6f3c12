// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs that can be launched.
#include "graph.hpp"

#include "driver.hpp"
#include "node_work.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_steps = 1u << 20;
constexpr unsigned most_depth = 64; // of graphs in graphs

bool flatten(const graph& from, const std::vector<std::size_t>& before, std::vector<graph_step>& to,
             std::vector<std::size_t>& last, unsigned depth) {
    const std::vector<graph_node*> order = from.sorted();
    if ((order.empty() && !from.nodes.empty()) || depth > most_depth)
        return false;
    std::map<const graph_node*, std::vector<std::size_t>> ends; // steps behind which a node is done
    std::unordered_set<const graph_node*> needed;
    for (const graph_node* node : order) {
        std::vector<std::size_t> needs;
        for (const graph_node* need : node->needs) {
            needs.insert(needs.end(), ends[need].begin(), ends[need].end());
            needed.insert(need);
        }
        if (node->needs.empty())
            needs = before;
        if (node->child) {
            if (!flatten(*node->child, needs, to, ends[node], depth + 1))
                return false;
            continue;
        }
        if (to.size() >= most_steps)
            return false;
        ends[node] = {to.size()};
        to.push_back({node->number, node->what ? node->what->copy() : nullptr, node->kind, std::move(needs)});
    }
    for (const graph_node* node : order)
        if (!needed.contains(node))
            last.insert(last.end(), ends[node].begin(), ends[node].end());
    if (order.empty())
        last = before;
    return true;
}

template <class Body>
CUresult of_exec(CUgraphExec handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<graph_exec>(the_driver().graph_execs, handle);
        if (!one)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one->mutex);
        return body(*one);
    });
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, cuuint64_t flags) {
    return guarded([&] {
        constexpr cuuint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!out || (flags & ~known))
            return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<graph_exec>();
        made->flags = flags;
        {
            const std::lock_guard held(graphs_mutex());
            const auto* const from = object_of<graph>(the_driver().graphs, handle);
            if (!from || !flatten(*from, made->steps))
                return CUDA_ERROR_INVALID_VALUE;
        }
        the_driver().graph_execs.add(made.get());
        *out = reinterpret_cast<CUgraphExec>(made.release());
        return CUDA_SUCCESS;
    });
}

// Other work for a node that was there when the graph was instantiated.
CUresult set_step(CUgraphExec handle, CUgraphNode node, CUgraphNodeType kind, std::unique_ptr<work> what) {
    std::uint64_t number = 0;
    {
        const std::lock_guard held(graphs_mutex());
        const auto* const named = object_of<graph_node>(the_driver().graph_nodes, node);
        if (!named)
            return CUDA_ERROR_INVALID_VALUE;
        number = named->number;
    }
    return of_exec(handle, [&](graph_exec& exec) {
        const auto step = std::find_if(exec.steps.begin(), exec.steps.end(),
                                       [&](const graph_step& one) { return one.node == number; });
        if (step == exec.steps.end() || step->kind != kind)
            return CUDA_ERROR_INVALID_VALUE;
        step->what = std::move(what);
        return CUDA_SUCCESS;
    });
}

// A copy of a step's work into the stream.
CUresult launch_step(stream& where, const graph_step& step) {
    if (!step.what)
        return CUDA_SUCCESS;
    if (step.kind == CU_GRAPH_NODE_TYPE_HOST)
        return submit_host_function(where, step.what->copy());
    if (where.owner->detours.load(std::memory_order_acquire) != 0)
        return submit_by_detour(where, step.what->copy());
    const CUresult error = step.what->asked(where);
    return error ? error : step.what->run(where);
}

} // namespace

bool flatten(const graph& from, std::vector<graph_step>& to) {
    std::vector<std::size_t> last;
    return flatten(from, {}, to, last, 0);
}

KAGEMUSHA_ANSWERED CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph handle,
                                                        unsigned long long flags) {
    return instantiate(out, handle, flags);
}

KAGEMUSHA_ANSWERED CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph handle, CUgraphNode* error_node,
                                                  char* log, size_t log_bytes) {
    if (error_node)
        *error_node = nullptr;
    if (log && log_bytes > 0)
        *log = 0;
    return instantiate(out, handle, 0);
}
KAGEMUSHA_ANSWERED CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph handle, CUgraphNode* error_node,
                                               char* log, size_t log_bytes) {
    return cuGraphInstantiate_v2(out, handle, error_node, log, log_bytes);
}

KAGEMUSHA_ANSWERED CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph handle,
                                                         CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = instantiate(out, handle, params->flags);
    params->hErrNode_out = nullptr;
    params->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return error;
}

KAGEMUSHA_ANSWERED CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
    return of_exec(handle, [&](const graph_exec& exec) {
        if (!flags)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = exec.flags;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return guarded([&] {
        auto* const dead = object_of<graph_exec>(the_driver().graph_execs, handle);
        if (!dead)
            return CUDA_ERROR_INVALID_VALUE;
        the_driver().graph_execs.remove(dead);
        {
            const std::lock_guard held(dead->mutex); // a launch in another thread
        }
        delete dead;
        return CUDA_SUCCESS;
    });
}

// Nothing is kept on the host.
KAGEMUSHA_ANSWERED CUresult cuGraphUpload(CUgraphExec handle, CUstream where) {
    return in_stream(where,
                     [&](stream&) { return of_exec(handle, [](graph_exec&) { return CUDA_SUCCESS; }); });
}

KAGEMUSHA_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream where) {
    return in_stream(where, [&](stream& in) {
        return of_exec(handle, [&](graph_exec& exec) {
            for (const graph_step& step : exec.steps)
                if (const CUresult error = launch_step(in, step))
                    return error;
            return CUDA_SUCCESS;
        });
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph with,
                                                 CUgraphExecUpdateResultInfo* info) {
    return of_exec(handle, [&](graph_exec& exec) {
        if (!info)
            return CUDA_ERROR_INVALID_VALUE;
        *info = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
        std::vector<graph_step> steps;
        {
            const std::lock_guard held(graphs_mutex());
            const auto* const from = object_of<graph>(the_driver().graphs, with);
            if (!from || !flatten(*from, steps))
                return CUDA_ERROR_INVALID_VALUE;
        }
        bool same_edges = steps.size() == exec.steps.size(), same_kinds = true;
        for (std::size_t i = 0; same_edges && i < steps.size(); ++i) {
            same_edges = steps[i].needs == exec.steps[i].needs;
            same_kinds = same_kinds && steps[i].kind == exec.steps[i].kind;
        }
        info->result = !same_edges   ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
                       : !same_kinds ? CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
                                     : CU_GRAPH_EXEC_UPDATE_SUCCESS;
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        // Nodes are still named by those of the graph that it was instantiated from.
        for (std::size_t i = 0; i < steps.size(); ++i)
            exec.steps[i].what = std::move(steps[i].what);
        return CUDA_SUCCESS;
    });
}

namespace {

CUresult set_kernel_step(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params,
                         bool whole) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = kernel_node(params, whole, error);
        return error ? error : set_step(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, std::move(made));
    });
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                              const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_kernel_step(exec, node, params, true);
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_kernel_step(exec, node, params, false);
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = set_node(params, error);
        return error ? error : set_step(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_MEMCPY3D* params, CUcontext) {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        auto made = copy_node(params, error);
        return error ? error : set_step(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(made));
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                         const CUDA_HOST_NODE_PARAMS* params) {
    return guarded([&] {
        if (!params || !params->fn)
            return CUDA_ERROR_INVALID_VALUE;
        return set_step(exec, node, CU_GRAPH_NODE_TYPE_HOST,
                        std::make_unique<host_work>(params->fn, params->userData));
    });
}

} // namespace kagemusha::cuda
