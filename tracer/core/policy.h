/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What to do about a store to a closed page, and about a dirty page at a flush, in mode `adaptive`.
 * Pure: counts in, decisions out.
 *
 *	cold: a store is carried out; a second one before the flush opens the page. A fault costs
 *	      about as much as opening and comparing a page, so where many get a second one, the
 *	      first one opens it
 *	warm: opened at once, because it was in the interval before
 *	hot:  dirty for many intervals in a row: stays open, and is compared at each flush without
 *	      a fault; unchanged for some, it cools down
 */
#ifndef TRACER_CORE_POLICY_H
#define TRACER_CORE_POLICY_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Closing and faulting once more costs several comparisons: hot after this many intervals, … */
#define KVT_INTERVALS_UNTIL_HOT 2u
/* … and cold again when it was compared this often for nothing. */
#define KVT_INTERVALS_UNTIL_COLD 4u
/* Pages opened by one fault at most. */
#define KVT_MAX_AHEAD 64u

/*
 * Where at least one in this many pages gets a second store, cold pages too are opened at the first
 * one, …
 */
#define KVT_SECOND_STORES 4u
/* … and every so many intervals they are not, to see whether it is still so. */
#define KVT_INTERVALS_UNTIL_PROBE 16u

/* Of a range: what the stores to its cold pages were like. */
struct kvt_habit {
	u32 singles; /* pages of this interval with one store that was carried out, so far … */
	u32 seconds; /* … and pages that got a second one */
	u8 opening;  /* cold pages are opened at once, for so many intervals more */
};

struct kvt_heat {
	bool stored;  /* one was carried out in this interval */
	u8 intervals; /* in a row in which the page was opened and had changed */
	u8 unchanged; /* in a row, while hot */
	u8 interval;  /* the last one in which it was dirty; enough of it to tell neighbours */
	bool opened;  /* in this interval, or hot */
};

/*
 * A store to the closed page faulted, in this interval (any number that grows by one with each
 * flush). True: open the page; false: carry the store out if possible.
 */
bool kvt_heat_store(struct kvt_heat *heat, struct kvt_habit *habit, u32 interval);

/* An interval of the range ends. */
void kvt_habit_flush(struct kvt_habit *habit);

/* The page is opened, whatever kvt_heat_store said. */
void kvt_heat_open(struct kvt_heat *heat, u32 interval);

/*
 * A flush has compared the page, which had changed, and it is hot: the most frequent case of
 * kvt_heat_flush, without a call. False: it is another case, and nothing was done.
 */
static inline bool kvt_heat_stays(struct kvt_heat *heat)
{
	if (!heat->opened || heat->intervals < KVT_INTERVALS_UNTIL_HOT)
		return false;
	heat->stored = false;
	heat->unchanged = 0;
	heat->interval++; /* dirty in the next one too */
	return true;
}

/* A flush has compared the page. True: it stays open (it was, and is hot). */
bool kvt_heat_flush(struct kvt_heat *heat, bool changed);

/* Pages that are opened one behind the other are opened ahead, twice as many each time. */
struct kvt_ahead {
	u32 next;  /* the page behind those that the last fault opened */
	u32 count; /* of those */
};

/* Whether the store to this page follows on those before it. */
bool kvt_ahead_follows(const struct kvt_ahead *ahead, u32 index);

/* Page `index` is opened: how many from there on, at most `limit` (at least 1). */
u32 kvt_ahead_open(struct kvt_ahead *ahead, u32 index, u32 limit);

/* A store to page `index` was carried out without opening it. */
void kvt_ahead_stored(struct kvt_ahead *ahead, u32 index);

#ifdef __cplusplus
}
#endif

#endif
