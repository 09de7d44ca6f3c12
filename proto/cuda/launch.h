/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part of cuda.h: libraries, functions, launches, occupancy. Declared from the public reference, like cuda.h.
 */
#ifndef KVG_CUDA_LAUNCH_H
#define KVG_CUDA_LAUNCH_H

#include "types.h"

typedef enum CUfunc_cache_enum {
	CU_FUNC_CACHE_PREFER_NONE = 0,
	CU_FUNC_CACHE_PREFER_SHARED = 1,
	CU_FUNC_CACHE_PREFER_L1 = 2,
	CU_FUNC_CACHE_PREFER_EQUAL = 3
} CUfunc_cache;

typedef enum CUsharedconfig_enum {
	CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE = 0,
	CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE = 1,
	CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE = 2
} CUsharedconfig;

typedef enum CUmoduleLoadingMode_enum {
	CU_MODULE_EAGER_LOADING = 1,
	CU_MODULE_LAZY_LOADING = 2
} CUmoduleLoadingMode;

typedef enum CUfunctionLoadingState_enum {
	CU_FUNCTION_LOADING_STATE_UNLOADED = 0,
	CU_FUNCTION_LOADING_STATE_LOADED = 1
} CUfunctionLoadingState;

typedef enum CUlibraryOption_enum {
	CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
	CU_LIBRARY_BINARY_IS_PRESERVED = 1
} CUlibraryOption;

/* Dynamic shared memory that blocks of a size need. */
typedef size_t (*CUoccupancyB2DSize)(int block_size);

#ifdef __cplusplus
extern "C" {
#endif

CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode);
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module);
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module);

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options, void **jit_values,
			   unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count);
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options, void **jit_values,
			       unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library);
CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library);
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel);
CUresult cuKernelGetName(const char **name, CUkernel kernel);
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device);
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device);
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device);
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes);

CUresult cuFuncGetName(const char **name, CUfunction function);
CUresult cuFuncGetModule(CUmodule *module, CUfunction function);
CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function);
CUresult cuFuncLoad(CUfunction function);
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config);
CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config);

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				   unsigned int block_x, unsigned int block_y, unsigned int block_z,
				   unsigned int shared_bytes, CUstream stream, void **parameters);

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t dynamic);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
							      size_t dynamic, unsigned int flags);
CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
					  CUoccupancyB2DSize dynamic_of, size_t dynamic, int limit);
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size, CUfunction function,
						   CUoccupancyB2DSize dynamic_of, size_t dynamic, int limit,
						   unsigned int flags);
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamic, CUfunction function, int blocks, int block_size);
CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config);
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config);

#ifdef __cplusplus
}
#endif

#endif
