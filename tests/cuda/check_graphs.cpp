// SPDX-License-Identifier: GPL-2.0-or-later
// Functions of the program in the order of streams; capture and graphs.
#include "check_graph.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace check {

namespace {

// Each launch of a graph sees what the program has stored by then, its own function in the middle too.
void with_pinned_memory() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    void* made = nullptr;
    NEED(cuMemHostAlloc(&made, count * 4, 0));
    auto* const pinned = static_cast<std::uint32_t*>(made);
    const auto at = reinterpret_cast<CUdeviceptr>(made);
    std::fill_n(pinned, count, 0u);
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    b.add(at, 10, b.one);
    NEED(cuMemcpyHtoDAsync_v2(b.memory, pinned, count * 4, b.one));
    NEED(cuLaunchHostFunc(b.one, [](void* data) { static_cast<std::uint32_t*>(data)[1] *= 2; }, pinned));
    b.add(at, 100, b.one);
    NEED(cuStreamEndCapture(b.one, &graph));
    EXPECT(pinned[0] == 0); // nothing ran
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    std::uint32_t rest = 0, doubled = 0;
    for (std::uint32_t round = 0; round < 5; ++round) {
        pinned[2] = round * 1000;
        NEED(cuGraphLaunch(exec, b.one));
        NEED(cuStreamSynchronize(b.one));
        const auto copied = read(b.memory);
        EXPECT(copied[0] == rest + 15 && copied[1] == doubled + 15 && copied[2] == round * 1000 + 15);
        rest += 15 + 105;
        doubled = (doubled + 15) * 2 + 105;
        EXPECT(pinned[0] == rest && pinned[1] == doubled && pinned[2] == round * 1000 + 120);
        EXPECT(pinned[count - 1] == rest);
    }
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    NEED(cuMemFreeHost(pinned));
}

void captured() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    NEED(cuStreamIsCapturing(b.one, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
    NEED(cuMemsetD32Async(b.memory, 1000, count, b.one));
    NEED(cuStreamSynchronize(b.one));
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NEED(cuMemsetD32Async(b.memory, 1, count, b.one));
    NEED(cuMemcpyDtoDAsync_v2(b.memory + count * 2, b.memory, count * 2, b.one)); // the same numbers again
    NEED(cuEventRecord(b.fork, b.one));
    NEED(cuStreamWaitEvent(b.other, b.fork, 0));
    b.add(10, b.other);
    NEED(cuEventRecord(b.join, b.other));
    NEED(cuStreamWaitEvent(b.one, b.join, 0));
    b.add(100, b.one);
    cuuint64_t id = 0;
    CUgraph unfinished = nullptr;
    const CUgraphNode* last = nullptr;
    std::size_t number = 0;
    NEED(cuStreamGetCaptureInfo_v2(b.other, &status, &id, &unfinished, &last, &number));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && number == 1);
    NEED(cuStreamEndCapture(b.one, &graph));
    EXPECT(nodes_of(graph).size() == 4);
    EXPECT(read(b.memory) == std::vector<std::uint32_t>(count, 1000)); // nothing ran
    std::size_t edges = 0, roots = 0;
    NEED(cuGraphGetEdges(graph, nullptr, nullptr, &edges));
    NEED(cuGraphGetRootNodes(graph, nullptr, &roots));
    EXPECT(edges >= 3 && roots == 1);
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 20; ++i)
        NEED(cuGraphLaunch(exec, b.one));
    b.add(0, b.one); // behind it
    NEED(cuStreamSynchronize(b.one));
    EXPECT(read(b.memory) == std::vector<std::uint32_t>(count, 1 + 15 + 105 + 5));
    // Another number for one of its nodes.
    CUgraphNode kernel = node_of(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS params{};
    NEED(cuGraphKernelNodeGetParams_v2(kernel, &params));
    EXPECT(params.func == b.bump && params.gridDimX == 24 && params.blockDimX == 128);
    const std::uint32_t was = *static_cast<std::uint32_t*>(params.kernelParams[2]);
    std::uint32_t by = 5000;
    void* parameters[] = {&b.memory, &b.n, &by};
    params.kernelParams = parameters;
    params.extra = nullptr;
    NEED(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &params));
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
    EXPECT(read(b.memory) == std::vector<std::uint32_t>(count, 1 + 10 + 100 + 10 - was + 5000));
    CUgraph clone = nullptr;
    CUgraphExecUpdateResultInfo info{};
    NEED(cuGraphClone(&clone, graph));
    EXPECT(nodes_of(clone).size() == 4);
    NEED(cuGraphExecUpdate_v2(exec, clone, &info)); // what it was
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
    EXPECT(read(b.memory) == std::vector<std::uint32_t>(count, 1 + 15 + 105));
    NEED(cuGraphDestroy(clone));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
}

void refused() {
    graph_bench b;
    CUgraph graph = nullptr;
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    b.add(1, b.one);
    EXPECT_RESULT(cuStreamSynchronize(b.one), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_RESULT(cuStreamEndCapture(b.one, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(graph == nullptr);
    // A branch that does not come back.
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    NEED(cuEventRecord(b.fork, b.one));
    NEED(cuStreamWaitEvent(b.other, b.fork, 0));
    b.add(1, b.other);
    EXPECT_RESULT(cuStreamEndCapture(b.one, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_RESULT(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
                  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    b.add(1, b.one); // both are streams again
    b.add(1, b.other);
    NEED(cuCtxSynchronize());
}

void built() {
    graph_bench b;
    CUgraph graph = nullptr, inner = nullptr;
    CUgraphNode set = nullptr, add = nullptr, call = nullptr, nothing = nullptr, child = nullptr;
    CUgraphExec exec = nullptr;
    std::atomic<int> calls{0};
    CUcontext context = nullptr;
    NEED(cuCtxGetCurrent(&context));
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&inner, 0));
    const CUDA_MEMSET_NODE_PARAMS zero{b.memory, 0, 0, 4, count, 1};
    NEED(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &zero, context));
    std::uint32_t by = 2;
    void* parameters[] = {&b.memory, &b.n, &by};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = b.bump;
    params.gridDimX = 24;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = 128;
    params.kernelParams = parameters;
    NEED(cuGraphAddKernelNode_v2(&add, graph, &set, 1, &params));
    by = 3;
    CUgraphNode of_inner = nullptr;
    NEED(cuGraphAddKernelNode_v2(&of_inner, inner, nullptr, 0, &params));
    NEED(cuGraphAddChildGraphNode(&child, graph, &add, 1, inner));
    NEED(cuGraphAddEmptyNode(&nothing, graph, &child, 1));
    std::vector<std::uint32_t> seen(count);
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = b.memory;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = seen.data();
    copy.WidthInBytes = count * 4;
    copy.Height = copy.Depth = 1;
    CUgraphNode out = nullptr;
    NEED(cuGraphAddMemcpyNode(&out, graph, &nothing, 1, &copy, context));
    const CUDA_HOST_NODE_PARAMS host{[](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls};
    NEED(cuGraphAddHostNode(&call, graph, &nothing, 1, &host));
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphDestroy(inner));
    for (int i = 0; i < 5; ++i)
        NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
    EXPECT(calls == 5);
    EXPECT(seen == std::vector<std::uint32_t>(count, 7 + 8));
    CUDA_MEMCPY3D told{};
    NEED(cuGraphMemcpyNodeGetParams(out, &told));
    EXPECT(told.WidthInBytes == count * 4 && told.Height == 1 && told.Depth == 1);
    EXPECT(read(b.memory) == std::vector<std::uint32_t>(count, 7 + 8));
    std::size_t before = 0;
    NEED(cuGraphNodeGetDependencies(call, nullptr, &before));
    EXPECT(before == 1);
    // A circle is found, when it is made or when the graph is to be launched.
    CUgraphExec never = nullptr;
    EXPECT(cu.cuGraphAddDependencies(graph, &call, &set, 1) != CUDA_SUCCESS ||
           cu.cuGraphInstantiateWithFlags(&never, graph, 0) != CUDA_SUCCESS);
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
}

} // namespace

// A function of the program has its place in a stream, and who puts it there goes on.
void order() {
    CUstream one = nullptr, other = nullptr;
    CUevent behind = nullptr;
    CUdeviceptr memory = 0;
    void* pinned = nullptr;
    NEED(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    NEED(cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    NEED(cuMemAlloc_v2(&memory, count * 4));
    NEED(cuMemHostAlloc(&pinned, count * 4, 0));
    auto* const got = static_cast<std::uint32_t*>(pinned);
    for (std::uint32_t round = 1; round < 20; ++round) {
        gate at;
        NEED(cuMemsetD32Async(memory, 7, count, one));
        NEED(cuLaunchHostFunc(one, wait_at, &at));
        NEED(cuMemsetD32Async(memory, round, count, one));
        NEED(cuEventRecord(behind, one));
        NEED(cuStreamWaitEvent(other, behind, 0));
        NEED(cuMemcpyDtoHAsync_v2(got, memory, count * 4, other));
        EXPECT_RESULT(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
        EXPECT_RESULT(cuEventQuery(behind), CUDA_ERROR_NOT_READY);
        EXPECT(!at.passed);
        at.open = true;
        at.open.notify_all();
        NEED(cuStreamSynchronize(other));
        EXPECT(at.passed && got[0] == round && got[count - 1] == round);
        NEED(cuEventSynchronize(behind));
    }
    // Callbacks get the stream and how it went.
    struct seen {
        CUstream where = nullptr;
        CUresult status = CUDA_ERROR_UNKNOWN;
    } told;
    NEED(cuStreamAddCallback(
        one,
        [](CUstream where, CUresult status, void* data) {
            static_cast<seen*>(data)->where = where;
            static_cast<seen*>(data)->status = status;
        },
        &told, 0));
    NEED(cuStreamSynchronize(one));
    EXPECT(told.where == one && told.status == CUDA_SUCCESS);
    unsigned flags = 0;
    int priority = 1, least = 1, greatest = 1;
    unsigned long long first = 0, second = 0;
    NEED(cuStreamGetFlags(one, &flags));
    NEED(cuStreamGetPriority(one, &priority));
    NEED(cuCtxGetStreamPriorityRange(&least, &greatest));
    NEED(cuStreamGetId(one, &first));
    NEED(cuStreamGetId(other, &second));
    EXPECT(flags == CU_STREAM_NON_BLOCKING && first != second);
    EXPECT(greatest <= least && priority <= least && priority >= greatest);
    NEED(cuMemFreeHost(pinned));
    NEED(cuMemFree_v2(memory));
    NEED(cuEventDestroy_v2(behind));
    NEED(cuStreamDestroy_v2(one));
    NEED(cuStreamDestroy_v2(other));
}

void graphs() {
    captured();
    with_pinned_memory();
    refused();
    built();
}

} // namespace check
