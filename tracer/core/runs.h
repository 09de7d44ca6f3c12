/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where the bytes of a WRITE_RUNS command go, as the wire format wants it (vgpu_cmd_write_runs in
 * proto/abi/vgpu_protocol.h). A run costs two bytes beside its data where stores are scattered, and
 * nothing where they are regular.
 */
#ifndef TRACER_CORE_RUNS_H
#define TRACER_CORE_RUNS_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a number can need. */
#define KVT_NUMBER_MAX_BYTES 10u
/* What lies beyond can't be written down, and no buffer is so large. */
#define KVT_MAX_OFFSET (1ull << 62)
/*
 * What one run can need in `bytes` at most: its distance, its length, and repetitions of the one
 * before it.
 */
#define KVT_RUN_MAX_BYTES (KVT_NUMBER_MAX_BYTES + 5u + 5u)

struct kvt_runs {
	u8 *bytes; /* the caller's */
	u32 capacity;
	u32 max_count; /* of runs */
	u32 used;
	u32 count;
	/* the last run, which may still grow, and how far it is behind the one before it */
	u64 gap;
	u32 length;
	/* the run before it, as it was written down */
	u64 written_gap;
	u32 written_length;
	u32 repeats; /* runs behind that one, with the same gap and length */
};

/* Writes a number as the wire has it. Returns how many bytes it took. */
u32 kvt_put_number(u8 *to, u64 n);

void kvt_runs_begin(struct kvt_runs *runs, u8 *bytes, u32 capacity, u32 max_count);

/*
 * `length` bytes, `gap` bytes behind the end of those before, or behind the buffer's first byte.
 * Returns false, and changes nothing, if it needs a command of its own: no room, too many runs, or
 * too far away.
 */
bool kvt_runs_add(struct kvt_runs *runs, u64 gap, u32 length);

/* The bytes in use when nothing more is added; nothing may be added then. */
u32 kvt_runs_end(struct kvt_runs *runs);

#ifdef __cplusplus
}
#endif

#endif
