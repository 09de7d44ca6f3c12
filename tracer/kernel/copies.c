// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Copies of dirty pages that the device makes. A flush copies each page and compares the copy with the
 * page's shadow. Where the processor is emulated the device does that several times as fast, so where many
 * pages are dirty it is asked, for some at a time: by a write to its configuration, which is done when the
 * copies are (as in log.c, so a checkpoint comes before the question or after the answer). Without the
 * device, and for few pages, the flush does it all by itself (flush.c).
 *
 * What holds for a copy that is made here holds for those. They are made with the trace's lock held, so
 * "closing and comparing is one step" stays true: pages are closed before, a closed page can't change, and
 * the copy of an open one is its shadow afterwards, so what is stored later differs from it. A processor that
 * is emulated does no store late: what was logged before the question for the log was in memory when that
 * had been answered (log.c), and a page is closed when every processor has ended its instruction.
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
static_assert(VGPU_COPY_BLOCK_BYTES == TRACE_BLOCK_BYTES);
static_assert(KVT_MAX_COPIES * sizeof(struct vgpu_page_copy) <= PAGE_SIZE);
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
		copies->list = (void *)__get_free_page(GFP_KERNEL_ACCOUNT);
		if (!copies->list) {
			kfree(copies);
			return;
		}
		file->flush_copies = copies;
	}
	copies->count = 0;
	copies->next = 0;
	copies->end = 0;
	stream->copies = copies;
}

void kvt_copies_free(struct kvg_file *file)
{
	if (!file->flush_copies)
		return;
	free_page((unsigned long)file->flush_copies->list);
	kfree(file->flush_copies);
}

#define FIELD(name) (VGPU_CONFIG_PAGE_COPIES + offsetof(struct vgpu_page_copies, name))

/* The window is there, so the device is. Returns false if it has not made the copies. */
static bool ask(struct kvg_device *dev, const struct kvt_copies *copies)
{
	const struct virtio_config_ops *config = dev->vdev->config;
	u64 address = virt_to_phys(copies->list);

	mutex_lock(&dev->copies_mutex);
	config->set(dev->vdev, FIELD(address), &address, sizeof(address));
	config->set(dev->vdev, FIELD(pages), &copies->count, sizeof(copies->count));
	mutex_unlock(&dev->copies_mutex);
	return READ_ONCE(copies->list[0].answer) != VGPU_COPY_NONE; /* all, or none */
}

/* Those that were not taken: the pages are as if nobody had looked at them. */
static void drop_rest(struct kvt_copies *copies, struct kvg_range *range)
{
	for (; copies->next < copies->count; copies->next++) {
		kvt_shadow_return(&range->trace->shadows, copies->pages[copies->next]);
		if (range->trace->mode == KAGEMUSHA_VGPU_TRACE_HOST)
			kvt_log_remember(range, copies->index[copies->next]);
	}
}

/* Whether the device may copy the page, which is dirty. */
static bool can_copy(struct kvg_range *range, u32 index)
{
	const struct kvt_trace *trace = range->trace;
	const struct kvt_page *page = &trace->pages[index];

	return page->shadow && page->whole_from == page->whole_to && kvt_is_due(range, index);
}

/* Which pages from `index` on are to be copied. */
static void collect(struct kvt_copies *copies, struct kvg_range *range, unsigned int index)
{
	struct kvt_trace *trace = range->trace;
	/* the last page may be one of which a part is traced */
	const u32 whole_pages = trace->bytes >> PAGE_SHIFT;
	const bool no_open = kvt_without(range, KVT_WITHOUT_SNAPSHOTS);

	unsigned int end;

	copies->count = 0;
	copies->next = 0;
	copies->end = trace->page_count;
	for_each_set_bitrange_from(index, end, trace->dirty, whole_pages) {
		for (; index < end; index++) {
			if (copies->count == KVT_MAX_COPIES) {
				copies->end = index;
				return;
			}
			if (can_copy(range, index) && !(no_open && test_bit(index, trace->open)))
				copies->index[copies->count++] = index;
		}
	}
}

/*
 * The flush has come to page `index`, which is dirty. If it is not among those that were looked at, copies
 * are made of it and of those behind it. The trace's lock and the window's are held.
 */
void kvt_copies_make(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_copies *copies = stream->copies;
	struct kvt_trace *trace = range->trace;
	u32 i;

	if (!copies || index < copies->end || !trace->snapshot)
		return;
	collect(copies, range, index);
	if (copies->count < KVT_COPY_FROM) {
		copies->count = 0;
		return;
	}
	for (i = 0; i < copies->count; i++) {
		u8 *copy = kvt_shadow_take(&trace->shadows);

		if (!copy)
			break;
		/* before the look at the page: what is stored afterwards is told again */
		if (trace->mode == KAGEMUSHA_VGPU_TRACE_HOST)
			kvt_log_forget(range, copies->index[i]);
		copies->pages[i] = copy;
		copies->list[i] = (struct vgpu_page_copy){
			.before = virt_to_phys(trace->pages[copies->index[i]].shadow),
			.copy = virt_to_phys(copy),
			.page = PHYS_PFN(range->offset) + copies->index[i],
		};
	}
	copies->count = i;
	if (copies->count && !ask(range->dev, copies)) {
		drop_rest(copies, range);
		copies->count = 0;
	}
	kvt_count(range, KVT_PAGES_COPIED, copies->count);
}

/* The trace's lock is about to be released. */
void kvt_copies_end(struct kvt_stream *stream, struct kvg_range *range)
{
	if (stream->copies)
		drop_rest(stream->copies, range);
	stream->copies = NULL;
}
