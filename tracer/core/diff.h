/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What changed in a page since its snapshot was taken, as runs of bytes.
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
#define KVT_MERGE_GAP 3u

/* What is told of a page before it is compared is told for blocks of this size. */
#define KVT_BLOCK_BYTES 64u
#define KVT_ALL_BLOCKS (~0ull)

struct kvt_run {
	u32 from, to;
};

/*
 * `before` is compared with `now` over `bytes` bytes; what lies in `whole` counts as changed
 * whatever it is. Without `before` (NULL) only `whole` does.
 */
struct kvt_diff {
	const u8 *now;
	const u8 *before;
	u32 bytes;
	struct kvt_run whole;
	/*
	 * A bit for each block, the first one's the lowest; one that is not set says that the block
	 * is known to be equal. Anything but KVT_ALL_BLOCKS for a whole page only.
	 */
	u64 blocks;
};

/* The first run that begins at or behind `from`. Returns false if there is none. */
bool kvt_diff_next(const struct kvt_diff *diff, u32 from, struct kvt_run *run);

#ifdef __cplusplus
}
#endif

#endif
