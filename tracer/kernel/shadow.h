/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Taking and giving back pages for shadows (shadow.c): done for each page of a large flush, so without calls.
 */
#ifndef KVT_SHADOW_H
#define KVT_SHADOW_H

#include <linux/gfp.h>
#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/trace.h"

static inline u8 *kvt_shadow_take(struct kvt_shadows *shadows)
{
	u8 *shadow;

	if (shadows->spare_count)
		shadow = shadows->spare[--shadows->spare_count];
	else
		shadow = (u8 *)__get_free_page(GFP_KERNEL_ACCOUNT);
	if (shadow)
		shadows->peak = max(shadows->peak, ++shadows->used);
	return shadow;
}

static inline bool kvt_shadow_is_lent(const u8 *shadow)
{
	return page_count(virt_to_page(shadow)) > 1;
}

/* NULL is none. One that is lent comes back when the device is through with it. */
static inline void kvt_shadow_return(struct kvt_shadows *shadows, u8 *shadow)
{
	if (!shadow)
		return;
	shadows->used--;
	if (kvt_shadow_is_lent(shadow) || shadows->spare_count == shadows->max_spare)
		put_page(virt_to_page(shadow));
	else
		shadows->spare[shadows->spare_count++] = shadow;
}

#endif
