/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * What a device of the CUDA driver API answers beside what vgpu_protocol.h has (whose conventions
 * hold here too). CUDA needs no requests of its own: a module is a program, a function a kernel, a
 * stream an in-order queue, and memory is in arenas.
 *
 * Errors: a result or status of VGPU_CUDA_ERROR_BASE - n is CUDA's result n. Others are OpenCL's
 * numbers, as everywhere.
 */
#ifndef KAGEMUSHA_VGPU_CUDA_H
#define KAGEMUSHA_VGPU_CUDA_H

#include "proto/abi/vgpu_protocol.h"

#define VGPU_CUDA_ERROR_BASE (-20000)
/* What the guest knows by an address or number has another here. No result of CUDA's. */
#define VGPU_CUDA_OTHER_ADDRESS (VGPU_CUDA_ERROR_BASE - 100000)

/*
 * Names of INFO, which OpenCL does not have. A device that speaks OpenCL refuses them, and one that
 * speaks CUDA refuses OpenCL's.
 */
#define VGPU_CUDA_DEVICE 0x80000100u /* subject DEVICE; result: struct vgpu_cuda_device */
#define VGPU_CUDA_KERNEL 0x80000101u /* subject KERNEL; result: struct vgpu_cuda_kernel */

/* subject PROGRAM, input: a variable's name; result: struct vgpu_cuda_variable */
#define VGPU_CUDA_VARIABLE 0x80000102u

/* subject DEVICE; result: struct vgpu_cuda_memory, of all users of the host's GPU */
#define VGPU_CUDA_MEMORY 0x80000112u

struct vgpu_cuda_memory {
	__u64 free_bytes;
	__u64 total_bytes;
};

/*
 * subject DEVICE, no result; input: the name of a function that a program called and the guest's
 * driver does not have, of at most VGPU_CUDA_REPORT_BYTES. Whoever watches the host sees it. Only
 * for a device that knows CREATE_VARIABLE: one before takes no input there.
 */
#define VGPU_CUDA_UNSUPPORTED 0x80000111u
#define VGPU_CUDA_REPORT_BYTES 64u

/* subject PROGRAM; result: the names of its functions, each ended by 0 */
#define VGPU_CUDA_FUNCTIONS 0x80000110u

/*
 * subject PROGRAM, of one that LINK_PROGRAM made; result: the linked image, which CREATE_PROGRAM
 * takes as a binary. What is linked are programs of the kind IL: PTX, or what else the host's
 * linker takes.
 */
#define VGPU_CUDA_IMAGE 0x80000121u

#define VGPU_CUDA_NAME_BYTES 256u
#define VGPU_CUDA_DEVICE_ATTRIBUTES 160u

/* Everything that does not change: a program asks many times, and no answer takes a round trip. */
struct vgpu_cuda_device {
	__u32 driver_version; /* 12040 is 12.4 */
	__u32 pad;
	__u64 memory_bytes;
	__u8 uuid[16];
	char name[VGPU_CUDA_NAME_BYTES]; /* ends with 0 */
	/* by CUdevice_attribute; what the driver does not know is 0, and its bit in `known` too */
	__s32 attributes[VGPU_CUDA_DEVICE_ATTRIBUTES];
	__u8 known[VGPU_CUDA_DEVICE_ATTRIBUTES / 8];
	__u8 pad2[4];
};

#define VGPU_CUDA_FUNCTION_ATTRIBUTES 16u
#define VGPU_CUDA_MAX_PARAMETERS 512u

struct vgpu_cuda_parameter {
	__u32 offset; /* in the block of all parameters */
	__u32 bytes;
};

struct vgpu_cuda_variable {
	__u64 address;
	__u64 bytes;
};

struct vgpu_cuda_kernel {
	__s32 attributes[VGPU_CUDA_FUNCTION_ATTRIBUTES]; /* by CUfunction_attribute */
	__u32 parameter_count;
	__u32 pad;
	/* parameter_count x struct vgpu_cuda_parameter */
};

#endif
