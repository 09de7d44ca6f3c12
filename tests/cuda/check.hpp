// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_check: a program that uses the CUDA driver API as others do, and compares what comes with what it
// computes itself. It runs on any driver library (NVIDIA's, too: is the check right?), and finds every
// function with cuGetProcAddress, so that it needs no library to be built.
#pragma once

#include "proto/cuda/cuda.h"

#include <cstdio>
#include <cstdlib>

namespace check {

#define CHECK_FUNCTIONS(X)                                                                                   \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuGetErrorString)                                                                                      \
    X(cuGetProcAddress_v2)                                                                                   \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceTotalMem_v2)                                                                                   \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDeviceGetProperties)                                                                                 \
    X(cuCtxGetLimit)                                                                                         \
    X(cuCtxSetLimit)                                                                                         \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease_v2)                                                                          \
    X(cuDevicePrimaryCtxGetState)                                                                            \
    X(cuCtxCreate_v2)                                                                                        \
    X(cuCtxDestroy_v2)                                                                                       \
    X(cuCtxPushCurrent_v2)                                                                                   \
    X(cuCtxPopCurrent_v2)                                                                                    \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuCtxSynchronize)                                                                                      \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuFuncGetAttribute)                                                                                    \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemGetInfo_v2)                                                                                       \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemGetAddressRange_v2)                                                                               \
    X(cuMemcpy)                                                                                              \
    X(cuMemcpyHtoD_v2)                                                                                       \
    X(cuMemcpyDtoH_v2)                                                                                       \
    X(cuMemcpyDtoD_v2)                                                                                       \
    X(cuMemcpyHtoDAsync_v2)                                                                                  \
    X(cuMemcpyDtoDAsync_v2)                                                                                  \
    X(cuMemcpyDtoHAsync_v2)                                                                                  \
    X(cuMemsetD8_v2)                                                                                         \
    X(cuMemsetD16_v2)                                                                                        \
    X(cuMemsetD32Async)                                                                                      \
    X(cuTensorMapEncodeTiled)                                                                                \
    X(cuTensorMapReplaceAddress)                                                                             \
    X(cuGetExportTable)                                                                                      \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamDestroy_v2)                                                                                    \
    X(cuStreamQuery)                                                                                         \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuLaunchHostFunc)                                                                                      \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy_v2)                                                                                     \
    X(cuEventRecord)                                                                                         \
    X(cuEventQuery)                                                                                          \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)                                                                                    \
    X(cuModuleGetGlobal_v2)                                                                                  \
    X(cuModuleGetFunctionCount)                                                                              \
    X(cuModuleEnumerateFunctions)                                                                            \
    X(cuLibraryLoadData)                                                                                     \
    X(cuLibraryUnload)                                                                                       \
    X(cuLibraryGetKernel)                                                                                    \
    X(cuLibraryGetKernelCount)                                                                               \
    X(cuLibraryEnumerateKernels)                                                                             \
    X(cuLibraryGetModule)                                                                                    \
    X(cuLibraryGetGlobal)                                                                                    \
    X(cuKernelGetFunction)                                                                                   \
    X(cuKernelGetLibrary)                                                                                    \
    X(cuKernelGetName)                                                                                       \
    X(cuKernelGetAttribute)                                                                                  \
    X(cuKernelGetParamInfo)                                                                                  \
    X(cuFuncGetName)                                                                                         \
    X(cuFuncGetModule)                                                                                       \
    X(cuFuncGetParamInfo)                                                                                    \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuLaunchCooperativeKernel)                                                                             \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                           \
    X(cuOccupancyMaxPotentialBlockSize)                                                                      \
    X(cuOccupancyAvailableDynamicSMemPerBlock)                                                               \
    X(cuMemAllocPitch_v2)                                                                                    \
    X(cuMemAllocAsync)                                                                                       \
    X(cuMemAllocFromPoolAsync)                                                                               \
    X(cuMemFreeAsync)                                                                                        \
    X(cuMemPoolCreate)                                                                                       \
    X(cuMemPoolDestroy)                                                                                      \
    X(cuMemPoolTrimTo)                                                                                       \
    X(cuMemPoolSetAttribute)                                                                                 \
    X(cuMemPoolGetAttribute)                                                                                 \
    X(cuDeviceGetDefaultMemPool)                                                                             \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemUnmap)                                                                                            \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemGetAccess)                                                                                        \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemHostGetDevicePointer_v2)                                                                          \
    X(cuMemHostGetFlags)                                                                                     \
    X(cuMemHostRegister_v2)                                                                                  \
    X(cuMemHostUnregister)                                                                                   \
    X(cuPointerGetAttribute)                                                                                 \
    X(cuPointerGetAttributes)                                                                                \
    X(cuStreamAddCallback)                                                                                   \
    X(cuStreamGetFlags)                                                                                      \
    X(cuStreamGetPriority)                                                                                   \
    X(cuStreamGetId)                                                                                         \
    X(cuCtxGetStreamPriorityRange)

// The part `graphs` needs these too.
#define CHECK_GRAPH_FUNCTIONS(X)                                                                             \
    X(cuGraphAddDependencies_v2)                                                                             \
    X(cuGraphRemoveDependencies_v2)                                                                          \
    X(cuGraphNodeGetDependencies_v2)                                                                         \
    X(cuGraphNodeGetDependentNodes_v2)                                                                       \
    X(cuStreamUpdateCaptureDependencies_v2)                                                                  \
    X(cuGraphKernelNodeSetAttribute)                                                                         \
    X(cuGraphKernelNodeGetAttribute)                                                                         \
    X(cuGraphKernelNodeCopyAttributes)                                                                       \
    X(cuGraphKernelNodeSetParams_v2)                                                                         \
    X(cuGraphAddEventRecordNode)                                                                             \
    X(cuGraphAddEventWaitNode)                                                                               \
    X(cuGraphEventRecordNodeGetEvent)                                                                        \
    X(cuGraphEventRecordNodeSetEvent)                                                                        \
    X(cuGraphEventWaitNodeGetEvent)                                                                          \
    X(cuGraphEventWaitNodeSetEvent)                                                                          \
    X(cuGraphExecEventRecordNodeSetEvent)                                                                    \
    X(cuGraphExecEventWaitNodeSetEvent)                                                                      \
    X(cuGraphExecUpdate)                                                                                     \
    X(cuGraphDebugDotPrint)                                                                                  \
    X(cuUserObjectCreate)                                                                                    \
    X(cuUserObjectRetain)                                                                                    \
    X(cuUserObjectRelease)                                                                                   \
    X(cuGraphRetainUserObject)                                                                               \
    X(cuGraphReleaseUserObject)                                                                              \
    X(cuStreamBeginCaptureToGraph)                                                                           \
    X(cuGraphAddNode)                                                                                        \
    X(cuGraphAddNode_v2)                                                                                     \
    X(cuGraphNodeSetParams)                                                                                  \
    X(cuGraphExecNodeSetParams)                                                                              \
    X(cuGraphExecChildGraphNodeSetParams)                                                                    \
    X(cuGraphNodeSetEnabled)                                                                                 \
    X(cuGraphNodeGetEnabled)                                                                                 \
    X(cuGraphDestroyNode)                                                                                    \
    X(cuGraphChildGraphNodeGetGraph)                                                                         \
    X(cuGraphNodeGetDependentNodes)                                                                          \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamEndCapture)                                                                                    \
    X(cuStreamIsCapturing)                                                                                   \
    X(cuStreamGetCaptureInfo_v2)                                                                             \
    X(cuGraphCreate)                                                                                         \
    X(cuGraphDestroy)                                                                                        \
    X(cuGraphClone)                                                                                          \
    X(cuGraphAddKernelNode_v2)                                                                               \
    X(cuGraphAddMemcpyNode)                                                                                  \
    X(cuGraphMemcpyNodeGetParams)                                                                            \
    X(cuGraphAddMemsetNode)                                                                                  \
    X(cuGraphAddHostNode)                                                                                    \
    X(cuGraphAddChildGraphNode)                                                                              \
    X(cuGraphAddDependencies)                                                                                \
    X(cuGraphAddEmptyNode)                                                                                   \
    X(cuGraphNodeGetType)                                                                                    \
    X(cuGraphKernelNodeGetParams_v2)                                                                         \
    X(cuGraphGetNodes)                                                                                       \
    X(cuGraphGetRootNodes)                                                                                   \
    X(cuGraphGetEdges)                                                                                       \
    X(cuGraphNodeGetDependencies)                                                                            \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphExecUpdate_v2)                                                                                  \
    X(cuGraphExecKernelNodeSetParams_v2)                                                                     \
    X(cuGraphLaunch)

struct api {
#define CHECK_MEMBER(name) decltype(&::name) name;
    CHECK_FUNCTIONS(CHECK_MEMBER)
    CHECK_GRAPH_FUNCTIONS(CHECK_MEMBER)
#undef CHECK_MEMBER
    void* library;
};
extern api cu;

// Counts and prints what does not hold.
extern int failures;
inline void expect(bool holds, const char* what, const char* file, int line) {
    if (!holds) {
        std::printf("%s:%d: %s\n", file, line, what);
        ++failures;
    }
}
inline void need(CUresult result, const char* what, const char* file, int line) {
    if (result == CUDA_SUCCESS)
        return;
    const char* name = "?";
    cu.cuGetErrorName(result, &name);
    std::printf("%s:%d: %s: %s\n", file, line, what, name);
    std::exit(1);
}
#define EXPECT(condition) check::expect((condition), #condition, __FILE__, __LINE__)
#define NEED(call) check::need(cu.call, #call, __FILE__, __LINE__)
#define EXPECT_RESULT(call, result)                                                                          \
    check::expect(cu.call == (result), #call " is not " #result, __FILE__, __LINE__)

void devices();
void tensor_maps();
void tables();
void memory();
void streams();
void errors();
void names();
void kernels();
void launches();
void more_memory();
void pinned();
void order();
void graphs();
void graph_nodes();
void graph_objects();
void boxes();
void arrays();
void links();
void prints();
// By name only: nothing works behind them.
void fault_assert();
void fault_trap();
void fault_address();
// The same: what the reference leaves undefined, and this project does not.
void graph_abuse();
// What a program still has when it ends, and gives back in a function that runs after the library's own objects
// could be gone: at_exit() is registered before the library is loaded.
void leaves_everything();
void at_exit();

} // namespace check
