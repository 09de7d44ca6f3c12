/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Taking and giving back pages for snapshots (snapshot.c): done for each page of a large flush, so
 * without calls.
 */
#ifndef KVT_SHADOW_H
#define KVT_SHADOW_H

#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/trace.h"

static inline u8 *kvt_snapshot_take(struct kvt_snapshots *snapshots)
{
	u8 *snapshot;

	if (!snapshots->spare_count && !kvt_snapshots_fill(snapshots))
		return NULL;
	snapshot = snapshots->spare[snapshots->first];
	if (++snapshots->first == snapshots->max_spare)
		snapshots->first = 0;
	snapshots->spare_count--;
	snapshots->peak = max(snapshots->peak, ++snapshots->used);
	return snapshot;
}

u32 kvt_snapshots_take(struct kvt_snapshots *snapshots, u8 **pages, u32 count);
void kvt_snapshots_return(struct kvt_snapshots *snapshots, u8 *const *pages, u32 count);

/* There is room. */
static inline void kvt_snapshot_put_spare(struct kvt_snapshots *snapshots, u8 *snapshot)
{
	u32 place = snapshots->first + snapshots->spare_count++;

	if (place >= snapshots->max_spare)
		place -= snapshots->max_spare;
	snapshots->spare[place] = snapshot;
}

static inline bool kvt_snapshot_is_lent(const u8 *snapshot)
{
	return page_count(virt_to_page(snapshot)) > 1;
}

/* NULL is none. One that is lent comes back when the device is through with it. */
static inline void kvt_snapshot_return(struct kvt_snapshots *snapshots, u8 *snapshot)
{
	if (!snapshot)
		return;
	snapshots->used--;
	if (kvt_snapshot_is_lent(snapshot) || snapshots->spare_count == snapshots->max_spare)
		put_page(virt_to_page(snapshot));
	else
		kvt_snapshot_put_spare(snapshots, snapshot);
}

#endif
