// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Beginning and end of tracing a range, and what makes a page dirty. trace.h has the idea and the
 * locks.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/kernel/snapshot.h"
#include "tracer/kernel/stream.h"

/* Room for what is collected before the stream counts as full, with a lot to spare. */
#define KVT_MIN_STREAM_BYTES 32768u
static_assert(2 * KVT_PAGE_WORST_BYTES + 4096 <= KVT_MIN_STREAM_BYTES);

static const char *const mode_names[KAGEMUSHA_VGPU_TRACE_MODE_COUNT] = {
	[KAGEMUSHA_VGPU_TRACE_OFF] = "off",
	[KAGEMUSHA_VGPU_TRACE_PAGE] = "page",
	[KAGEMUSHA_VGPU_TRACE_EMULATE] = "emulate",
	[KAGEMUSHA_VGPU_TRACE_ADAPTIVE] = "adaptive",
	[KAGEMUSHA_VGPU_TRACE_STEP] = "step",
	[KAGEMUSHA_VGPU_TRACE_HOST] = "host",
};

const char *kvt_mode_name(u32 mode)
{
	return mode_names[mode];
}

static u32 default_mode = KAGEMUSHA_VGPU_TRACE_ADAPTIVE;

static int kvt_mode_set(const char *value, const struct kernel_param *parameter)
{
	int mode = __sysfs_match_string(mode_names + 1, ARRAY_SIZE(mode_names) - 1, value);

	if (mode < 0)
		return mode;
	WRITE_ONCE(default_mode, mode + 1);
	return 0;
}

static int kvt_mode_get(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%s\n", mode_names[READ_ONCE(default_mode)]);
}

static const struct kernel_param_ops kvt_mode_ops = {
	.set = kvt_mode_set,
	.get = kvt_mode_get,
};
module_param_cb(kvt_mode, &kvt_mode_ops, NULL, 0644);
MODULE_PARM_DESC(kvt_mode,
		 "how stores into mapped VRAM are traced where a program does not say it: off, page, emulate, adaptive (default), step or host");

void kvt_trace_free(struct kvt_trace *trace)
{
	u32 i;

	if (!trace)
		return;
	for (i = 0; trace->pages && i < trace->page_count; i++)
		kvt_snapshot_return(&trace->snapshots, trace->pages[i].snapshot);
	kvt_snapshots_free(&trace->snapshots);
	free_page((unsigned long)trace->snapshot);
	kvfree(trace->pages);
	bitmap_free(trace->dirty);
	bitmap_free(trace->open);
	bitmap_free(trace->kept);
	kfree(trace);
}

static struct kvt_trace *kvt_new(const struct kagemusha_vgpu_window_trace *args)
{
	struct kvt_trace *trace = kzalloc(sizeof(*trace), GFP_KERNEL_ACCOUNT);

	if (!trace)
		return NULL;
	mutex_init(&trace->lock);
	trace->memory = args->memory;
	trace->memory_offset = args->memory_offset;
	trace->bytes = args->bytes;
	trace->group = args->group;
	trace->mode = args->mode;
	trace->page_count = PFN_UP(args->bytes);
	trace->pages = kvcalloc(trace->page_count, sizeof(*trace->pages), GFP_KERNEL_ACCOUNT);
	trace->dirty = bitmap_zalloc(trace->page_count, GFP_KERNEL_ACCOUNT);
	trace->open = bitmap_zalloc(trace->page_count, GFP_KERNEL_ACCOUNT);
	trace->kept = bitmap_zalloc(trace->page_count, GFP_KERNEL_ACCOUNT);
	/* one for each page at most, those of a question for copies, and the snapshot */
	trace->snapshots.max_spare = trace->page_count + KVT_MAX_COPIES + 1;
	trace->snapshots.spare = kvmalloc_array(trace->snapshots.max_spare,
						sizeof(*trace->snapshots.spare),
						GFP_KERNEL_ACCOUNT);
	if (!trace->pages || !trace->dirty || !trace->open || !trace->kept ||
	    !trace->snapshots.spare) {
		kvt_trace_free(trace);
		return NULL;
	}
	return trace;
}

int kvt_window_trace(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_window_trace *args = data;
	struct kvg_device *dev = file->dev;
	struct kvt_trace *trace;
	struct kvg_range *range;
	u64 end;
	int ret = 0;

	if (args->pad || !args->bytes || args->mode >= KAGEMUSHA_VGPU_TRACE_MODE_COUNT)
		return -EINVAL;
	if (check_add_overflow(args->memory_offset, args->bytes, &end) || end > KVT_MAX_OFFSET)
		return -EINVAL;
	if (args->mode == KAGEMUSHA_VGPU_TRACE_DEFAULT)
		args->mode = READ_ONCE(default_mode);
	if (!dev->write_runs || dev->limits.stream_bytes < KVT_MIN_STREAM_BYTES)
		return -EOPNOTSUPP;
	if (args->mode == KAGEMUSHA_VGPU_TRACE_HOST) {
		ret = kvt_log_begin(dev);
		if (ret)
			return ret;
	}
	range = kvg_range_find(file, args->offset, args->bytes);
	if (IS_ERR(range))
		return PTR_ERR(range);
	if (range->offset != args->offset) {
		ret = -EINVAL;
		goto out;
	}
	if (args->mode == KAGEMUSHA_VGPU_TRACE_OFF) {
		if (READ_ONCE(range->trace))
			ret = -EBUSY;
		goto out;
	}
	trace = kvt_new(args);
	if (!trace) {
		ret = -ENOMEM;
		goto out;
	}
	/* Pairs with the acquire in kvt_traced: what is in it can be used. */
	if (cmpxchg_release(&range->trace, NULL, trace)) {
		kvt_trace_free(trace);
		ret = -EBUSY;
		goto out;
	}
	atomic_inc(&file->traced_ranges);
	/* what was mapped before is writable: it faults again, and finds the trace */
	unmap_mapping_range(dev->inode->i_mapping, range->offset, range->bytes, 1);
out:
	kvg_range_put(range);
	return ret;
}

/*
 * The page is about to be changed: its content becomes the snapshot, unless it has one. Returns
 * false if there is no memory for it. The trace's lock is held and the window is there.
 */
bool kvt_mark_dirty(struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];

	if (test_bit(index, trace->kept)) {
		kvt_kept_take(trace, index);
		trace->kept_used++;
	}
	/* a page that is sent whole is compared with nothing */
	if (!page->snapshot && !(page->whole_from == 0 && page->whole_to == PAGE_SIZE)) {
		page->snapshot = kvt_snapshot_take(&trace->snapshots);
		if (!page->snapshot && trace->kept_count) {
			kvt_kept_drop(trace, 0, trace->page_count);
			page->snapshot = kvt_snapshot_take(&trace->snapshots);
		}
		if (!page->snapshot)
			return false;
		copy_page(page->snapshot, range->dev->window_memory + range->offset +
						((u64)index << PAGE_SHIFT));
	}
	if (!__test_and_set_bit(index, trace->dirty))
		atomic_inc(&trace->dirty_count);
	return true;
}

/*
 * A page has one interval that counts as changed. Two that do not touch become one: what lies
 * between is sent as the program sees it.
 */
static void discard_in_page(struct kvt_page *page, u32 from, u32 to)
{
	if (page->whole_from == page->whole_to) {
		page->whole_from = from;
		page->whole_to = to;
	} else {
		page->whole_from = min_t(u32, page->whole_from, from);
		page->whole_to = max_t(u32, page->whole_to, to);
	}
}

int kvt_window_discard(struct kvg_file *file, void *data)
{
	const struct kagemusha_vgpu_window_discard *args = data;
	struct kvg_device *dev = file->dev;
	struct kvt_trace *trace;
	struct kvg_range *range;
	u64 at, end;
	int ret = 0;

	if (!args->bytes)
		return -EINVAL;
	range = kvg_range_find(file, args->offset, args->bytes);
	if (IS_ERR(range))
		return PTR_ERR(range);
	if (!kvt_traced(range))
		goto out;
	trace = range->trace;
	at = args->offset - range->offset;
	end = min(at + args->bytes, trace->bytes);
	while (at < end && !ret) {
		u32 index = at >> PAGE_SHIFT;
		u32 from = offset_in_page(at);
		u32 to = min_t(u64, PAGE_SIZE, from + (end - at));

		mutex_lock(&trace->lock);
		down_read(&dev->window_rwsem);
		if (range->dead || dev->window_gone) {
			ret = -ENODEV;
		} else {
			discard_in_page(&trace->pages[index], from, to);
			if (!kvt_mark_dirty(range, index))
				ret = -ENOMEM;
		}
		up_read(&dev->window_rwsem);
		mutex_unlock(&trace->lock);
		at += to - from;
		cond_resched();
	}
out:
	kvg_range_put(range);
	return ret;
}
