/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Internal header of the kagemusha_vgpu driver: the objects, who owns them and which lock guards
 * which field.
 *
 * Prefixes: kvg_ is this driver's own, vgpu_ the wire format (vgpu_protocol.h), kagemusha_vgpu_ the
 * user interface.
 *
 * Objects and references
 *	kvg_device	one virtio device. References: the binding to the driver, every open file,
 *			every range of the window.
 *	kvg_file	one open of the node. References: the struct file, every request of it, and
 *			short ones of whoever looked it up by its id.
 *	kvg_request	one element of the request queue. References: the ring (until answered and
 *			released), the file's `answers` if WAITABLE, each waiter.
 *	kvg_user	one user of the guest, while it has something of the device. References: its
 *			open files, its ranges.
 *	kvg_range	one range of the VRAM window. References: its file, each mapping, each
 *			request that uses it.
 *
 * Locks, outermost first; what is not in one line with another is never nested
 *	stop_mutex -> request_lock, files_lock, window_rwsem
 *	open_mutex -> request_lock
 *	flush_mutex -> kvt_trace.lock, kvt_log.lock, window_mutex, submit_mutex
 *	submit_mutex -> request_lock (irq-safe: the answer interrupt takes it)
 *	read_mutex -> mmap_lock (core), file->lock
 *	mmap_lock (core) -> window_mutex
 *	mmap_lock (core) -> kvt_trace.lock -> window_rwsem
 *	kvt_log.lock -> window_rwsem
 *	window_rwsem -> copies_mutex
 *	files_lock -> file->lock
 *	kvg_srcu is held over every use of a virtqueue by a process, so that stopping can wait for
 *	them; nothing sleeps inside it.
 *
 * Contexts: the answer interrupt only takes elements off the ring, gives back their slots and
 * wakes. Everything that may sleep (unpinning, freeing, credits, records) happens in done_work.
 * Records are read in event_work.
 */
#ifndef KVG_H
#define KVG_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/types.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <linux/kagemusha_vgpu.h>
#include "proto/abi/vgpu_protocol.h"
#include "compat.h"
#include "tracer/kernel/trace.h"

/* of one file, whatever the device offers: each costs 96 bytes until it is read */
#define KVG_MAX_EVENTS 65536u
/* WAITABLE requests of one file that nobody has taken yet */
#define KVG_MAX_ANSWERS 4096u
#define KVG_MAX_TEXT_BYTES (256u << 10)	/* printf output of one file that nobody has read yet */
/* VGPU_RECORD_QUEUE_ERROR of one file that nobody has read yet */
#define KVG_MAX_QUEUE_ERRORS 1024u
/*
 * What is in flight, whatever the guest's size: the device too keeps an entry for each piece that
 * it writes into.
 */
#define KVG_MAX_PINNED_PAGES (8ul * VGPU_MAX_SEGMENTS)
#define KVG_EVENT_BUFFERS 64u		/* posted on the event queue, if it is that long */
/* close(2) waits that long for the device, then leaves the rest to done_work */
#define KVG_CLOSE_WAIT_MS 1000u

#define KVG_FAILED 0			/* bit of kvg_device.flags: the failure was reported */

/* Also after the node is gone, when there is no struct device to print with. */
#define kvg_warn(dev, format, ...) pr_warn_ratelimited("%s: " format, (dev)->name, ##__VA_ARGS__)

/*
 * What the device's configuration, the ring and the guest's memory allow together; fixed after
 * probe.
 */
struct kvg_limits {
	u32 stream_bytes;
	u32 payloads;		/* entries of one request */
	/* pinned by one request: the same number of segments in the worst case */
	u32 pages;
	u32 requests;		/* SUBMITs of one file in flight */
	u32 events;		/* completions of one file outstanding */
	u32 files;		/* open on the device at once */
	u64 payload_bytes;	/* of one request at any alignment of its payloads */
	u64 window_bytes;
};

/* For blobs (blob.c): NULL or a chunk, each exchanged at once. */
#define KVG_SPARE_CHUNKS 4
struct kvg_spare_chunks {
	void *chunks[KVG_SPARE_CHUNKS];
};

struct kvg_device {
	struct kref refs;
	int index;
	char name[32];
	struct miscdevice misc;
	struct kvg_limits limits;
	bool write_runs;		/* VGPU_F_WRITE_RUNS; fixed after probe */
	bool store_log;			/* VGPU_F_STORE_LOG; the same */
	bool page_copies;		/* VGPU_F_PAGE_COPY; the same */
	u32 copy_threads;		/* of the host; it is another one after a takeover */
	/* the address space of every mapping, whatever node was opened */
	struct inode *inode;

	struct virtio_device *vdev;	/* valid until remove returns */
	struct virtqueue *event_vq;	/* event_work, and stop once event_work is off */
	struct virtqueue *request_vq;

	spinlock_t request_lock;	/* irq-safe */
	/* --- request_lock: */
	/* the device was reset for good: nothing is added any more */
	bool gone;
	u32 slots;			/* elements that the ring holds */
	u32 slots_used;
	/* at most half of slots, so that streams without payload always get through */
	u32 payload_slots_used;
	unsigned long pinned_pages;	/* reserved before pinning, returned after unpinning */
	struct list_head backlog;	/* OPEN and CLOSE that found the ring full */
	struct list_head done;		/* answered, not yet released */
	/* --- constant after probe: */
	unsigned long pinned_limit;
	/* --- */
	wait_queue_head_t room_wait;	/* room came free, or a file died */
	struct work_struct done_work;
	struct work_struct event_work;
	struct work_struct fail_work;
	struct mutex stop_mutex;	/* stopping happens once */
	bool stopped;			/* stop_mutex */
	unsigned long flags;		/* KVG_FAILED; atomic */

	/* event_work: what the device wrote, copied before it is looked at */
	void *event_scratch;
	/* owned by the device while posted, freed when it is stopped */
	void **event_buffers;
	u32 event_buffer_count;

	/* id on the wire -> kvg_file, from OPEN until CLOSE is answered */
	struct xarray ids;
	u32 next_id;			/* ids' lock */
	spinlock_t files_lock;
	/* --- files_lock: */
	struct list_head files;		/* every open file */
	u32 file_count;
	struct list_head users;		/* of files and ranges */
	u32 device_files;		/* those that the device knows, or is about to */
	/* --- */

	struct mutex window_mutex;	/* allocation and lookup of ranges */
	struct rb_root window_ranges;	/* window_mutex; by offset */
	struct gen_pool *window_pool;	/* window_mutex; its space */
	/* read: inserting a PTE, touching window_memory; write: taking them away */
	struct rw_semaphore window_rwsem;
	bool window_gone;		/* window_rwsem */
	phys_addr_t window_start;
	/* also holds the write-back reservation that user mappings inherit */
	void *window_memory;
	atomic64_t window_used_bytes;

	struct kvt_log log;		/* tracer/kernel/log.c */
	struct kvg_spare_chunks spare_chunks;
	struct mutex copies_mutex;	/* one question for copies at a time */
	struct kvt_statistics kvt_core_statistics;
	u32 kvt_core_without;		/* enum kvt_without, for tests */
	struct dentry *debugfs;
};

/* One user of the guest (user.c). Each number is part of the device's of that name. */
struct kvg_user {
	kuid_t uid;			/* constant */
	/* --- files_lock: */
	u32 refs;
	struct list_head link;		/* dev->users */
	u32 device_files;
	/* --- request_lock: */
	u32 slots_used;
	u32 payload_slots_used;
	unsigned long pinned_pages;
	/* --- */
	u64 window_bytes;		/* window_mutex */
};

struct kvg_range {
	struct kref refs;
	struct kvg_device *dev;
	struct kvg_user *user;		/* a reference */
	/* owner, not a reference: the file drops its ranges before it goes */
	struct kvg_file *file;
	struct rb_node node;		/* dev->window_ranges */
	struct list_head link;		/* file->ranges; both under window_mutex */
	u64 offset;
	u64 bytes;
	bool dead;			/* freed or its file closed; window_rwsem */
	atomic_t device_writes;		/* requests in flight that let the device write into it */
	/* NULL until traced, then constant; released with the range */
	struct kvt_trace *trace;
};

/*
 * A growing byte string in physically contiguous pieces: the device-readable part of a request, and
 * its scatter list.
 */
/* the largest order that the page allocator does not give up on */
#define KVG_BLOB_CHUNK_BYTES (32u << 10)

struct kvg_blob {
	void **chunks;
	void *single;			/* the array, when one is enough */
	struct kvg_spare_chunks *spare;	/* for the next blobs */
	u32 chunk_count;
	u32 chunk_capacity;
	u32 bytes;
	u32 capacity;			/* what the caller said it can need at most */
};

/* A range that a payload is in. */
struct kvg_range_use {
	struct kvg_range *range;	/* a reference */
	bool device_writes;
};

struct kvg_request {
	struct kref refs;
	struct kvg_device *dev;
	struct kvg_file *file;		/* a reference */
	u32 type;			/* enum vgpu_request_type */
	bool waitable;
	bool in_room;			/* holds slots and pages; request_lock */
	u64 sequence;

	struct kvg_blob blob;
	u32 stream_bytes;
	u32 payload_count;
	u32 segment_count;
	u32 completion_count;
	unsigned long pages;		/* reserved from pinned_pages */
	struct kvg_range_use *ranges;	/* one for each window payload */
	u32 range_count;
	/* a reference: the payloads are pages of its trace, not pinned */
	struct kvg_range *lender;

	struct list_head link;		/* backlog, then done; request_lock */
	wait_queue_head_t wait;
	bool answered;			/* release after `answer` is filled */
	struct vgpu_response answer;	/* the copy that is looked at */
	struct vgpu_response response;	/* the device writes here */
};

enum kvg_open_state { KVG_NOT_OPEN, KVG_OPENING, KVG_OPEN };

struct kvg_node;

struct kvg_file {
	struct kref refs;
	struct kvg_device *dev;
	struct kvg_user *user;		/* who opened it; a reference */
	bool unbound;			/* by a process with CAP_SYS_RESOURCE; constant */
	struct list_head link;		/* dev->files */

	struct mutex open_mutex;	/* taken killably; held while OPEN is under way */
	/* --- open_mutex: */
	enum kvg_open_state open_state;
	u32 id;				/* on the wire; constant while open */
	struct kvg_request *open_request;
	/* made before OPEN is sent, so that closing cannot fail */
	struct kvg_request *close_request;
	/* --- */

	/* sequence numbers and ring order are the same order; never held over a wait */
	struct mutex submit_mutex;
	u64 next_sequence;		/* submit_mutex */
	struct xarray answers;		/* sequence -> WAITABLE kvg_request */
	atomic_t answer_count;

	/* --- dev->request_lock: */
	u32 in_flight;
	u32 payload_in_flight;
	unsigned long pinned_pages;
	/* --- */
	struct list_head ranges;	/* dev->window_mutex */
	/* from comparing pages until what differed is on the ring */
	struct mutex flush_mutex;
	struct kvt_open_runs *flush_runs; /* flush_mutex; made when it is needed */
	struct kvt_lent *flush_lent;	/* the same */
	struct kvt_copies *flush_copies; /* the same */
	atomic_t traced_ranges;

	/* one reader at a time, so that the head of `records` stays */
	struct mutex read_mutex;
	wait_queue_head_t read_wait;	/* a record, or the end */
	wait_queue_head_t credit_wait;	/* a completion was read, or the file died */

	spinlock_t lock;		/* process context only */
	/* --- lock: */
	struct list_head records;
	struct list_head spare_nodes;	/* for completions to come */
	u32 node_count;			/* nodes for completions: queued, spare, or being made */
	u32 credits_used;		/* completions submitted for and not yet read */
	u32 expected;			/* completions submitted for and not yet come */
	u32 text_bytes;
	u32 queue_errors;
	u64 text_dropped;
	bool overflow;			/* a VGPU_RECORD_OVERFLOW is due */
	bool dead;			/* no more submits; also read without the lock */
	bool ended;			/* no more records will come */
	struct eventfd_ctx *eventfd;
};

/* driver.c */
extern struct srcu_struct kvg_srcu;
extern struct workqueue_struct *kvg_workqueue;
void kvg_device_get(struct kvg_device *dev);
void kvg_device_put(struct kvg_device *dev);
void kvg_device_fail(struct kvg_device *dev, const char *why);

/* file.c */
extern const struct file_operations kvg_file_operations;
void kvg_file_get(struct kvg_file *file);
void kvg_file_put(struct kvg_file *file);
struct kvg_file *kvg_file_find(struct kvg_device *dev, u32 id);
void kvg_files_end(struct kvg_device *dev);

/* user.c */
struct kvg_user *kvg_user_get(struct kvg_device *dev);
void kvg_user_hold(struct kvg_device *dev, struct kvg_user *user);
void kvg_user_put(struct kvg_device *dev, struct kvg_user *user);
bool kvg_share_left(u64 limit, u64 used, u64 own, u64 more, bool unbound);
int kvg_user_take_file(struct kvg_file *file);
void kvg_user_return_file(struct kvg_file *file);

/* submit.c */
int kvg_submit(struct kvg_file *file, void *data);
int kvg_request_commit(struct kvg_request *request, u64 *sequence);
int kvg_wait(struct kvg_file *file, void *data);

/* request.c */
struct kvg_request *kvg_request_new(struct kvg_file *file, u32 type, u32 capacity);
int kvg_room_take(struct kvg_request *request, bool nonblock);
void kvg_room_shrink(struct kvg_request *request, u32 payload_count, unsigned long pages);
void kvg_room_return(struct kvg_request *request);
int kvg_ring_submit(struct kvg_request *request);
bool kvg_request_is_answered(struct kvg_request *request);
int kvg_file_ensure_open(struct kvg_file *file);
void kvg_file_close(struct kvg_file *file);
void kvg_request_put(struct kvg_request *request);
void kvg_request_interrupt(struct virtqueue *vq);
void kvg_request_done_work(struct work_struct *work);
void kvg_requests_cancel(struct kvg_device *dev);

/* blob.c */
int kvg_blob_init(struct kvg_blob *blob, u32 capacity, struct kvg_spare_chunks *spare);
void kvg_blob_free(struct kvg_blob *blob);
void kvg_spare_chunks_free(struct kvg_spare_chunks *spare);
int kvg_blob_append(struct kvg_blob *blob, const void *data, u32 bytes);
int kvg_blob_append_part(struct kvg_blob *blob, const struct kvg_blob *from, u32 offset, u32 bytes);
int kvg_blob_append_user(struct kvg_blob *blob, const void __user *data, u32 bytes);
void kvg_blob_write(struct kvg_blob *blob, u32 offset, const void *data, u32 bytes);
void kvg_blob_read(const struct kvg_blob *blob, u32 offset, void *data, u32 bytes);
void kvg_blob_fill_scatter(const struct kvg_blob *blob, struct scatterlist *list);
u32 kvg_blob_max_chunks(u64 bytes);

/* payload.c */
int kvg_payloads_count_pages(const struct kvg_limits *limits,
			     const struct kagemusha_vgpu_payload *payloads, u32 count,
			     unsigned long *pages);
int kvg_payloads_pin(struct kvg_request *request, const struct kagemusha_vgpu_payload *payloads);
void kvg_payloads_release(struct kvg_request *request);

/* record.c */
int kvg_credits_take(struct kvg_file *file, u32 count, bool nonblock);
void kvg_credits_return(struct kvg_file *file, u32 count);
void kvg_file_overflow(struct kvg_file *file);
void kvg_file_dead(struct kvg_file *file);
void kvg_file_end(struct kvg_file *file);
void kvg_record_queue(struct kvg_file *file, const struct vgpu_record *record);
ssize_t kvg_records_read(struct kvg_file *file, char __user *buffer, size_t bytes, bool nonblock);
__poll_t kvg_records_poll(struct kvg_file *file, struct file *filp, struct poll_table_struct *wait);
int kvg_set_eventfd(struct kvg_file *file, void *data);
void kvg_records_free(struct kvg_file *file);

/* event.c */
int kvg_events_start(struct kvg_device *dev);
void kvg_events_free(struct kvg_device *dev);
void kvg_event_interrupt(struct virtqueue *vq);
void kvg_event_work(struct work_struct *work);

/* window.c */
void kvg_window_init(struct kvg_device *dev, u64 configured_bytes);
void kvg_window_stop(struct kvg_device *dev);
void kvg_window_free_memory(struct kvg_device *dev);
int kvg_window_alloc(struct kvg_file *file, void *data);
int kvg_window_free(struct kvg_file *file, void *data);
struct kvg_range *kvg_range_find(struct kvg_file *file, u64 offset, u64 bytes);
struct kvg_range *kvg_range_next_traced(struct kvg_file *file, u64 group, u64 from);
void kvg_range_put(struct kvg_range *range);
void kvg_window_release_file(struct kvg_file *file);
int kvg_window_mmap(struct file *filp, struct vm_area_struct *vma);

#endif
