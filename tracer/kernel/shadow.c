// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages for shadows. A fault takes one for each page that it opens, so they are not asked from the
 * kernel (which clears them first) each time: what one interval needed, the next one finds here. The
 * trace's lock is held.
 *
 * A page may also be lent to a request (lend.c): it then has a second reference, and is not written to.
 */
#include <linux/gfp.h>
#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/shadow.h"

static u32 wanted_pages(const struct kvt_shadows *shadows)
{
	return max(shadows->peak, shadows->last_peak);
}

/* A page that was lent. It may be a shadow still. */
void kvt_shadow_back(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!kvt_shadow_is_lent(shadow) && shadows->spare_count < shadows->max_spare &&
	    shadows->used + shadows->spare_count < wanted_pages(shadows))
		shadows->spare[shadows->spare_count++] = shadow;
	else
		put_page(virt_to_page(shadow));
}

static void keep_spare(struct kvt_shadows *shadows, u32 count)
{
	while (shadows->spare_count > count)
		free_page((unsigned long)shadows->spare[--shadows->spare_count]);
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
