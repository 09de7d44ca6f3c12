/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part of cuda.h: tensor maps, which a kernel hands to the GPU's tensor memory accelerator. The driver encodes them;
 * what is in one is not documented. Declared from the public reference, like cuda.h; enumerations are plain numbers
 * here, because nothing but the driver reads them.
 */
#ifndef KVG_CUDA_TENSOR_MAP_H
#define KVG_CUDA_TENSOR_MAP_H

#include "types.h"

#define KVG_CUDA_TENSOR_MAX_RANK 5u

typedef struct CUtensorMap_st {
#ifdef __cplusplus
	alignas(64)
#else
	_Alignas(64)
#endif
		cuuint64_t opaque[16];
} CUtensorMap;

#ifdef __cplusplus
extern "C" {
#endif

/* Strides have rank - 1 elements, corners rank - 2, all others rank. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, unsigned int data_type, cuuint32_t rank, void *address,
				const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
				const cuuint32_t *element_strides, unsigned int interleave, unsigned int swizzle,
				unsigned int promotion, unsigned int fill);
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, unsigned int data_type, cuuint32_t rank, void *address,
				 const cuuint64_t *sizes, const cuuint64_t *strides, const int *lower, const int *upper,
				 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *element_strides,
				 unsigned int interleave, unsigned int swizzle, unsigned int promotion,
				 unsigned int fill);
CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address);

#ifdef __cplusplus
}
#endif

#endif
