/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * WRITE_RUNS commands under construction in the stream of one request of a flush.
 */
#ifndef KVT_STREAM_H
#define KVT_STREAM_H

#include <linux/types.h>

#include "proto/abi/vgpu_protocol.h"
#include "tracer/core/runs.h"

struct kvg_file;
struct kvg_request;

/* What one page can need in a stream at most, however its changes lie. */
#define KVT_PAGE_WORST_BYTES 12288u

struct kvt_stream {
	struct kvg_request *request;
	u64 queue;
	u64 all_data_bytes;
	/* --- of the command that is open: */
	u32 command;		/* where it begins in the blob; 0: none is open */
	u32 data_bytes;
	u64 memory;
	u64 first;		/* offset of its first byte in the buffer */
	u64 next;		/* … and behind its last one */
	struct trace_runs runs;
};

/* The file's flush_mutex is held until kvt_stream_end. */
int kvt_stream_begin(struct kvt_stream *stream, struct kvg_file *file, u64 queue);
void kvt_stream_free(struct kvt_stream *stream);

/* Room for a page's writes, twice, and a barrier. */
bool kvt_stream_has_room(const struct kvt_stream *stream);
/* Offsets of one buffer ascend. There is room. */
int kvt_stream_write(struct kvt_stream *stream, u64 memory, u64 offset, const void *data,
		     u32 bytes);
/* Nothing was written. */
bool kvt_stream_is_empty(const struct kvt_stream *stream);
/* The request can be committed after this. */
int kvt_stream_end(struct kvt_stream *stream, bool barrier);

#endif
