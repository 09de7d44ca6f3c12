/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A TCP connection that a test can hold up, for the link of a replicated GPU
 *
 * Passes bytes on in both directions, to as many connections as come one after
 * the other.
 */

#ifndef BYTE_RELAY_H
#define BYTE_RELAY_H

typedef struct ByteRelay ByteRelay;

/* @to: "127.0.0.1:PORT" */
ByteRelay *byte_relay_new(const char *to);
void byte_relay_free(ByteRelay *relay);

/* Where it listens; valid as long as the relay */
const char *byte_relay_address(ByteRelay *relay);

/* What the side that connected sends from now on stays in the relay's socket. */
void byte_relay_hold(ByteRelay *relay);
void byte_relay_release(ByteRelay *relay);

/* Ends the connection, and lets the next one through. */
void byte_relay_cut(ByteRelay *relay);

#endif
