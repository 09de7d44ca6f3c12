// SPDX-License-Identifier: GPL-2.0-or-later
// Our declarations of the CUDA driver API against Debian's libffmpeg-nvenc-dev, which others wrote from the
// same reference: values of enumerators, sizes of types, and each function's parameters. The compiler is the
// test; what runs are the lists that no declaration can check.

#include <set>
#include <stddef.h>
#include <stdint.h>
#include <string_view>
#include <type_traits>

#include <gtest/gtest.h>

#include "proto/cuda/cuda.h"

namespace {
constexpr int our_blocking_context = CU_CTX_SCHED_BLOCKING_SYNC;
constexpr int our_non_blocking_stream = CU_STREAM_NON_BLOCKING;
constexpr int our_blocking_event = CU_EVENT_BLOCKING_SYNC;
constexpr int our_event_without_time = CU_EVENT_DISABLE_TIMING;
} // namespace

namespace peer { // the same names again
#include <ffnvcodec/dynlink_cuda.h>
}

namespace {

// Two types that a caller and a function of the C ABI may each use for the same value. Handles are pointers
// to structures of different names, so what a pointer points to is not compared.
consteval bool equal(int a, int b) {
    return a == b;
}
template <typename A>
constexpr int kind_of_value = (std::is_pointer_v<A> ? 1 : 0) + (std::is_floating_point_v<A> ? 2 : 0);
template <typename A, typename B>
constexpr bool same_value =
    sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && equal(kind_of_value<A>, kind_of_value<B>);

template <>
constexpr bool same_value<void, void> = true;

template <typename A, typename B>
struct same_call : std::false_type {};

template <typename R, typename... A, typename S, typename... B>
    requires(sizeof...(A) == sizeof...(B))
struct same_call<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = same_value<R, S> && (same_value<A, B> && ...);
};

#define SAME_FUNCTION(name) static_assert(same_call<decltype(&::cu##name), peer::tcu##name*>::value, #name)
// The library exports a later version than the one that the other header declares under the plain name.
#define SAME_AS_PLAIN(name)                                                                                  \
    static_assert(same_call<decltype(&::cu##name##_v2), peer::tcu##name*>::value, #name)

SAME_FUNCTION(Init);
SAME_FUNCTION(GetErrorName);
SAME_FUNCTION(GetErrorString);
SAME_FUNCTION(DeviceGetCount);
SAME_FUNCTION(DeviceGet);
SAME_FUNCTION(DeviceGetName);
SAME_FUNCTION(DeviceGetUuid);
SAME_AS_PLAIN(DeviceGetUuid);
SAME_FUNCTION(DeviceGetAttribute);
SAME_FUNCTION(DeviceComputeCapability);
SAME_FUNCTION(DevicePrimaryCtxRetain);
SAME_AS_PLAIN(DevicePrimaryCtxRelease);
SAME_AS_PLAIN(DevicePrimaryCtxReset);
SAME_AS_PLAIN(DevicePrimaryCtxSetFlags);
SAME_FUNCTION(DevicePrimaryCtxGetState);
SAME_FUNCTION(CtxCreate_v2);
SAME_FUNCTION(CtxDestroy_v2);
SAME_FUNCTION(CtxPushCurrent_v2);
SAME_FUNCTION(CtxPopCurrent_v2);
SAME_FUNCTION(CtxGetDevice);
SAME_FUNCTION(CtxSetLimit);
SAME_FUNCTION(ModuleLoadData);
SAME_FUNCTION(ModuleUnload);
SAME_FUNCTION(ModuleGetFunction);
SAME_AS_PLAIN(ModuleGetGlobal);
SAME_FUNCTION(LaunchKernel);
SAME_FUNCTION(MemAllocPitch_v2);
SAME_FUNCTION(MemAlloc_v2);
SAME_FUNCTION(MemFree_v2);
SAME_FUNCTION(Memcpy);
SAME_FUNCTION(MemcpyAsync);
SAME_FUNCTION(MemcpyHtoD_v2);
SAME_FUNCTION(MemcpyHtoDAsync_v2);
SAME_FUNCTION(MemcpyDtoH_v2);
SAME_FUNCTION(MemcpyDtoHAsync_v2);
SAME_FUNCTION(MemcpyDtoD_v2);
SAME_FUNCTION(MemcpyDtoDAsync_v2);
SAME_FUNCTION(MemsetD8Async);
SAME_FUNCTION(StreamCreate);
SAME_FUNCTION(StreamDestroy_v2);
SAME_FUNCTION(StreamQuery);
SAME_FUNCTION(StreamSynchronize);
SAME_FUNCTION(StreamAddCallback);
SAME_FUNCTION(EventCreate);
SAME_FUNCTION(EventDestroy_v2);
SAME_FUNCTION(EventRecord);
SAME_FUNCTION(EventQuery);
SAME_FUNCTION(EventSynchronize);
SAME_AS_PLAIN(Array3DCreate);
SAME_FUNCTION(ArrayDestroy);
SAME_FUNCTION(Memcpy2D_v2);
SAME_FUNCTION(Memcpy2DAsync_v2);
SAME_FUNCTION(TexObjectCreate);
SAME_FUNCTION(TexObjectDestroy);
SAME_AS_PLAIN(LinkCreate);
SAME_AS_PLAIN(LinkAddData);
SAME_FUNCTION(LinkComplete);
SAME_FUNCTION(LinkDestroy);
static_assert(same_call<CUstreamCallback*, peer::CUstreamCallback*>::value);

#define SAME_NUMBER(name) static_assert(static_cast<int>(::name) == static_cast<int>(peer::name))

SAME_NUMBER(CUDA_SUCCESS);
SAME_NUMBER(CUDA_ERROR_NOT_READY);
SAME_NUMBER(CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_NUMBER(CUDA_ERROR_UNKNOWN);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_TCC_DRIVER);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID);
SAME_NUMBER(CU_LIMIT_STACK_SIZE);
SAME_NUMBER(CU_LIMIT_PRINTF_FIFO_SIZE);
SAME_NUMBER(CU_LIMIT_MALLOC_HEAP_SIZE);
SAME_NUMBER(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH);
SAME_NUMBER(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT);
SAME_NUMBER(CU_JIT_MAX_REGISTERS);
SAME_NUMBER(CU_JIT_INFO_LOG_BUFFER);
SAME_NUMBER(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
SAME_NUMBER(CU_JIT_ERROR_LOG_BUFFER);
SAME_NUMBER(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
SAME_NUMBER(CU_JIT_OPTIMIZATION_LEVEL);
SAME_NUMBER(CU_JIT_TARGET_FROM_CUCONTEXT);
SAME_NUMBER(CU_JIT_TARGET);
SAME_NUMBER(CU_JIT_FALLBACK_STRATEGY);
SAME_NUMBER(CU_JIT_CACHE_MODE);
SAME_NUMBER(CU_JIT_INPUT_PTX);
SAME_NUMBER(CU_AD_FORMAT_SIGNED_INT32);
SAME_NUMBER(CU_AD_FORMAT_FLOAT);
SAME_NUMBER(CU_MEMORYTYPE_HOST);
SAME_NUMBER(CU_MEMORYTYPE_DEVICE);
SAME_NUMBER(CU_MEMORYTYPE_ARRAY);
SAME_NUMBER(CU_RESOURCE_TYPE_PITCH2D);
SAME_NUMBER(CU_TR_ADDRESS_MODE_BORDER);
SAME_NUMBER(CU_TR_FILTER_MODE_LINEAR);

// Theirs are macros, which would hide our enumerators: ours are read before that header comes.
static_assert(our_blocking_context == CU_CTX_SCHED_BLOCKING_SYNC &&
              our_non_blocking_stream == CU_STREAM_NON_BLOCKING &&
              our_blocking_event == CU_EVENT_BLOCKING_SYNC &&
              our_event_without_time == CU_EVENT_DISABLE_TIMING);

static_assert(same_value<CUdevice, peer::CUdevice> && same_value<CUdeviceptr, peer::CUdeviceptr>);
static_assert(sizeof(CUuuid) == sizeof(peer::CUuuid));
static_assert(sizeof(CUDA_MEMCPY2D) == sizeof(peer::CUDA_MEMCPY2D) &&
              offsetof(CUDA_MEMCPY2D, dstArray) == offsetof(peer::CUDA_MEMCPY2D, dstArray) &&
              offsetof(CUDA_MEMCPY2D, Height) == offsetof(peer::CUDA_MEMCPY2D, Height));
static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == sizeof(peer::CUDA_ARRAY3D_DESCRIPTOR) &&
              offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags) == offsetof(peer::CUDA_ARRAY3D_DESCRIPTOR, Flags));
static_assert(sizeof(CUDA_RESOURCE_DESC) == sizeof(peer::CUDA_RESOURCE_DESC) &&
              offsetof(CUDA_RESOURCE_DESC, flags) == offsetof(peer::CUDA_RESOURCE_DESC, flags));
static_assert(sizeof(CUDA_TEXTURE_DESC) == sizeof(peer::CUDA_TEXTURE_DESC) &&
              offsetof(CUDA_TEXTURE_DESC, borderColor) == offsetof(peer::CUDA_TEXTURE_DESC, borderColor));

// What that header does not have, by the reference's own definitions.
static_assert(sizeof(CUmemLocation) == 8 && sizeof(CUmemAllocationProp) == 32);
static_assert(offsetof(CUmemAllocationProp, location) == 8 &&
              offsetof(CUmemAllocationProp, allocFlags) == 24);
static_assert(sizeof(CUmemAccessDesc) == 12);
static_assert(sizeof(CUmemPoolProps) == 88 && offsetof(CUmemPoolProps, maxSize) == 24);
static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);
static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32);
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72 && offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams) == 40);
static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40 && sizeof(CUDA_HOST_NODE_PARAMS) == 16);
static_assert(sizeof(CUgraphEdgeData) == 8 && sizeof(CUgraphExecUpdateResultInfo) == 24);
static_assert(sizeof(CUgraphNodeParams) == 256 && offsetof(CUgraphNodeParams, reserved0) == 4);
static_assert(offsetof(CUgraphNodeParams, kernel) == 16 && offsetof(CUgraphNodeParams, reserved2) == 248);
static_assert(sizeof(CUDA_MEMCPY_NODE_PARAMS) == 216 && offsetof(CUDA_MEMCPY_NODE_PARAMS, copyCtx) == 8 &&
              offsetof(CUDA_MEMCPY_NODE_PARAMS, copyParams) == 16);
static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS_v2) == 48 && offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx) == 40);
static_assert(sizeof(CUDA_CHILD_GRAPH_NODE_PARAMS) == 16 &&
              offsetof(CUDA_CHILD_GRAPH_NODE_PARAMS, ownership) == 8);
static_assert(sizeof(CUDA_EVENT_RECORD_NODE_PARAMS) == 8 && sizeof(CUDA_EVENT_WAIT_NODE_PARAMS) == 8);
static_assert(sizeof(CUDA_MEMCPY3D) == 200 && offsetof(CUDA_MEMCPY3D, Depth) == 192);

TEST(CudaHeader, EachResultHasANumberANameAndASentenceOfItsOwn) {
    std::set<int> numbers;
    std::set<std::string_view> sentences;
    int count = 0;
#define ONE_MORE(name, number, text) numbers.insert(number), sentences.insert(text), ++count;
    KVG_CUDA_RESULTS(ONE_MORE)
#undef ONE_MORE
    EXPECT_EQ(numbers.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(sentences.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(numbers.count(CUDA_SUCCESS), 0U);
}

TEST(CudaHeader, EachAttributeHasANumberOfItsOwn) {
    std::set<int> numbers;
    int count = 0;
#define ONE_MORE(name, number) numbers.insert(number), ++count;
    KVG_CUDA_DEVICE_ATTRIBUTES(ONE_MORE)
#undef ONE_MORE
    EXPECT_EQ(numbers.size(), static_cast<std::size_t>(count));
}

} // namespace
