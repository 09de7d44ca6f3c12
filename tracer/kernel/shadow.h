/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Taking and giving back pages for shadows (shadow.c): done for each page of a large flush, so
 * without calls.
 */
#ifndef KVT_SHADOW_H
#define KVT_SHADOW_H

#include <linux/minmax.h>
#include <linux/mm.h>

#include "tracer/kernel/trace.h"

static inline u8 *kvt_shadow_take(struct kvt_shadows *shadows)
{
	u8 *shadow;

	if (!shadows->spare_count && !kvt_shadows_fill(shadows))
		return NULL;
	shadow = shadows->spare[shadows->first];
	if (++shadows->first == shadows->max_spare)
		shadows->first = 0;
	shadows->spare_count--;
	shadows->peak = max(shadows->peak, ++shadows->used);
	return shadow;
}

u32 kvt_shadows_take(struct kvt_shadows *shadows, u8 **pages, u32 count);
void kvt_shadows_return(struct kvt_shadows *shadows, u8 *const *pages, u32 count);

/* There is room. */
static inline void kvt_shadow_put_spare(struct kvt_shadows *shadows, u8 *shadow)
{
	u32 place = shadows->first + shadows->spare_count++;

	shadows->spare[place < shadows->max_spare ? place : place - shadows->max_spare] = shadow;
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
		kvt_shadow_put_spare(shadows, shadow);
}

#endif
