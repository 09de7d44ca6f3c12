/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What cuDeviceGetAttribute can be asked, as a list: X(NAME, number), NAME without CU_DEVICE_ATTRIBUTE_. Numbers are
 * those of the public reference. A number that is not here may still be asked: the device answers.
 */
#ifndef KVG_CUDA_ATTRIBUTES_H
#define KVG_CUDA_ATTRIBUTES_H

#define KVG_CUDA_DEVICE_ATTRIBUTES(X)                                                                                  \
	X(MAX_THREADS_PER_BLOCK, 1)                                                                                    \
	X(MAX_BLOCK_DIM_X, 2)                                                                                          \
	X(MAX_BLOCK_DIM_Y, 3)                                                                                          \
	X(MAX_BLOCK_DIM_Z, 4)                                                                                          \
	X(MAX_GRID_DIM_X, 5)                                                                                           \
	X(MAX_GRID_DIM_Y, 6)                                                                                           \
	X(MAX_GRID_DIM_Z, 7)                                                                                           \
	X(MAX_SHARED_MEMORY_PER_BLOCK, 8)                                                                              \
	X(TOTAL_CONSTANT_MEMORY, 9)                                                                                    \
	X(WARP_SIZE, 10)                                                                                               \
	X(MAX_PITCH, 11)                                                                                               \
	X(MAX_REGISTERS_PER_BLOCK, 12)                                                                                 \
	X(CLOCK_RATE, 13)                                                                                              \
	X(TEXTURE_ALIGNMENT, 14)                                                                                       \
	X(GPU_OVERLAP, 15)                                                                                             \
	X(MULTIPROCESSOR_COUNT, 16)                                                                                    \
	X(KERNEL_EXEC_TIMEOUT, 17)                                                                                     \
	X(INTEGRATED, 18)                                                                                              \
	X(CAN_MAP_HOST_MEMORY, 19)                                                                                     \
	X(COMPUTE_MODE, 20)                                                                                            \
	X(SURFACE_ALIGNMENT, 30)                                                                                       \
	X(CONCURRENT_KERNELS, 31)                                                                                      \
	X(ECC_ENABLED, 32)                                                                                             \
	X(PCI_BUS_ID, 33)                                                                                              \
	X(PCI_DEVICE_ID, 34)                                                                                           \
	X(TCC_DRIVER, 35)                                                                                              \
	X(MEMORY_CLOCK_RATE, 36)                                                                                       \
	X(GLOBAL_MEMORY_BUS_WIDTH, 37)                                                                                 \
	X(L2_CACHE_SIZE, 38)                                                                                           \
	X(MAX_THREADS_PER_MULTIPROCESSOR, 39)                                                                          \
	X(ASYNC_ENGINE_COUNT, 40)                                                                                      \
	X(UNIFIED_ADDRESSING, 41)                                                                                      \
	X(PCI_DOMAIN_ID, 50)                                                                                           \
	X(TEXTURE_PITCH_ALIGNMENT, 51)                                                                                 \
	X(COMPUTE_CAPABILITY_MAJOR, 75)                                                                                \
	X(COMPUTE_CAPABILITY_MINOR, 76)                                                                                \
	X(STREAM_PRIORITIES_SUPPORTED, 78)                                                                             \
	X(GLOBAL_L1_CACHE_SUPPORTED, 79)                                                                               \
	X(LOCAL_L1_CACHE_SUPPORTED, 80)                                                                                \
	X(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 81)                                                                    \
	X(MAX_REGISTERS_PER_MULTIPROCESSOR, 82)                                                                        \
	X(MANAGED_MEMORY, 83)                                                                                          \
	X(MULTI_GPU_BOARD, 84)                                                                                         \
	X(MULTI_GPU_BOARD_GROUP_ID, 85)                                                                                \
	X(HOST_NATIVE_ATOMIC_SUPPORTED, 86)                                                                            \
	X(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 87)                                                                   \
	X(PAGEABLE_MEMORY_ACCESS, 88)                                                                                  \
	X(CONCURRENT_MANAGED_ACCESS, 89)                                                                               \
	X(COMPUTE_PREEMPTION_SUPPORTED, 90)                                                                            \
	X(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)                                                                 \
	X(CAN_USE_STREAM_MEM_OPS_V1, 92)                                                                               \
	X(CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 93)                                                                        \
	X(CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 94)                                                                        \
	X(COOPERATIVE_LAUNCH, 95)                                                                                      \
	X(COOPERATIVE_MULTI_DEVICE_LAUNCH, 96)                                                                         \
	X(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)                                                                       \
	X(CAN_FLUSH_REMOTE_WRITES, 98)                                                                                 \
	X(HOST_REGISTER_SUPPORTED, 99)                                                                                 \
	X(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 100)                                                           \
	X(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 101)                                                                    \
	X(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                                                    \
	X(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                                                            \
	X(MAX_BLOCKS_PER_MULTIPROCESSOR, 106)                                                                          \
	X(GENERIC_COMPRESSION_SUPPORTED, 107)                                                                          \
	X(MAX_PERSISTING_L2_CACHE_SIZE, 108)                                                                           \
	X(MAX_ACCESS_POLICY_WINDOW_SIZE, 109)                                                                          \
	X(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)                                                                \
	X(RESERVED_SHARED_MEMORY_PER_BLOCK, 111)                                                                       \
	X(SPARSE_CUDA_ARRAY_SUPPORTED, 112)                                                                            \
	X(READ_ONLY_HOST_REGISTER_SUPPORTED, 113)                                                                      \
	X(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 114)                                                                   \
	X(MEMORY_POOLS_SUPPORTED, 115)                                                                                 \
	X(GPU_DIRECT_RDMA_SUPPORTED, 116)                                                                              \
	X(CLUSTER_LAUNCH, 120)                                                                                         \
	X(CAN_USE_64_BIT_STREAM_MEM_OPS, 122)                                                                          \
	X(CAN_USE_STREAM_WAIT_VALUE_NOR, 123)                                                                          \
	X(DMA_BUF_SUPPORTED, 124)                                                                                      \
	X(IPC_EVENT_SUPPORTED, 125)                                                                                    \
	X(TENSOR_MAP_ACCESS_SUPPORTED, 127)                                                                            \
	X(HANDLE_TYPE_FABRIC_SUPPORTED, 128)                                                                           \
	X(UNIFIED_FUNCTION_POINTERS, 129)                                                                              \
	X(MULTICAST_SUPPORTED, 132)

typedef enum CUdevice_attribute_enum {
#define KVG_CUDA_ATTRIBUTE(name, number) CU_DEVICE_ATTRIBUTE_##name = number,
	KVG_CUDA_DEVICE_ATTRIBUTES(KVG_CUDA_ATTRIBUTE)
#undef KVG_CUDA_ATTRIBUTE
} CUdevice_attribute;

#endif
