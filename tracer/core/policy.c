// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The adaptive mode's decisions; policy.h has the idea.
 */
#include "policy.h"

static void cool_down(struct kvt_heat *heat)
{
	heat->stored = false;
	heat->intervals = 0;
	heat->unchanged = 0;
	heat->opened = false;
}

/* What was learned counts only if the page was dirty in the interval before, or is in this one. */
static void begin_interval(struct kvt_heat *heat, u32 interval)
{
	if ((u8)(interval - heat->interval) > 1)
		cool_down(heat);
	heat->interval = (u8)interval;
}

bool kvt_heat_store(struct kvt_heat *heat, struct kvt_habit *habit, u32 interval)
{
	begin_interval(heat, interval);
	/* it was opened before, or most are: many stores are to come again */
	if (heat->intervals || habit->opening)
		return true;
	if (!heat->stored) {
		heat->stored = true;
		habit->singles++;
		return false;
	}
	if (habit->singles) /* not if the interval ended for the range, but not for this page */
		habit->singles--;
	habit->seconds++;
	return true;
}

void kvt_habit_flush(struct kvt_habit *habit)
{
	if (habit->opening)
		habit->opening--;
	else if (habit->seconds && (u64)habit->seconds * KVT_SECOND_STORES >=
					   (u64)habit->singles + habit->seconds)
		habit->opening = KVT_INTERVALS_UNTIL_PROBE - 1;
	habit->singles = 0;
	habit->seconds = 0;
}

void kvt_heat_open(struct kvt_heat *heat, u32 interval)
{
	begin_interval(heat, interval);
	heat->opened = true;
}

bool kvt_heat_flush(struct kvt_heat *heat, bool changed)
{
	if (changed && kvt_heat_stays(heat))
		return true;
	heat->stored = false;
	if (!heat->opened) {
		heat->intervals = 0;
		return false;
	}
	if (changed) {
		heat->unchanged = 0;
		if (heat->intervals < KVT_INTERVALS_UNTIL_HOT)
			heat->intervals++;
	} else if (heat->intervals < KVT_INTERVALS_UNTIL_HOT) {
		heat->intervals = 0;
	} else if (++heat->unchanged == KVT_INTERVALS_UNTIL_COLD) {
		cool_down(heat);
		return false;
	}
	heat->opened = heat->intervals == KVT_INTERVALS_UNTIL_HOT;
	if (heat->opened)
		heat->interval++; /* dirty in the next one too */
	return heat->opened;
}

bool kvt_ahead_follows(const struct kvt_ahead *ahead, u32 index)
{
	return ahead->count && index == ahead->next;
}

void kvt_ahead_stored(struct kvt_ahead *ahead, u32 index)
{
	ahead->next = index + 1;
	ahead->count = 1;
}

u32 kvt_ahead_open(struct kvt_ahead *ahead, u32 index, u32 limit)
{
	u32 count = 1;

	if (kvt_ahead_follows(ahead, index))
		count = ahead->count * 2;
	if (count > KVT_MAX_AHEAD)
		count = KVT_MAX_AHEAD;
	if (count > limit)
		count = limit;
	ahead->next = index + count;
	ahead->count = count;
	return count;
}
