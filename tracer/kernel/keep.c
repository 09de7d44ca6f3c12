// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Snapshots that are kept across a flush. Where a flush has closed a page and left a snapshot that
 * is the same as the page, whoever stores into the page next needs no copy of it. That holds as
 * long as nothing but a store, which faults, changes the page. The device does, at some time while
 * a request lets it write into the range: then no snapshot is kept there, and what was kept goes
 * (kvt_device_writes).
 *
 * A snapshot that nobody needed for two intervals goes, and all of a range do when flushes find
 * nothing for long or memory is short. The trace's lock is held.
 */
#include <linux/bitmap.h>

#include "kvg.h"
#include "tracer/kernel/snapshot.h"

/* So many intervals: a program may use two buffers in turns. */
#define KVT_KEEP_INTERVALS 2u

/*
 * The pages are closed and clean, and their snapshots the same as they. Returns whether these stay:
 * all, or none.
 */
bool kvt_keep_snapshots(struct kvg_range *range, u32 index, u32 count)
{
	struct kvt_trace *trace = range->trace;
	u32 i;

	if (atomic_read(&range->device_writes) || kvt_without(range, KVT_WITHOUT_KEPT))
		return false;
	for (i = index; i < index + count; i++)
		trace->pages[i].kept_since = (u8)trace->interval;
	bitmap_set(trace->kept, index, count);
	trace->kept_count += count;
	return true;
}

/* The same for one page, which may have no snapshot. */
bool kvt_keep_snapshot(struct kvg_range *range, u32 index)
{
	return range->trace->pages[index].snapshot && kvt_keep_snapshots(range, index, 1);
}

/* The page has its snapshot as any dirty page from now on. */
void kvt_kept_take(struct kvt_trace *trace, u32 index)
{
	__clear_bit(index, trace->kept);
	trace->kept_count--;
}

static void drop(struct kvt_trace *trace, u32 index)
{
	struct kvt_page *page = &trace->pages[index];

	kvt_kept_take(trace, index);
	kvt_snapshot_return(&trace->snapshots, page->snapshot);
	page->snapshot = NULL;
}

/* The kept snapshots of the pages from `from` to before `to` go. */
void kvt_kept_drop(struct kvt_trace *trace, u32 from, u32 to)
{
	unsigned int index = from;

	if (!trace->kept_count)
		return;
	for_each_set_bit_from(index, trace->kept, to)
		drop(trace, index);
}

/* An interval is over: what is too old goes. */
void kvt_kept_flush(struct kvt_trace *trace)
{
	unsigned int index;

	if (!trace->kept_count)
		return;
	for_each_set_bit(index, trace->kept, trace->page_count) {
		if ((u8)(trace->interval - trace->pages[index].kept_since) > KVT_KEEP_INTERVALS)
			drop(trace, index);
	}
}
