// SPDX-License-Identifier: GPL-2.0-or-later
// Handles of graphs and nodes that are wrong, or come at the wrong time. Where the reference leaves that undefined
// our library answers with an error and goes on; NVIDIA's need not, so this part runs by name only.
#include "check_graph.hpp"

#include <cstdint>
#include <vector>

namespace check {

namespace {

#define EXPECT_ERROR(call) check::expect(cu.call != CUDA_SUCCESS, #call " is no error", __FILE__, __LINE__)

CUgraphNodeParams empty_params() {
    CUgraphNodeParams made{};
    made.type = CU_GRAPH_NODE_TYPE_EMPTY;
    return made;
}

CUgraph made_graph() {
    CUgraph made = nullptr;
    NEED(cuGraphCreate(&made, 0));
    return made;
}

CUgraphNode empty_node(CUgraph to) {
    CUgraphNode made = nullptr;
    NEED(cuGraphAddEmptyNode(&made, to, nullptr, 0));
    return made;
}

CUgraphNodeParams moving(CUgraph child) {
    CUgraphNodeParams made{};
    made.type = CU_GRAPH_NODE_TYPE_GRAPH;
    made.graph.graph = child;
    made.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    return made;
}

// While streams capture into it, a graph stays, and all of its nodes.
void destroyed_in_capture() {
    graph_bench b;
    const CUgraph graph = made_graph(), outer = made_graph();
    const CUgraphNode before = empty_node(graph);
    CUgraph got = nullptr;
    NEED(cuStreamBeginCaptureToGraph(b.one, graph, &before, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_RESULT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuGraphDestroyNode(before), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(
        cuStreamBeginCaptureToGraph(b.other, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED),
        CUDA_ERROR_INVALID_VALUE);
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(b.one, outer, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUgraphNodeParams params = moving(graph);
    CUgraphNode node = nullptr;
    EXPECT_RESULT(cuGraphAddNode_v2(&node, outer, nullptr, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    b.add(1, b.one);
    NEED(cuStreamEndCapture(b.one, &got));
    EXPECT(got == graph && nodes_of(graph).size() == 2);
    NEED(cuGraphDestroyNode(before));
    EXPECT_RESULT(cuGraphDestroyNode(before), CUDA_ERROR_INVALID_VALUE);
    // The capture's own graph, which a program can ask for.
    CUstreamCaptureStatus status{};
    NEED(cuStreamBeginCapture_v2(b.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    NEED(cuStreamGetCaptureInfo_v2(b.one, &status, nullptr, &got, nullptr, nullptr));
    EXPECT_RESULT(cuGraphDestroy(got), CUDA_ERROR_INVALID_VALUE);
    b.add(1, b.one);
    CUgraph ended = nullptr;
    NEED(cuStreamEndCapture(b.one, &ended));
    EXPECT(ended == got);
    NEED(cuGraphDestroy(ended));
    EXPECT_RESULT(cuGraphDestroy(ended), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(
        cuStreamBeginCaptureToGraph(b.one, ended, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED),
        CUDA_ERROR_INVALID_VALUE);
    NEED(cuGraphDestroy(graph));
    NEED(cuGraphDestroy(outer));
}

// A child that is captured into keeps its parents.
void parent_destroyed_in_capture() {
    graph_bench b;
    const CUgraph graph = made_graph(), inner = made_graph();
    empty_node(inner);
    CUgraphNode node = nullptr;
    CUgraph child = nullptr;
    NEED(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, inner));
    NEED(cuGraphChildGraphNodeGetGraph(node, &child));
    EXPECT_RESULT(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE);
    NEED(cuStreamBeginCaptureToGraph(b.one, child, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_RESULT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuGraphDestroyNode(node), CUDA_ERROR_INVALID_VALUE);
    b.add(1, b.one);
    CUgraph got = nullptr;
    NEED(cuStreamEndCapture(b.one, &got));
    EXPECT(got == child && nodes_of(child).size() == 2);
    NEED(cuGraphDestroy(graph));
    EXPECT_RESULT(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE);
    NEED(cuGraphDestroy(inner));
}

// Streams and contexts that end in the middle leave the program's graph.
void stream_destroyed_in_capture() {
    graph_bench b;
    const CUgraph graph = made_graph();
    CUstream stream = nullptr;
    NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    NEED(cuMemsetD32Async(b.memory, 3, count, stream));
    cu.cuStreamDestroy_v2(stream);
    CUcontext context = nullptr, popped = nullptr;
    NEED(cuCtxCreate_v2(&context, 0, 0));
    NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    NEED(cuCtxDestroy_v2(context));
    NEED(cuCtxGetCurrent(&popped));
    EXPECT(nodes_of(graph).size() == 1);
    CUgraphExec exec = nullptr;
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphLaunch(exec, b.one));
    NEED(cuStreamSynchronize(b.one));
    EXPECT(read(b.memory) == all(3));
    NEED(cuGraphExecDestroy(exec));
    EXPECT_RESULT(cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuGraphLaunch(exec, b.one), CUDA_ERROR_INVALID_VALUE);
    NEED(cuGraphDestroy(graph));
}

void wrong_handles() {
    graph_bench b;
    const CUgraph graph = made_graph(), other = made_graph(), gone = made_graph();
    const CUgraphNode mine = empty_node(graph), theirs = empty_node(other), dead = empty_node(gone);
    NEED(cuGraphDestroy(gone));
    CUgraphNode node = nullptr;
    CUgraphNodeParams params = empty_params();
    EXPECT_ERROR(cuGraphAddNode_v2(&node, gone, nullptr, nullptr, 0, &params));
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, &theirs, nullptr, 1, &params));
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, &dead, nullptr, 1, &params));
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 1, &params));
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, nullptr));
    EXPECT_ERROR(cuGraphAddNode_v2(nullptr, graph, nullptr, nullptr, 0, &params));
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(b.one, graph, &theirs, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(b.one, graph, &dead, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(b.one, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(b.one, graph, nullptr, nullptr, 0, static_cast<CUstreamCaptureMode>(3)));
    EXPECT_ERROR(
        cuStreamBeginCaptureToGraph(nullptr, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_ERROR(cuGraphNodeSetParams(dead, &params));
    CUgraphExec exec = nullptr;
    NEED(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_ERROR(cuGraphExecNodeSetParams(exec, theirs, &params));
    EXPECT_ERROR(cuGraphExecNodeSetParams(exec, dead, &params));
    NEED(cuGraphExecNodeSetParams(exec, mine, &params));
    EXPECT_ERROR(cuGraphExecChildGraphNodeSetParams(exec, mine, other));
    EXPECT_ERROR(cuGraphExecChildGraphNodeSetParams(exec, mine, gone));
    unsigned enabled = 0;
    EXPECT_ERROR(cuGraphNodeSetEnabled(exec, mine, 0)); // no kernel, copy or set
    EXPECT_ERROR(cuGraphNodeGetEnabled(exec, theirs, &enabled));
    EXPECT(nodes_of(graph).size() == 1);
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(graph));
    NEED(cuGraphDestroy(other));
}

// What is not known is refused, and not left out.
void unknown_parameters() {
    graph_bench b;
    const CUgraph graph = made_graph();
    const CUgraphNode before = empty_node(graph);
    CUgraphNode node = nullptr;
    for (int type : {CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                     CU_GRAPH_NODE_TYPE_CONDITIONAL}) {
        CUgraphNodeParams params{};
        params.type = static_cast<CUgraphNodeType>(type);
        EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params),
                      CUDA_ERROR_NOT_SUPPORTED);
    }
    for (int type : {-1, 14, 1000}) {
        CUgraphNodeParams params{};
        params.type = static_cast<CUgraphNodeType>(type);
        EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params),
                      CUDA_ERROR_INVALID_VALUE);
    }
    CUgraphNodeParams params = empty_params();
    params.reserved0[2] = 1;
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params = empty_params();
    params.reserved2 = 1;
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params = empty_params();
    params.reserved1[0] = 1;
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params = empty_params();
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY; // from nowhere to nowhere
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    params.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    params = moving(graph);
    params.graph.ownership = static_cast<CUgraphChildGraphNodeOwnership>(2);
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    // An edge that lets the node behind it begin early, but only a kernel can; and one of no kind.
    CUgraphEdgeData early{};
    early.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    early.from_port = 1;
    params = empty_params();
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, &before, &early, 1, &params), CUDA_ERROR_INVALID_VALUE);
    early.type = 9;
    EXPECT_RESULT(cuGraphAddNode_v2(&node, graph, &before, &early, 1, &params), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_RESULT(
        cuStreamBeginCaptureToGraph(b.one, graph, &before, &early, 1, CU_STREAM_CAPTURE_MODE_RELAXED),
        CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(nodes_of(graph).size() == 1);
    const CUgraphNode second = empty_node(graph);
    EXPECT_RESULT(cuGraphAddDependencies_v2(graph, &before, &second, &early, 1), CUDA_ERROR_NOT_SUPPORTED);
    std::size_t edges = 1;
    NEED(cuGraphGetEdges(graph, nullptr, nullptr, &edges));
    EXPECT(edges == 0);
    CUlaunchAttributeValue value{};
    EXPECT_ERROR(cuGraphKernelNodeSetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value)); // no kernel
    EXPECT_ERROR(cuGraphKernelNodeCopyAttributes(second, before));
    NEED(cuGraphDestroy(graph));
    EXPECT_ERROR(cuGraphDebugDotPrint(graph, "/dev/null", 0));
}

// References that are not there.
void released_too_often() {
    const CUgraph graph = made_graph();
    CUuserObject object = nullptr;
    NEED(cuUserObjectCreate(&object, nullptr, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    EXPECT_ERROR(cuUserObjectRelease(object, 2));
    EXPECT_ERROR(cuUserObjectRetain(object, 0));
    EXPECT_ERROR(cuUserObjectRetain(object, 0x80000000U));
    EXPECT_ERROR(cuGraphReleaseUserObject(graph, object, 1));
    EXPECT_ERROR(cuGraphRetainUserObject(graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE));
    EXPECT_ERROR(cuGraphRetainUserObject(graph, object, 1, 2));
    NEED(cuUserObjectRelease(object, 1));
    EXPECT_ERROR(cuUserObjectRelease(object, 1));
    EXPECT_ERROR(cuGraphRetainUserObject(graph, object, 1, 0));
    NEED(cuGraphDestroy(graph));
}

// Graphs in graphs: no circle, and no tower.
void moved_wrongly() {
    const CUgraph graph = made_graph(), inner = made_graph(), other = made_graph();
    CUgraphNode node = nullptr;
    CUgraphExec exec = nullptr;
    CUgraphNodeParams params = moving(graph);
    EXPECT_ERROR(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    params = moving(inner);
    NEED(cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
    EXPECT_ERROR(cuGraphAddNode_v2(&node, other, nullptr, nullptr, 0, &params)); // it is nobody's any more
    EXPECT_ERROR(cuGraphAddChildGraphNode(&node, other, nullptr, 0, inner));
    EXPECT_ERROR(cuGraphInstantiateWithFlags(&exec, inner, 0));
    EXPECT_ERROR(cuGraphDestroy(inner));
    params = moving(graph);
    EXPECT_ERROR(cuGraphAddNode_v2(&node, inner, nullptr, nullptr, 0, &params)); // a circle
    NEED(cuGraphDestroy(graph));
    EXPECT_ERROR(cuGraphDestroy(inner));
    CUgraph top = made_graph();
    unsigned floors = 1;
    for (; floors < 1000; ++floors) {
        const CUgraph next = made_graph();
        params = moving(top);
        if (cu.cuGraphAddNode_v2(&node, next, nullptr, nullptr, 0, &params) != CUDA_SUCCESS) {
            NEED(cuGraphDestroy(next));
            break;
        }
        top = next;
    }
    EXPECT(floors > 8 && floors < 1000);
    NEED(cuGraphInstantiateWithFlags(&exec, top, 0));
    NEED(cuGraphExecDestroy(exec));
    NEED(cuGraphDestroy(top));
    NEED(cuGraphDestroy(other));
}

} // namespace

void graph_abuse() {
    destroyed_in_capture();
    parent_destroyed_in_capture();
    stream_destroyed_in_capture();
    wrong_handles();
    unknown_parameters();
    moved_wrongly();
    released_too_often();
}

} // namespace check
