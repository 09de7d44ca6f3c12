// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A flush: dirty pages are closed, what differs from their shadows becomes write commands
 * (stream.c), and these go on the ring before anything that the caller sends afterwards.
 */
#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/core/diff.h"
#include "tracer/core/page.h"
#include "tracer/kernel/stream.h"

static_assert(TRACE_PAGE_BYTES == PAGE_SIZE);

/*
 * Stays open at this flush. Not with bytes that are sent whatever the comparison says: these are
 * sent once, from a closed page. And not while the device may write into the range: what it writes would
 * differ from the shadow, and count as stored.
 */
static bool is_hot(const struct kvg_range *range, u32 index)
{
	const struct kvt_trace *trace = range->trace;
	const struct kvt_page *page = &trace->pages[index];

	if (!trace->snapshot || !page->shadow || page->whole_from != page->whole_to ||
	    atomic_read(&range->device_writes))
		return false;
	return trace->mode == KAGEMUSHA_VGPU_TRACE_HOST ||
	       (trace->mode == KAGEMUSHA_VGPU_TRACE_ADAPTIVE &&
		page->heat.intervals >= TRACE_INTERVALS_UNTIL_HOT);
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
	unsigned int from = first, to;

	for_each_set_bit_from(from, trace->open, trace->page_count) {
		for (to = from; to < trace->page_count; to++) {
			if (!test_bit(to, trace->open) || is_hot(range, to))
				break;
		}
		if (from == to)
			continue;
		unmap_mapping_range(range->dev->inode->i_mapping,
				    range->offset + ((u64)from << PAGE_SHIFT),
				    (u64)(to - from) << PAGE_SHIFT, 1);
		bitmap_clear(trace->open, from, to - from);
		from = to - 1;
	}
}

/* Whether the snapshot can be written to: it was a shadow, which may still be lent. */
static bool snapshot_is_free(struct kvt_trace *trace)
{
	u8 *other;

	if (!trace->snapshot)
		return false;
	if (!kvt_shadow_is_lent(trace->snapshot))
		return true;
	other = kvt_shadow_take(&trace->shadows);
	if (!other)
		return false;
	kvt_shadow_return(&trace->shadows, trace->snapshot);
	trace->snapshot = other;
	return true;
}

/* What is known of a page before it is compared with its shadow. */
struct known {
	bool differs;	/* each byte of it */
	u64 blocks;	/* struct trace_diff */
};

/* The device has made the snapshot. */
static struct known known_from(const struct vgpu_page_copy *copy)
{
	return (struct known){ .differs = copy->answer == VGPU_COPY_WHOLE,
			       .blocks = copy->changed };
}

/* The snapshot becomes a copy of the page. */
static struct known take_snapshot(struct kvt_trace *trace, const struct kvt_page *page,
				  const u8 *from)
{
	return (struct known){ .differs = trace_page_copy_differs(trace->snapshot, from,
								  page->shadow),
			       .blocks = TRACE_ALL_BLOCKS };
}

/*
 * A page that holds `content` and can be lent, or NULL. The trace's snapshot, which becomes the page's
 * shadow, can be as it is; else the content is that of the window, and the page's shadow, with which
 * it was compared, becomes a copy of it.
 */
static u8 *lendable(struct kvt_trace *trace, struct kvt_page *page, const u8 *content)
{
	if (content == trace->snapshot)
		return trace->snapshot;
	if (!page->shadow || kvt_shadow_is_lent(page->shadow)) {
		u8 *other = kvt_shadow_take(&trace->shadows);

		if (!other)
			return NULL;
		kvt_shadow_return(&trace->shadows, page->shadow);
		page->shadow = other;
	}
	copy_page(page->shadow, (void *)content);
	return page->shadow;
}

/* What changed: all of the page, if it can be lent, or a run of it. */
static int send_run(struct kvt_stream *stream, struct kvt_trace *trace, struct kvt_page *page,
		    u64 offset, const u8 *content, const struct trace_run *run)
{
	u8 *whole = NULL;

	if (run->from == 0 && run->to == PAGE_SIZE && kvt_stream_can_lend(stream))
		whole = lendable(trace, page, content);
	if (whole)
		return kvt_stream_lend(stream, trace->memory, offset, &whole, 1);
	return kvt_stream_write(stream, trace->memory, offset + run->from, content + run->from,
				run->to - run->from);
}

static u32 bytes_in_page(const struct kvt_trace *trace, u32 index)
{
	return min_t(u64, PAGE_SIZE, trace->bytes - ((u64)index << PAGE_SHIFT));
}

/* `content`: the page as it is to be sent. Sets *changed. */
static int send_page(struct kvt_stream *stream, struct kvg_range *range, u32 index,
		     const u8 *content, struct known known, bool *changed)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	u64 start = (u64)index << PAGE_SHIFT;
	struct trace_diff diff = {
		.now = content,
		.before = page->shadow,
		.bytes = bytes_in_page(trace, index),
		.whole = { page->whole_from, page->whole_to },
		.blocks = known.blocks,
	};
	struct trace_run run;
	u32 runs = 0;
	u32 at = 0;
	int ret;

	if (known.differs) { /* the comparison has nothing to find */
		run = (struct trace_run){ 0, diff.bytes };
		ret = send_run(stream, trace, page, trace->memory_offset + start, content, &run);
		if (ret)
			return ret;
		at = diff.bytes;
		runs = 1;
	}
	while (trace_diff_next(&diff, at, &run)) {
		ret = send_run(stream, trace, page, trace->memory_offset + start, content, &run);
		if (ret)
			return ret;
		at = run.to;
		runs++;
	}
	stream->page_count++;
	stream->run_count += runs;
	stream->unchanged_pages += !runs;
	*changed = runs;
	return 0;
}

/* `same`: as the shadow, so that can be kept. */
static void clean_page(struct kvg_range *range, u32 index, bool same)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];

	if (!same || !kvt_keep_shadow(range, index)) {
		kvt_shadow_return(&trace->shadows, page->shadow);
		page->shadow = NULL;
	}
	page->whole_from = 0;
	page->whole_to = 0;
	__clear_bit(index, trace->dirty);
	atomic_dec(&trace->dirty_count);
}

static const u8 *page_in_window(const struct kvg_range *range, u32 index)
{
	return range->dev->window_memory + range->offset + ((u64)index << PAGE_SHIFT);
}

/*
 * Nobody can store into the page: it is compared as it is. Where all of it may have changed, comparing and
 * copying what is to be lent is one.
 */
static int send_closed(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	const u8 *content = page_in_window(range, index);
	const struct vgpu_page_copy *copy = kvt_copies_take(stream, trace, index);
	struct known known = { .blocks = TRACE_ALL_BLOCKS };
	bool copied, changed;
	int ret;

	if (copy)
		known = known_from(copy);
	else if (page->shadow && bytes_in_page(trace, index) == PAGE_SIZE &&
		 kvt_stream_can_lend(stream) && trace_page_may_differ(content, page->shadow) &&
		 snapshot_is_free(trace))
		known = take_snapshot(trace, page, content);
	copied = copy || known.differs;
	if (copied)
		content = trace->snapshot;
	ret = send_page(stream, range, index, content, known, &changed);
	if (ret)
		return ret;
	if (copied)
		swap(page->shadow, trace->snapshot);
	clean_page(range, index, copied || !changed);
	trace_heat_flush(&trace->pages[index].heat, changed);
	return 0;
}

/* A page that is open no longer. */
static int send_cooled(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	unmap_mapping_range(range->dev->inode->i_mapping,
			    range->offset + ((u64)index << PAGE_SHIFT), PAGE_SIZE, 1);
	__clear_bit(index, range->trace->open);
	return send_closed(stream, range, index);
}

/*
 * A page that is stored into meanwhile. A copy of it is compared and sent, and is the next shadow:
 * what was stored before this call is in it, and what comes later differs from it.
 */
static int send_hot(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	const struct vgpu_page_copy *copy = kvt_copies_take(stream, trace, index);
	struct known known;
	bool changed;
	int ret;

	/* no memory for another one */
	if (!copy && (kvt_without(range, KVT_WITHOUT_SNAPSHOTS) || !snapshot_is_free(trace)))
		return send_cooled(stream, range, index);
	known = copy ? known_from(copy) :
		       take_snapshot(trace, page, page_in_window(range, index));
	ret = send_page(stream, range, index, trace->snapshot, known, &changed);
	if (ret)
		return ret;
	swap(page->shadow, trace->snapshot);
	stream->kept_pages++;
	if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST || trace_heat_flush(&page->heat, changed))
		return 0;
	/* Compared once more for what was stored since. */
	return send_cooled(stream, range, index);
}

/*
 * As send_hot or send_closed for each of `count` pages, of which the device has told that each byte has changed:
 * where a program fills memory, what is done for each page is most of a flush.
 */
static int send_whole(struct kvt_stream *stream, struct kvg_range *range, u32 index, u32 count)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_copies *copies = stream->copies;
	u32 end = index + count;
	int ret;

	ret = kvt_stream_lend(stream, trace->memory,
			      trace->memory_offset + ((u64)index << PAGE_SHIFT),
			      &copies->pages[copies->next], count);
	if (ret)
		return ret;
	stream->page_count += count;
	stream->run_count += count;
	for (; index < end; index++) {
		struct kvt_page *page = &trace->pages[index];
		u8 *before = page->shadow;

		page->shadow = copies->pages[copies->next++];
		kvt_shadow_return(&trace->shadows, before);
		/* a hot page that has changed stays hot, and open */
		if (test_bit(index, trace->open))
			stream->kept_pages++;
		else
			clean_page(range, index, true);
		trace_heat_flush(&page->heat, true);
	}
	return 0;
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
		if (!kvt_stream_has_room(stream))
			break;
		if (stream->copies && index >= stream->copies->end)
			kvt_copies_make(stream, range, index);
		whole = min(kvt_copies_whole(stream, index), kvt_stream_can_lend(stream));
		if (whole) {
			ret = send_whole(stream, range, index, whole);
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
		ret = test_bit(index, trace->open) ? send_hot(stream, range, index) :
						     send_closed(stream, range, index);
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
static int commit(struct kvg_request *request)
{
	u64 sequence;
	int ret;

	for (;;) {
		ret = kvg_request_commit(request, &sequence);
		if (ret != -ENOMEM || fatal_signal_pending(current))
			return ret;
		msleep(1);
	}
}

/* One request's worth of a range, from page *cursor on. flush_mutex is held. */
static int flush_step(struct kvg_file *file, struct kvg_range *range, u32 *cursor,
		      const struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvg_device *dev = file->dev;
	struct kvt_stream stream;
	int ret;

	ret = kvt_stream_begin(&stream, file, target->queue);
	if (ret)
		return ret;
	if (!kvt_lend_begin(&stream, range, count_due(range)))
		ret = kvg_room_take(stream.request, target->nonblock);
	if (ret)
		goto out;
	kvt_copies_begin(&stream, range);
	ret = collect(&stream, range, cursor);
	if (!ret && kvt_stream_is_empty(&stream))
		goto out_room; /* dirty, but not changed */
	if (!ret)
		ret = kvt_stream_end(&stream, target->barrier);
	if (!ret)
		ret = commit(stream.request);
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
		  stream.request->stream_bytes + kvt_lent_bytes(&stream));
	kvt_count(range, KVT_REQUESTS, 1);
	goto out; /* the ring has its own reference, and the room */
out_room:
	kvg_room_return(stream.request);
out:
	kvt_stream_free(&stream);
	return ret;
}

/* Each page is visited once: a thread that stores all the time does not keep us here. */
static int flush_range(struct kvg_file *file, struct kvg_range *range,
		       const struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvt_trace *trace = range->trace;
	u32 cursor = 0;
	int ret = 0;

	if (!atomic_read(&trace->dirty_count)) {
		if (READ_ONCE(trace->shadows.spare_count) || READ_ONCE(trace->kept_count)) {
			mutex_lock(&trace->lock);
			if (kvt_shadows_idle(&trace->shadows)) {
				kvt_kept_drop(trace, 0, trace->page_count);
				kvt_shadows_trim(&trace->shadows);
			}
			mutex_unlock(&trace->lock);
		}
		return 0;
	}
	if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST) {
		kvt_log_read(range);
		if (!count_due(range))
			return 0;
	}
	kvt_count(range, KVT_FLUSHES, 1);
	mutex_lock(&trace->lock);
	if (!trace->snapshot)
		trace->snapshot = (u8 *)__get_free_page(GFP_KERNEL_ACCOUNT);
	mutex_unlock(&trace->lock);
	while (!ret && cursor < trace->page_count) {
		ret = flush_step(file, range, &cursor, target, flushed_bytes);
		if (!ret && fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	mutex_lock(&trace->lock);
	trace->interval++;
	trace_habit_flush(&trace->habit);
	kvt_kept_flush(trace);
	kvt_shadows_flush(&trace->shadows);
	mutex_unlock(&trace->lock);
	return ret;
}

int kvt_flush(struct kvg_file *file, const struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvg_range *range;
	u64 from = 0;
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
	if (READ_ONCE(file->dead))
		ret = -ENODEV;
	while (!ret && (range = kvg_range_next_traced(file, target->group, from))) {
		ret = flush_range(file, range, target, flushed_bytes);
		from = range->offset + range->bytes;
		kvg_range_put(range);
	}
	mutex_unlock(&file->flush_mutex);
	return ret;
}

/*
 * The device is about to write into these bytes of the range. Pages that stayed open, or were stored into
 * without a change, are clean again, so the next store to them finds what the device has written and takes that
 * as what was there before. Otherwise it would be taken for stores and sent back, maybe when the buffer has
 * changed. Pages with stores that nobody has flushed remain as they are.
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

		if (page->shadow && page->whole_from == page->whole_to &&
		    !memcmp(page->shadow, page_in_window(range, index), PAGE_SIZE))
			clean_page(range, index, false);
	}
	kvt_kept_drop(trace, offset >> PAGE_SHIFT, end);
out:
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
}
