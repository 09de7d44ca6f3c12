// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The difference between a page and its snapshot. Many bytes at a time: on a page that changed
 * completely, and on one that did not change at all, this is what a flush spends its time with.
 */
#include "diff.h"

#define LOW_BITS 0x0101010101010101ull
#define HIGH_BITS 0x8080808080808080ull
#define STEP_BYTES 32u

/*
 * Some compilers make a call of each word's load otherwise (GCC 12, with the kernel's checked
 * memcpy), and a flush then takes several times as long.
 */
#define INLINE static inline __attribute__((always_inline))

INLINE u64 load_word(const u8 *from)
{
	u64 word;

	memcpy(&word, from, sizeof(word));
	return word;
}

INLINE u64 difference_at(const struct kvt_diff *diff, u32 at)
{
	return load_word(diff->now + at) ^ load_word(diff->before + at);
}

/* Not 0 if a byte of the word is 0; the lowest bit that is set marks the lowest such byte. */
INLINE u64 zero_bytes(u64 word)
{
	return (word - LOW_BITS) & ~word & HIGH_BITS;
}

/*
 * The lowest byte of the word that is not 0; the word is not 0. Little-endian, as everything here.
 */
INLINE u32 first_byte(u64 word)
{
	return (u32)__builtin_ctzll(word) / 8;
}

/* The first position in [at, end) with different bytes, else `end`. */
static u32 compare_bytes(const struct kvt_diff *diff, u32 at, u32 end)
{
	while (end - at >= STEP_BYTES &&
	       !(difference_at(diff, at) | difference_at(diff, at + 8) |
		 difference_at(diff, at + 16) | difference_at(diff, at + 24)))
		at += STEP_BYTES;
	while (end - at >= sizeof(u64)) {
		u64 difference = difference_at(diff, at);

		if (difference)
			return at + first_byte(difference);
		at += sizeof(u64);
	}
	while (at < end && diff->now[at] == diff->before[at])
		at++;
	return at;
}

/* The same, where only some blocks need a look. */
static u32 compare_blocks(const struct kvt_diff *diff, u32 at, u32 end)
{
	while (at < end) {
		u64 rest = diff->blocks >> (at / KVT_BLOCK_BYTES);
		u32 to, found;

		if (!rest)
			return end;
		if (!(rest & 1))
			at = (at / KVT_BLOCK_BYTES + (u32)__builtin_ctzll(rest)) *
			     KVT_BLOCK_BYTES;
		to = (at / KVT_BLOCK_BYTES + 1) * KVT_BLOCK_BYTES;
		if (to > end)
			to = end;
		if (at >= end)
			return end;
		found = compare_bytes(diff, at, to);
		if (found < to)
			return found;
		at = to;
	}
	return end;
}

/* The first position in [at, end) with different bytes, else `end`. */
static u32 compare_different(const struct kvt_diff *diff, u32 at, u32 end)
{
	if (!diff->before)
		return end;
	if (diff->blocks == KVT_ALL_BLOCKS)
		return compare_bytes(diff, at, end);
	return compare_blocks(diff, at, end);
}

/* The first position in [at, end) with equal bytes, else `end`. */
static u32 compare_equal(const struct kvt_diff *diff, u32 at, u32 end)
{
	if (!diff->before)
		return at;
	while (end - at >= STEP_BYTES &&
	       !(zero_bytes(difference_at(diff, at)) | zero_bytes(difference_at(diff, at + 8)) |
		 zero_bytes(difference_at(diff, at + 16)) |
		 zero_bytes(difference_at(diff, at + 24))))
		at += STEP_BYTES;
	while (end - at >= sizeof(u64)) {
		u64 zero = zero_bytes(difference_at(diff, at));

		if (zero)
			return at + first_byte(zero);
		at += sizeof(u64);
	}
	while (at < end && diff->now[at] != diff->before[at])
		at++;
	return at;
}

static bool in_whole(const struct kvt_diff *diff, u32 at)
{
	return at >= diff->whole.from && at < diff->whole.to;
}

static u32 next_changed(const struct kvt_diff *diff, u32 at)
{
	u32 end = diff->bytes;

	if (in_whole(diff, at))
		return at;
	if (diff->whole.from < diff->whole.to && at < diff->whole.from)
		end = diff->whole.from;
	/* stopped at `whole` or at the end: where it begins everything counts as changed */
	return compare_different(diff, at, end);
}

static u32 next_unchanged(const struct kvt_diff *diff, u32 at)
{
	while (at < diff->bytes) {
		u32 end = diff->bytes;

		if (in_whole(diff, at)) {
			at = diff->whole.to;
			continue;
		}
		if (diff->whole.from < diff->whole.to && at < diff->whole.from)
			end = diff->whole.from;
		at = compare_equal(diff, at, end);
		if (at < end || end == diff->bytes)
			break;
	}
	return at;
}

bool kvt_diff_next(const struct kvt_diff *diff, u32 from, struct kvt_run *run)
{
	u32 at;

	if (from >= diff->bytes)
		return false;
	run->from = next_changed(diff, from);
	if (run->from >= diff->bytes)
		return false;
	at = run->from;
	for (;;) {
		u32 next;

		run->to = next_unchanged(diff, at);
		if (run->to >= diff->bytes)
			return true;
		next = next_changed(diff, run->to);
		if (next >= diff->bytes || next - run->to >= KVT_MERGE_GAP)
			return true;
		at = next;
	}
}
