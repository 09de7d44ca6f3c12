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

/*
 * The runtime's validity check (docs/adr/0028). A libcudart takes into account where two of the
 * driver's tables and one function lie, and which process and thread ask; the host's driver, in a
 * process of its own, answers for the guest's program.
 *
 * VGPU_CUDA_TABLES, subject DEVICE; result: struct vgpu_cuda_tables, where they lie in that
 * process. A host that cannot answer, or does not know the name, gives an error.
 * VGPU_CUDA_VALIDITY, subject DEVICE, input: struct vgpu_cuda_question; result: struct
 * vgpu_cuda_proof. VGPU_CUDA_OTHER_ADDRESS where they lie elsewhere than the program knows. Only
 * for a device that answered VGPU_CUDA_TABLES: one before takes no input there.
 */
#define VGPU_CUDA_TABLES 0x80000130u
#define VGPU_CUDA_VALIDITY 0x80000131u

struct vgpu_cuda_tables {
	__u64 interface_table; /* 6bd5fb6c-… */
	__u64 check_table;     /* d4082055-… */
	__u64 check_function;  /* its slot 1 */
};

struct vgpu_cuda_question {
	struct vgpu_cuda_tables known; /* to the program */
	__u64 seconds;                 /* as the program gave them, like the version */
	__u64 thread;                  /* pthread_self() of the thread that asks */
	__u32 version;
	__u32 process; /* as the program sees its id */
};

struct vgpu_cuda_proof {
	__s32 result; /* CUDA's, of the function */
	__u32 pad;
	__u8 bytes[16];
};

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

/*
 * subject KERNEL_SUB_GROUP, input: struct vgpu_cuda_clusters; result: __u32, how many clusters of
 * this shape run at a time, and __u32, the largest possible size of one in groups.
 */
#define VGPU_CUDA_CLUSTERS 0x80000103u

struct vgpu_cuda_clusters {
	__u32 grid[3];
	__u32 group[3];
	__u32 cluster[3];   /* 0: as the function wants it */
	__u32 shared_bytes; /* dynamic */
	__u32 wide;         /* 1: the program allows sizes that only some GPUs have */
};

/*
 * subject DEVICE, no input; result: struct vgpu_cuda_limits, of a context whose program has set
 * none.
 */
#define VGPU_CUDA_LIMITS 0x80000104u
#define VGPU_CUDA_MAX_LIMITS 16u

struct vgpu_cuda_limits {
	__u64 value[VGPU_CUDA_MAX_LIMITS]; /* by CUlimit */
	__u32 known;                       /* a bit for each */
	__u32 pad;
};

/*
 * subject DEVICE, input: struct vgpu_cuda_tensor_map; result: the map as the driver encodes it. It
 * follows from the input and the kind of GPU alone. Only for a device that answered
 * VGPU_CUDA_LIMITS: one before takes no input there.
 */
#define VGPU_CUDA_TENSOR_MAP 0x80000105u
#define VGPU_CUDA_TENSOR_RANK 5u
#define VGPU_CUDA_TENSOR_MAP_BYTES 128u

enum vgpu_cuda_tensor_kind {
	VGPU_CUDA_TENSOR_TILED = 1,
	VGPU_CUDA_TENSOR_IM2COL = 2,
	VGPU_CUDA_TENSOR_ADDRESS = 3, /* `map` with another address */
};

struct vgpu_cuda_tensor_map {
	__u32 kind;
	__u32 data_type; /* CUDA's numbers, like the next four */
	__u32 interleave;
	__u32 swizzle;
	__u32 promotion;
	__u32 fill;
	__u32 rank;
	__u32 channels; /* IM2COL: these, and the corners */
	__u32 pixels;
	__u32 pad;
	__u64 address;
	__u64 sizes[VGPU_CUDA_TENSOR_RANK];
	__u64 strides[VGPU_CUDA_TENSOR_RANK]; /* rank - 1 of them */
	__u32 box[VGPU_CUDA_TENSOR_RANK];     /* TILED */
	__u32 element_strides[VGPU_CUDA_TENSOR_RANK];
	__s32 lower[VGPU_CUDA_TENSOR_RANK]; /* rank - 2 of them */
	__s32 upper[VGPU_CUDA_TENSOR_RANK];
	__u8 map[VGPU_CUDA_TENSOR_MAP_BYTES]; /* ADDRESS */
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
