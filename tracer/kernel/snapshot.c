// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages for snapshots. A fault takes one for each page that it opens, so they are not asked from
 * the kernel (which clears them first) each time: what one interval needed, the next one finds
 * here. The trace's lock is held.
 *
 * A page may also be lent to a request (lend.c): it then has a second reference, and is not written
 * to.
 *
 * They are made many at once, neighbours in memory, and used in turn: what was given back first is
 * taken first. So where a program fills page after page, interval after interval, snapshots and
 * copies of neighbours are neighbours, and a request needs a few segments to name hundreds of them.
 */
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/snapshot.h"

/* At once: as many as are in use already, but 2^this at most. */
#define KVT_MAX_FILL_ORDER 9u

/* There is no spare page. Returns false if there is no memory for one. */
bool kvt_snapshots_fill(struct kvt_snapshots *snapshots)
{
	const u32 most = min(snapshots->used, snapshots->max_spare);
	u32 order = most ? min_t(u32, ilog2(most), KVT_MAX_FILL_ORDER) : 0;
	struct page *pages = NULL;
	u32 i;

	/* if it is there: nothing is moved or written out for it */
	if (order)
		pages = alloc_pages((GFP_KERNEL_ACCOUNT & ~__GFP_DIRECT_RECLAIM) | __GFP_NOWARN,
				    order);
	if (pages) {
		split_page(pages, order); /* each is given back by itself */
	} else {
		order = 0;
		pages = alloc_page(GFP_KERNEL_ACCOUNT);
	}
	for (i = 0; pages && i < 1u << order; i++)
		kvt_snapshot_put_spare(snapshots, page_address(pages + i));
	return pages;
}

/* Up to `count` at once, into `pages`. Returns how many. */
u32 kvt_snapshots_take(struct kvt_snapshots *snapshots, u8 **pages, u32 count)
{
	u32 taken = 0;

	while (taken < count && (snapshots->spare_count || kvt_snapshots_fill(snapshots))) {
		u8 *const *from = snapshots->spare + snapshots->first;
		u32 n = min3(count - taken, snapshots->spare_count,
			     snapshots->max_spare - snapshots->first);
		u32 i;

		for (i = 0; i < n; i++)
			pages[taken + i] = from[i];
		taken += n;
		snapshots->spare_count -= n;
		snapshots->first += n;
		if (snapshots->first == snapshots->max_spare)
			snapshots->first = 0;
		snapshots->used += n;
	}
	snapshots->peak = max(snapshots->peak, snapshots->used);
	return taken;
}

/* As kvt_snapshot_return for each of them. */
void kvt_snapshots_return(struct kvt_snapshots *snapshots, u8 *const *pages, u32 count)
{
	u32 i = 0;

	/* so many fit without a look at each */
	if (!snapshots->some_lent && count <= snapshots->max_spare - snapshots->spare_count) {
		u32 place = snapshots->first + snapshots->spare_count;

		for (; i < count; i++, place++) {
			if (place >= snapshots->max_spare)
				place -= snapshots->max_spare;
			snapshots->spare[place] = pages[i];
		}
		snapshots->spare_count += count;
		snapshots->used -= count;
	}
	for (; i < count; i++)
		kvt_snapshot_return(snapshots, pages[i]);
}

static u32 wanted_pages(const struct kvt_snapshots *snapshots)
{
	return max(snapshots->peak, snapshots->last_peak);
}

/* A page that was lent. It may be a snapshot still. */
void kvt_snapshot_back(struct kvt_snapshots *snapshots, u8 *snapshot)
{
	if (!kvt_snapshot_is_lent(snapshot) && snapshots->spare_count < snapshots->max_spare &&
	    snapshots->used + snapshots->spare_count < wanted_pages(snapshots))
		kvt_snapshot_put_spare(snapshots, snapshot);
	else
		put_page(virt_to_page(snapshot));
}

static void keep_spare(struct kvt_snapshots *snapshots, u32 count)
{
	while (snapshots->spare_count > count) {
		u32 last = snapshots->first + --snapshots->spare_count;

		if (last >= snapshots->max_spare)
			last -= snapshots->max_spare;
		free_page((unsigned long)snapshots->spare[last]);
	}
}

/* An interval is over. */
void kvt_snapshots_flush(struct kvt_snapshots *snapshots)
{
	u32 wanted = wanted_pages(snapshots);

	keep_spare(snapshots, wanted - min(wanted, snapshots->used));
	snapshots->last_peak = snapshots->peak;
	snapshots->peak = snapshots->used;
	snapshots->idle = 0;
}

/* A flush found nothing dirty. Returns whether that was so for long. */
bool kvt_snapshots_idle(struct kvt_snapshots *snapshots)
{
	return ++snapshots->idle >= KVT_KEEP_SPARE_FLUSHES;
}

/* Nothing is kept for the next interval. */
void kvt_snapshots_trim(struct kvt_snapshots *snapshots)
{
	keep_spare(snapshots, 0);
	snapshots->last_peak = 0;
}

/* The trace ends, and no page has a snapshot any more. */
void kvt_snapshots_free(struct kvt_snapshots *snapshots)
{
	keep_spare(snapshots, 0);
	kvfree(snapshots->spare);
}
