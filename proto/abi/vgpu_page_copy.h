/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * Copies of pages of the VRAM window, which the device makes and compares for a driver: the third
 * thing that guest and device have beside the requests of vgpu_protocol.h (whose conventions hold
 * here too). The specification in words is docs/spec/device.md, section 2.
 */
#ifndef KAGEMUSHA_VGPU_PAGE_COPY_H
#define KAGEMUSHA_VGPU_PAGE_COPY_H

#include "proto/abi/vgpu_protocol.h"
#include "proto/abi/vgpu_store_log.h"

/* Feature bit of the virtio device: struct vgpu_page_copies is in its configuration space. */
#define VGPU_F_PAGE_COPY 3

#define VGPU_COPY_PAGE_BYTES 4096u
#define VGPU_COPY_BLOCK_BYTES 64u /* what `changed` tells of; as many as a page has fit 64 bits */
/* In one list: the device holds up other devices of the VM meanwhile. */
#define VGPU_MAX_COPIES 512u

enum vgpu_copy_answer {
	VGPU_COPY_NONE = 0,  /* not made; what a driver puts there before it asks */
	VGPU_COPY_PARTS = 1, /* `changed` says what differs */
	VGPU_COPY_WHOLE = 2, /* each byte differs */
	VGPU_COPY_PENDING = 3, /* is being made */
};

/* A page of the list. */
struct vgpu_page_copy {
	__u64 before;  /* guest-physical, of a page to compare with */
	__u64 copy;    /* guest-physical, of the page that becomes the copy */
	/*
	 * answer: a bit for each block of the copy, the first one's the lowest, set if it differs
	 * from `before`
	 */
	__u64 changed;
	__u32 page;    /* number in the window */
	__u32 answer;  /* enum vgpu_copy_answer */
};

/*
 * Added to `pages`: the device may leave the copies to other processors and end the write at once.
 * Each answer then is PENDING until it is there, at the latest when the driver has read any field
 * of the configuration, which waits for all of them.
 */
#define VGPU_COPIES_BEGIN (1u << 31)

/*
 * Behind struct vgpu_store_log. Writing `pages`, as the last of the two, asks for that many entries
 * of the list at `address` (guest-physical, one piece). When the write is done, all of them have
 * their answers, or none if one of them can't be done. What was compared is the copy.
 */
struct vgpu_page_copies {
	__u64 address;
	__u32 pages;
	__u32 result; /* enum vgpu_status of the last question: OK or MALFORMED */
};

#define VGPU_CONFIG_STORE_LOG sizeof(struct vgpu_config)
#define VGPU_CONFIG_PAGE_COPIES (VGPU_CONFIG_STORE_LOG + sizeof(struct vgpu_store_log))
/*
 * Read only, 32 bits: processors of the host that take part in large questions beside the one that
 * asks; 0 where it has none to spare. Changes when the VM moves to another host, which is told as a
 * change of the configuration.
 */
#define VGPU_CONFIG_COPY_THREADS (VGPU_CONFIG_PAGE_COPIES + sizeof(struct vgpu_page_copies))
#define VGPU_CONFIG_BYTES (VGPU_CONFIG_COPY_THREADS + 2 * sizeof(__u32)) /* the last one is 0 */

#endif
