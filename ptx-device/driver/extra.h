/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Functions of the driver API that this library has and proto/cuda/cuda.h does not declare yet. Declared from the
 * public reference.
 */
#ifndef KAGEMUSHA_PTX_DRIVER_EXTRA_H
#define KAGEMUSHA_PTX_DRIVER_EXTRA_H

#include "proto/cuda/types.h"

#ifdef __cplusplus
extern "C" {
#endif

CUresult cuCtxGetFlags(unsigned int *flags);
CUresult cuCtxGetLimit(size_t *value, CUlimit limit);
CUresult cuCtxSetLimit(CUlimit limit, size_t value);
CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags);
CUresult cuMemAllocHost_v2(void **memory, size_t bytes);
CUresult cuMemFreeHost(void *memory);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t dynamic);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				   unsigned int block_x, unsigned int block_y, unsigned int block_z,
				   unsigned int shared_bytes, CUstream stream, void **parameters);

#ifdef __cplusplus
}
#endif

#endif
