// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Copies of pages; page.h has the idea.
 *
 * With the general registers: a kernel must save those of SSE first, and processors that are
 * emulated take longer with them.
 */
#include "page.h"

#define LOW_BITS 0x0101010101010101ull
#define HIGH_BITS 0x8080808080808080ull
#define PAGE_WORDS (KVT_PAGE_BYTES / 8)

/* A page as words; the program's stores are seen as they are, whatever their type was. */
typedef u64 __attribute__((may_alias)) word;

/* The high bit of a byte is set if the byte, or maybe one below it, is 0. */
static inline __attribute__((always_inline)) u64 zero_bytes(u64 difference)
{
	return (difference - LOW_BITS) & ~difference;
}

bool kvt_page_copy_differs(u8 *to, const u8 *from, const u8 *before)
{
	word *copy = (word *)to;
	/* each is read once: what is compared is what was copied */
	const volatile word *now = (const volatile word *)from;
	const word *old = (const word *)before;
	u64 equal = 0;
	u32 i;

	for (i = 0; i < PAGE_WORDS; i += 4) {
		const u64 a = now[i], b = now[i + 1], c = now[i + 2], d = now[i + 3];

		copy[i] = a;
		copy[i + 1] = b;
		copy[i + 2] = c;
		copy[i + 3] = d;
		equal |= zero_bytes(a ^ old[i]) | zero_bytes(b ^ old[i + 1]) |
			 zero_bytes(c ^ old[i + 2]) | zero_bytes(d ^ old[i + 3]);
	}
	return !(equal & HIGH_BITS);
}

bool kvt_page_may_differ(const u8 *now, const u8 *before)
{
	u32 at;

	/* the first byte, and some on the way to the last one */
	for (at = 0; at < KVT_PAGE_BYTES; at += KVT_PAGE_BYTES / 8 - 1)
		if (now[at] == before[at])
			return false;
	return now[KVT_PAGE_BYTES - 1] != before[KVT_PAGE_BYTES - 1];
}
