/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * The wire format between the guest and the virtio-vgpu device.
 *
 * Included by the guest's kernel module, the guest's OpenCL driver, the QEMU device and the
 * replicator, so that every constant and every structure is written down once. The specification in
 * words is docs/spec/device.md.
 *
 * Conventions
 *  - little-endian; every structure has a size that is a multiple of 8 and no implicit padding;
 *  - a field named pad or reserved, and every unknown flag bit, must be 0 or the request is
 *    refused;
 *  - `bytes` is a length in bytes, `count` a number of entries, an id of 0 means "none";
 *  - ids of objects are chosen by the guest, are never 0, and belong to one open file; one id names
 *    at most one live object of that file, of any kind;
 *  - ids with VGPU_HOST_ID_BIT belong to the host: a guest that makes an object with one is
 *    refused.
 */
#ifndef KAGEMUSHA_VGPU_PROTOCOL_H
#define KAGEMUSHA_VGPU_PROTOCOL_H

#include <linux/types.h>

#define VGPU_ABI_VERSION 1u

/* Feature bits of the virtio device. Without the bit a driver does not use what it stands for. */
#define VGPU_F_WRITE_RUNS 1 /* VGPU_CMD_WRITE_RUNS is known. Bit 0 was an earlier form of it */

/*
 * Of the commands that a log may contain: one more for each new opcode that is not a query (a call
 * that answers with a payload). The hosts of a pair execute the same streams, so theirs must be
 * equal. CUDA's (CREATE_ARENA and those behind) do not count: a log has them only for a standby
 * that says that it knows them (docs/spec/replication.md, 12).
 */
#define VGPU_STREAM_VERSION 4u

/* Objects that replication puts between the guest's own in the same file. */
#define VGPU_HOST_ID_BIT (1ull << 63)

/*
 * Virtio device id (PCI 1af4:107f). 42..63 are unassigned and accepted by Linux' modern PCI
 * transport.
 */
#define VGPU_VIRTIO_ID 63

/* driver -> device: struct vgpu_request and what follows it; device answers struct vgpu_response */
#define VGPU_QUEUE_REQUEST 0
/* device -> driver: buffers of VGPU_EVENT_BUFFER_BYTES, filled with struct vgpu_event_batch */
#define VGPU_QUEUE_EVENT 1
#define VGPU_QUEUE_COUNT 2

#define VGPU_SHM_WINDOW 1 /* id of the virtio shared-memory region that is the VRAM window */

#define VGPU_EVENT_BUFFER_BYTES 4096u

/* Hard caps of the format itself; the device's configuration may lower them, never raise them. */
#define VGPU_MAX_STREAM_BYTES (256u << 10)   /* commands of one request */
#define VGPU_MAX_PAYLOADS 4096u              /* payload table entries of one request */
#define VGPU_MAX_SEGMENTS (1u << 17)         /* of one request: 512 MiB in scattered 4 KiB pages */
#define VGPU_MAX_COMMAND_BYTES (64u << 10)   /* one command with everything inline */
#define VGPU_MAX_INLINE_PAYLOAD_BYTES (16u << 10)
#define VGPU_MAX_WAIT_COUNT 1024u
#define VGPU_MAX_RUNS 4096u      /* of one WRITE_RUNS */
#define VGPU_MAX_RUN_BYTES 4096u /* that describe them */
#define VGPU_MAX_ARGUMENTS 256u
#define VGPU_MAX_PROGRAM_BYTES (64ull << 20) /* source, IL or binary */
#define VGPU_MAX_NAME_BYTES 4096u            /* kernel name */
#define VGPU_MAX_OPTIONS_BYTES 16384u
#define VGPU_MAX_RESULT_BYTES (64ull << 20)

/* Virtio configuration space (read only for the driver). */
struct vgpu_config {
	__u32 abi_version;
	__u32 max_files;             /* open files at once */
	__u64 window_bytes;          /* size of the VRAM window, 0: none */
	__u32 max_stream_bytes;
	__u32 max_segments;
	/* requests in flight; one more is answered VGPU_STATUS_LIMIT */
	__u32 max_requests_per_file;
	__u32 max_events_per_file;   /* commands with an event that have not completed */
};

/* ---- requests ---- */

enum vgpu_request_type {
	VGPU_REQUEST_OPEN = 1,   /* a new file; `file` must not be open */
	/*
	 * everything of `file` is destroyed; answered when nothing of it touches guest memory any
	 * more
	 */
	VGPU_REQUEST_CLOSE = 2,
	VGPU_REQUEST_SUBMIT = 3, /* commands */
};

/*
 * Device-readable part of one element of VGPU_QUEUE_REQUEST, in this order:
 *   struct vgpu_request
 *   stream_bytes of commands                     (SUBMIT only)
 *   payload_count x struct vgpu_payload          (SUBMIT only)
 *   segment_count x struct vgpu_segment          (SUBMIT only)
 * Device-writable part: struct vgpu_response.
 *
 * The element is answered when every command was handed to the GPU's API or failed, and every
 * payload of the request has been read or written: the driver may then unpin its pages.
 */
struct vgpu_request {
	__u32 type;
	__u32 flags; /* 0 */
	__u32 file;  /* chosen by the driver, not 0 */
	__u32 stream_bytes; /* multiple of 8 */
	__u32 payload_count;
	__u32 segment_count;
	__u32 completion_count; /* commands of the stream whose event id is not 0; checked */
	__u32 pad;
	__u64 sequence; /* the driver's number of this request; for traces only */
};

#define VGPU_PAYLOAD_WRITE 1u /* the device writes into it (results, reads); else it only reads */

struct vgpu_payload {
	__u64 bytes; /* the sum of its segments' lengths */
	__u32 first_segment;
	__u32 segment_count;
	__u32 flags;
	__u32 pad;
};

/* address is an offset into the VRAM window instead of a guest-physical address */
#define VGPU_SEGMENT_WINDOW 1u

struct vgpu_segment {
	__u64 address;
	__u64 bytes; /* not 0 */
	__u32 flags;
	__u32 pad;
};

enum vgpu_status {
	VGPU_STATUS_OK = 0,
	/*
	 * a rule of this file was broken; nothing was executed: the whole stream is checked first
	 */
	VGPU_STATUS_MALFORMED = 1,
	VGPU_STATUS_NO_FILE = 2,
	/* a configured limit (files, requests in flight); nothing was executed */
	VGPU_STATUS_LIMIT = 3,
	/* the file's worker died or hung, see VGPU_RECORD_LOST; open a new file */
	VGPU_STATUS_LOST = 4,
	VGPU_STATUS_CANCELED = 5, /* the file was closed or the device reset meanwhile */
	VGPU_STATUS_NO_MEMORY = 6, /* the host could not hold the request */
};

struct vgpu_response {
	__u32 status; /* enum vgpu_status */
	/* OpenCL error code of the last command if it is a call (see below), else 0 */
	__s32 result;
	__u32 failed_offset; /* MALFORMED: offset into the stream, ~0 if not in the stream */
	__u32 pad;
	/* a call with a result: its full size, even where the payload was smaller */
	__u64 result_bytes;
	__u64 value;        /* BUILD/COMPILE/LINK: 0; others reserved, 0 */
};

/* ---- records: what the device tells without being asked ---- */

struct vgpu_event_batch {
	__u32 bytes; /* of the records that follow */
	__u32 count;
};

enum vgpu_record_type {
	VGPU_RECORD_COMPLETION = 1,
	VGPU_RECORD_TEXT = 2,         /* printf of kernels */
	VGPU_RECORD_QUEUE_ERROR = 3,  /* an enqueued command without an event failed */
	VGPU_RECORD_LOST = 4,         /* last record of its file */
	VGPU_RECORD_TEXT_DROPPED = 5, /* printf output that did not fit a bound */
	/* written by the guest's kernel: records were lost, treat every queue as failed */
	VGPU_RECORD_OVERFLOW = 6,
};

struct vgpu_record {
	__u32 type;
	__u32 bytes; /* of the whole record, multiple of 8 */
	__u32 file;
	__u32 pad;
};

#define VGPU_MAX_RECORD_BYTES 2048u

struct vgpu_record_completion {
	struct vgpu_record record;
	__u64 event;
	__s32 status; /* 0 complete, < 0 an OpenCL error code */
	__u32 pad;
	/* the GPU's clock; 0 where the queue does not profile */
	__u64 queued_ns, submit_ns, start_ns, end_ns;
};

struct vgpu_record_text {
	struct vgpu_record record;
	__u32 text_bytes; /* the text follows, padded with 0 to a multiple of 8 */
	__u32 pad;
};

struct vgpu_record_queue_error {
	struct vgpu_record record;
	__u64 queue;
	__s32 error; /* OpenCL error code */
	__u32 opcode;
};

enum vgpu_lost_reason {
	VGPU_LOST_CRASHED = 1, /* detail: the signal or exit code */
	VGPU_LOST_HUNG = 2,    /* detail: the limit in ms */
	VGPU_LOST_PROTOCOL = 3, /* the worker broke its protocol */
	VGPU_LOST_START = 4,   /* the worker could not be started */
	VGPU_LOST_GPU = 5,     /* the GPU's driver reported a lost device */
};

struct vgpu_record_lost {
	struct vgpu_record record;
	__u32 reason;
	__u32 detail;
};

struct vgpu_record_text_dropped {
	struct vgpu_record record;
	__u64 dropped_bytes;
};

/* ---- commands ---- */

/*
 * A stream is a sequence of commands, each a multiple of 8 bytes long:
 *   fixed structure of the opcode; then, where the structure names them and in this order:
 *   wait list (wait_count ids), id lists, text or argument bytes, inline payload; each padded with
 *   0 to a multiple of 8.
 *
 * Calls (opcode < VGPU_FIRST_ENQUEUE, except DESTROY, FLUSH, SET_USER_EVENT and AWAIT) answer in
 * vgpu_response.result, so a call must be the last command of its stream. Enqueued commands answer
 * by VGPU_RECORD_COMPLETION if they name an event, and only in case of failure by
 * VGPU_RECORD_QUEUE_ERROR if they do not.
 *
 * Enumerations that OpenCL defines (flags, image formats, info names, error codes) keep OpenCL's
 * numbers.
 */
enum vgpu_opcode {
	VGPU_CMD_INFO = 1,
	VGPU_CMD_CREATE_CONTEXT = 2,
	VGPU_CMD_CREATE_QUEUE = 3,
	VGPU_CMD_CREATE_BUFFER = 4,
	VGPU_CMD_CREATE_SUB_BUFFER = 5,
	VGPU_CMD_CREATE_IMAGE = 6,
	VGPU_CMD_CREATE_SAMPLER = 7,
	VGPU_CMD_CREATE_PROGRAM = 8,
	VGPU_CMD_BUILD_PROGRAM = 9,
	VGPU_CMD_COMPILE_PROGRAM = 10,
	VGPU_CMD_LINK_PROGRAM = 11,
	VGPU_CMD_CREATE_KERNEL = 12,
	VGPU_CMD_CREATE_USER_EVENT = 13,
	VGPU_CMD_SET_USER_EVENT = 14,
	VGPU_CMD_DESTROY = 15,
	VGPU_CMD_FLUSH = 16,
	VGPU_CMD_SET_SPEC_CONSTANT = 17,
	VGPU_CMD_AWAIT = 18, /* only in the log of a mirrored device */
	VGPU_CMD_SUGGESTED_GROUP_SIZE = 19,
	VGPU_CMD_CREATE_ARENA = 20,
	VGPU_CMD_CREATE_VARIABLE = 21,
	VGPU_CMD_FIND_TEXTURE = 22,
	VGPU_CMD_CREATE_TEXTURE = 23,

	VGPU_FIRST_ENQUEUE = 32,
	VGPU_CMD_WRITE_BUFFER = 32,
	VGPU_CMD_READ_BUFFER = 33,
	VGPU_CMD_WRITE_BUFFER_RECT = 34,
	VGPU_CMD_READ_BUFFER_RECT = 35,
	VGPU_CMD_COPY_BUFFER = 36,
	VGPU_CMD_COPY_BUFFER_RECT = 37,
	VGPU_CMD_FILL_BUFFER = 38,
	VGPU_CMD_WRITE_IMAGE = 39,
	VGPU_CMD_READ_IMAGE = 40,
	VGPU_CMD_COPY_IMAGE = 41,
	VGPU_CMD_COPY_IMAGE_TO_BUFFER = 42,
	VGPU_CMD_COPY_BUFFER_TO_IMAGE = 43,
	VGPU_CMD_FILL_IMAGE = 44,
	VGPU_CMD_LAUNCH = 45,
	VGPU_CMD_MARKER = 46,
	VGPU_CMD_BARRIER = 47,
	VGPU_CMD_MIGRATE = 48,
	VGPU_CMD_WRITE_RUNS = 49,
	VGPU_OPCODE_COUNT = 50,
};

enum vgpu_object_kind {
	VGPU_OBJECT_CONTEXT = 1,
	VGPU_OBJECT_QUEUE = 2,
	VGPU_OBJECT_MEMORY = 3, /* buffer, sub-buffer or image */
	VGPU_OBJECT_SAMPLER = 4,
	VGPU_OBJECT_PROGRAM = 5,
	VGPU_OBJECT_KERNEL = 6,
	VGPU_OBJECT_EVENT = 7, /* of an enqueued command, or a user event */
};

struct vgpu_cmd {
	__u16 opcode;
	__u16 flags; /* 0 */
	/* of the whole command; WRITE_RUNS alone has neither, but a header of its own */
	__u32 bytes;
};

/* Where the bytes of a transfer are. */
#define VGPU_PAYLOAD_NONE 0xfffffffeu   /* bytes is 0 */
/* at the end of the command; only for data the device reads */
#define VGPU_PAYLOAD_INLINE 0xffffffffu

struct vgpu_payload_ref {
	__u64 bytes; /* must equal the payload table's entry */
	__u32 index; /* into the payload table, or one of the above */
	__u32 pad;
};

struct vgpu_enqueue {
	__u64 queue;
	__u64 event; /* a new id, or 0 */
	__u32 wait_count;
	__u32 pad;
};

enum vgpu_info_subject {
	VGPU_INFO_PLATFORM = 1,        /* name: CL_PLATFORM_* */
	VGPU_INFO_DEVICE = 2,          /* name: CL_DEVICE_*; index: device */
	/* object: context; name: image type; index: memory flags; result: cl_image_format[] */
	VGPU_INFO_IMAGE_FORMATS = 3,
	VGPU_INFO_MEMORY = 4,          /* CL_MEM_* that only the host knows */
	/* CL_IMAGE_ROW_PITCH, CL_IMAGE_SLICE_PITCH, CL_IMAGE_ELEMENT_SIZE */
	VGPU_INFO_IMAGE = 5,
	/*
	 * BINARY_SIZES -> u64[1], BINARIES -> the device's binary bytes, NUM_KERNELS, KERNEL_NAMES,
	 * IL, …
	 */
	VGPU_INFO_PROGRAM = 6,
	VGPU_INFO_PROGRAM_BUILD = 7,
	VGPU_INFO_KERNEL = 8,
	VGPU_INFO_KERNEL_ARG = 9,      /* index: argument */
	VGPU_INFO_KERNEL_WORK_GROUP = 10,
	VGPU_INFO_KERNEL_SUB_GROUP = 11, /* inline payload: input value */
	/* result: u64 device, u64 host (ns), as clGetDeviceAndHostTimer */
	VGPU_INFO_TIMERS = 12,
};

/*
 * A name of PLATFORM that is the device's own, not OpenCL's. Result: u64, a bit for each opcode
 * that a guest may send. A device from before the name answers CL_INVALID_VALUE; it knows the
 * opcodes up to SET_SPEC_CONSTANT and those that are enqueued. A takeover may change the answer.
 */
#define VGPU_PLATFORM_COMMANDS 0x80000001u

/*
 * Result: the bytes that OpenCL's query gives, with pointers and handles left out; names that would
 * give a handle are refused with CL_INVALID_VALUE.
 */
struct vgpu_cmd_info {
	struct vgpu_cmd cmd;
	__u32 subject;
	__u32 name;
	__u64 object; /* 0 for PLATFORM, DEVICE and TIMERS */
	__u64 index;
	struct vgpu_payload_ref result; /* NONE: only the size is asked */
	struct vgpu_payload_ref input;  /* INLINE or NONE */
};

struct vgpu_cmd_create_context {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 flags; /* 0 */
};

/* Of CUDA's streams, which are in-order queues; a device of another API refuses them. */
#define VGPU_QUEUE_LEGACY (1ull << 32)       /* the legacy stream */
#define VGPU_QUEUE_NON_BLOCKING (1ull << 33) /* does not wait for it, nor it for this one */
#define VGPU_QUEUE_URGENT (1ull << 34)       /* the highest priority that the GPU has */

struct vgpu_cmd_create_queue {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	/* CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROFILING_ENABLE, or one of the below */
	__u64 properties;
	__u32 device_index;
	__u32 pad;
};

/*
 * Flags: the access bits CL_MEM_READ_WRITE, WRITE_ONLY, READ_ONLY, HOST_WRITE_ONLY, HOST_READ_ONLY,
 * HOST_NO_ACCESS, ALLOC_HOST_PTR, KERNEL_READ_AND_WRITE. Host pointers do not cross: the driver
 * gives initial content as payload and keeps USE_HOST_PTR to itself.
 */
struct vgpu_cmd_create_buffer {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u64 flags;
	__u64 bytes;
	struct vgpu_payload_ref content; /* NONE, or exactly `bytes` */
};

struct vgpu_cmd_create_sub_buffer {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 buffer;
	__u64 flags;
	__u64 origin;
	__u64 bytes;
};

/*
 * CREATE_ARENA: a buffer at an address that the guest chose, for an API whose programs see
 * addresses (CUDA). Kernels are given addresses, not ids, so a launch may write each arena of its
 * context. The address is the same on every host. All arenas of a file lie in the range below and
 * do not overlap; the GPU's driver refuses one that does.
 */
#define VGPU_ARENA_BASE 0x100000000000ull
#define VGPU_ARENA_RANGE_BYTES 0x010000000000ull
#define VGPU_ARENA_ALIGNMENT 0x200000ull /* of address and bytes */

struct vgpu_cmd_create_arena {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u64 address;
	__u64 bytes;
};

/*
 * CREATE_VARIABLE: a variable of a program (CUDA's __device__ and __constant__) as a buffer. The
 * host's driver chose the address; the command names what the guest was told (VGPU_CUDA_VARIABLE),
 * and a host where the variable lies elsewhere, or has another length, refuses it. Like an arena it
 * may be written by each launch of its file.
 */
struct vgpu_cmd_create_variable {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 program;
	__u64 address;
	__u64 bytes;
	__u32 name_bytes;
	__u32 pad;
	/* the name */
};

/*
 * A texture or surface of CUDA's: how kernels read memory by coordinates. It is an object of the
 * kind SAMPLER, and launches do not name it: kernels are given a number, which the GPU's driver
 * chooses. FIND_TEXTURE makes one and says which number it has. CREATE_TEXTURE makes that one the
 * guest's object; where none was found it makes one itself, and fails if its number is another: so
 * a standby notices that a guest's numbers are not its own.
 */
enum vgpu_texture_kind {
	VGPU_TEXTURE_LINEAR = 1,  /* of a buffer, by one integer */
	VGPU_TEXTURE_ROWS = 2,    /* of a buffer, by two coordinates */
	VGPU_TEXTURE_SURFACE = 3, /* of an image, and kernels may write it */
	VGPU_TEXTURE_ARRAY = 4,   /* of an image */
};

struct vgpu_cmd_create_texture {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u64 memory;
	__u64 offset, bytes; /* of a buffer: what it shows; of an image: 0 */
	__u64 width, height; /* ROWS: in elements; others: 0 */
	__u64 row_pitch;     /* ROWS: in bytes; others: 0 */
	__u32 kind;
	__u32 flags;         /* CUDA's CU_TRSF_* */
	__u32 channel_order; /* of a buffer: as CREATE_IMAGE has them; of an image: 0 */
	__u32 channel_type;
	__u32 addressing[3]; /* CUDA's CU_TR_ADDRESS_MODE_* */
	__u32 filter;        /* CUDA's CU_TR_FILTER_MODE_* */
	__u32 border[4];     /* the bits of four floats */
	__u64 number;        /* FIND_TEXTURE: 0, and so is the id */
	struct vgpu_payload_ref result; /* FIND_TEXTURE: u64, the number; CREATE_TEXTURE: NONE */
};

struct vgpu_cmd_create_image {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u64 flags;
	__u32 channel_order;
	__u32 channel_type;
	__u32 image_type; /* CL_MEM_OBJECT_IMAGE* */
	__u32 mip_levels; /* 0 */
	__u64 width, height, depth, array_size;
	__u64 row_pitch, slice_pitch; /* of the content, or of the buffer */
	__u64 buffer; /* memory object for 1D buffer images and 2D images from a buffer, else 0 */
	struct vgpu_payload_ref content;
};

struct vgpu_cmd_create_sampler {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u32 normalized;
	__u32 addressing;
	__u32 filter;
	__u32 pad;
};

enum vgpu_program_kind {
	VGPU_PROGRAM_SOURCE = 1,
	VGPU_PROGRAM_IL = 2,
	VGPU_PROGRAM_BINARY = 3,
	VGPU_PROGRAM_BUILT_IN = 4, /* content: names of built-in kernels */
};

struct vgpu_cmd_create_program {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u32 kind;
	__u32 pad;
	struct vgpu_payload_ref content;
};

/* options: text without a terminating 0 */
struct vgpu_cmd_build_program {
	struct vgpu_cmd cmd;
	__u64 program;
	__u32 options_bytes;
	__u32 pad;
};

/*
 * Lists: header_count program ids; then options; then header_count names, each ended by a 0 byte,
 * names_bytes together.
 */
struct vgpu_cmd_compile_program {
	struct vgpu_cmd cmd;
	__u64 program;
	__u32 options_bytes;
	__u32 header_count;
	__u32 names_bytes;
	__u32 pad;
};

/*
 * Lists: input_count program ids; then options. Creates program `id`, also when linking fails (as
 * long as result is CL_LINK_PROGRAM_FAILURE, for its log).
 */
struct vgpu_cmd_link_program {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
	__u32 options_bytes;
	__u32 input_count;
};

struct vgpu_cmd_create_kernel {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 program;
	__u32 name_bytes; /* text without a terminating 0 */
	__u32 pad;
};

struct vgpu_cmd_create_user_event {
	struct vgpu_cmd cmd;
	__u64 id;
	__u64 context;
};

struct vgpu_cmd_set_user_event {
	struct vgpu_cmd cmd;
	__u64 event;
	__s32 status; /* 0 or negative */
	__u32 pad;
};

struct vgpu_cmd_destroy {
	struct vgpu_cmd cmd;
	__u32 kind; /* enum vgpu_object_kind, must match */
	__u32 pad;
	__u64 id;
};

/*
 * AWAIT: the request waits, in the host, until these events have completed; what comes behind it in
 * its file waits with it. An id that names no command in flight is passed over. Before all other
 * commands of its stream. Not for guests, who wait themselves: this is how the log says that one
 * did.
 */
struct vgpu_cmd_await {
	struct vgpu_cmd cmd;
	__u32 event_count; /* 1 to VGPU_MAX_WAIT_COUNT ids follow */
	__u32 pad;
};

struct vgpu_cmd_flush {
	struct vgpu_cmd cmd;
	__u64 queue;
};

struct vgpu_cmd_set_spec_constant {
	struct vgpu_cmd cmd;
	__u64 program;
	__u32 constant;
	__u32 value_bytes; /* 1..16; the value follows */
};

/* WRITE_BUFFER, READ_BUFFER */
struct vgpu_cmd_transfer_buffer {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 buffer;
	__u64 offset;
	struct vgpu_payload_ref data; /* READ: a payload with VGPU_PAYLOAD_WRITE */
};

/*
 * WRITE_BUFFER_RECT, READ_BUFFER_RECT. The payload begins at the first byte of the host region (the
 * driver adds the host origin to the pointer), so its length is (z-1)*host_slice_pitch +
 * (y-1)*host_row_pitch + x. Pitches are given, never 0. A read writes only the bytes of the
 * rectangle; what lies between the rows stays as it is.
 */
struct vgpu_cmd_transfer_rect {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 buffer;
	__u64 buffer_origin[3]; /* x in bytes, y in rows, z in slices */
	__u64 region[3];
	__u64 buffer_row_pitch, buffer_slice_pitch;
	__u64 host_row_pitch, host_slice_pitch;
	struct vgpu_payload_ref data;
};

struct vgpu_cmd_copy_buffer {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 source, destination;
	__u64 source_offset, destination_offset;
	__u64 bytes;
};

struct vgpu_cmd_copy_rect {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 source, destination;
	__u64 source_origin[3], destination_origin[3], region[3];
	__u64 source_row_pitch, source_slice_pitch, destination_row_pitch, destination_slice_pitch;
};

struct vgpu_cmd_fill_buffer {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 buffer;
	__u64 offset;
	__u64 bytes;
	__u32 pattern_bytes; /* 1, 2, 4, … 128 */
	__u32 pad;
	__u8 pattern[128]; /* unused bytes are 0 */
};

/*
 * WRITE_IMAGE, READ_IMAGE. Pitches of the host side, never 0 (slice_pitch 0 where the image has no
 * slices); payload as in transfer_rect.
 */
struct vgpu_cmd_transfer_image {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 image;
	__u64 origin[3];
	__u64 region[3];
	__u64 row_pitch, slice_pitch;
	struct vgpu_payload_ref data;
};

struct vgpu_cmd_copy_image {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 source, destination;
	__u64 source_origin[3], destination_origin[3], region[3];
};

/* COPY_IMAGE_TO_BUFFER, COPY_BUFFER_TO_IMAGE */
struct vgpu_cmd_copy_image_buffer {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 image;
	__u64 buffer;
	__u64 origin[3];
	__u64 region[3];
	__u64 offset;
};

struct vgpu_cmd_fill_image {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 image;
	__u64 origin[3];
	__u64 region[3];
	__u8 color[16];
};

enum vgpu_argument_kind {
	VGPU_ARGUMENT_BYTES = 1,   /* value: `bytes` bytes */
	VGPU_ARGUMENT_MEMORY = 2,  /* value: one id, 0 is a null pointer; bytes is 8 */
	VGPU_ARGUMENT_SAMPLER = 3, /* value: one id; bytes is 8 */
	VGPU_ARGUMENT_LOCAL = 4,   /* no value; bytes is the size of the local memory */
};

struct vgpu_argument {
	__u32 index; /* ascending */
	__u32 kind;
	__u64 bytes;
	/* value, padded with 0 to a multiple of 8 */
};

#define VGPU_LAUNCH_LOCAL_SIZE 1u /* local[] is given, else the GPU chooses */
/* Of CUDA's launches; a device of another API refuses them. */
#define VGPU_LAUNCH_COOPERATIVE 2u /* all groups run at the same time */
#define VGPU_LAUNCH_CLUSTERS 4u    /* offset[] is the size of a cluster, in groups */

/*
 * A launch carries its whole argument list. Lists: wait list, then argument_count x vgpu_argument,
 * argument_bytes together.
 */
struct vgpu_cmd_launch {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 kernel;
	__u32 work_dim; /* 1..3 */
	__u32 flags;
	__u64 offset[3]; /* unused dimensions: 0, 1, 1 */
	__u64 global[3];
	__u64 local[3];
	__u32 argument_count;
	__u32 argument_bytes;
};

/*
 * SUGGESTED_GROUP_SIZE: the local size that the GPU would choose for this launch. Lists: as a
 * launch's arguments.
 */
struct vgpu_cmd_suggested_group_size {
	struct vgpu_cmd cmd;
	__u64 queue;
	__u64 kernel;
	__u32 work_dim; /* 1..3 */
	__u32 pad;
	__u64 offset[3]; /* unused dimensions: 0, 1 */
	__u64 global[3];
	struct vgpu_payload_ref result; /* u64[3], 1 where a dimension is unused */
	__u32 argument_count;
	__u32 argument_bytes;
};

/* MARKER, BARRIER */
struct vgpu_cmd_sync {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
};

/* Lists: wait list, then object_count memory ids. */
struct vgpu_cmd_migrate {
	struct vgpu_cmd cmd;
	struct vgpu_enqueue enqueue;
	__u64 flags;
	__u32 object_count;
	__u32 pad;
};

/*
 * WRITE_RUNS: what WRITE_BUFFER does, for many short runs of bytes of one buffer. What a program
 * stores between two submits is often a few bytes, so the command is as short as can be: half a
 * header, then numbers and bytes without padding between them, at the end 0 up to a multiple of 8
 * bytes. It names no event and waits for nothing.
 *
 *   queue │ buffer │ run_bytes │ run_bytes of entries │ data: the runs' bytes one behind the other
 *
 * run_bytes is 1 .. VGPU_MAX_RUN_BYTES. The entries say where the runs go; each begins with a
 * number n:
 *
 *   n & 3
 *   0  a run n >> 2 bytes behind the end of the one before (the first one: behind the buffer's
 *      first byte); its length is a second number
 *   1  the same, as long as the run before
 *   2  n >> 2 more runs (at least one), each with the distance and the length of the run before
 *
 * A number has up to 64 bits, in 7-bit groups, the low ones first; the top bit of a byte says that
 * another one follows, and the last byte is not 0 unless it is the only one. Runs are not empty, at
 * most VGPU_MAX_RUNS, and have at most VGPU_MAX_INLINE_PAYLOAD_BYTES together.
 */
#define VGPU_RUN_NEW 0u
#define VGPU_RUN_SAME_LENGTH 1u
#define VGPU_RUN_REPEAT 2u

struct vgpu_cmd_write_runs {
	__u16 opcode;
	__u16 words;  /* of 8 bytes: the length of the whole command */
	__u8 body[4]; /* and what follows */
};

#endif
