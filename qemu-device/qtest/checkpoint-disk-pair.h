/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two QEMUs with a writable disk each, for tests of checkpoint-disk
 *
 * The test writes through qemu-io, as a guest would, and looks into the images.
 * Sides are "first", the primary's, and "second".
 */

#ifndef CHECKPOINT_DISK_PAIR_H
#define CHECKPOINT_DISK_PAIR_H

#include "checkpoint-pair.h"

#define DISK "/objects/d"
#define DISK_BYTES (9 * MiB)    /* more than two checkpoints copy */
#define LARGE_DISK_BYTES (192 * MiB)

/* All of it is @byte; 0: nothing was ever written. Returns its path. */
char *make_image(const char *side, int64_t bytes, int byte);
/* Of a QEMU's command line */
char *disk_options(const char *image);

Pair disk_pair_of(const char *primary, const char *secondary);
/* Whose checkpoints have begun */
Pair disk_pair(int64_t bytes, int first, int second);
void end_disk_pair(Pair *pair);

/* In the image of @side, into which everything goes at once */
bool disk_has(const char *side, uint8_t byte, int64_t at, int64_t bytes);
/* @command: of qemu-io */
void disk_io(QTestState *who, const char *command, uint8_t byte, int64_t at,
             int64_t bytes);
/* The primary's guest writes. */
void disk_write(Pair *pair, uint8_t byte, int64_t at, int64_t bytes);

/* Takes one, and waits until the secondary has loaded it. */
void commit_checkpoint(Pair *pair);
bool disk_is_complete(QTestState *who);
/* Until it is; returns with how many checkpoints. */
unsigned int copy_disk(Pair *pair);

#endif
