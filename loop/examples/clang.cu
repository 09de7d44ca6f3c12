/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An example, PROGRAM, as PTX by a clang that has no CUDA beside it: what CUDA's own headers declare for programs, as far as
 * a device loop needs it. With nvcc or NVRTC a program includes kagemusha_loop.h and nothing else.
 */
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#include <__clang_cuda_builtin_vars.h>

#include "kagemusha_loop.h"

#include PROGRAM
