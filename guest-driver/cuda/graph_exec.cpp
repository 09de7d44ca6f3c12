// SPDX-License-Identifier: GPL-2.0-or-later
//
// Graphs that can be launched.
#include "graph.hpp"

#include "capture.hpp"
#include "driver.hpp"
#include "graph_calls.hpp"
#include "node_work.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

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

// Those that a graph has, for what is made of it.
std::shared_ptr<user_references> references_of(const graph& from) {
    auto made = std::make_shared<user_references>();
    from.share(*made);
    return made;
}

// A launch with attributes that do not fit to its grid.
CUresult check_step(const graph_step& step) {
    const auto* const launch = dynamic_cast<const kernel_work*>(step.what.get());
    return launch ? launch->check() : CUDA_SUCCESS;
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
            const graph* const from = graph_of(handle);
            if (!from || from->is_moved || from->is_in_use() || !made->list.read(*from))
                return CUDA_ERROR_INVALID_VALUE;
            made->held = references_of(*from);
        }
        for (std::size_t i = 0; i < made->list.steps.size(); ++i) {
            const graph_step& step = made->list.steps[i];
            if (const CUresult error = check_step(step))
                return error;
            made->steps[step.node] = i;
        }
        for (std::size_t i = 0; i < made->list.children.size(); ++i)
            made->children[made->list.children[i].node] = i;
        the_driver().graph_execs.add(made.get());
        *out = reinterpret_cast<CUgraphExec>(made.release());
        return CUDA_SUCCESS;
    });
}

// The step of a node that was there when the graph was instantiated.
template <class Body>
CUresult of_step(CUgraphExec handle, CUgraphNode node, Body&& body) noexcept {
    std::uint64_t number = 0;
    const CUresult error = of_node(node, [&](const graph_node& named) {
        number = named.number;
        return CUDA_SUCCESS;
    });
    return error ? error : of_exec(handle, [&](graph_exec& exec) {
        const auto found = exec.steps.find(number);
        return found == exec.steps.end() ? CUDA_ERROR_INVALID_VALUE : body(exec.list.steps[found->second]);
    });
}

// Other work for it. `make` gives that, or an error.
template <class Make>
CUresult set_step(CUgraphExec handle, CUgraphNode node, CUgraphNodeType kind, Make&& make) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        std::unique_ptr<work> made = make(error);
        if (error)
            return error;
        return of_step(handle, node, [&](graph_step& step) {
            if (step.kind != kind)
                return CUDA_ERROR_INVALID_VALUE;
            if (auto* const launch = dynamic_cast<kernel_work*>(made.get())) {
                if (const auto* const before = dynamic_cast<const kernel_work*>(step.what.get()))
                    launch->keep_attributes(*before);
                if (const CUresult wrong = launch->check())
                    return wrong;
            }
            step.what = std::move(made);
            return CUDA_SUCCESS;
        });
    });
}

// Other work for all of a child's nodes.
CUresult set_child(CUgraphExec handle, CUgraphNode node, CUgraph with) {
    std::uint64_t number = 0;
    flat_graph other;
    std::shared_ptr<user_references> held;
    const CUresult error = of_node(node, [&](const graph_node& named) {
        const graph* const from = graph_of(with);
        number = named.number;
        if (!from || !other.read(*from))
            return CUDA_ERROR_INVALID_VALUE;
        held = references_of(*from);
        return CUDA_SUCCESS;
    });
    if (error)
        return error;
    return of_exec(handle, [&](graph_exec& exec) {
        const auto found = exec.children.find(number);
        if (found == exec.children.end())
            return CUDA_ERROR_INVALID_VALUE;
        const child_steps part = exec.list.children[found->second];
        if (exec.list.compare(part, found->second + 1, other) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return CUDA_ERROR_INVALID_VALUE;
        for (const graph_step& step : other.steps)
            if (const CUresult wrong = check_step(step))
                return wrong;
        held->add(*exec.held); // those of the child before, too: nobody knows which they were
        exec.held = std::move(held);
        exec.list.take(part, other);
        return CUDA_SUCCESS;
    });
}

// A copy of a step's work into the stream.
CUresult launch_step(stream& where, const graph_step& step) {
    if (!step.what || !step.is_enabled)
        return CUDA_SUCCESS;
    if (step.kind == CU_GRAPH_NODE_TYPE_HOST)
        return submit_host_function(where, step.what->copy());
    if (where.owner->detours.load(std::memory_order_acquire) != 0)
        return submit_by_detour(where, step.what->copy());
    const CUresult error = step.what->asked(where);
    return error ? error : step.what->run(where);
}

} // namespace

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
            CUresult error = CUDA_SUCCESS;
            for (const graph_step& step : exec.list.steps)
                if ((error = launch_step(in, step)))
                    break;
            if (exec.held->empty() || hold_in_capture(in, *exec.held))
                return error;
            const CUresult unheld = submit(in, hold_work(exec.held));
            return error ? error : unheld;
        });
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph with,
                                                 CUgraphExecUpdateResultInfo* info) {
    return of_exec(handle, [&](graph_exec& exec) {
        if (!info)
            return CUDA_ERROR_INVALID_VALUE;
        *info = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
        flat_graph other;
        std::shared_ptr<user_references> references;
        {
            const std::lock_guard held(graphs_mutex());
            const graph* const from = graph_of(with);
            if (!from || from->is_moved || !other.read(*from))
                return CUDA_ERROR_INVALID_VALUE;
            references = references_of(*from);
        }
        info->result = exec.list.compare(exec.list.all(), 0, other);
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        for (const graph_step& step : other.steps)
            if (const CUresult error = check_step(step))
                return error;
        // Nodes are still named by those of the graph that it was instantiated from.
        exec.list.take(exec.list.all(), other);
        exec.held = std::move(references);
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph with, CUgraphNode* error_node,
                                              CUgraphExecUpdateResult* result) {
    CUgraphExecUpdateResultInfo info{};
    const CUresult error = cuGraphExecUpdate_v2(handle, with, &info);
    if (error_node)
        *error_node = info.errorNode;
    if (result)
        *result = info.result;
    return error;
}

// ---- other parameters for one node

KAGEMUSHA_ANSWERED CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                              const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [&](CUresult& error) { return kernel_node(params, true, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_KERNEL_NODE_PARAMS* params) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [&](CUresult& error) { return kernel_node(params, false, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_MEMSET,
                    [&](CUresult& error) { return set_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_MEMCPY3D* params, CUcontext) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY,
                    [&](CUresult& error) { return copy_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                         const CUDA_HOST_NODE_PARAMS* params) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_HOST,
                    [&](CUresult& error) { return host_node(params, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                               CUevent recorded) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [&](CUresult& error) { return record_node(recorded, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                             CUevent awaited) {
    return set_step(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [&](CUresult& error) { return wait_node(awaited, error); });
}
KAGEMUSHA_ANSWERED CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                               CUgraph child) {
    return set_child(exec, node, child);
}

KAGEMUSHA_ANSWERED CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                     CUgraphNodeParams* params) {
    return guarded([&] {
        const CUresult error = check_node(params);
        if (error)
            return error;
        if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
            return set_child(exec, node, params->graph.graph);
        return set_step(exec, node, params->type,
                        [&](CUresult& reason) { return described_node(*params, reason); });
    });
}

namespace {

// Those that can be taken out of launches and put back.
bool can_be_disabled(const graph_step& step) {
    return step.kind == CU_GRAPH_NODE_TYPE_KERNEL || step.kind == CU_GRAPH_NODE_TYPE_MEMSET ||
           step.kind == CU_GRAPH_NODE_TYPE_MEMCPY;
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    return of_step(exec, node, [&](graph_step& step) {
        if (!can_be_disabled(step))
            return CUDA_ERROR_INVALID_VALUE;
        step.is_enabled = enabled != 0;
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int* enabled) {
    return of_step(exec, node, [&](const graph_step& step) {
        if (!enabled || !can_be_disabled(step))
            return CUDA_ERROR_INVALID_VALUE;
        *enabled = step.is_enabled ? 1 : 0;
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
