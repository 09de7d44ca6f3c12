// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Payloads: user memory that the device reads or writes in place.
 *
 * Pages are pinned as for O_DIRECT (FOLL_PIN without FOLL_LONGTERM). LONGTERM would be wrong twice:
 * it breaks the sharing of private file mappings, so that uploading a mapped file would copy all of
 * it into anonymous memory first, and it refuses to read into shared file mappings. Its purpose, to
 * keep pages that stay pinned for ever out of movable zones, is met by the bound on pinned pages.
 *
 * Physically contiguous pages of a payload become one segment. The segments on the wire are also
 * the only record of what is pinned: a segment's address leads back to its pages.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "kvg.h"

#define KVG_PIN_BATCH 512u /* pages pinned by one call: one page of pointers */
#define KVG_PIN_SMALL 16u /* up to here the pointers live on the stack */

static u32 payload_offset(const struct kvg_request *request, u32 index)
{
	return sizeof(struct vgpu_request) + request->stream_bytes +
	       index * (u32)sizeof(struct vgpu_payload);
}

static u32 segment_offset(const struct kvg_request *request, u32 index)
{
	return payload_offset(request, request->payload_count) +
	       index * (u32)sizeof(struct vgpu_segment);
}

/* Checks the table and says how many pages it pins at most. */
int kvg_payloads_count_pages(const struct kvg_limits *limits,
			     const struct kagemusha_vgpu_payload *payloads, u32 count,
			     unsigned long *pages)
{
	const u32 known = KAGEMUSHA_VGPU_PAYLOAD_WRITE | KAGEMUSHA_VGPU_PAYLOAD_WINDOW;
	u32 i;

	*pages = 0;
	for (i = 0; i < count; i++) {
		const struct kagemusha_vgpu_payload *payload = &payloads[i];
		u64 end;

		if ((payload->flags & ~known) || payload->pad || !payload->bytes)
			return -EINVAL;
		if (check_add_overflow(payload->address, payload->bytes, &end))
			return -EINVAL;
		if (payload->flags & KAGEMUSHA_VGPU_PAYLOAD_WINDOW)
			continue;
		if (end > TASK_SIZE_MAX)
			return -EFAULT;
		if (payload->bytes > (u64)limits->pages << PAGE_SHIFT)
			return -E2BIG;
		*pages += DIV_ROUND_UP_ULL(offset_in_page(payload->address) + payload->bytes,
					   PAGE_SIZE);
		if (*pages > limits->pages)
			return -E2BIG;
	}
	return 0;
}

static void unpin_segment(const struct vgpu_segment *segment, bool dirty)
{
	unsigned long pages =
		DIV_ROUND_UP_ULL(offset_in_page(segment->address) + segment->bytes, PAGE_SIZE);

	unpin_user_page_range_dirty_lock(pfn_to_page(PHYS_PFN(segment->address)), pages, dirty);
}

/* Takes over the pins of *segment, also when it fails. */
static int flush_segment(struct kvg_request *request, struct vgpu_segment *segment)
{
	int ret;

	if (!segment->bytes)
		return 0;
	ret = kvg_blob_append(&request->blob, segment, sizeof(*segment));
	if (ret)
		unpin_segment(segment, false);
	else
		request->segment_count++;
	segment->bytes = 0;
	return ret;
}

static int pin_user_memory(struct kvg_request *request, u64 address, u64 bytes, bool write,
			   struct page **pages, u32 batch)
{
	struct vgpu_segment segment = {};
	u32 offset = offset_in_page(address);
	u64 page_address = address & PAGE_MASK;
	int ret = 0;

	while (bytes) {
		u32 wanted = min_t(u64, DIV_ROUND_UP_ULL(offset + bytes, PAGE_SIZE), batch);
		int got, i;

		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		got = pin_user_pages_fast(page_address, wanted, write ? FOLL_WRITE : 0, pages);
		if (got <= 0) {
			ret = got ? got : -EFAULT;
			break;
		}
		for (i = 0; i < got; i++) {
			u64 start = page_to_phys(pages[i]) + offset;
			u64 part = min_t(u64, PAGE_SIZE - offset, bytes);

			if (segment.bytes && segment.address + segment.bytes == start) {
				segment.bytes += part;
			} else {
				ret = flush_segment(request, &segment);
				if (ret) {
					unpin_user_pages(pages + i, got - i);
					return ret;
				}
				segment.address = start;
				segment.bytes = part;
			}
			offset = 0;
			bytes -= part;
		}
		page_address += (u64)got << PAGE_SHIFT;
		cond_resched();
	}
	return flush_segment(request, &segment) ?: ret;
}

static int add_window_segment(struct kvg_request *request, u64 offset, u64 bytes, bool write)
{
	struct vgpu_segment segment = { .address = offset,
					.bytes = bytes,
					.flags = VGPU_SEGMENT_WINDOW };
	struct kvg_range *range = kvg_range_find(request->file, offset, bytes);
	int ret;

	if (IS_ERR(range))
		return PTR_ERR(range);
	request->ranges[request->range_count++] =
		(struct kvg_range_use){ .range = range, .device_writes = write };
	if (write)
		atomic_inc(&range->device_writes);
	if (write && kvt_traced(range))
		kvt_device_writes(range, offset - range->offset, bytes);
	ret = kvg_blob_append(&request->blob, &segment, sizeof(segment));
	if (!ret)
		request->segment_count++;
	return ret;
}

/*
 * Fills the payload table (whose room is already in the blob) and appends the segments. After an
 * error the caller calls kvg_payloads_release as usual: the table always says what is pinned.
 */
int kvg_payloads_pin(struct kvg_request *request, const struct kagemusha_vgpu_payload *payloads)
{
	struct page *small[KVG_PIN_SMALL];
	struct page **pages = small;
	u32 batch = KVG_PIN_SMALL;
	u32 windows = 0;
	int ret = 0;
	u32 i;

	for (i = 0; i < request->payload_count; i++)
		windows += !!(payloads[i].flags & KAGEMUSHA_VGPU_PAYLOAD_WINDOW);
	if (windows) {
		request->ranges = kcalloc(windows, sizeof(*request->ranges), GFP_KERNEL_ACCOUNT);
		if (!request->ranges)
			return -ENOMEM;
	}
	if (request->pages > KVG_PIN_SMALL) {
		pages = kmalloc_array(KVG_PIN_BATCH, sizeof(*pages), GFP_KERNEL);
		if (!pages)
			return -ENOMEM;
		batch = KVG_PIN_BATCH;
	}

	for (i = 0; i < request->payload_count && !ret; i++) {
		const struct kagemusha_vgpu_payload *from = &payloads[i];
		bool write = from->flags & KAGEMUSHA_VGPU_PAYLOAD_WRITE;
		struct vgpu_payload to = {
			.bytes = from->bytes,
			.first_segment = request->segment_count,
			.flags = write ? VGPU_PAYLOAD_WRITE : 0,
		};

		if (from->flags & KAGEMUSHA_VGPU_PAYLOAD_WINDOW)
			ret = add_window_segment(request, from->address, from->bytes, write);
		else
			ret = pin_user_memory(request, from->address, from->bytes, write, pages,
					      batch);
		to.segment_count = request->segment_count - to.first_segment;
		kvg_blob_write(&request->blob, payload_offset(request, i), &to, sizeof(to));
	}
	if (pages != small)
		kfree(pages);
	return ret;
}

/* Only when the device has answered, was reset, or never saw the request. May sleep. */
void kvg_payloads_release(struct kvg_request *request)
{
	u32 i, k;

	if (request->lender)
		kvt_lender_lock(request->lender);
	for (i = 0; i < request->payload_count && request->segment_count; i++) {
		struct vgpu_payload payload;

		kvg_blob_read(&request->blob, payload_offset(request, i), &payload,
			      sizeof(payload));
		for (k = 0; k < payload.segment_count; k++) {
			struct vgpu_segment segment;

			kvg_blob_read(&request->blob,
				      segment_offset(request, payload.first_segment + k), &segment,
				      sizeof(segment));
			if (request->lender)
				kvt_lent_back(request->lender, &segment);
			else if (!(segment.flags & VGPU_SEGMENT_WINDOW))
				unpin_segment(&segment, payload.flags & VGPU_PAYLOAD_WRITE);
		}
		cond_resched();
	}
	request->segment_count = 0;
	if (request->lender)
		kvt_lender_unlock(request->lender);
	for (i = 0; i < request->range_count; i++) {
		struct kvg_range_use *use = &request->ranges[i];

		if (use->device_writes)
			atomic_dec(&use->range->device_writes);
		kvg_range_put(use->range);
	}
	kfree(request->ranges);
	request->ranges = NULL;
	request->range_count = 0;
	if (request->lender)
		kvg_range_put(request->lender);
	request->lender = NULL;
}
