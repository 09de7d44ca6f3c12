/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What changed in a page since its shadow was taken, as runs of bytes.
 */
#ifndef TRACER_CORE_DIFF_H
#define TRACER_CORE_DIFF_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Equal bytes that are fewer than this do not end a run: they cost less as data than as a run
 * (runs.h). They are sent as they are, which is what the program sees.
 */
#define TRACE_MERGE_GAP 3u

/* What is told of a page before it is compared is told for blocks of this size. */
#define TRACE_BLOCK_BYTES 64u
#define TRACE_ALL_BLOCKS (~0ull)

struct trace_run {
	u32 from, to;
};

/*
 * `before` is compared with `now` over `bytes` bytes; what lies in `whole` counts as changed
 * whatever it is. Without `before` (NULL) only `whole` does.
 */
struct trace_diff {
	const u8 *now;
	const u8 *before;
	u32 bytes;
	struct trace_run whole;
	/*
	 * A bit for each block, the first one's the lowest; one that is not set says that the block
	 * is known to be equal. Anything but TRACE_ALL_BLOCKS for a whole page only.
	 */
	u64 blocks;
};

/* The first run that begins at or behind `from`. Returns false if there is none. */
bool trace_diff_next(const struct trace_diff *diff, u32 from, struct trace_run *run);

#ifdef __cplusplus
}
#endif

#endif
