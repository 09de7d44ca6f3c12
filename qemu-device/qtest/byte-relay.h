/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A connection that a test can hold up, for the link of a replicated GPU
 *
 * Passes bytes on in both directions, to as many connections as come one after
 * the other.
 */

#ifndef BYTE_RELAY_H
#define BYTE_RELAY_H

typedef struct ByteRelay ByteRelay;

/* @to: "unix:PATH"; the relay listens beside it. */
ByteRelay *byte_relay_new(const char *to);
void byte_relay_free(ByteRelay *relay);

/* Where it listens; valid as long as the relay */
const char *byte_relay_address(ByteRelay *relay);

/* What the side that connected sends from now on stays in the relay's socket */
void byte_relay_hold(ByteRelay *relay);
void byte_relay_release(ByteRelay *relay);

/*
 * From now on, in what the side that connected sends: the bytes behind each
 * @pattern become @instead. Both are copied; the pattern begins nowhere in
 * itself. Of the connection that there is, or the next one.
 */
void byte_relay_spoil(ByteRelay *relay, const void *pattern,
                      size_t pattern_bytes, const void *instead, size_t bytes);

/* Ends the connection, and lets the next one through. */
void byte_relay_cut(ByteRelay *relay);

#endif
