/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * User interface of the kagemusha_vgpu driver: the character device /dev/kagemusha-vgpuN.
 *
 * An open file owns everything made through it (objects on the GPU, requests, window ranges) and
 * gives it back when its last descriptor is closed, however that happens. The command stream is
 * that of vgpu_protocol.h; the driver forwards it without looking into it.
 *
 * Rules: fixed-size fields, every pad and every unknown flag must be 0 (-EINVAL), structures may
 * grow at the end (the size is in the ioctl's number; a longer structure from newer user space is
 * accepted if the part that the kernel does not know is 0), timeouts are absolute CLOCK_MONOTONIC
 * nanoseconds, waits end on a fatal signal, unknown ioctls give -ENOTTY.
 *
 * read(2) gives whole records (struct vgpu_record …) and never a part of one; -EINVAL if the buffer
 * is smaller than the next one (VGPU_MAX_RECORD_BYTES always suffices). poll(2): POLLIN when a
 * record waits, POLLERR once the file is lost (after the last record); read(2) then gives -ENODEV.
 */
#ifndef _UAPI_LINUX_KAGEMUSHA_VGPU_H
#define _UAPI_LINUX_KAGEMUSHA_VGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * enum kagemusha_vgpu_param - what GET_PARAM can be asked for
 * @KAGEMUSHA_VGPU_PARAM_ABI_VERSION: VGPU_ABI_VERSION of the device
 * @KAGEMUSHA_VGPU_PARAM_WINDOW_BYTES: size of the VRAM window, 0: none
 * @KAGEMUSHA_VGPU_PARAM_MAX_STREAM_BYTES: of the stream of one request
 * @KAGEMUSHA_VGPU_PARAM_MAX_PAYLOAD_BYTES: of all payloads of one request together; assumes
 *	scattered pages
 * @KAGEMUSHA_VGPU_PARAM_MAX_EVENTS: commands with an event in flight, of one file
 * @KAGEMUSHA_VGPU_PARAM_MAX_REQUESTS: requests in flight, of one file
 */
enum kagemusha_vgpu_param {
	KAGEMUSHA_VGPU_PARAM_ABI_VERSION = 1,
	KAGEMUSHA_VGPU_PARAM_WINDOW_BYTES = 2,
	KAGEMUSHA_VGPU_PARAM_MAX_STREAM_BYTES = 3,
	KAGEMUSHA_VGPU_PARAM_MAX_PAYLOAD_BYTES = 4,
	KAGEMUSHA_VGPU_PARAM_MAX_EVENTS = 5,
	KAGEMUSHA_VGPU_PARAM_MAX_REQUESTS = 6,
};

/**
 * struct kagemusha_vgpu_get_param - asks for a limit of the device
 * @param: enum kagemusha_vgpu_param; an unknown one gives -EINVAL
 * @pad: 0
 * @value: out
 */
struct kagemusha_vgpu_get_param {
	__u32 param;
	__u32 pad;
	__u64 value;
};

#define KAGEMUSHA_VGPU_PAYLOAD_WRITE 1u /* the device writes into it */
#define KAGEMUSHA_VGPU_PAYLOAD_WINDOW 2u /* address is an offset in a window range of this file */

/**
 * struct kagemusha_vgpu_payload - memory that a command of the request reads or writes
 * @address: user pointer: any alignment; its pages are pinned until the request is answered
 * @bytes: not 0
 * @flags: KAGEMUSHA_VGPU_PAYLOAD_*
 * @pad: 0
 */
struct kagemusha_vgpu_payload {
	__u64 address;
	__u64 bytes;
	__u32 flags;
	__u32 pad;
};

/* The answer is kept for KAGEMUSHA_VGPU_WAIT. */
#define KAGEMUSHA_VGPU_SUBMIT_WAITABLE 1u
/* -EAGAIN instead of waiting for room in the ring or for event credits. */
#define KAGEMUSHA_VGPU_SUBMIT_NONBLOCK 2u
/* flush_queue runs out of order: nothing of the stream before what was flushed. */
#define KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER 4u

/**
 * struct kagemusha_vgpu_submit - queues one request
 * @stream: user pointer to the commands
 * @stream_bytes: multiple of 8, not 0
 * @flags: KAGEMUSHA_VGPU_SUBMIT_*
 * @payloads: user pointer to struct kagemusha_vgpu_payload[payload_count]
 * @payload_count: how many
 * @completion_count: commands of the stream with an event
 * @sequence: out: the request's number
 * @flush_queue: id of a queue, 0: nothing is flushed; from here on: may be left out
 * @flush_group: whose traced ranges are flushed
 * @flushed_bytes: out
 *
 * Returns before the device has answered. Requests of one file reach the device in the order of
 * their sequence numbers. A request without WAITABLE that the device refuses shows as a record
 * (VGPU_RECORD_OVERFLOW) so that it is not lost silently. The first one opens the file on the
 * device and waits for that.
 *
 * Errors: -EFAULT, -EINVAL, -E2BIG (stream, payload or completions above the device's limits),
 * -EAGAIN, -ENODEV (device gone or file lost), -ENOMEM, -EINTR (fatal signal), -EMFILE (the device
 * has no room for another file), -EBUSY (thousands of answers were never taken by WAIT).
 *
 * With a flush_queue, what was stored into traced ranges of flush_group is sent first: write
 * commands on that queue, on the ring before this request, for everything stored before this call
 * by any thread that the caller has synchronised with. -EAGAIN may come when a part was sent; the
 * next call sends the rest.
 */
struct kagemusha_vgpu_submit {
	__u64 stream;
	__u32 stream_bytes;
	__u32 flags;
	__u64 payloads;
	__u32 payload_count;
	__u32 completion_count;
	__u64 sequence;
	__u64 flush_queue;
	__u64 flush_group;
	__u64 flushed_bytes;
};

/**
 * struct kagemusha_vgpu_wait - waits for the answer of a WAITABLE request and takes it
 * @sequence: the request's number
 * @deadline_ns: 0: do not wait; ~0: no limit
 * @status: out: this and the following are the fields of struct vgpu_response
 * @result: out
 * @failed_offset: out
 * @pad: 0
 * @result_bytes: out
 *
 * A second wait gives -ENOENT. -ETIME when the time is over: the request goes on and may be waited
 * for again.
 */
struct kagemusha_vgpu_wait {
	__u64 sequence;
	__u64 deadline_ns;
	__u32 status;
	__s32 result;
	__u32 failed_offset;
	__u32 pad;
	__u64 result_bytes;
};

/**
 * struct kagemusha_vgpu_window_alloc - a range of the VRAM window for this file
 * @bytes: rounded up to pages
 * @offset: out: what KAGEMUSHA_VGPU_PAYLOAD_WINDOW and mmap(2) take
 *
 * -ENOSPC when the window is full, -ENODEV without one.
 */
struct kagemusha_vgpu_window_alloc {
	__u64 bytes;
	__u64 offset;
};

/**
 * struct kagemusha_vgpu_window_free - gives a range of the window back
 * @offset: its beginning
 */
struct kagemusha_vgpu_window_free {
	__u64 offset;
};

/**
 * enum kagemusha_vgpu_trace_mode - how stores of the CPU into a range are noticed
 * @KAGEMUSHA_VGPU_TRACE_DEFAULT: the module's parameter kvt_mode
 * @KAGEMUSHA_VGPU_TRACE_OFF: not at all
 * @KAGEMUSHA_VGPU_TRACE_PAGE: the first store to a page since the last flush faults
 * @KAGEMUSHA_VGPU_TRACE_EMULATE: each store faults and is carried out by the kernel
 * @KAGEMUSHA_VGPU_TRACE_ADAPTIVE: each page as suits it
 * @KAGEMUSHA_VGPU_TRACE_STEP: each store faults and is executed alone with its page open; for
 *	comparison
 * @KAGEMUSHA_VGPU_TRACE_HOST: nothing faults twice: the hypervisor tells which pages were stored
 *	into; for comparison
 * @KAGEMUSHA_VGPU_TRACE_MODE_COUNT: no mode
 *
 * docs/tracer.md has what each costs.
 */
enum kagemusha_vgpu_trace_mode {
	KAGEMUSHA_VGPU_TRACE_DEFAULT = 0,
	KAGEMUSHA_VGPU_TRACE_OFF = 1,
	KAGEMUSHA_VGPU_TRACE_PAGE = 2,
	KAGEMUSHA_VGPU_TRACE_EMULATE = 3,
	KAGEMUSHA_VGPU_TRACE_ADAPTIVE = 4,
	KAGEMUSHA_VGPU_TRACE_STEP = 5,
	KAGEMUSHA_VGPU_TRACE_HOST = 6,
	KAGEMUSHA_VGPU_TRACE_MODE_COUNT
};

/**
 * struct kagemusha_vgpu_window_trace - from now on a part of a range shows a buffer
 * @offset: the range's beginning
 * @bytes: its first bytes, so many, show the buffer
 * @memory: the buffer's id
 * @memory_offset: where in the buffer they begin
 * @group: any number; the caller's flushes and ranges agree on it
 * @mode: enum kagemusha_vgpu_trace_mode; out: the one in force
 * @pad: 0
 *
 * What is stored there is written into the buffer by the next flush of the group. Once for a range;
 * the buffer must live until the range is freed.
 *
 * Errors: -EINVAL (no such range of this file, not its beginning, a bad mode), -EBUSY (traced
 * already), -ENOMEM, -EOPNOTSUPP (the device's streams are too short, or it has no log of stores
 * for mode HOST).
 */
struct kagemusha_vgpu_window_trace {
	__u64 offset;
	__u64 bytes;
	__u64 memory;
	__u64 memory_offset;
	__u64 group;
	__u32 mode;
	__u32 pad;
};

/**
 * struct kagemusha_vgpu_window_flush - what SUBMIT does with flush_queue, without a request
 * @queue: id of a queue
 * @group: whose traced ranges are flushed
 * @flags: FLUSH_BARRIER and NONBLOCK, as in struct kagemusha_vgpu_submit
 * @pad: 0
 * @flushed_bytes: out
 */
struct kagemusha_vgpu_window_flush {
	__u64 queue;
	__u64 group;
	__u32 flags;
	__u32 pad;
	__u64 flushed_bytes;
};

/**
 * struct kagemusha_vgpu_window_discard - these bytes of a traced range are not the buffer's
 * @offset: where they begin
 * @bytes: how many
 *
 * Nobody read them from the buffer, so the next flush sends all of them, changed or not. Nothing
 * for a range that is not traced.
 */
struct kagemusha_vgpu_window_discard {
	__u64 offset;
	__u64 bytes;
};

/**
 * struct kagemusha_vgpu_set_eventfd - a descriptor that is signalled when there is a record
 * @fd: an eventfd; -1 takes it away
 * @pad: 0
 *
 * It is signalled whenever a record is queued, at the end of the file, and at once if a record
 * waits already.
 */
struct kagemusha_vgpu_set_eventfd {
	__s32 fd;
	__u32 pad;
};

#define KAGEMUSHA_VGPU_IOCTL_BASE 0xb6
#define KAGEMUSHA_VGPU_IOW(nr, name) \
	_IOW(KAGEMUSHA_VGPU_IOCTL_BASE, nr, struct kagemusha_vgpu_##name)
#define KAGEMUSHA_VGPU_IOWR(nr, name) \
	_IOWR(KAGEMUSHA_VGPU_IOCTL_BASE, nr, struct kagemusha_vgpu_##name)

#define KAGEMUSHA_VGPU_GET_PARAM KAGEMUSHA_VGPU_IOWR(0x00, get_param)
#define KAGEMUSHA_VGPU_SUBMIT KAGEMUSHA_VGPU_IOWR(0x01, submit)
#define KAGEMUSHA_VGPU_WAIT KAGEMUSHA_VGPU_IOWR(0x02, wait)
#define KAGEMUSHA_VGPU_WINDOW_ALLOC KAGEMUSHA_VGPU_IOWR(0x03, window_alloc)
#define KAGEMUSHA_VGPU_WINDOW_FREE KAGEMUSHA_VGPU_IOW(0x04, window_free)
#define KAGEMUSHA_VGPU_SET_EVENTFD KAGEMUSHA_VGPU_IOW(0x05, set_eventfd)
#define KAGEMUSHA_VGPU_WINDOW_TRACE KAGEMUSHA_VGPU_IOWR(0x06, window_trace)
#define KAGEMUSHA_VGPU_WINDOW_FLUSH KAGEMUSHA_VGPU_IOWR(0x07, window_flush)
#define KAGEMUSHA_VGPU_WINDOW_DISCARD KAGEMUSHA_VGPU_IOW(0x08, window_discard)

#endif
