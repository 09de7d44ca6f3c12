// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages that changed as a whole do not travel inside the stream: the request's payloads are pages
 * that hold the content of the moment, one reference each. So a large flush is copied once here,
 * and the device reads it from there.
 *
 * A page that is lent is not written to until the device has answered: snapshot.c recycles only
 * pages with no reference but its own. It may be a snapshot meanwhile, which is only read.
 *
 * Room for payloads is never waited for, as other requests may hold it for long. Without it, pages
 * travel in the stream like everything else.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/kernel/stream.h"

/* Fewer are not worth a payload's slot of the ring. */
#define KVT_LEND_FROM 4u

/*
 * Takes room for payloads of so many pages, or fewer, if there is some now. Returns false if
 * nothing can be lent.
 */
bool kvt_lend_begin(struct kvt_stream *stream, struct kvg_range *range, u32 pages)
{
	struct kvg_request *request = stream->request;
	const struct kvg_limits *limits = &request->dev->limits;
	struct kvg_file *file = request->file;
	struct kvt_lent *lent;

	if (pages < KVT_LEND_FROM || kvt_without(range, KVT_WITHOUT_LENDING))
		return false;
	if (!file->flush_lent)
		file->flush_lent = kvmalloc(sizeof(*file->flush_lent), GFP_KERNEL_ACCOUNT);
	lent = file->flush_lent;
	if (!lent)
		return false;
	lent->page_count = 0;
	lent->payload_count = 0;
	lent->max_pages = min3(pages, KVT_MAX_LENT_PAGES, limits->pages);
	lent->max_payloads = min(lent->max_pages, limits->payloads);
	request->payload_count = 1;
	request->pages = lent->max_pages;
	if (kvg_room_take(request, true)) {
		request->payload_count = 0;
		request->pages = 0;
		return false;
	}
	stream->lent = lent;
	stream->lender = range;
	return true;
}

/* Whether the page goes behind those of the last command. */
static bool follows(const struct kvt_stream *stream, u64 memory, u64 offset)
{
	return stream->lend_command && memory == stream->memory && offset == stream->next;
}

/* How much the last command that refers to pages writes is known when no page follows. */
void kvt_lend_close(struct kvt_stream *stream)
{
	const struct kvt_lent *lent = stream->lent;
	u64 bytes;

	if (!stream->lend_command)
		return;
	bytes = (u64)lent->payload_pages[lent->payload_count - 1] << PAGE_SHIFT;
	kvg_blob_write(&stream->request->blob,
		       stream->lend_command + offsetof(struct vgpu_cmd_transfer_buffer, data.bytes),
		       &bytes, sizeof(bytes));
	stream->lend_command = 0;
}

static int begin_command(struct kvt_stream *stream, u64 memory, u64 offset)
{
	struct kvg_blob *blob = &stream->request->blob;
	struct kvt_lent *lent = stream->lent;
	const struct vgpu_cmd_transfer_buffer command = {
		.cmd = { .opcode = VGPU_CMD_WRITE_BUFFER, .bytes = sizeof(command) },
		.enqueue = { .queue = stream->queue },
		.buffer = memory,
		.offset = offset,
		.data = { .index = lent->payload_count },
	};
	int ret = kvt_stream_close(stream);
	u32 place = blob->bytes;

	kvt_lend_close(stream);
	if (!ret)
		ret = kvg_blob_append(blob, &command, sizeof(command));
	if (ret)
		return ret;
	stream->lend_command = place;
	stream->memory = memory;
	lent->payload_pages[lent->payload_count++] = 0;
	return 0;
}

int kvt_stream_lend(struct kvt_stream *stream, u64 memory, u64 offset, u8 *const *pages, u32 count)
{
	struct kvt_lent *lent = stream->lent;
	u32 i;

	if (stream->open || !follows(stream, memory, offset)) {
		int ret = begin_command(stream, memory, offset);

		if (ret)
			return ret;
	}
	for (i = 0; i < count; i++) {
		get_page(virt_to_page(pages[i]));
		lent->pages[lent->page_count + i] = pages[i];
	}
	lent->page_count += count;
	atomic_add(count, &stream->lender->trace->snapshots.lent);
	lent->payload_pages[lent->payload_count - 1] += count;
	stream->next = offset + ((u64)count << PAGE_SHIFT);
	stream->all_data_bytes += (u64)count << PAGE_SHIFT;
	return 0;
}

/* One segment for pages that are neighbours. Returns how many pages it has. */
static u32 next_segment(const struct kvt_lent *lent, u32 from, u32 to, struct vgpu_segment *segment)
{
	u32 i = from + 1;

	while (i < to && lent->pages[i] == lent->pages[i - 1] + PAGE_SIZE)
		i++;
	*segment = (struct vgpu_segment){ .address = virt_to_phys(lent->pages[from]),
					  .bytes = (u64)(i - from) << PAGE_SHIFT };
	return i - from;
}

/*
 * The stream is complete: behind it come the tables that name the pages. After success they belong
 * to the request, and kvg_payloads_release gives them back.
 */
int kvt_lend_end(struct kvt_stream *stream)
{
	struct kvg_request *request = stream->request;
	struct kvt_lent *lent = stream->lent;
	u32 page = 0, segments = 0, table, i;
	int ret;

	if (!lent)
		return 0;
	kvt_lend_close(stream);
	kvg_room_shrink(request, lent->payload_count, lent->page_count);
	table = request->blob.bytes;
	ret = kvg_blob_append(&request->blob, NULL,
			      lent->payload_count * (u32)sizeof(struct vgpu_payload));
	for (i = 0; i < lent->payload_count && !ret; i++) {
		u32 end = page + lent->payload_pages[i];
		struct vgpu_payload payload = {
			.bytes = (u64)lent->payload_pages[i] << PAGE_SHIFT,
			.first_segment = segments,
		};

		while (page < end && !ret) {
			struct vgpu_segment segment;

			page += next_segment(lent, page, end, &segment);
			ret = kvg_blob_append(&request->blob, &segment, sizeof(segment));
			segments++;
		}
		payload.segment_count = segments - payload.first_segment;
		kvg_blob_write(&request->blob, table + i * (u32)sizeof(payload), &payload,
			       sizeof(payload));
	}
	if (ret)
		return ret;
	kvt_count(stream->lender, KVT_PAGES_LENT, lent->page_count);
	request->segment_count = segments;
	kref_get(&stream->lender->refs);
	request->lender = stream->lender;
	stream->lent = NULL;
	return 0;
}

u64 kvt_lent_bytes(const struct kvt_stream *stream)
{
	return (u64)stream->request->pages << PAGE_SHIFT;
}

/* What was lent for a request that is not sent. */
void kvt_lend_cancel(struct kvt_stream *stream)
{
	struct kvt_lent *lent = stream->lent;
	u32 i;

	if (!lent)
		return;
	for (i = 0; i < lent->page_count; i++)
		put_page(virt_to_page(lent->pages[i]));
	atomic_sub(lent->page_count, &stream->lender->trace->snapshots.lent);
	stream->lent = NULL;
}

/*
 * All of a request's pages come back in one go: the program may be storing again already, and what
 * is not back when it faults is made anew.
 */
void kvt_lender_lock(struct kvg_range *lender)
{
	mutex_lock(&lender->trace->lock);
}

void kvt_lender_unlock(struct kvg_range *lender)
{
	mutex_unlock(&lender->trace->lock);
}

/*
 * The device is through with a segment of pages: the lender, whose lock is held, can use them
 * again.
 */
void kvt_lent_back(struct kvg_range *lender, const struct vgpu_segment *segment)
{
	u64 at;

	atomic_sub(segment->bytes >> PAGE_SHIFT, &lender->trace->snapshots.lent);
	for (at = 0; at < segment->bytes; at += PAGE_SIZE)
		kvt_snapshot_back(&lender->trace->snapshots, phys_to_virt(segment->address + at));
}
