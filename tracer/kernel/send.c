// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a flush does with one page, or with many that are alike: how it is compared with its
 * snapshot, what of it goes into the stream, and what it is afterwards. The trace's lock and the
 * window's are held.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>

#include "kvg.h"
#include "tracer/core/diff.h"
#include "tracer/core/page.h"
#include "tracer/kernel/stream.h"

static_assert(KVT_PAGE_BYTES == PAGE_SIZE);

/* Whether the snapshot can be written to: it was a snapshot, which may still be lent. */
static bool snapshot_is_free(struct kvt_trace *trace)
{
	u8 *other;

	if (!trace->snapshot)
		return false;
	if (!kvt_snapshot_is_lent(trace->snapshot))
		return true;
	other = kvt_snapshot_take(&trace->snapshots);
	if (!other)
		return false;
	kvt_snapshot_return(&trace->snapshots, trace->snapshot);
	trace->snapshot = other;
	return true;
}

/* What is known of a page before it is compared with its snapshot. */
struct known {
	bool differs;	/* each byte of it */
	u64 blocks;	/* struct kvt_diff */
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
	return (struct known){ .differs = kvt_page_copy_differs(trace->snapshot, from,
								page->snapshot),
			       .blocks = KVT_ALL_BLOCKS };
}

/*
 * A page that holds `content` and can be lent, or NULL. The trace's snapshot, which becomes the
 * page's snapshot, can be as it is; else the content is that of the window, and the page's
 * snapshot, with which it was compared, becomes a copy of it.
 */
static u8 *lendable(struct kvt_trace *trace, struct kvt_page *page, const u8 *content)
{
	if (content == trace->snapshot)
		return trace->snapshot;
	if (!page->snapshot || kvt_snapshot_is_lent(page->snapshot)) {
		u8 *other = kvt_snapshot_take(&trace->snapshots);

		if (!other)
			return NULL;
		kvt_snapshot_return(&trace->snapshots, page->snapshot);
		page->snapshot = other;
	}
	copy_page(page->snapshot, (void *)content);
	return page->snapshot;
}

/* What changed: all of the page, if it can be lent, or a run of it. */
static int send_run(struct kvt_stream *stream, struct kvt_trace *trace, struct kvt_page *page,
		    u64 offset, const u8 *content, const struct kvt_run *run)
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
	struct kvt_diff diff = {
		.now = content,
		.before = page->snapshot,
		.bytes = bytes_in_page(trace, index),
		.whole = { page->whole_from, page->whole_to },
		.blocks = known.blocks,
	};
	struct kvt_run run;
	u32 runs = 0;
	u32 at = 0;
	int ret;

	if (known.differs) { /* the comparison has nothing to find */
		run = (struct kvt_run){ 0, diff.bytes };
		ret = send_run(stream, trace, page, trace->memory_offset + start, content, &run);
		if (ret)
			return ret;
		at = diff.bytes;
		runs = 1;
	}
	while (kvt_diff_next(&diff, at, &run)) {
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

/* `same`: as the snapshot, so that can be kept. */
void kvt_clean_page(struct kvg_range *range, u32 index, bool same)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];

	if (!same || !kvt_keep_snapshot(range, index)) {
		kvt_snapshot_return(&trace->snapshots, page->snapshot);
		page->snapshot = NULL;
	}
	page->whole_from = 0;
	page->whole_to = 0;
	__clear_bit(index, trace->dirty);
	atomic_dec(&trace->dirty_count);
}

const u8 *kvt_page_in_window(const struct kvg_range *range, u32 index)
{
	return range->dev->window_memory + range->offset + ((u64)index << PAGE_SHIFT);
}

/*
 * Nobody can store into the page: it is compared as it is. Where all of it may have changed,
 * comparing and copying what is to be lent is one.
 */
int kvt_send_closed(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	const u8 *content = kvt_page_in_window(range, index);
	const struct vgpu_page_copy *copy = kvt_copies_take(stream, trace, index);
	struct known known = { .blocks = KVT_ALL_BLOCKS };
	bool copied, changed;
	int ret;

	if (copy)
		known = known_from(copy);
	else if (page->snapshot && bytes_in_page(trace, index) == PAGE_SIZE &&
		 kvt_stream_can_lend(stream) && kvt_page_may_differ(content, page->snapshot) &&
		 snapshot_is_free(trace))
		known = take_snapshot(trace, page, content);
	copied = copy || known.differs;
	if (copied)
		content = trace->snapshot;
	ret = send_page(stream, range, index, content, known, &changed);
	if (ret)
		return ret;
	if (copied)
		swap(page->snapshot, trace->snapshot);
	kvt_clean_page(range, index, copied || !changed);
	kvt_heat_flush(&trace->pages[index].heat, changed);
	return 0;
}

/* A page that is open no longer. */
static int send_cooled(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	unmap_mapping_range(range->dev->inode->i_mapping,
			    range->offset + ((u64)index << PAGE_SHIFT), PAGE_SIZE, 1);
	__clear_bit(index, range->trace->open);
	return kvt_send_closed(stream, range, index);
}

/*
 * A page that is stored into meanwhile. A copy of it is compared and sent, and is the next
 * snapshot: what was stored before this call is in it, and what comes later differs from it.
 */
int kvt_send_hot(struct kvt_stream *stream, struct kvg_range *range, u32 index)
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
		       take_snapshot(trace, page, kvt_page_in_window(range, index));
	ret = send_page(stream, range, index, trace->snapshot, known, &changed);
	if (ret)
		return ret;
	swap(page->snapshot, trace->snapshot);
	stream->kept_pages++;
	if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST || kvt_heat_flush(&page->heat, changed))
		return 0;
	/* Compared once more for what was stored since. */
	return send_cooled(stream, range, index);
}

/* As kvt_clean_page for each of `count` pages whose snapshots are as they are. */
static void clean_pages(struct kvg_range *range, u32 index, u32 count)
{
	struct kvt_trace *trace = range->trace;

	if (kvt_keep_snapshots(range, index, count)) {
		bitmap_clear(trace->dirty, index, count);
		atomic_sub(count, &trace->dirty_count);
		return;
	}
	for (; count; index++, count--)
		kvt_clean_page(range, index, false);
}

/* Hot pages that have changed stay hot, and open; the others are clean. */
static void end_whole_pages(struct kvt_stream *stream, struct kvg_range *range, u32 index, u32 end)
{
	const unsigned long *open = range->trace->open;

	while (index < end) {
		u32 closed = find_next_zero_bit(open, end, index);

		stream->kept_pages += closed - index;
		index = closed;
		if (index == end)
			break;
		closed = find_next_bit(open, end, index) - index;
		clean_pages(range, index, closed);
		index += closed;
	}
}

/*
 * As send_hot or send_closed for each of `count` pages, of which the device has told that each byte
 * has changed: where a program fills memory, what is done for each page is most of a flush.
 */
int kvt_send_whole(struct kvt_stream *stream, struct kvg_range *range, u32 index, u32 count)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_copies *copies = stream->copies;
	u8 **copy = &copies->pages[copies->next];
	int ret;
	u32 i;

	ret = kvt_stream_lend(stream, trace->memory,
			      trace->memory_offset + ((u64)index << PAGE_SHIFT), copy, count);
	if (ret)
		return ret;
	stream->page_count += count;
	stream->run_count += count;
	for (i = 0; i < count; i++) {
		struct kvt_page *page = &trace->pages[index + i];

		swap(page->snapshot, copy[i]);
		if (!kvt_heat_stays(&page->heat))
			kvt_heat_flush(&page->heat, true);
	}
	copies->next += count;
	kvt_snapshots_return(&trace->snapshots, copy, count); /* the snapshots that were compared */
	end_whole_pages(stream, range, index, index + count);
	return 0;
}
