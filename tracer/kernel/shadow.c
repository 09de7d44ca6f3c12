// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages for shadows. A fault takes one for each page that it opens, so they are not asked from the
 * kernel (which clears them first) each time: what one interval needed, the next one finds here.
 * The trace's lock is held.
 *
 * A page may also be lent to a request (lend.c): it then has a second reference, and is not written
 * to.
 *
 * They are made many at once, neighbours in memory, and used in turn: what was given back first is
 * taken first. So where a program fills page after page, interval after interval, shadows and
 * copies of neighbours are neighbours, and a request needs a few segments to name hundreds of them.
 */
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/shadow.h"

/* At once: as many as are in use already, but 2^this at most. */
#define KVT_MAX_FILL_ORDER 9u

/* There is no spare page. Returns false if there is no memory for one. */
bool kvt_shadows_fill(struct kvt_shadows *shadows)
{
	const u32 most = min(shadows->used, shadows->max_spare);
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
		kvt_shadow_put_spare(shadows, page_address(pages + i));
	return pages;
}

/* Up to `count` at once, into `pages`. Returns how many. */
u32 kvt_shadows_take(struct kvt_shadows *shadows, u8 **pages, u32 count)
{
	u32 taken = 0;

	while (taken < count && (shadows->spare_count || kvt_shadows_fill(shadows))) {
		u8 *const *from = shadows->spare + shadows->first;
		u32 n = min3(count - taken, shadows->spare_count,
			     shadows->max_spare - shadows->first);
		u32 i;

		for (i = 0; i < n; i++)
			pages[taken + i] = from[i];
		taken += n;
		shadows->spare_count -= n;
		shadows->first += n;
		if (shadows->first == shadows->max_spare)
			shadows->first = 0;
		shadows->used += n;
	}
	shadows->peak = max(shadows->peak, shadows->used);
	return taken;
}

/* As kvt_shadow_return for each of them. */
void kvt_shadows_return(struct kvt_shadows *shadows, u8 *const *pages, u32 count)
{
	u32 i = 0;

	/* so many fit without a look at each */
	if (!shadows->some_lent && count <= shadows->max_spare - shadows->spare_count) {
		u32 place = shadows->first + shadows->spare_count;

		for (; i < count; i++, place++) {
			if (place >= shadows->max_spare)
				place -= shadows->max_spare;
			shadows->spare[place] = pages[i];
		}
		shadows->spare_count += count;
		shadows->used -= count;
	}
	for (; i < count; i++)
		kvt_shadow_return(shadows, pages[i]);
}

static u32 wanted_pages(const struct kvt_shadows *shadows)
{
	return max(shadows->peak, shadows->last_peak);
}

/* A page that was lent. It may be a shadow still. */
void kvt_shadow_back(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!kvt_shadow_is_lent(shadow) && shadows->spare_count < shadows->max_spare &&
	    shadows->used + shadows->spare_count < wanted_pages(shadows))
		kvt_shadow_put_spare(shadows, shadow);
	else
		put_page(virt_to_page(shadow));
}

static void keep_spare(struct kvt_shadows *shadows, u32 count)
{
	while (shadows->spare_count > count) {
		u32 last = shadows->first + --shadows->spare_count;

		if (last >= shadows->max_spare)
			last -= shadows->max_spare;
		free_page((unsigned long)shadows->spare[last]);
	}
}

/* An interval is over. */
void kvt_shadows_flush(struct kvt_shadows *shadows)
{
	u32 wanted = wanted_pages(shadows);

	keep_spare(shadows, wanted - min(wanted, shadows->used));
	shadows->last_peak = shadows->peak;
	shadows->peak = shadows->used;
	shadows->idle = 0;
}

/* A flush found nothing dirty. Returns whether that was so for long. */
bool kvt_shadows_idle(struct kvt_shadows *shadows)
{
	return ++shadows->idle >= KVT_KEEP_SPARE_FLUSHES;
}

/* Nothing is kept for the next interval. */
void kvt_shadows_trim(struct kvt_shadows *shadows)
{
	keep_spare(shadows, 0);
	shadows->last_peak = 0;
}

/* The trace ends, and no page has a shadow any more. */
void kvt_shadows_free(struct kvt_shadows *shadows)
{
	keep_spare(shadows, 0);
	kvfree(shadows->spare);
}
