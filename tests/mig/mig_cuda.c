/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A libcuda.so.1 of a GPU that is cut into instances: a process sees the one that its CUDA_VISIBLE_DEVICES names, and
 * its name says that it is one. What it computes, the PTX device computes: all other functions are that library's.
 */
#include "proto/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuDeviceGetCount(int *count)
{
	const char *seen = getenv("CUDA_VISIBLE_DEVICES");

	*count = seen && strcmp(seen, "MIG-00000000-0000-4000-8000-000000000101") == 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	(void)device;
	snprintf(name, (size_t)bytes, "Fake H100 MIG 1g.10gb");
	return CUDA_SUCCESS;
}
