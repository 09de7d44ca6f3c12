// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages for shadows. A fault takes one for each page that it opens, so they are not asked from the
 * kernel (which clears them first) each time: what one interval needed, the next one finds here. The
 * trace's lock is held.
 */
#include <linux/gfp.h>
#include <linux/minmax.h>

#include "trace.h"

u8 *kvt_shadow_take(struct kvt_shadows *shadows)
{
	void *shadow = shadows->spare;

	if (shadow) {
		shadows->spare = *(void **)shadow;
		shadows->spare_count--;
	} else {
		shadow = (void *)__get_free_page(GFP_KERNEL_ACCOUNT);
	}
	if (shadow)
		shadows->peak = max(shadows->peak, ++shadows->used);
	return shadow;
}

/* NULL is none. */
void kvt_shadow_return(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!shadow)
		return;
	*(void **)shadow = shadows->spare;
	shadows->spare = shadow;
	shadows->spare_count++;
	shadows->used--;
}

static void keep_spare(struct kvt_shadows *shadows, u32 count)
{
	while (shadows->spare_count > count) {
		void *shadow = shadows->spare;

		shadows->spare = *(void **)shadow;
		shadows->spare_count--;
		free_page((unsigned long)shadow);
	}
}

/* An interval is over. */
void kvt_shadows_flush(struct kvt_shadows *shadows)
{
	u32 wanted = max(shadows->peak, shadows->last_peak);

	keep_spare(shadows, wanted - min(wanted, shadows->used));
	shadows->last_peak = shadows->peak;
	shadows->peak = shadows->used;
	shadows->idle = 0;
}

/* A flush found nothing dirty. */
void kvt_shadows_idle(struct kvt_shadows *shadows)
{
	if (++shadows->idle < KVT_KEEP_SPARE_FLUSHES)
		return;
	keep_spare(shadows, 0);
	shadows->last_peak = 0;
}

/* The trace ends, and no page has a shadow any more. */
void kvt_shadows_free(struct kvt_shadows *shadows)
{
	keep_spare(shadows, 0);
}
