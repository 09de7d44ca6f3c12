/* SPDX-License-Identifier: (GPL-2.0-or-later WITH Linux-syscall-note) OR MIT */
/*
 * The log of stores into the VRAM window, which guest and device have beside the requests of
 * vgpu_protocol.h (whose conventions hold here too): with it a driver asks the hypervisor which
 * pages were stored into. The specification in words is docs/spec/device.md, section 2.
 */
#ifndef KAGEMUSHA_VGPU_STORE_LOG_H
#define KAGEMUSHA_VGPU_STORE_LOG_H

#include "proto/abi/vgpu_protocol.h"

/* Feature bit of the virtio device: struct vgpu_store_log is in its configuration space. */
#define VGPU_F_STORE_LOG 2

/*
 * The log counts in pages of this size, and a driver asks for whole groups of them: the first one's
 * number is a multiple of the group's size, and so is the count, except at the end of the window.
 */
#define VGPU_LOG_PAGE_BYTES 4096u
#define VGPU_LOG_GROUP_PAGES 64u
#define VGPU_MAX_LOG_PAGES 32768u /* asked for at once: their bits fill one page */

/*
 * Behind struct vgpu_config. Writing `pages`, as the last of the three, asks: which of these pages
 * of the window were stored into since they were asked for last. When the write is done, the answer
 * is at `address`: (pages + 7) / 8 bytes, a bit for each page, that of the first one the lowest of
 * the first byte. A bit too many may be set, none is missing; all are set when a page is asked for
 * the first time since the driver began, or since the VM goes on at another host. A store may be
 * told before it is in memory, but never after the processor's instruction has ended.
 */
struct vgpu_store_log {
	__u64 offset;  /* of the first page in the window */
	__u64 address; /* guest-physical, of ordinary memory */
	__u32 pages;
	/*
	 * enum vgpu_status of the last question: OK or MALFORMED; after that every page counts as
	 * stored into
	 */
	__u32 result;
};

#endif
