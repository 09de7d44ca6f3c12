// SPDX-License-Identifier: GPL-2.0-or-later
// Nodes of every kind in graphs of the program, capture into such a graph, and other work for what is instantiated.
#include "check_graph.hpp"

#include <atomic>
#include <cstdint>
#include <vector>

namespace check {

namespace {

// Parameters of nodes, as a program writes them: all else is 0.
CUgraphNodeParams to_set(CUdeviceptr at, unsigned value) {
    CUgraphNodeParams made{};
    made.type = CU_GRAPH_NODE_TYPE_MEMSET;
    made.memset.dst = at;
    made.memset.value = value;
    made.memset.elementSize = 4;
    made.memset.width = count;
    made.memset.height = 1;
    return made;
}

struct addition { // by + 5 to all of the memory
    CUgraphNodeParams params{};
    CUdeviceptr at;
    std::uint32_t n = count, by;
    void* each[3] = {&at, &n, &by};

    addition(const graph_bench& b, std::uint32_t number) : at(b.memory), by(number) {
        params.type = CU_GRAPH_NODE_TYPE_KERNEL;
        params.kernel.func = b.bump;
        params.kernel.gridDimX = 24;
        params.kernel.blockDimX = 128;
        params.kernel.gridDimY = params.kernel.gridDimZ = 1;
        params.kernel.blockDimY = params.kernel.blockDimZ = 1;
        params.kernel.kernelParams = each;
    }
    addition(const addition&) = delete;
    addition& operator=(const addition&) = delete;
};

CUgraphNode add(CUgraph to, const std::vector<CUgraphNode>& behind, CUgraphNodeParams params) {
    CUgraphNode made = nullptr;
    NEED(cuGraphAddNode_v2(&made, to, behind.data(), nullptr, behind.size(), &params));
    return made;
}

CUgraphNodeParams to_event(CUgraphNodeType type, CUevent event) {
    CUgraphNodeParams made{};
    made.type = type;
    if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        made.eventRecord.event = event;
    else
        made.eventWait.event = event;
    return made;
}

CUgraphNodeParams to_graph(CUgraph child, CUgraphChildGraphNodeOwnership ownership) {
    CUgraphNodeParams made{};
    made.type = CU_GRAPH_NODE_TYPE_GRAPH;
    made.graph.graph = child;
    made.graph.ownership = ownership;
    return made;
}

CUgraphExec instantiated(CUgraph graph) {
    CUgraphExec made = nullptr;
    NEED(cuGraphInstantiateWithFlags(&made, graph, 0));
    return made;
}

// What is in the memory behind a launch.
std::vector<std::uint32_t> launched(const graph_bench& b, CUgraphExec exec) {
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
    return read(b.memory);
}

CUgraph capture_end(CUstream stream) {
    CUgraph made = nullptr;
    NEED(cuStreamEndCapture(stream, &made));
    return made;
}

std::size_t edges_of(CUgraph graph) {
    std::size_t number = 0;
    NEED(cuGraphGetEdges(graph, nullptr, nullptr, &number));
    return number;
}

// A graph takes up what streams are asked to do, also more than once, behind nodes of its own.
void captured_into() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    const CUgraphNode set = add(graph, {}, to_set(b.memory, 1));
    const CUgraphNode apart = add(graph, {}, to_set(b.memory, 1)); // nobody waits for it
    NEED(cuStreamBeginCaptureToGraph(b.one, graph, &set, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph in = nullptr;
    const CUgraphNode* last = nullptr;
    std::size_t number = 0;
    NEED(cuStreamGetCaptureInfo_v2(b.one, &status, nullptr, &in, &last, &number));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && in == graph && number == 1 && last[0] == set);
    b.add(10, b.one);
    NEED(cuEventRecord(b.fork, b.one));
    NEED(cuStreamWaitEvent(b.other, b.fork, 0));
    b.add(100, b.other);
    NEED(cuEventRecord(b.join, b.other));
    NEED(cuStreamWaitEvent(b.one, b.join, 0));
    EXPECT(capture_end(b.one) == graph);
    EXPECT(nodes_of(graph).size() == 4 && edges_of(graph) == 2);
    NEED(cuGraphDestroyNode(apart));
    // Again, behind what is last, which is nobody's need.
    CUgraphNode end = nullptr;
    for (CUgraphNode node : nodes_of(graph)) {
        std::size_t behind = 0;
        NEED(cuGraphNodeGetDependentNodes(node, nullptr, &behind));
        if (behind == 0)
            end = node;
    }
    NEED(cuStreamBeginCaptureToGraph(b.other, graph, &end, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    b.add(1000, b.other);
    EXPECT(capture_end(b.other) == graph);
    EXPECT(nodes_of(graph).size() == 4 && edges_of(graph) == 3);
    exec = instantiated(graph);
    NEED(cuMemsetD32Async(b.memory, 7, count, b.one));
    EXPECT(launched(b, exec) == all(1 + 15 + 105 + 1005));
    NEED(cuGraphExecDestroy(exec));
    // One that fails: the stream is usable behind it. NVIDIA's driver takes the graph then; graph_abuse has ours.
    NEED(cuStreamBeginCaptureToGraph(b.one, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cu.cuStreamSynchronize(b.one) != CUDA_SUCCESS);
    EXPECT_RESULT(cuStreamEndCapture(b.one, &in), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(in == nullptr);
    b.add(0, b.one);
    NEED(cuStreamSynchronize(b.one));
}

// Kernels that may begin before the one before has ended, which they do not wait for: none needs another's result.
void early() {
    graph_bench b;
    CUgraph graph = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    CUdeviceptr elsewhere = 0;
    NEED(cuMemAlloc_v2(&elsewhere, count * 4));
    const addition two(b, 2);
    addition three(b, 3);
    three.at = elsewhere;
    CUgraphEdgeData edge{};
    edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    const CUgraphNode set = add(graph, {}, to_set(b.memory, 10)),
                      other = add(graph, {}, to_set(elsewhere, 20));
    const CUgraphNode first = add(graph, {set, other}, two.params);
    CUgraphNode second = nullptr;
    NEED(cuGraphAddNode_v2(&second, graph, &first, &edge, 1, &three.params));
    const CUgraphExec exec = instantiated(graph);
    EXPECT(launched(b, exec) == all(10 + 7));
    EXPECT(read(elsewhere) == all(20 + 8));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    NEED(cuMemFree_v2(elsewhere));
}

// One function makes them all.
void described() {
    graph_bench b;
    CUgraph graph = nullptr, inner = nullptr;
    CUevent began = nullptr, ended = nullptr;
    std::atomic<int> calls{0};
    std::vector<std::uint32_t> seen(count);
    NEED(cuEventCreate(&began, CU_EVENT_DEFAULT));
    NEED(cuEventCreate(&ended, CU_EVENT_DEFAULT));
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&inner, 0));
    const addition two(b, 2), three(b, 3);
    add(inner, {}, three.params);
    const CUgraphNode start = add(graph, {}, to_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, began));
    const CUgraphNode set = add(graph, {start}, to_set(b.memory, 1000));
    const CUgraphNode sum = add(graph, {set}, two.params);
    const CUgraphNode child = add(graph, {sum}, to_graph(inner, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE));
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUgraphNode nothing = nullptr;
    NEED(cuGraphAddNode(&nothing, graph, &child, 1, &params));
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params.memcpy.copyParams.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    params.memcpy.copyParams.srcDevice = b.memory;
    params.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_HOST;
    params.memcpy.copyParams.dstHost = seen.data();
    params.memcpy.copyParams.WidthInBytes = count * 4;
    params.memcpy.copyParams.Height = params.memcpy.copyParams.Depth = 1;
    NEED(cuCtxGetCurrent(&params.memcpy.copyCtx));
    const CUgraphNode out = add(graph, {nothing}, params);
    params = {};
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    params.host.fn = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
    params.host.userData = &calls;
    const CUgraphNode call = add(graph, {out}, params);
    add(graph, {call}, to_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, ended));
    const CUgraphNodeType wanted[] = {CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_KERNEL,
                                      CU_GRAPH_NODE_TYPE_GRAPH,  CU_GRAPH_NODE_TYPE_EMPTY,
                                      CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_HOST};
    const CUgraphNode made[] = {set, sum, child, nothing, out, call};
    for (int i = 0; i < 6; ++i) {
        CUgraphNodeType type{};
        NEED(cuGraphNodeGetType(made[i], &type));
        EXPECT(type == wanted[i]);
    }
    NEED(cuGraphDestroy(inner)); // the node has its own
    float milliseconds = -1;
    EXPECT(cu.cuEventElapsedTime(&milliseconds, began, ended) != CUDA_SUCCESS);
    const CUgraphExec exec = instantiated(graph);
    EXPECT(launched(b, exec) == all(1000 + 7 + 8));
    EXPECT(seen == all(1000 + 7 + 8) && calls == 1);
    NEED(cuEventElapsedTime(&milliseconds, began, ended));
    EXPECT(milliseconds >= 0);
    // Other parameters, for those that are instantiated from here on. Of another kind: no.
    CUgraphNodeParams other = to_set(b.memory, 2000);
    NEED(cuGraphNodeSetParams(set, &other));
    EXPECT(cu.cuGraphNodeSetParams(sum, &other) != CUDA_SUCCESS);
    addition ten(b, 10);
    NEED(cuGraphNodeSetParams(sum, &ten.params));
    EXPECT(launched(b, exec) == all(1000 + 7 + 8));
    const CUgraphExec second = instantiated(graph);
    EXPECT(launched(b, second) == all(2000 + 15 + 8));
    NEED(cuGraphExecDestroy(second));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    NEED(cuEventDestroy_v2(began));
    NEED(cuEventDestroy_v2(ended));
}

// A wait for what another stream does is one at each launch.
void waits() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUdeviceptr copy = 0;
    NEED(cuMemAlloc_v2(&copy, count * 4));
    NEED(cuGraphCreate(&graph, 0));
    const CUgraphNode wait = add(graph, {}, to_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, b.fork));
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params.memcpy.copyParams.srcMemoryType = params.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.memcpy.copyParams.srcDevice = b.memory;
    params.memcpy.copyParams.dstDevice = copy;
    params.memcpy.copyParams.WidthInBytes = count * 4;
    params.memcpy.copyParams.Height = params.memcpy.copyParams.Depth = 1;
    NEED(cuCtxGetCurrent(&params.memcpy.copyCtx));
    add(graph, {wait}, params);
    const CUgraphExec exec = instantiated(graph);
    for (std::uint32_t round = 1; round < 4; ++round) {
        gate at;
        NEED(cuLaunchHostFunc(b.other, wait_at, &at));
        NEED(cuMemsetD32Async(b.memory, round, count, b.other));
        NEED(cuEventRecord(b.fork, b.other));
        NEED(cuGraphLaunch(exec, b.one));
        EXPECT_RESULT(cuStreamQuery(b.one), CUDA_ERROR_NOT_READY);
        at.open = true;
        at.open.notify_all();
        NEED(cuStreamSynchronize(b.one));
        EXPECT(at.passed && read(copy) == all(round));
    }
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    NEED(cuMemFree_v2(copy));
}

// What JAX does: the graph of a trace becomes a child, and is later exchanged for another of the same form.
void exchanged() {
    graph_bench b;
    CUgraph graph = nullptr, traced = nullptr, again = nullptr, longer = nullptr;
    CUgraph* const traces[] = {&traced, &again, &longer};
    for (std::uint32_t i = 0; i < 3; ++i) {
        NEED(cuGraphCreate(traces[i], 0));
        NEED(cuStreamBeginCaptureToGraph(b.one, *traces[i], nullptr, nullptr, 0,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        b.add(i == 0 ? 10 : 20, b.one);
        b.add(i == 0 ? 100 : 200, b.one);
        if (i == 2)
            b.add(1, b.one);
        EXPECT(capture_end(b.one) == *traces[i]);
    }
    NEED(cuGraphCreate(&graph, 0));
    const CUgraphNode set = add(graph, {}, to_set(b.memory, 1));
    CUgraphNode child = nullptr;
    NEED(cuGraphAddChildGraphNode(&child, graph, &set, 1, traced));
    const addition thousand(b, 1000), million(b, 1000000);
    const CUgraphNode sum = add(graph, {child}, thousand.params);
    CUgraphExec exec = nullptr;
    NEED(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    EXPECT(launched(b, exec) == all(1 + 15 + 105 + 1005));
    NEED(cuGraphExecChildGraphNodeSetParams(exec, child, again));
    EXPECT(launched(b, exec) == all(1 + 25 + 205 + 1005));
    EXPECT(cu.cuGraphExecChildGraphNodeSetParams(exec, child, longer) != CUDA_SUCCESS);
    EXPECT(cu.cuGraphExecChildGraphNodeSetParams(exec, sum, again) != CUDA_SUCCESS);
    // As many nodes in another order, and as many of other kinds.
    CUgraph apart = nullptr, mixed = nullptr;
    NEED(cuGraphCreate(&apart, 0));
    NEED(cuGraphCreate(&mixed, 0));
    add(apart, {}, thousand.params);
    add(apart, {}, thousand.params);
    add(mixed, {add(mixed, {}, thousand.params)}, to_set(b.memory, 3));
    for (CUgraph wrong : {apart, mixed}) {
        EXPECT(cu.cuGraphExecChildGraphNodeSetParams(exec, child, wrong) != CUDA_SUCCESS);
        NEED(cuGraphDestroy(wrong));
    }
    EXPECT(launched(b, exec) == all(1 + 25 + 205 + 1005));
    // The same by the function for all kinds; and for the others.
    CUgraphNodeParams params = to_graph(traced, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
    NEED(cuGraphExecNodeSetParams(exec, child, &params));
    params = million.params;
    NEED(cuGraphExecNodeSetParams(exec, sum, &params));
    EXPECT(cu.cuGraphExecNodeSetParams(exec, set, &params) != CUDA_SUCCESS);
    EXPECT(launched(b, exec) == all(1 + 15 + 105 + 1000005));
    // A node of the child's, by its own handle.
    CUgraph of_child = nullptr;
    NEED(cuGraphChildGraphNodeGetGraph(child, &of_child));
    const CUgraphNode first = nodes_of(of_child).at(0);
    CUDA_KERNEL_NODE_PARAMS kernel{};
    NEED(cuGraphKernelNodeGetParams_v2(first, &kernel));
    const std::uint32_t was = *static_cast<std::uint32_t*>(kernel.kernelParams[2]);
    const addition seven(b, 7);
    NEED(cuGraphExecKernelNodeSetParams_v2(exec, first, &seven.params.kernel));
    EXPECT(launched(b, exec) == all(1 + 15 + 105 + 1000005 - was + 7));
    for (CUgraph* trace : traces)
        NEED(cuGraphDestroy(*trace));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
}

// A graph that becomes a child itself; its nodes keep their handles.
void moved() {
    graph_bench b;
    CUgraph graph = nullptr, inner = nullptr, told = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&inner, 0));
    const addition ten(b, 10), twenty(b, 20);
    const CUgraphNode sum = add(inner, {}, ten.params);
    const CUgraphNode set = add(graph, {}, to_set(b.memory, 1));
    const CUgraphNode child = add(graph, {set}, to_graph(inner, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
    NEED(cuGraphChildGraphNodeGetGraph(child, &told));
    EXPECT(told == inner);
    const CUgraphExec exec = instantiated(graph);
    EXPECT(launched(b, exec) == all(16));
    NEED(cuGraphExecKernelNodeSetParams_v2(exec, sum, &twenty.params.kernel));
    EXPECT(launched(b, exec) == all(26));
    NEED(cuGraphDestroy(graph)); // with its child
    EXPECT(launched(b, exec) == all(26));
    NEED(cuGraphExecDestroy(exec));
}

void disabled() {
    graph_bench b;
    CUgraph graph = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    const addition ten(b, 10), twenty(b, 20);
    const CUgraphNode set = add(graph, {}, to_set(b.memory, 1));
    const CUgraphNode sum = add(graph, {set}, ten.params);
    const CUgraphExec exec = instantiated(graph);
    unsigned enabled = 7;
    NEED(cuGraphNodeGetEnabled(exec, sum, &enabled));
    EXPECT(enabled == 1 && launched(b, exec) == all(16));
    NEED(cuGraphNodeSetEnabled(exec, sum, 0));
    NEED(cuGraphNodeGetEnabled(exec, sum, &enabled));
    EXPECT(enabled == 0 && launched(b, exec) == all(1));
    NEED(cuGraphExecKernelNodeSetParams_v2(exec, sum, &twenty.params.kernel)); // for when it is back
    EXPECT(launched(b, exec) == all(1));
    NEED(cuGraphNodeSetEnabled(exec, sum, 1));
    NEED(cuGraphNodeSetEnabled(exec, set, 0));
    EXPECT(launched(b, exec) == all(26));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
}

} // namespace

void graph_nodes() {
    captured_into();
    described();
    early();
    waits();
    exchanged();
    moved();
    disabled();
}

} // namespace check
