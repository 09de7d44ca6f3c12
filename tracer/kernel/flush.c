// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A flush: dirty pages are closed, what differs from their snapshots becomes write commands
 * (send.c, stream.c), and these go on the ring before anything that the caller sends afterwards.
 */
#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/kernel/stream.h"

/* No page. */
#define KVT_NEVER_HOT 255u

/*
 * A page stays open at this flush after so many intervals. Not while the device may write into the
 * range: what it writes would differ from the snapshot, and count as stored.
 */
static u32 intervals_until_hot(const struct kvg_range *range)
{
	const struct kvt_trace *trace = range->trace;

	if (trace->snapshot && !atomic_read(&range->device_writes)) {
		if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST)
			return 0;
		if (trace->mode == KAGEMUSHA_VGPU_TRACE_ADAPTIVE)
			return KVT_INTERVALS_UNTIL_HOT;
	}
	return KVT_NEVER_HOT;
}
static_assert(KVT_INTERVALS_UNTIL_HOT < KVT_NEVER_HOT);

/*
 * Not with bytes that are sent whatever the comparison says: these are sent once, from a closed
 * page.
 */
static inline bool is_hot(const struct kvt_page *page, u32 intervals)
{
	return page->heat.intervals >= intervals && page->snapshot &&
	       page->whole_from == page->whole_to;
}

static u32 count_due(struct kvg_range *range)
{
	struct kvt_trace *trace = range->trace;
	unsigned int index;
	u32 count = 0;

	if (trace->mode != KAGEMUSHA_VGPU_TRACE_HOST)
		return atomic_read(&trace->dirty_count);
	mutex_lock(&trace->lock);
	for_each_set_bit(index, trace->dirty, trace->page_count)
		count += kvt_is_due(range, index);
	mutex_unlock(&trace->lock);
	return count;
}

/*
 * From page `first` on nothing can be stored any more without a fault, on any CPU, except into hot
 * pages.
 */
static void close_pages(struct kvg_range *range, unsigned int first)
{
	struct kvt_trace *trace = range->trace;
	const struct kvt_page *pages = trace->pages;
	const u32 intervals = intervals_until_hot(range);
	unsigned int from = first, to, index, end;

	for_each_set_bitrange_from(from, to, trace->open, trace->page_count) {
		for (index = from; index < to; index = end) {
			end = index + 1;
			if (is_hot(&pages[index], intervals))
				continue;
			while (end < to && !is_hot(&pages[end], intervals))
				end++;
			unmap_mapping_range(range->dev->inode->i_mapping,
					    range->offset + ((u64)index << PAGE_SHIFT),
					    (u64)(end - index) << PAGE_SHIFT, 1);
			bitmap_clear(trace->open, index, end - index);
		}
	}
}

/*
 * Fills the stream with what is dirty from page *cursor on, as far as it fits. These pages are
 * clean then: the stream is sent, or the file is dead.
 */
static int collect(struct kvt_stream *stream, struct kvg_range *range, u32 *cursor)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	unsigned int index = *cursor;
	u32 whole, kept_used;
	int ret = 0;

	mutex_lock(&trace->lock);
	kept_used = trace->kept_used;
	trace->kept_used = 0;
	down_read(&dev->window_rwsem);
	if (range->dead || dev->window_gone) {
		index = trace->page_count;
		goto out;
	}
	close_pages(range, index);
	for_each_set_bit_from(index, trace->dirty, trace->page_count) {
		/* for two pages: one that cools down is sent two times */
		if (!kvt_stream_has_room(stream) || kvt_lent_all(stream))
			break;
		if (stream->copies && index >= stream->copies->end)
			kvt_copies_make(stream, range, index);
		if (kvt_copies_has(stream, index))
			kvt_copies_wait(stream, range);
		whole = min(kvt_copies_whole(stream, index), kvt_stream_can_lend(stream));
		if (whole) {
			ret = kvt_send_whole(stream, range, index, whole);
			if (ret)
				break;
			index += whole - 1;
			continue;
		}
		if (!kvt_copies_has(stream, index)) {
			if (!kvt_is_due(range, index))
				continue;
			/* before the look at the page: what is stored afterwards is told again */
			if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST)
				kvt_log_forget(range, index);
		}
		ret = test_bit(index, trace->open) ? kvt_send_hot(stream, range, index) :
						     kvt_send_closed(stream, range, index);
		if (ret)
			break;
	}
out:
	kvt_copies_end(stream, range);
	*cursor = index;
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	kvt_count(range, KVT_PAGES_COMPARED, stream->page_count);
	kvt_count(range, KVT_PAGES_UNCHANGED, stream->unchanged_pages);
	kvt_count(range, KVT_KEPT_OPEN, stream->kept_pages);
	kvt_count(range, KVT_RUNS, stream->run_count);
	kvt_count(range, KVT_SHADOWS_KEPT, kept_used);
	return ret;
}

/* Memory for descriptors comes back; a file in which a program gives up is dead. */
static int commit(struct kvg_request *request, u64 *sequence)
{
	int ret;

	for (;;) {
		ret = kvg_request_commit(request, sequence);
		if (ret != -ENOMEM || fatal_signal_pending(current))
			return ret;
		usleep_range(1000, 2000);
	}
}

/* So many pages go ahead of three times as many, or more. */
#define KVT_AHEAD_PAGES 128u

/*
 * Where many pages are dirty, the first ones go ahead in a request of their own: the device's
 * threads and the GPU wake up and work on them while the others are collected. Not on a host that
 * has no processor to spare for that.
 */
static u32 pages_to_lend(struct kvg_range *range, u32 cursor)
{
	u32 due = count_due(range);

	if (!cursor && due >= 3 * KVT_AHEAD_PAGES && READ_ONCE(range->dev->copy_threads))
		return KVT_AHEAD_PAGES;
	return due;
}

/*
 * One request's worth of a range, from page *cursor on. flush_mutex is held. `last`: of the ranges
 * that have anything to flush.
 */
static int flush_step(struct kvg_file *file, struct kvg_range *range, bool last, u32 *cursor,
		      struct kvt_target *target, u64 *flushed_bytes)
{
	const struct kvg_request *follower = NULL;
	struct kvg_device *dev = file->dev;
	struct kvt_stream stream;
	u64 sequence;
	int ret;

	ret = kvt_stream_begin(&stream, file, target->queue);
	if (ret)
		return ret;
	if (!kvt_lend_begin(&stream, range, pages_to_lend(range, *cursor)))
		ret = kvg_room_take(stream.request, target->nonblock);
	if (ret)
		goto out;
	kvt_copies_begin(&stream, range);
	ret = collect(&stream, range, cursor);
	if (!ret && kvt_stream_is_empty(&stream))
		goto out_room; /* dirty, but not changed */
	if (last && *cursor >= range->trace->page_count &&
	    !kvt_without(range, KVT_WITHOUT_FOLLOWERS))
		follower = target->follower;
	if (!ret)
		ret = kvt_stream_end(&stream, target->barrier, follower);
	if (!ret)
		ret = commit(stream.request, &sequence);
	if (ret) {
		/* What was collected is in no page any more: the program must hear of it. */
		kvg_warn(dev, "stores of a program into mapped VRAM are lost (error %d), and so is its file\n",
			 ret);
		kvg_file_dead(file);
		kvg_payloads_release(stream.request);
		goto out_room;
	}
	*flushed_bytes += stream.all_data_bytes;
	kvt_count(range, KVT_BYTES_DATA, stream.all_data_bytes);
	kvt_count(range, KVT_BYTES_STREAM,
		  stream.request->stream_bytes + kvt_lent_bytes(&stream) -
			  (stream.followed ? follower->stream_bytes : 0));
	kvt_count(range, KVT_REQUESTS, 1);
	kvt_count(range, KVT_FOLLOWED, stream.followed);
	target->followed = stream.followed;
	target->sequence = sequence;
	goto out; /* the ring has its own reference, and the room */
out_room:
	kvg_room_return(stream.request);
out:
	kvt_stream_free(&stream);
	return ret;
}

/* Nothing is dirty: what is kept for the next interval goes after a while. */
static void idle_range(struct kvg_range *range)
{
	struct kvt_trace *trace = range->trace;

	if (!READ_ONCE(trace->snapshots.spare_count) && !READ_ONCE(trace->kept_count))
		return;
	mutex_lock(&trace->lock);
	if (kvt_snapshots_idle(&trace->snapshots)) {
		kvt_kept_drop(trace, 0, trace->page_count);
		kvt_snapshots_trim(&trace->snapshots);
	}
	mutex_unlock(&trace->lock);
}

/* Each page is visited once: a thread that stores all the time does not keep us here. */
static int flush_range(struct kvg_file *file, struct kvg_range *range, bool last,
		       struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvt_trace *trace = range->trace;
	u32 cursor = 0;
	int ret = 0;

	if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST) {
		kvt_log_read(range);
		if (!count_due(range))
			return 0;
	}
	kvt_count(range, KVT_FLUSHES, 1);
	mutex_lock(&trace->lock);
	if (!trace->snapshot)
		trace->snapshot = (u8 *)__get_free_page(GFP_KERNEL_ACCOUNT);
	trace->snapshots.some_lent = atomic_read(&trace->snapshots.lent);
	mutex_unlock(&trace->lock);
	while (!ret && cursor < trace->page_count) {
		ret = flush_step(file, range, last, &cursor, target, flushed_bytes);
		if (!ret && !target->followed && fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	mutex_lock(&trace->lock);
	trace->interval++;
	kvt_habit_flush(&trace->habit);
	kvt_kept_flush(trace);
	kvt_snapshots_flush(&trace->snapshots);
	mutex_unlock(&trace->lock);
	return ret;
}

/* All ranges of the target's group. flush_mutex is held. */
static int flush_ranges(struct kvg_file *file, struct kvt_target *target, u64 *flushed_bytes)
{
	/* not flushed before it is known whether it is the last one */
	struct kvg_range *range, *dirty = NULL;
	u64 from = 0;
	int ret = 0;

	while (!ret && (range = kvg_range_next_traced(file, target->group, from))) {
		from = range->offset + range->bytes;
		if (!atomic_read(&range->trace->dirty_count)) {
			idle_range(range);
			kvg_range_put(range);
			continue;
		}
		if (dirty) {
			ret = flush_range(file, dirty, false, target, flushed_bytes);
			kvg_range_put(dirty);
		}
		dirty = range;
	}
	if (!dirty)
		return ret;
	if (!ret)
		ret = flush_range(file, dirty, true, target, flushed_bytes);
	kvg_range_put(dirty);
	return ret;
}

int kvt_flush(struct kvg_file *file, struct kvt_target *target, u64 *flushed_bytes)
{
	int ret;

	*flushed_bytes = 0;
	if (!target->queue || !atomic_read(&file->traced_ranges))
		return 0;
	ret = kvg_file_ensure_open(file);
	if (ret)
		return ret;
	/*
	 * Also if nothing is dirty: another thread may hold what was, and not be on the ring yet.
	 */
	if (mutex_lock_killable(&file->flush_mutex))
		return -EINTR;
	ret = READ_ONCE(file->dead) ? -ENODEV : flush_ranges(file, target, flushed_bytes);
	mutex_unlock(&file->flush_mutex);
	return ret;
}

/*
 * The device is about to write into these bytes of the range. Pages that stayed open, or were
 * stored into without a change, are clean again, so the next store to them finds what the device
 * has written and takes that as what was there before. Otherwise it would be taken for stores and
 * sent back, maybe when the buffer has changed. Pages with stores that nobody has flushed remain as
 * they are.
 */
void kvt_device_writes(struct kvg_range *range, u64 offset, u64 bytes)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	unsigned int index = offset >> PAGE_SHIFT;
	unsigned int end = min_t(u64, PFN_UP(offset + bytes), trace->page_count);
	unsigned int first;

	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (range->dead || dev->window_gone)
		goto out;
	first = find_next_bit(trace->open, end, index);
	if (first < end) {
		unmap_mapping_range(dev->inode->i_mapping,
				    range->offset + ((u64)first << PAGE_SHIFT),
				    (u64)(end - first) << PAGE_SHIFT, 1);
		bitmap_clear(trace->open, first, end - first);
	}
	for_each_set_bit_from(index, trace->dirty, end) {
		const struct kvt_page *page = &trace->pages[index];

		if (page->snapshot && page->whole_from == page->whole_to &&
		    !memcmp(page->snapshot, kvt_page_in_window(range, index), PAGE_SIZE))
			kvt_clean_page(range, index, false);
	}
	kvt_kept_drop(trace, offset >> PAGE_SHIFT, end);
out:
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
}
