// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a flush found, as commands in the stream of a request. The bytes travel inside them: a copy
 * of the moment, so primary and standby see the same ones however the program goes on storing, and
 * a flush never waits for room for payloads, which other requests may hold for long.
 */
#include <linux/slab.h>

#include "kvg.h"
#include "tracer/core/diff.h"
#include "tracer/kernel/stream.h"

#define KVT_LENT_TABLE_BYTES \
	(KVT_MAX_LENT_PAGES * (u32)(sizeof(struct vgpu_payload) + sizeof(struct vgpu_segment)))
/*
 * The worst page: single bytes with just enough between that they stay runs of their own, each with
 * two numbers of two bytes. Three commands, because the first may be almost full.
 */
static_assert((PAGE_SIZE / (KVT_MERGE_GAP + 1) + 2) * 4 + 3 * (KVT_HEADER_BYTES + 8) +
		      2 * KVT_RUN_MAX_BYTES + PAGE_SIZE <=
	      KVT_PAGE_WORST_BYTES);
/* Its length is a number of 16 bits. */
static_assert(KVT_HEADER_BYTES + sizeof(struct kvt_open_runs) < 8 * 65535u);

int kvt_stream_begin(struct kvt_stream *stream, struct kvg_file *file, u64 queue)
{
	memset(stream, 0, sizeof(*stream));
	stream->queue = queue;
	if (!file->flush_runs) {
		file->flush_runs = kvmalloc(sizeof(*file->flush_runs), GFP_KERNEL_ACCOUNT);
		if (!file->flush_runs)
			return -ENOMEM;
	}
	stream->request =
		kvg_request_new(file, VGPU_REQUEST_SUBMIT,
				sizeof(struct vgpu_request) + file->dev->limits.stream_bytes +
					KVT_LENT_TABLE_BYTES);
	if (!stream->request)
		return -ENOMEM;
	if (kvg_blob_append(&stream->request->blob, NULL, sizeof(struct vgpu_request))) {
		kvt_stream_free(stream);
		return -ENOMEM;
	}
	return 0;
}

void kvt_stream_free(struct kvt_stream *stream)
{
	kvt_lend_cancel(stream);
	kvg_request_put(stream->request);
	stream->request = NULL;
}

bool kvt_stream_is_empty(const struct kvt_stream *stream)
{
	return !stream->open && !kvt_stream_bytes(stream);
}

/* ---- commands ---- */

static void open_command(struct kvt_stream *stream, u64 memory)
{
	stream->open = true;
	kvt_lend_close(stream);
	stream->memory = memory;
	stream->next = 0;
	stream->data_bytes = 0;
	kvt_runs_begin(&stream->runs, stream->request->file->flush_runs->runs, VGPU_MAX_RUN_BYTES,
		       VGPU_MAX_RUNS);
}

int kvt_stream_close(struct kvt_stream *stream)
{
	struct kvg_blob *blob = &stream->request->blob;
	u8 bytes[KVT_HEADER_BYTES] __aligned(8);
	struct vgpu_cmd_write_runs *header = (void *)bytes;
	u32 used = offsetof(struct vgpu_cmd_write_runs, body);
	u32 run_bytes, content;
	int ret;

	if (!stream->open)
		return 0;
	run_bytes = kvt_runs_end(&stream->runs);
	used += kvt_put_number(bytes + used, stream->queue);
	used += kvt_put_number(bytes + used, stream->memory);
	used += kvt_put_number(bytes + used, run_bytes);
	content = used + run_bytes + stream->data_bytes;
	header->opcode = VGPU_CMD_WRITE_RUNS;
	header->words = DIV_ROUND_UP(content, 8);
	ret = kvg_blob_append(blob, bytes, used);
	if (!ret)
		ret = kvg_blob_append(blob, stream->runs.bytes, run_bytes);
	if (!ret)
		ret = kvg_blob_append(blob, stream->request->file->flush_runs->data,
				      stream->data_bytes);
	if (!ret)
		ret = kvg_blob_append(blob, NULL, round_up(content, 8) - content);
	stream->open = false;
	return ret;
}

/* Whether the command that is open takes the next `bytes` bytes. */
static bool takes(struct kvt_stream *stream, u64 memory, u64 offset, u32 bytes)
{
	return bytes && memory == stream->memory && offset >= stream->next &&
	       kvt_runs_add(&stream->runs, offset - stream->next, bytes);
}

int kvt_stream_write(struct kvt_stream *stream, u64 memory, u64 offset, const void *data, u32 bytes)
{
	struct kvt_open_runs *runs = stream->request->file->flush_runs;
	int ret = 0;

	stream->all_data_bytes += bytes;
	while (bytes && !ret) {
		u32 part;

		if (!stream->open)
			open_command(stream, memory);
		part = min(bytes, VGPU_MAX_INLINE_PAYLOAD_BYTES - stream->data_bytes);
		if (!takes(stream, memory, offset, part)) {
			ret = kvt_stream_close(stream);
			continue;
		}
		memcpy(runs->data + stream->data_bytes, data, part);
		stream->data_bytes += part;
		stream->next = offset + part;
		offset += part;
		data += part;
		bytes -= part;
	}
	return ret;
}

static int append_follower(struct kvt_stream *stream, const struct kvg_request *follower)
{
	struct kvg_request *request = stream->request;
	int ret;

	if (follower->stream_bytes > request->dev->limits.stream_bytes - kvt_stream_bytes(stream))
		return 0;
	ret = kvg_blob_append_part(&request->blob, &follower->blob, sizeof(struct vgpu_request),
				   follower->stream_bytes);
	request->completion_count = follower->completion_count;
	stream->followed = true;
	return ret;
}

int kvt_stream_end(struct kvt_stream *stream, bool barrier, const struct kvg_request *follower)
{
	const struct vgpu_cmd_sync command = {
		.cmd = { .opcode = VGPU_CMD_BARRIER, .bytes = sizeof(command) },
		.enqueue = { .queue = stream->queue },
	};
	int ret = kvt_stream_close(stream);

	if (!ret && barrier)
		ret = kvg_blob_append(&stream->request->blob, &command, sizeof(command));
	if (!ret && follower)
		ret = append_follower(stream, follower);
	stream->request->stream_bytes = kvt_stream_bytes(stream);
	return ret ?: kvt_lend_end(stream);
}
