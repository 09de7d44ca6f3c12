// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Mode `host`: pages are opened by their first store and stay open. Which of them were stored into
 * since the last flush is told by the hypervisor, from the log that it also makes checkpoints with.
 * The flush compares these, as it does with hot pages. For comparison with the tracer's own ways.
 *
 * A question is a write to the device's configuration, which is answered when the write is done: no
 * request is in flight, so a checkpoint comes before the question or after the answer. What was
 * told and is not looked at yet is kept here, in the guest's memory; a VM that goes on at another
 * host is told that every page was stored into.
 *
 * The device answers for groups of pages, which may belong to several ranges. So what it tells is
 * collected for the whole window.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/virtio_config.h>

#include "kvg.h"
#include "proto/abi/vgpu_store_log.h"

static_assert(VGPU_LOG_PAGE_BYTES == PAGE_SIZE);
static_assert(VGPU_MAX_LOG_PAGES / 8 <= PAGE_SIZE);

static u32 window_pages(const struct kvg_device *dev)
{
	return PHYS_PFN(dev->limits.window_bytes);
}

/* Memory for the log, when the first range needs it. */
int kvt_log_begin(struct kvg_device *dev)
{
	struct kvt_log *log = &dev->log;
	unsigned long *pages;
	int ret = 0;

	if (!dev->store_log)
		return -EOPNOTSUPP;
	mutex_lock(&log->lock);
	if (!log->answer)
		log->answer = (u8 *)__get_free_page(GFP_KERNEL);
	if (log->answer && !log->pages) {
		pages = bitmap_zalloc(window_pages(dev), GFP_KERNEL);
		WRITE_ONCE(log->pages, pages);
	}
	if (!log->answer || !log->pages)
		ret = -ENOMEM;
	mutex_unlock(&log->lock);
	return ret;
}

void kvt_log_free(struct kvg_device *dev)
{
	free_page((unsigned long)dev->log.answer);
	bitmap_free(dev->log.pages);
}

#define FIELD(name) (sizeof(struct vgpu_config) + offsetof(struct vgpu_store_log, name))

/* Fills the answer; it says "all" where the device says nothing. The log's lock is held. */
static void ask(struct kvg_range *range, u32 first, u32 count)
{
	struct kvg_device *dev = range->dev;
	u64 offset = (u64)first << PAGE_SHIFT;
	u64 address = virt_to_phys(dev->log.answer);
	u32 result = VGPU_STATUS_MALFORMED;

	down_read(&dev->window_rwsem); /* the device is there as long as the window is */
	if (!dev->window_gone && !kvt_without(range, KVT_WITHOUT_LOG)) {
		const struct virtio_config_ops *config = dev->vdev->config;

		config->set(dev->vdev, FIELD(offset), &offset, sizeof(offset));
		config->set(dev->vdev, FIELD(address), &address, sizeof(address));
		config->set(dev->vdev, FIELD(pages), &count, sizeof(count));
		config->get(dev->vdev, FIELD(result), &result, sizeof(result));
		kvt_count(range, KVT_LOG_READS, 1);
	}
	up_read(&dev->window_rwsem);
	if (result != VGPU_STATUS_OK)
		memset(dev->log.answer, 0xff, PAGE_SIZE);
}

/*
 * When it returns, kvt_log_has is true for every page of the range that was stored into before the
 * call, and the stores are in memory.
 */
void kvt_log_read(struct kvg_range *range)
{
	struct kvt_log *log = &range->dev->log;
	u32 end = min_t(u64, round_up(PHYS_PFN(range->offset + range->bytes), VGPU_LOG_GROUP_PAGES),
			window_pages(range->dev));
	u32 first = round_down(PHYS_PFN(range->offset), VGPU_LOG_GROUP_PAGES);
	u32 told = 0;

	mutex_lock(&log->lock);
	while (first < end) {
		u32 count = min(end - first, VGPU_MAX_LOG_PAGES);
		unsigned int bit;

		ask(range, first, count);
		for_each_set_bit(bit, (unsigned long *)log->answer, count)
			set_bit(first + bit, log->pages);
		told += bitmap_weight((unsigned long *)log->answer, count);
		first += count;
	}
	mutex_unlock(&log->lock);
	kvt_count(range, KVT_LOG_PAGES, told);
	/*
	 * A processor that is emulated logs a store just before it does it, and then not again.
	 * After the interrupt it has ended the instruction.
	 */
	kick_all_cpus_sync();
}

bool kvt_log_has(const struct kvg_range *range, u32 index)
{
	return test_bit(PHYS_PFN(range->offset) + index, range->dev->log.pages);
}

void kvt_log_forget(struct kvg_range *range, u32 index)
{
	clear_bit(PHYS_PFN(range->offset) + index, range->dev->log.pages);
	smp_mb__after_atomic(); /* before the page is read */
}

/* Nobody has looked at the page after all. */
void kvt_log_remember(struct kvg_range *range, u32 index)
{
	set_bit(PHYS_PFN(range->offset) + index, range->dev->log.pages);
}
