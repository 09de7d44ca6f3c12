/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The wire between two QEMUs of a checkpoint test, in the hands of the test
 *
 * A relay listens in the secondary's place and passes on what both sides say.
 * The secondary says only COLO messages of four bytes: the relay knows them
 * one by one, and can keep one back, with all that follow. What the primary
 * says is a stream, of which the relay can keep back everything after some
 * number of bytes. So a test sees the other side of a moment that passes in
 * microseconds for as long as it likes.
 */

#ifndef CHECKPOINT_RELAY_H
#define CHECKPOINT_RELAY_H

#include "qapi/qapi-types-migration.h"

typedef struct Relay Relay;

/* Listens at @listen_path; connects to @connect_path when somebody comes. */
Relay *relay_new(const char *listen_path, const char *connect_path);

/* From now on, keep back each @message of the secondary until relay_pass(). */
void relay_hold(Relay *relay, COLOMessage message);
void relay_hold_none(Relay *relay);
/* Waits until a message is kept back. */
void relay_wait_held(Relay *relay);
/* Lets the one that is kept back go; waits for it if there is none yet. */
void relay_pass(Relay *relay);

/* Passes @bytes more of the primary's stream, then keeps it back. */
void relay_stop_stream(Relay *relay, uint64_t bytes);
/* Waits until bytes are kept back. */
void relay_wait_stopped(Relay *relay);
/* Says something to the secondary in the primary's name. */
void relay_insert(Relay *relay, const uint8_t *bytes, size_t length);
/* Passes on what is kept back, and all that follows. */
void relay_go_on(Relay *relay);
/*
 * With the stream stopped: waits until the rest of a checkpoint is there, gives
 * it to the secondary, and closes the connection to it before it can answer.
 */
void relay_finish_and_cut(Relay *relay);
/* The same, but of what tells the changes of the devices only @bytes go. */
void relay_cut_in_changes(Relay *relay, size_t bytes);

/* Ends the relay and whatever connections it still has. */
void relay_free(Relay *relay);

#endif
