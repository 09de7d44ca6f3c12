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

bool kvt_shadow_is_lent(const u8 *shadow)
{
	return page_count(virt_to_page(shadow)) > 1;
}

static void add_spare(struct kvt_shadows *shadows, void *shadow)
{
	*(void **)shadow = shadows->spare;
	shadows->spare = shadow;
	shadows->spare_count++;
}

/* NULL is none. One that is lent comes back when the device is through with it. */
void kvt_shadow_return(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!shadow)
		return;
	shadows->used--;
	if (kvt_shadow_is_lent(shadow))
		put_page(virt_to_page(shadow));
	else
		add_spare(shadows, shadow);
}

static u32 wanted_pages(const struct kvt_shadows *shadows)
{
	return max(shadows->peak, shadows->last_peak);
}

/* A page that was lent. It may be a shadow still. */
void kvt_shadow_back(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!kvt_shadow_is_lent(shadow) &&
	    shadows->used + shadows->spare_count < wanted_pages(shadows))
		add_spare(shadows, shadow);
	else
		put_page(virt_to_page(shadow));
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
	u32 wanted = wanted_pages(shadows);

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
