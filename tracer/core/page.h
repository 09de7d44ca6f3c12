/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whole pages: what a flush spends its time with where a program fills memory. All pages are
 * aligned as pages are.
 */
#ifndef TRACER_CORE_PAGE_H
#define TRACER_CORE_PAGE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_PAGE_BYTES 4096u

/*
 * Copies a page that may be stored into meanwhile. Returns true if each byte of the copy differs
 * from the one in `before`. One walk, because each costs as much as the other.
 */
bool kvt_page_copy_differs(u8 *to, const u8 *from, const u8 *before);

/*
 * A look at some bytes: false if the two pages are equal in any of them, so not all of the page
 * differs. It costs next to nothing.
 */
bool kvt_page_may_differ(const u8 *now, const u8 *before);

#ifdef __cplusplus
}
#endif

#endif
