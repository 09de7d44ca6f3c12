// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A flush: dirty pages are closed, what differs from their shadows becomes write commands, and
 * these go on the ring before anything that the caller sends afterwards.
 *
 * The bytes travel inside the commands. They are a copy of the moment when the page was closed, so
 * primary and standby see the same bytes however the program goes on storing, and a flush never
 * waits for room for payloads, which other requests may hold for long.
 */
#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/core/diff.h"

#define KVT_HEADER_BYTES ((u32)sizeof(struct vgpu_cmd_transfer_buffer))

/*
 * One page in a stream at most: single bytes with just enough between that they stay runs of their
 * own.
 */
#define KVT_PAGE_WORST_BYTES \
	((PAGE_SIZE / (TRACE_MERGE_GAP + 1) + 2) * (KVT_HEADER_BYTES + 8) + PAGE_SIZE)

/* Write commands under construction in the stream of one request. */
struct kvt_stream {
	struct kvg_request *request;
	u64 queue;
	u64 memory;		/* of the command that is open */
	u64 next;		/* offset in the buffer right behind it */
	u32 command;		/* where it begins in the blob; 0: none is open */
	u32 data_bytes;
	u64 all_data_bytes;
};

static u32 stream_bytes(const struct kvt_stream *stream)
{
	return stream->request->blob.bytes - (u32)sizeof(struct vgpu_request);
}

/* Fills in the header of the command that is open, and pads its data. */
static int stream_close_command(struct kvt_stream *stream)
{
	struct kvg_blob *blob = &stream->request->blob;
	struct vgpu_cmd_transfer_buffer header = {
		.cmd = { .opcode = VGPU_CMD_WRITE_BUFFER },
		.enqueue = { .queue = stream->queue },
		.buffer = stream->memory,
		.offset = stream->next - stream->data_bytes,
		.data = { .bytes = stream->data_bytes, .index = VGPU_PAYLOAD_INLINE },
	};
	int ret;

	if (!stream->command)
		return 0;
	ret = kvg_blob_append(blob, NULL, round_up(stream->data_bytes, 8) - stream->data_bytes);
	if (ret)
		return ret;
	header.cmd.bytes = blob->bytes - stream->command;
	kvg_blob_write(blob, stream->command, &header, sizeof(header));
	stream->command = 0;
	return 0;
}

/* The caller has made sure that there is room. */
static int stream_write(struct kvt_stream *stream, u64 memory, u64 offset, const void *data,
			u32 bytes)
{
	struct kvg_blob *blob = &stream->request->blob;
	int ret;

	stream->all_data_bytes += bytes;
	while (bytes) {
		u32 part;

		if (stream->command &&
		    (memory != stream->memory || offset != stream->next ||
		     stream->data_bytes == VGPU_MAX_INLINE_PAYLOAD_BYTES)) {
			ret = stream_close_command(stream);
			if (ret)
				return ret;
		}
		if (!stream->command) {
			stream->command = blob->bytes;
			stream->memory = memory;
			stream->next = offset;
			stream->data_bytes = 0;
			ret = kvg_blob_append(blob, NULL, KVT_HEADER_BYTES);
			if (ret)
				return ret;
		}
		part = min(bytes, VGPU_MAX_INLINE_PAYLOAD_BYTES - stream->data_bytes);
		ret = kvg_blob_append(blob, data, part);
		if (ret)
			return ret;
		stream->data_bytes += part;
		stream->next += part;
		offset += part;
		data += part;
		bytes -= part;
	}
	return 0;
}

/*
 * Stays open at this flush. Not with bytes that are sent whatever the comparison says: these are
 * sent once, from a closed page.
 */
static bool is_hot(const struct kvt_trace *trace, u32 index)
{
	const struct kvt_page *page = &trace->pages[index];

	return trace->mode == KAGEMUSHA_VGPU_TRACE_ADAPTIVE && trace->snapshot && page->shadow &&
	       page->heat.intervals >= TRACE_INTERVALS_UNTIL_HOT &&
	       page->whole_from == page->whole_to;
}

/*
 * From page `first` on nothing can be stored any more without a fault, on any CPU, except into hot
 * pages.
 */
static void close_pages(struct kvg_range *range, unsigned int first)
{
	struct kvt_trace *trace = range->trace;
	unsigned int from = first, to, index;

	for_each_set_bitrange_from(from, to, trace->open, trace->page_count) {
		for (index = from; index < to; index++) {
			if (is_hot(trace, index)) {
				to = index;
				break;
			}
		}
		if (from == to) /* begins with a hot page; the search goes on behind it */
			continue;
		unmap_mapping_range(range->dev->inode->i_mapping,
				    range->offset + ((u64)from << PAGE_SHIFT),
				    (u64)(to - from) << PAGE_SHIFT, 1);
		bitmap_clear(trace->open, from, to - from);
	}
}

/* `content`: the page as it is to be sent. Sets *changed. */
static int send_page(struct kvt_stream *stream, struct kvg_range *range, u32 index,
		     const u8 *content, bool *changed)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	u64 start = (u64)index << PAGE_SHIFT;
	struct trace_diff diff = {
		.now = content,
		.before = page->shadow,
		.bytes = min_t(u64, PAGE_SIZE, trace->bytes - start),
		.whole = { page->whole_from, page->whole_to },
	};
	struct trace_run run;
	u32 runs = 0;
	u32 at = 0;
	int ret;

	while (trace_diff_next(&diff, at, &run)) {
		ret = stream_write(stream, trace->memory, trace->memory_offset + start + run.from,
				   diff.now + run.from, run.to - run.from);
		if (ret)
			return ret;
		at = run.to;
		runs++;
	}
	kvt_count(range->dev, KVT_PAGES_COMPARED, 1);
	kvt_count(range->dev, KVT_RUNS, runs);
	if (!runs)
		kvt_count(range->dev, KVT_PAGES_UNCHANGED, 1);
	*changed = runs;
	return 0;
}

static void clean_page(struct kvt_trace *trace, u32 index)
{
	struct kvt_page *page = &trace->pages[index];

	free_page((unsigned long)page->shadow);
	page->shadow = NULL;
	page->whole_from = 0;
	page->whole_to = 0;
	__clear_bit(index, trace->dirty);
	atomic_dec(&trace->dirty_count);
}

/* Nobody can store into the page: it is compared as it is. */
static int send_closed(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	bool changed;
	int ret = send_page(stream, range, index,
			    range->dev->window_memory + range->offset + ((u64)index << PAGE_SHIFT),
			    &changed);

	if (ret)
		return ret;
	clean_page(trace, index);
	trace_heat_flush(&trace->pages[index].heat, changed);
	return 0;
}

/*
 * A page that is stored into meanwhile. A copy of it is compared and sent, and is the next shadow:
 * what was stored before this call is in it, and what comes later differs from it.
 */
static int send_hot(struct kvt_stream *stream, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvt_page *page = &trace->pages[index];
	bool changed;
	int ret;

	memcpy(trace->snapshot,
	       range->dev->window_memory + range->offset + ((u64)index << PAGE_SHIFT), PAGE_SIZE);
	ret = send_page(stream, range, index, trace->snapshot, &changed);
	if (ret)
		return ret;
	swap(page->shadow, trace->snapshot);
	kvt_count(range->dev, KVT_KEPT_OPEN, 1);
	if (trace_heat_flush(&page->heat, changed))
		return 0;
	/* It has cooled down: closed now, and compared once more for what was stored since. */
	unmap_mapping_range(range->dev->inode->i_mapping,
			    range->offset + ((u64)index << PAGE_SHIFT), PAGE_SIZE, 1);
	__clear_bit(index, trace->open);
	return send_closed(stream, range, index);
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
	int ret = 0;

	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (range->dead || dev->window_gone) {
		index = trace->page_count;
		goto out;
	}
	close_pages(range, index);
	for_each_set_bit_from(index, trace->dirty, trace->page_count) {
		/* twice: a page that cools down is sent two times */
		if (stream_bytes(stream) + 2 * KVT_PAGE_WORST_BYTES + sizeof(struct vgpu_cmd_sync) >
		    dev->limits.stream_bytes)
			break;
		ret = test_bit(index, trace->open) ? send_hot(stream, range, index) :
						     send_closed(stream, range, index);
		if (ret)
			break;
	}
out:
	*cursor = index;
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	return ret;
}

static struct kvg_request *request_new(struct kvg_file *file)
{
	struct kvg_request *request =
		kvg_request_new(file, VGPU_REQUEST_SUBMIT,
				sizeof(struct vgpu_request) + file->dev->limits.stream_bytes);

	if (!request)
		return NULL;
	if (kvg_blob_append(&request->blob, NULL, sizeof(struct vgpu_request))) {
		kvg_request_put(request);
		return NULL;
	}
	return request;
}

static int stream_barrier(struct kvt_stream *stream)
{
	struct vgpu_cmd_sync barrier = {
		.cmd = { .opcode = VGPU_CMD_BARRIER, .bytes = sizeof(barrier) },
		.enqueue = { .queue = stream->queue },
	};

	return kvg_blob_append(&stream->request->blob, &barrier, sizeof(barrier));
}

/* Memory for descriptors comes back; a file in which a program gives up is dead. */
static int commit(struct kvt_stream *stream)
{
	u64 sequence;
	int ret;

	for (;;) {
		ret = kvg_request_commit(stream->request, &sequence);
		if (ret != -ENOMEM || fatal_signal_pending(current))
			return ret;
		msleep(1);
	}
}

static int finish_and_commit(struct kvt_stream *stream, bool barrier)
{
	int ret = stream_close_command(stream);

	if (!ret && barrier)
		ret = stream_barrier(stream);
	if (ret)
		return ret;
	stream->request->stream_bytes = stream_bytes(stream);
	return commit(stream);
}

/* One request's worth of a range, from page *cursor on. flush_mutex is held. */
static int flush_step(struct kvg_file *file, struct kvg_range *range, u32 *cursor,
		      const struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvg_device *dev = file->dev;
	struct kvt_stream stream = { .queue = target->queue };
	int ret;

	stream.request = request_new(file);
	if (!stream.request)
		return -ENOMEM;
	ret = kvg_room_take(stream.request, target->nonblock);
	if (ret)
		goto out;
	ret = collect(&stream, range, cursor);
	if (!ret && !stream_bytes(&stream))
		goto out_room; /* dirty, but not changed */
	if (!ret)
		ret = finish_and_commit(&stream, target->barrier);
	if (ret) {
		/* What was collected is in no page any more: the program must hear of it. */
		kvg_warn(dev, "stores of a program into mapped VRAM are lost (error %d), and so is its file\n",
			 ret);
		kvg_file_dead(file);
		goto out_room;
	}
	*flushed_bytes += stream.all_data_bytes;
	kvt_count(dev, KVT_BYTES_DATA, stream.all_data_bytes);
	kvt_count(dev, KVT_BYTES_STREAM, stream.request->stream_bytes);
	kvt_count(dev, KVT_REQUESTS, 1);
	goto out; /* the ring has its own reference, and the room */
out_room:
	kvg_room_return(stream.request);
out:
	kvg_request_put(stream.request);
	return ret;
}

/* Each page is visited once: a thread that stores all the time does not keep us here. */
static int flush_range(struct kvg_file *file, struct kvg_range *range,
		       const struct kvt_target *target, u64 *flushed_bytes)
{
	struct kvt_trace *trace = range->trace;
	u32 cursor = 0;
	int ret = 0;

	if (!atomic_read(&trace->dirty_count))
		return 0;
	kvt_count(file->dev, KVT_FLUSHES, 1);
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
