// SPDX-License-Identifier: GPL-2.0-or-later
// What graphs have beside nodes: edges, attributes of launches, events, objects of the program, pictures.
#include "check_graph.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace check {

namespace {

CUgraphNode add_kernel(const graph_bench& b, CUgraph to, const std::vector<CUgraphNode>& behind,
                       std::uint32_t by) {
    CUdeviceptr at = b.memory;
    std::uint32_t n = count;
    void* each[] = {&at, &n, &by};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = b.bump;
    params.gridDimX = 24;
    params.blockDimX = 128;
    params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = each;
    CUgraphNode made = nullptr;
    NEED(cuGraphAddKernelNode_v2(&made, to, behind.data(), behind.size(), &params));
    return made;
}

void launch(const graph_bench& b, CUgraphExec exec) {
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
}

void edges() {
    graph_bench b;
    CUgraph graph = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    CUgraphNode nodes[3]{};
    for (CUgraphNode& node : nodes)
        NEED(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
    const CUgraphEdgeData plain[2]{};
    const CUgraphNode from[] = {nodes[0], nodes[0]}, to[] = {nodes[1], nodes[2]};
    NEED(cuGraphAddDependencies_v2(graph, from, to, plain, 2));
    CUgraphNode found[3]{};
    CUgraphEdgeData data[3];
    for (CUgraphEdgeData& one : data)
        one.type = one.from_port = one.to_port = 9;
    std::size_t number = 3;
    NEED(cuGraphNodeGetDependentNodes_v2(nodes[0], found, data, &number));
    EXPECT(number == 2 && data[0].type == 0 && data[1].from_port == 0 && data[1].to_port == 0);
    number = 1;
    NEED(cuGraphNodeGetDependencies_v2(nodes[2], found, data, &number));
    EXPECT(number == 1 && found[0] == nodes[0]);
    NEED(cuGraphRemoveDependencies_v2(graph, from, to, nullptr, 1));
    number = 0;
    NEED(cuGraphGetEdges(graph, nullptr, nullptr, &number));
    EXPECT(number == 1);
    NEED(cuGraphNodeGetDependencies_v2(nodes[1], nullptr, nullptr, &number));
    EXPECT(number == 0);
    NEED(cuGraphDestroy(graph));
    // In a capture: what is next is behind what the program says.
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    b.add(1, b.one);
    CUstreamCaptureStatus status{};
    const CUgraphNode* last = nullptr;
    NEED(cuStreamGetCaptureInfo_v2(b.one, &status, nullptr, &graph, &last, &number));
    CUgraphNode first = last[0], extra = nullptr;
    NEED(cuGraphAddEmptyNode(&extra, graph, &first, 1));
    NEED(cuStreamUpdateCaptureDependencies_v2(b.one, &extra, plain, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    b.add(1, b.one);
    NEED(cuStreamEndCapture(b.one, &graph));
    NEED(cuGraphNodeGetDependentNodes(extra, nullptr, &number));
    EXPECT(number == 1);
    NEED(cuGraphNodeGetDependentNodes(first, nullptr, &number));
    EXPECT(number == 1);
    NEED(cuGraphDestroy(graph));
}

void attributes() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    const CUgraphNode one = add_kernel(b, graph, {}, 1), other = add_kernel(b, graph, {one}, 2);
    int least = 0, greatest = 0;
    NEED(cuCtxGetStreamPriorityRange(&least, &greatest));
    CUlaunchAttributeValue value{};
    value.priority = greatest;
    NEED(cuGraphKernelNodeSetAttribute(one, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    value = {};
    value.priority = 77;
    NEED(cuGraphKernelNodeGetAttribute(one, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    EXPECT(value.priority == greatest);
    value = {};
    value.cooperative = 1;
    NEED(cuGraphKernelNodeSetAttribute(one, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    NEED(cuGraphKernelNodeCopyAttributes(other, one));
    for (CUgraphNode node : {one, other}) {
        value = {};
        NEED(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
        EXPECT(value.cooperative == 1);
        value = {};
        value.priority = 77;
        NEED(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
        EXPECT(value.priority == greatest);
    }
    // Other parameters leave them.
    CUDA_KERNEL_NODE_PARAMS params{};
    NEED(cuGraphKernelNodeGetParams_v2(one, &params));
    NEED(cuGraphKernelNodeSetParams_v2(one, &params));
    value = {};
    NEED(cuGraphKernelNodeGetAttribute(one, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    EXPECT(value.cooperative == 1);
    NEED(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    NEED(cuMemsetD32Async(b.memory, 0, count, b.one));
    launch(b, exec);
    EXPECT(read(b.memory) == all(6 + 7));
    EXPECT(cu.cuGraphKernelNodeSetAttribute(one, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &value) !=
           CUDA_SUCCESS); // of launches alone
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
}

void events() {
    graph_bench b;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUevent times[3]{}, told = nullptr;
    for (CUevent& time : times)
        NEED(cuEventCreate(&time, CU_EVENT_DEFAULT));
    NEED(cuGraphCreate(&graph, 0));
    CUgraphNode record = nullptr, wait = nullptr;
    NEED(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, times[0]));
    NEED(cuGraphAddEventWaitNode(&wait, graph, &record, 1, times[0]));
    NEED(cuGraphEventRecordNodeGetEvent(record, &told));
    EXPECT(told == times[0]);
    NEED(cuGraphEventRecordNodeSetEvent(record, times[1]));
    NEED(cuGraphEventRecordNodeGetEvent(record, &told));
    EXPECT(told == times[1]);
    NEED(cuGraphEventWaitNodeSetEvent(wait, times[2]));
    NEED(cuGraphEventWaitNodeGetEvent(wait, &told));
    EXPECT(told == times[2]);
    EXPECT(cu.cuGraphEventWaitNodeGetEvent(record, &told) != CUDA_SUCCESS);
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphExecEventRecordNodeSetEvent(exec, record, times[2]));
    NEED(cuGraphExecEventWaitNodeSetEvent(exec, wait, b.fork));
    float milliseconds = -1;
    launch(b, exec);
    EXPECT(cu.cuEventElapsedTime(&milliseconds, times[1], times[1]) != CUDA_SUCCESS); // never recorded
    NEED(cuEventElapsedTime(&milliseconds, times[2], times[2]));
    EXPECT(milliseconds == 0);
    // It waits for the event that it has now.
    gate at;
    NEED(cuLaunchHostFunc(b.other, wait_at, &at));
    NEED(cuEventRecord(b.fork, b.other));
    NEED(cuGraphLaunch(exec, b.one));
    EXPECT_RESULT(cuStreamQuery(b.one), CUDA_ERROR_NOT_READY);
    at.open = true;
    at.open.notify_all();
    NEED(cuStreamSynchronize(b.one));
    EXPECT(at.passed);
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    for (CUevent time : times)
        NEED(cuEventDestroy_v2(time));
}

// The form that programs of CUDA 11 call.
void updated() {
    graph_bench b;
    CUgraph graph = nullptr, same = nullptr, longer = nullptr;
    CUgraphExec exec = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&same, 0));
    NEED(cuGraphCreate(&longer, 0));
    add_kernel(b, graph, {}, 10);
    add_kernel(b, same, {}, 20);
    add_kernel(b, longer, {add_kernel(b, longer, {}, 1)}, 1);
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUgraphNode wrong = nullptr;
    auto result = CU_GRAPH_EXEC_UPDATE_ERROR;
    NEED(cuGraphExecUpdate(exec, same, &wrong, &result));
    EXPECT(result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    EXPECT_RESULT(cuGraphExecUpdate(exec, longer, &wrong, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    EXPECT(result != CU_GRAPH_EXEC_UPDATE_SUCCESS);
    NEED(cuMemsetD32Async(b.memory, 0, count, b.one));
    launch(b, exec);
    EXPECT(read(b.memory) == all(25));
    for (CUgraph one : {graph, same, longer})
        NEED(cuGraphDestroy(one));
    NEED(cuGraphExecDestroy(exec));
}

void pictures() {
    graph_bench b;
    CUgraph graph = nullptr, inner = nullptr;
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&inner, 0));
    CUgraphNode child = nullptr, end = nullptr;
    add_kernel(b, inner, {}, 1);
    NEED(cuGraphAddChildGraphNode(&child, graph, nullptr, 0, inner));
    NEED(cuGraphAddEmptyNode(&end, graph, &child, 1));
    const std::string path = "/tmp/kagemusha_check_" + std::to_string(getpid()) + ".dot";
    NEED(cuGraphDebugDotPrint(graph, path.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT(unlink(path.c_str()) == 0);
    EXPECT(text.str().find("digraph") != std::string::npos && text.str().find("->") != std::string::npos);
    EXPECT(text.str().find("bump") != std::string::npos); // of the child
    EXPECT(cu.cuGraphDebugDotPrint(graph, "/nowhere/at/all", 0) != CUDA_SUCCESS);
    NEED(cuGraphDestroy(inner));
    NEED(cuGraphDestroy(graph));
}

// An object of the program, and how often it was ended, which another thread does.
struct owned {
    std::mutex mutex;
    std::condition_variable changed;
    int ended = 0;
    const gate* behind = nullptr; // what has to be passed before
    bool is_early = false;
    CUuserObject handle = nullptr;

    owned() {
        const auto end = [](void* data) {
            auto& self = *static_cast<owned*>(data);
            const std::lock_guard held(self.mutex);
            self.is_early = self.behind && !self.behind->passed;
            ++self.ended;
            self.changed.notify_all();
        };
        NEED(cuUserObjectCreate(&handle, this, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    }
    owned(const owned&) = delete;
    owned& operator=(const owned&) = delete;
    int now() {
        const std::lock_guard held(mutex);
        return ended;
    }
    bool ends() { // a long time is a failure, and no measurement
        std::unique_lock held(mutex);
        return changed.wait_for(held, std::chrono::seconds(60), [&] { return ended == 1; });
    }
};

void user_objects() {
    graph_bench b;
    CUgraph graph = nullptr, clone = nullptr, outer = nullptr;
    CUgraphExec exec = nullptr;
    owned simple;
    NEED(cuUserObjectRetain(simple.handle, 2));
    NEED(cuUserObjectRelease(simple.handle, 2));
    EXPECT(simple.now() == 0);
    NEED(cuUserObjectRelease(simple.handle, 1));
    EXPECT(simple.ends());
    // A graph's, and those of what was made of it.
    owned shared;
    NEED(cuGraphCreate(&graph, 0));
    NEED(cuGraphCreate(&outer, 0));
    add_kernel(b, graph, {}, 1);
    NEED(cuGraphRetainUserObject(graph, shared.handle, 2, 0));
    NEED(cuGraphReleaseUserObject(graph, shared.handle, 1));
    NEED(cuUserObjectRelease(shared.handle, 1));
    NEED(cuGraphClone(&clone, graph));
    CUgraphNode child = nullptr;
    NEED(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, clone));
    NEED(cuGraphDestroy(graph));
    NEED(cuGraphDestroy(clone));
    NEED(cuGraphInstantiateWithFlags(&exec, outer, 0));
    NEED(cuGraphDestroy(outer));
    launch(b, exec);
    EXPECT(shared.now() == 0);
    NEED(cuGraphExecDestroy(exec));
    EXPECT(shared.ends());
    // A launch that is under way keeps it.
    owned used;
    gate at;
    used.behind = &at;
    NEED(cuGraphCreate(&graph, 0));
    add_kernel(b, graph, {}, 1);
    NEED(cuGraphRetainUserObject(graph, used.handle, 1, CU_GRAPH_USER_OBJECT_MOVE));
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphDestroy(graph));
    NEED(cuLaunchHostFunc(b.one, wait_at, &at));
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuGraphExecDestroy(exec));
    EXPECT(used.now() == 0);
    at.open = true;
    at.open.notify_all();
    NEED(cuStreamSynchronize(b.one));
    EXPECT(used.ends() && !used.is_early);
    CUuserObject none = nullptr;
    EXPECT(cu.cuUserObjectCreate(&none, nullptr, [](void*) {}, 1, 0) != CUDA_SUCCESS); // flags
    EXPECT(cu.cuUserObjectCreate(
               &none, nullptr, [](void*) {}, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS);
}

} // namespace

void graph_objects() {
    edges();
    attributes();
    events();
    updated();
    pictures();
    user_objects();
}

} // namespace check
