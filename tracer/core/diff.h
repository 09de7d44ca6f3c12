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
 * Equal bytes that are fewer than this do not end a run: they cost less as data than as a run (runs.h).
 * They are sent as they are, which is what the program sees.
 */
#define TRACE_MERGE_GAP 3u

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
};

/* The first run that begins at or behind `from`. Returns false if there is none. */
bool trace_diff_next(const struct trace_diff *diff, u32 from, struct trace_run *run);

#ifdef __cplusplus
}
#endif

#endif
