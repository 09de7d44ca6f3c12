/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The tracer: what the CPU stores into a mapped range of the VRAM window reaches the GPU's buffer,
 * and through the op log the standby's, before the next command that could use it.
 *
 * A traced page is closed (no page table allows a store), or open (some do). The first store since
 * the last flush makes a page *dirty*: its content is copied into a snapshot just before. A flush
 * closes every dirty page, compares it with its snapshot and sends what differs as ordinary write
 * commands, then forgets the snapshot, or keeps it for a while if it is the same as the page
 * (keep.c). What the device writes into a page that is not dirty is never mistaken for a store of
 * the program.
 *
 *	closed, clean ──store──▶ open, dirty ──flush──▶ closed, clean
 *
 * How a store gets in while the page is dirty is the mode's business (fault.c); what is sent, and
 * when, is not: all modes end in the same bytes.
 *
 * Locks: kvt_trace.lock is held over {snapshot, dirty bit, page table entry} of a store and over
 * {close, compare} of a flush, so no store falls between them. flush_mutex of the file is held from
 * the first page that is compared until the last write command is on the ring: whoever submits
 * afterwards finds them there, whichever thread's flush took the bytes.
 */
#ifndef KVT_TRACE_H
#define KVT_TRACE_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include <linux/kagemusha_vgpu.h>
#include "tracer/core/decode.h"
#include "tracer/core/policy.h"

struct kvg_device;
struct kvg_file;
struct kvg_range;
struct kagemusha_vgpu_window_discard;
struct kagemusha_vgpu_window_flush;
struct kagemusha_vgpu_window_trace;
struct vgpu_segment;
struct vm_area_struct;
struct vm_fault;

/* Statistics of a device, in debugfs: a line each, a column for each mode. */
enum kvt_counter {
	KVT_FAULTS,		/* stores that faulted */
	KVT_FAULTS_KERNEL,	/* of them: the kernel copied into the mapping */
	KVT_OPENED,		/* pages made writable */
	KVT_FLUSHES,		/* flushes that found something dirty */
	KVT_PAGES_COMPARED,
	KVT_PAGES_UNCHANGED,	/* compared, and nothing was sent */
	KVT_RUNS,
	KVT_PAGES_LENT,		/* sent as references to whole pages */
	KVT_BYTES_DATA,		/* sent, without headers */
	KVT_BYTES_STREAM,	/* sent, with headers */
	KVT_REQUESTS,
	KVT_FOLLOWED,		/* of them: with the commands that came behind the flush */
	KVT_PTRACE_STORES,
	KVT_EMULATED,		/* stores that the kernel carried out */
	KVT_ELSEWHERE,		/* decoded, but not inside the page that faulted */
	KVT_OPENED_AHEAD,	/* pages opened because those before them were */
	KVT_KEPT_OPEN,		/* pages compared without closing them */
	KVT_LOG_READS,		/* questions to the hypervisor's log of stores */
	KVT_LOG_PAGES,		/* pages that it told, with those that nobody has opened */
	KVT_PAGES_COPIED,	/* copied and compared by the device */
	KVT_SHADOWS_KEPT,	/* pages that became dirty again and had their snapshot still */
	KVT_STEPPED,		/* instructions executed alone */
	KVT_STEPS_NESTED,	/* stores while a step of the same thread was under way */
	KVT_REASONS,		/* why a store was left to the processor, by enum kvt_reason */
	KVT_LAST_REASON = KVT_REASONS + KVT_REASON_COUNT - 1,
	KVT_COUNTER_COUNT
};

/*
 * For tests: what the tracer does without, as if it had failed (debugfs, `tracer_without`). The
 * bytes end the same all the same.
 */
enum kvt_without {
	KVT_WITHOUT_EMULATION = 1,	/* the page is opened */
	KVT_WITHOUT_STEPS = 2,		/* it stays open until the next flush */
	KVT_WITHOUT_LENDING = 4,	/* whole pages travel in the stream */
	KVT_WITHOUT_SNAPSHOTS = 8,	/* hot pages are closed */
	KVT_WITHOUT_AHEAD = 16,		/* pages are opened one by one */
	KVT_WITHOUT_LOG = 32,		/* every open page counts as stored into */
	KVT_WITHOUT_COPIES = 64,	/* the device makes none */
	KVT_WITHOUT_KEPT = 128,		/* snapshots are made anew */
	KVT_WITHOUT_FOLLOWERS = 256,	/* a flush's request carries nothing else */
};

struct kvt_statistics {
	atomic64_t counters[KAGEMUSHA_VGPU_TRACE_MODE_COUNT][KVT_COUNTER_COUNT];
};

struct kvt_page {
	u8 *snapshot;		/* content before the first store; NULL unless dirty or kept */
	/* sent whatever the comparison says: the GPU's buffer is not what the snapshot holds */
	u16 whole_from, whole_to;
	struct kvt_heat heat;
	u8 kept_since;		/* interval, its lowest bits */
};

/*
 * Pages for snapshots. Those that a flush gave back are kept for the next interval: as many as the
 * last two needed at once, and for so many flushes that found nothing.
 */
#define KVT_KEEP_SPARE_FLUSHES 64u

struct kvt_snapshots {
	/*
	 * The addresses are not in the pages: a processor that is emulated looks for a page's place
	 * in memory each time, which takes longer than all else that is done for the page here.
	 */
	u8 **spare; /* a ring */
	u32 first, spare_count, max_spare;
	u32 used;
	atomic_t lent;		/* references of requests */
	bool some_lent;		/* when this flush began, so snapshots of before it may be */
	u32 peak, last_peak;	/* of `used`, in this interval and the one before */
	u32 idle;		/* flushes that found nothing dirty, in a row */
};

/* What the hypervisor's log of stores has told, for the whole window (mode `host`). */
struct kvt_log {
	struct mutex lock;
	/* --- lock: */
	u8 *answer;		/* a page, which the device writes */
	/* --- made once, then constant: */
	unsigned long *pages;	/* told and not looked at yet; atomic bits */
};

struct kvt_trace {
	struct mutex lock;
	/* --- constant: */
	u64 memory;		/* id of the buffer whose first bytes the range shows */
	u64 memory_offset;
	u64 bytes;
	u64 group;		/* its flushes */
	u32 mode;		/* enum kagemusha_vgpu_trace_mode, not DEFAULT */
	u32 page_count;
	/* --- lock: */
	struct kvt_page *pages;
	unsigned long *dirty;
	unsigned long *open;
	/*
	 * Clean pages that have a snapshot, because the last flush left one that is the same as the
	 * page: the next store has nothing to copy. Not while a request lets the device write into
	 * the range.
	 */
	unsigned long *kept;
	u32 kept_count;
	u32 kept_used; /* became dirty again with it since the last flush */
	struct kvt_ahead ahead;
	struct kvt_habit habit;
	u32 interval;		/* flushes that found something dirty */
	u8 *snapshot;		/* a page of memory for flushes, made when it is needed */
	struct kvt_snapshots snapshots;
	/* --- */
	atomic_t dirty_count;	/* written under the lock */
};

/* snapshot.c */
bool kvt_snapshots_fill(struct kvt_snapshots *snapshots);
void kvt_snapshot_back(struct kvt_snapshots *snapshots, u8 *snapshot);
void kvt_snapshots_flush(struct kvt_snapshots *snapshots);
bool kvt_snapshots_idle(struct kvt_snapshots *snapshots);
void kvt_snapshots_trim(struct kvt_snapshots *snapshots);
void kvt_snapshots_free(struct kvt_snapshots *snapshots);

/* trace.c */
int kvt_window_trace(struct kvg_file *file, void *data);
int kvt_window_discard(struct kvg_file *file, void *data);
void kvt_trace_free(struct kvt_trace *trace);
bool kvt_mark_dirty(struct kvg_range *range, u32 index);

/* keep.c */
bool kvt_keep_snapshot(struct kvg_range *range, u32 index);
bool kvt_keep_snapshots(struct kvg_range *range, u32 index, u32 count);
void kvt_kept_take(struct kvt_trace *trace, u32 index);
void kvt_kept_drop(struct kvt_trace *trace, u32 from, u32 to);
void kvt_kept_flush(struct kvt_trace *trace);

/* fault.c */
bool kvt_traced(const struct kvg_range *range);
vm_fault_t kvt_fault(struct vm_fault *vmf, struct kvg_range *range, bool present);
int kvt_ptrace_store(struct kvg_range *range, u64 offset, const void *data, int bytes);

/* emulate.c */
bool kvt_emulate(struct vm_fault *vmf, struct kvg_range *range, u32 index);

/* step.c */
void kvt_step_begin(struct kvg_range *range, u32 index);
void kvt_steps_prune(void);
int kvt_steps_init(void);
void kvt_steps_exit(void);

/* lend.c */
void kvt_lender_lock(struct kvg_range *lender);
void kvt_lender_unlock(struct kvg_range *lender);
void kvt_lent_back(struct kvg_range *lender, const struct vgpu_segment *segment);

/* log.c */
int kvt_log_begin(struct kvg_device *dev);
void kvt_log_read(struct kvg_range *range);
bool kvt_log_has(const struct kvg_range *range, u32 index);
void kvt_log_forget(struct kvg_range *range, u32 index);
void kvt_log_remember(struct kvg_range *range, u32 index);
void kvt_log_free(struct kvg_device *dev);

/* copies.c */
void kvt_copies_free(struct kvg_file *file);

/* flush.c */

/* Where a flush writes, and how. */
struct kvt_target {
	u64 queue;	/* 0: no flush */
	u64 group;
	bool barrier;	/* the queue runs out of order: what is submitted later waits */
	bool nonblock;	/* -EAGAIN instead of waiting for room; the next flush sends the rest */
	/*
	 * What the caller sends behind the flush, or NULL. It has no payloads, nobody waits for its
	 * answer, and its credits are taken. It need not be a request of its own: the flush's last
	 * one can take its commands.
	 */
	const struct kvg_request *follower;
	/* --- out: */
	bool followed;	/* they are on the ring */
	u64 sequence;	/* if so: their request's */
};

/*
 * When it returns 0, everything that was stored before this call, by anybody whom the caller has
 * synchronised with, is on the ring.
 */
int kvt_flush(struct kvg_file *file, struct kvt_target *target, u64 *flushed_bytes);
void kvt_device_writes(struct kvg_range *range, u64 offset, u64 bytes);

/* stats.c */
void kvt_count(const struct kvg_range *range, enum kvt_counter counter, u64 by);
bool kvt_without(const struct kvg_range *range, enum kvt_without what);
const char *kvt_mode_name(u32 mode);
void kvt_stats_add(struct kvg_device *dev);
void kvt_stats_remove(struct kvg_device *dev);

#endif
