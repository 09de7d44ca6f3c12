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
struct kvg_range;
struct kvg_request;
struct kvt_lent;

/* What one page can need in a stream at most, however its changes lie. */
#define KVT_PAGE_WORST_BYTES 12288u
/* Pages that one request refers to at most. */
#define KVT_MAX_LENT_PAGES 1024u

/* What is collected for a WRITE_RUNS: its header and its runs come before its data. */
struct kvt_open_runs {
	u8 runs[VGPU_MAX_RUN_BYTES];
	u8 data[VGPU_MAX_INLINE_PAYLOAD_BYTES];
};

struct kvt_stream {
	struct kvg_request *request;
	u64 queue;
	u64 all_data_bytes;
	u32 page_count, unchanged_pages, kept_pages, run_count; /* for the statistics */
	struct kvt_lent *lent;	/* of the file; NULL: nothing can be lent */
	struct kvg_range *lender;
	u32 lend_command;	/* the last one that refers to pages; 0: none */
	/* --- of the command that is open, or was the last one: */
	bool open;		/* WRITE_RUNS: its runs and data are not in the blob yet */
	u32 data_bytes;
	u64 memory;
	u64 next;		/* behind the last byte of the buffer that was written */
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
/* A page of data goes behind the stream, as a reference to `page`, which nobody writes to any more. */
int kvt_stream_lend(struct kvt_stream *stream, u64 memory, u64 offset, const u8 *page);
bool kvt_stream_can_lend(const struct kvt_stream *stream);
/* Nothing was written. */
bool kvt_stream_is_empty(const struct kvt_stream *stream);
/* The request can be committed after this. */
int kvt_stream_end(struct kvt_stream *stream, bool barrier);

/* stream.c for lend.c: the command that is open takes no more. */
int kvt_stream_close(struct kvt_stream *stream);

/* lend.c */
bool kvt_lend_begin(struct kvt_stream *stream, struct kvg_range *range, u32 dirty_pages);
void kvt_lend_close(struct kvt_stream *stream);
int kvt_lend_end(struct kvt_stream *stream);
void kvt_lend_cancel(struct kvt_stream *stream);
/* After kvt_stream_end. */
u64 kvt_lent_bytes(const struct kvt_stream *stream);

#endif
