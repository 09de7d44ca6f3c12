// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The encoder of runs; runs.h has the idea.
 */
#include "runs.h"
#include "proto/abi/vgpu_protocol.h"

/* the two low bits of a number say what it is; the others hold a distance */
#define KIND_BITS 2
#define MAX_GAP (KVT_MAX_OFFSET - 1)

void kvt_runs_begin(struct kvt_runs *runs, u8 *bytes, u32 capacity, u32 max_count)
{
	memset(runs, 0, sizeof(*runs));
	runs->bytes = bytes;
	runs->capacity = capacity;
	runs->max_count = max_count;
}

u32 kvt_put_number(u8 *to, u64 n)
{
	u32 used = 0;

	while (n >= 0x80) {
		to[used++] = (u8)(n | 0x80);
		n >>= 7;
	}
	to[used++] = (u8)n;
	return used;
}

static void put_number(struct kvt_runs *runs, u64 n)
{
	runs->used += kvt_put_number(runs->bytes + runs->used, n);
}

static void put_repeats(struct kvt_runs *runs)
{
	if (runs->repeats)
		put_number(runs, (u64)runs->repeats << KIND_BITS | VGPU_RUN_REPEAT);
	runs->repeats = 0;
}

/* The last run grows no more. */
static void put_last(struct kvt_runs *runs)
{
	if (!runs->length)
		return;
	/* written_length is 0 before the first */
	if (runs->gap == runs->written_gap && runs->length == runs->written_length) {
		runs->repeats++;
		return;
	}
	put_repeats(runs);
	if (runs->length == runs->written_length) {
		put_number(runs, runs->gap << KIND_BITS | VGPU_RUN_SAME_LENGTH);
	} else {
		put_number(runs, runs->gap << KIND_BITS | VGPU_RUN_NEW);
		put_number(runs, runs->length);
	}
	runs->written_gap = runs->gap;
	runs->written_length = runs->length;
}

bool kvt_runs_add(struct kvt_runs *runs, u64 gap, u32 length)
{
	/* this run, and the one before it, are not written down yet */
	if (runs->count && !gap) {
		runs->length += length;
		return true;
	}
	if (gap > MAX_GAP || runs->count == runs->max_count ||
	    runs->capacity - runs->used < 2 * KVT_RUN_MAX_BYTES)
		return false;
	put_last(runs);
	runs->gap = gap;
	runs->length = length;
	runs->count++;
	return true;
}

u32 kvt_runs_end(struct kvt_runs *runs)
{
	put_last(runs);
	put_repeats(runs);
	return runs->used;
}
