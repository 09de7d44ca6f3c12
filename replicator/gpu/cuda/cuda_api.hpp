// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_api: a library with the CUDA driver API, opened by path at run time: NVIDIA's, or one that computes on
// the processor. Whether the host has one is not known before.
#pragma once

#include <cstdint>
#include <string>

#include "proto/cuda/cuda.h"

namespace kagemusha::gpu {

// Every function that this backend calls. All of them must be there.
#define KAGEMUSHA_CUDA_FUNCTIONS(X)                                                                          \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetUuid)                                                                                       \
    X(cuDeviceTotalMem_v2)                                                                                   \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease_v2)                                                                          \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxGetLimit)                                                                                         \
    X(cuCtxSynchronize)                                                                                      \
    X(cuCtxGetStreamPriorityRange)                                                                           \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuLinkCreate_v2)                                                                                       \
    X(cuLinkAddData_v2)                                                                                      \
    X(cuLinkComplete)                                                                                        \
    X(cuLinkDestroy)                                                                                         \
    X(cuModuleGetFunction)                                                                                   \
    X(cuModuleGetFunctionCount)                                                                              \
    X(cuModuleEnumerateFunctions)                                                                            \
    X(cuFuncGetName)                                                                                         \
    X(cuModuleGetGlobal_v2)                                                                                  \
    X(cuFuncGetAttribute)                                                                                    \
    X(cuFuncSetAttribute)                                                                                    \
    X(cuFuncGetParamInfo)                                                                                    \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuOccupancyMaxActiveClusters)                                                                          \
    X(cuOccupancyMaxPotentialClusterSize)                                                                    \
    X(cuMemHostRegister_v2)                                                                                  \
    X(cuMemHostUnregister)                                                                                   \
    X(cuMemGetInfo_v2)                                                                                       \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemcpyHtoDAsync_v2)                                                                                  \
    X(cuMemcpyDtoHAsync_v2)                                                                                  \
    X(cuMemcpyDtoDAsync_v2)                                                                                  \
    X(cuMemcpy3DAsync_v2)                                                                                    \
    X(cuArray3DCreate_v2)                                                                                    \
    X(cuArrayDestroy)                                                                                        \
    X(cuTexObjectCreate)                                                                                     \
    X(cuTexObjectDestroy)                                                                                    \
    X(cuSurfObjectCreate)                                                                                    \
    X(cuSurfObjectDestroy)                                                                                   \
    X(cuMemsetD8Async)                                                                                       \
    X(cuMemsetD16Async)                                                                                      \
    X(cuMemsetD32Async)                                                                                      \
    X(cuTensorMapEncodeTiled)                                                                                \
    X(cuTensorMapEncodeIm2col)                                                                               \
    X(cuTensorMapReplaceAddress)                                                                             \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemUnmap)                                                                                            \
    X(cuMemSetAccess)                                                                                        \
    X(cuStreamCreateWithPriority)                                                                            \
    X(cuStreamDestroy_v2)                                                                                    \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy_v2)                                                                                     \
    X(cuEventRecord)                                                                                         \
    X(cuEventQuery)                                                                                          \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)

struct cuda_api {
#define KAGEMUSHA_CUDA_MEMBER(name) decltype(&::name) name;
    KAGEMUSHA_CUDA_FUNCTIONS(KAGEMUSHA_CUDA_MEMBER)
#undef KAGEMUSHA_CUDA_MEMBER

    // The library, initialised; stays until the process ends. nullptr with a sentence in `error`.
    static const cuda_api* get(const std::string& path, std::string& error);
};

// CUDA's result as the guest is told it (proto/abi/vgpu_cuda.h).
std::int32_t cuda_error(CUresult result);

} // namespace kagemusha::gpu
