/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * WRITE_RUNS commands under construction in the stream of one request of a flush.
 */
#ifndef KVT_STREAM_H
#define KVT_STREAM_H

#include <linux/types.h>

#include "kvg.h"
#include "proto/abi/vgpu_page_copy.h"
#include "tracer/core/runs.h"
#include "tracer/kernel/snapshot.h"


/* What one page can need in a stream at most, however its changes lie. */
#define KVT_PAGE_WORST_BYTES 12288u
/* Pages that one request refers to at most. */
#define KVT_MAX_LENT_PAGES 1024u

/* What comes before a command's runs at most. */
#define KVT_HEADER_BYTES \
	((u32)offsetof(struct vgpu_cmd_write_runs, body) + 3 * KVT_NUMBER_MAX_BYTES)

/* What is collected for a WRITE_RUNS: its header and its runs come before its data. */
struct kvt_open_runs {
	u8 runs[VGPU_MAX_RUN_BYTES];
	u8 data[VGPU_MAX_INLINE_PAYLOAD_BYTES];
};

/*
 * At a time. One processor's copies, and the pages with their snapshots, are to stay in its cache;
 * threads of the host are to be woken up for something.
 */
#define KVT_MAX_COPIES_ALONE 128u
#define KVT_MAX_COPIES 512u

/* flush_mutex is held, and the trace's lock while there are pages. */
struct kvt_copies {
	struct vgpu_page_copy *list; /* which the device writes */
	u8 *pages[KVT_MAX_COPIES];   /* the copies, until they are taken */
	u32 index[KVT_MAX_COPIES];   /* of the page in the range */
	u32 most;		     /* no more at a time */
	u32 count;
	u32 next;		     /* to be taken */
	u32 end;		     /* all pages of the range before it were looked at */
};

/* Pages that the request refers to. flush_mutex is held until the stream is freed. */
struct kvt_lent {
	u32 page_count, payload_count;
	u32 max_pages, max_payloads;
	u8 *pages[KVT_MAX_LENT_PAGES];
	u32 payload_pages[KVT_MAX_LENT_PAGES]; /* of each payload */
};

struct kvt_stream {
	struct kvg_request *request;
	u64 queue;
	u64 all_data_bytes;
	u32 page_count, unchanged_pages, kept_pages, run_count; /* for the statistics */
	struct kvt_lent *lent;	/* of the file; NULL: nothing can be lent */
	struct kvg_range *lender;
	struct kvt_copies *copies; /* of the file; NULL: the device makes none */
	bool followed;
	u32 lend_command;	/* the last one that refers to pages; 0: none */
	/* --- of the command that is open, or was the last one: */
	bool open;		/* WRITE_RUNS: its runs and data are not in the blob yet */
	u32 data_bytes;
	u64 memory;
	u64 next;		/* behind the last byte of the buffer that was written */
	struct kvt_runs runs;
};

static inline u32 kvt_stream_bytes(const struct kvt_stream *stream)
{
	return stream->request->blob.bytes - (u32)sizeof(struct vgpu_request);
}

/* Of a command that is not there yet. */
static inline u32 kvt_stream_open_bytes(const struct kvt_stream *stream)
{
	return stream->open ? KVT_HEADER_BYTES + stream->runs.used + stream->data_bytes + 8 : 0;
}

/* Room for a page's writes, twice, and a barrier. */
static inline bool kvt_stream_has_room(const struct kvt_stream *stream)
{
	return kvt_stream_bytes(stream) + kvt_stream_open_bytes(stream) + 2 * KVT_PAGE_WORST_BYTES +
		       sizeof(struct vgpu_cmd_sync) <=
	       stream->request->dev->limits.stream_bytes;
}

/* The file's flush_mutex is held until kvt_stream_end. */
int kvt_stream_begin(struct kvt_stream *stream, struct kvg_file *file, u64 queue);
void kvt_stream_free(struct kvt_stream *stream);

/* Offsets of one buffer ascend. There is room. */
int kvt_stream_write(struct kvt_stream *stream, u64 memory, u64 offset, const void *data,
		     u32 bytes);
/* The request refers to as many pages as it can. What is left for the next one is lent, too. */
static inline bool kvt_lent_all(const struct kvt_stream *stream)
{
	const struct kvt_lent *lent = stream->lent;

	return lent && (lent->page_count == lent->max_pages ||
			lent->payload_count == lent->max_payloads);
}

/* How many pages can be lent, those of one command. */
static inline u32 kvt_stream_can_lend(const struct kvt_stream *stream)
{
	const struct kvt_lent *lent = stream->lent;

	return lent && lent->payload_count < lent->max_payloads ?
		       lent->max_pages - lent->page_count :
		       0;
}

/*
 * So many pages of data go behind the stream, as references to `pages`, which nobody writes to any
 * more.
 */
int kvt_stream_lend(struct kvt_stream *stream, u64 memory, u64 offset, u8 *const *pages, u32 count);

/* Nothing was written. */
bool kvt_stream_is_empty(const struct kvt_stream *stream);
/*
 * The request can be committed after this. `follower`: a request without payloads, or NULL; its
 * commands come last, if there is room, and `followed` says so.
 */
int kvt_stream_end(struct kvt_stream *stream, bool barrier, const struct kvg_request *follower);

/* stream.c for lend.c: the command that is open takes no more. */
int kvt_stream_close(struct kvt_stream *stream);

/* lend.c */
bool kvt_lend_begin(struct kvt_stream *stream, struct kvg_range *range, u32 pages);
void kvt_lend_close(struct kvt_stream *stream);
int kvt_lend_end(struct kvt_stream *stream);
void kvt_lend_cancel(struct kvt_stream *stream);
/* After kvt_stream_end. */
u64 kvt_lent_bytes(const struct kvt_stream *stream);

/*
 * Whether a flush has to look at this page, which is dirty. In mode `host` most are, and stay so.
 */
static inline bool kvt_is_due(const struct kvg_range *range, u32 index)
{
	const struct kvt_trace *trace = range->trace;
	const struct kvt_page *page = &trace->pages[index];

	return trace->mode != KAGEMUSHA_VGPU_TRACE_HOST || !test_bit(index, trace->open) ||
	       page->whole_from != page->whole_to || kvt_log_has(range, index);
}

/* send.c */
const u8 *kvt_page_in_window(const struct kvg_range *range, u32 index);
void kvt_clean_page(struct kvg_range *range, u32 index, bool same);
int kvt_send_closed(struct kvt_stream *stream, struct kvg_range *range, u32 index);
int kvt_send_hot(struct kvt_stream *stream, struct kvg_range *range, u32 index);
int kvt_send_whole(struct kvt_stream *stream, struct kvg_range *range, u32 index, u32 count);

/* copies.c */
void kvt_copies_begin(struct kvt_stream *stream, struct kvg_range *range);
void kvt_copies_make(struct kvt_stream *stream, struct kvg_range *range, u32 index);

void kvt_copies_wait(struct kvt_stream *stream, struct kvg_range *range);

static inline u32 kvt_copies_answer(const struct kvt_copies *copies, u32 i)
{
	/* Pairs with the device's release: the copy is there before its answer. */
	return smp_load_acquire(&copies->list[i].answer);
}

/* Whether there is a copy of the page, or is to be. */
static inline bool kvt_copies_has(const struct kvt_stream *stream, u32 index)
{
	const struct kvt_copies *copies = stream->copies;

	return copies && copies->next < copies->count && copies->index[copies->next] == index;
}

/* The copy of the page becomes the trace's snapshot, if there is one; else NULL. */
static inline const struct vgpu_page_copy *kvt_copies_take(struct kvt_stream *stream,
							   struct kvt_trace *trace, u32 index)
{
	struct kvt_copies *copies = stream->copies;
	u8 *other = trace->snapshot;

	if (!kvt_copies_has(stream, index))
		return NULL;
	trace->snapshot = copies->pages[copies->next];
	kvt_snapshot_return(&trace->snapshots, other);
	return &copies->list[copies->next++];
}

/* How many pages from this one on have a copy of which each byte is another than before. */
static inline u32 kvt_copies_whole(const struct kvt_stream *stream, u32 index)
{
	const struct kvt_copies *copies = stream->copies;
	u32 first, end, i;

	if (!copies)
		return 0;
	first = copies->next;
	end = copies->count;
	for (i = first; i < end; i++, index++) {
		if (copies->index[i] != index || kvt_copies_answer(copies, i) != VGPU_COPY_WHOLE)
			break;
	}
	return i - first;
}

void kvt_copies_end(struct kvt_stream *stream, struct kvg_range *range);

#endif
