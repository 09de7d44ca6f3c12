// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Copies of dirty pages that the device makes. A flush copies each page and compares the copy with
 * the page's snapshot. Where the processor is emulated the device does that several times as fast,
 * so where many pages are dirty it is asked, for some at a time, by a write to its configuration.
 * That is done when the copies are; or, where the host has processors to spare, these make them
 * while the flush goes on with those that are there. A checkpoint comes before the question or
 * after the answer either way. Without the device, and for few pages, the flush does it all by
 * itself (flush.c).
 *
 * What holds for a copy that is made here holds for those. They are made with the trace's lock
 * held, so "closing and comparing is one step" stays true: pages are closed before, a closed page
 * can't change, and the copy of an open one is its snapshot afterwards, so what is stored later
 * differs from it. A processor that is emulated does no store late: what was logged before the
 * question for the log was in memory when that had been answered (log.c), and a page is closed when
 * every processor has ended its instruction.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "kvg.h"
#include "tracer/core/diff.h"
#include "tracer/kernel/stream.h"

/* For fewer pages the question costs more than it saves. */
#define KVT_COPY_FROM 16u

static_assert(VGPU_COPY_PAGE_BYTES == PAGE_SIZE);
static_assert(VGPU_COPY_BLOCK_BYTES == KVT_BLOCK_BYTES);
#define KVT_LIST_BYTES (KVT_MAX_COPIES * sizeof(struct vgpu_page_copy))
static_assert(KVT_MAX_COPIES <= VGPU_MAX_COPIES);

/* Memory for questions, if this device answers them. Without it there are just no copies. */
void kvt_copies_begin(struct kvt_stream *stream, struct kvg_range *range)
{
	struct kvg_file *file = stream->request->file;
	struct kvt_copies *copies = file->flush_copies;

	if (!file->dev->page_copies || kvt_without(range, KVT_WITHOUT_COPIES) ||
	    atomic_read(&range->trace->dirty_count) < KVT_COPY_FROM)
		return;
	if (!copies) {
		copies = kzalloc(sizeof(*copies), GFP_KERNEL_ACCOUNT);
		if (!copies)
			return;
		copies->list = alloc_pages_exact(KVT_LIST_BYTES, GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
		if (!copies->list) {
			kfree(copies);
			return;
		}
		file->flush_copies = copies;
	}
	copies->most = READ_ONCE(file->dev->copy_threads) ? KVT_MAX_COPIES : KVT_MAX_COPIES_ALONE;
	copies->count = 0;
	copies->next = 0;
	copies->end = 0;
	stream->copies = copies;
}

void kvt_copies_free(struct kvg_file *file)
{
	if (!file->flush_copies)
		return;
	free_pages_exact(file->flush_copies->list, KVT_LIST_BYTES);
	kfree(file->flush_copies);
}

#define FIELD(name) (VGPU_CONFIG_PAGE_COPIES + offsetof(struct vgpu_page_copies, name))

/* The window is there, so the device is. Returns false if it makes no copies. */
static bool ask(struct kvg_device *dev, const struct kvt_copies *copies)
{
	const struct virtio_config_ops *config = dev->vdev->config;
	u64 address = virt_to_phys(copies->list);
	u32 pages = copies->count | VGPU_COPIES_BEGIN;

	mutex_lock(&dev->copies_mutex);
	config->set(dev->vdev, FIELD(address), &address, sizeof(address));
	config->set(dev->vdev, FIELD(pages), &pages, sizeof(pages));
	mutex_unlock(&dev->copies_mutex);
	return READ_ONCE(copies->list[0].answer) != VGPU_COPY_NONE; /* all, or none */
}

/*
 * Looks so often before it lets this processor take part in the copies: a thread's wake-up takes
 * longer.
 */
#define KVT_POLLS 4

/* The device has made all copies that it was asked for. */
static void wait_for_all(struct kvg_device *dev)
{
	u32 result;

	dev->vdev->config->get(dev->vdev, FIELD(result), &result, sizeof(result));
}

/* Those that were not taken: the pages are as if nobody had looked at them. */
static void drop_rest(struct kvt_copies *copies, struct kvg_range *range)
{
	if (copies->next < copies->count)
		wait_for_all(range->dev);
	for (; copies->next < copies->count; copies->next++) {
		kvt_snapshot_return(&range->trace->snapshots, copies->pages[copies->next]);
		if (range->trace->mode == KAGEMUSHA_VGPU_TRACE_HOST)
			kvt_log_remember(range, copies->index[copies->next]);
	}
}

/* Which dirty pages from `index` on are to be copied, at most so many. */
static void collect(struct kvt_copies *copies, struct kvg_range *range, unsigned int index,
		    u32 most)
{
	struct kvt_trace *trace = range->trace;
	/* the last page may be one of which a part is traced */
	const u32 whole_pages = trace->bytes >> PAGE_SHIFT;
	const bool no_open = kvt_without(range, KVT_WITHOUT_SNAPSHOTS);
	const bool all_due = trace->mode != KAGEMUSHA_VGPU_TRACE_HOST;
	const struct kvt_page *pages = trace->pages;
	unsigned int end;
	u32 count = 0;

	copies->end = trace->page_count;
	for_each_set_bitrange_from(index, end, trace->dirty, whole_pages) {
		for (; index < end; index++) {
			const struct kvt_page *page = &pages[index];

			if (count == most) {
				copies->end = index;
				goto out;
			}
			if (page->snapshot && page->whole_from == page->whole_to &&
			    (all_due || kvt_is_due(range, index)) &&
			    !(no_open && test_bit(index, trace->open)))
				copies->index[count++] = index;
		}
	}
out:
	copies->count = count;
	copies->next = 0;
}

/* The question. What an answer has beside `answer` means nothing before it is there. */
static void fill_list(struct kvt_copies *copies, const struct kvg_range *range)
{
	const u32 first = PHYS_PFN(range->offset), count = copies->count;
	const struct kvt_page *pages = range->trace->pages;
	struct vgpu_page_copy *entry = copies->list;
	u32 i;

	for (i = 0; i < count; i++, entry++) {
		u32 index = copies->index[i];

		entry->before = virt_to_phys(pages[index].snapshot);
		entry->copy = virt_to_phys(copies->pages[i]);
		entry->page = first + index;
		entry->answer = VGPU_COPY_NONE;
	}
}

/*
 * The flush has come to page `index`, which is dirty. If it is not among those that were looked at,
 * copies are made of it and of those behind it. The trace's lock and the window's are held.
 */
void kvt_copies_make(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_copies *copies = stream->copies;
	struct kvt_trace *trace = range->trace;
	u32 most, i;

	if (!copies || index < copies->end || !trace->snapshot)
		return;
	/* those for which the request has no room would be made for nothing */
	most = copies->most;
	if (stream->lent)
		most = min(most, max(kvt_stream_can_lend(stream), KVT_COPY_FROM));
	collect(copies, range, index, most);
	if (copies->count < KVT_COPY_FROM) {
		copies->count = 0;
		return;
	}
	copies->count = kvt_snapshots_take(&trace->snapshots, copies->pages, copies->count);
	/* before the look at the pages: what is stored afterwards is told again */
	for (i = 0; trace->mode == KAGEMUSHA_VGPU_TRACE_HOST && i < copies->count; i++)
		kvt_log_forget(range, copies->index[i]);
	fill_list(copies, range);
	if (copies->count && !ask(range->dev, copies)) {
		drop_rest(copies, range);
		copies->count = 0;
	}
	kvt_count(range, KVT_PAGES_COPIED, copies->count);
}

/* The next copy is there afterwards. */
void kvt_copies_wait(struct kvt_stream *stream, struct kvg_range *range)
{
	struct kvt_copies *copies = stream->copies;
	int i;

	for (i = 0; i < KVT_POLLS; i++) {
		if (kvt_copies_answer(copies, copies->next) != VGPU_COPY_PENDING)
			return;
		cpu_relax();
	}
	wait_for_all(range->dev);
	if (kvt_copies_answer(copies, copies->next) == VGPU_COPY_PENDING) {
		kvg_warn(range->dev, "the device did not make the copies that it has begun\n");
		drop_rest(copies, range);
	}
}

/* The trace's lock is about to be released. */
void kvt_copies_end(struct kvt_stream *stream, struct kvg_range *range)
{
	if (stream->copies)
		drop_rest(stream->copies, range);
	stream->copies = NULL;
}
