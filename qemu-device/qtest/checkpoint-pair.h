/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two QEMUs with continuous checkpoints to a passive secondary, for tests
 *
 * The guest is the boot sector of the migration tests, or none at all: then
 * only the test writes to the guest's memory, and a checkpoint is taken only
 * when the test says so.
 */

#ifndef CHECKPOINT_PAIR_H
#define CHECKPOINT_PAIR_H

#include "libqtest.h"
#include "checkpoint-relay.h"

typedef struct PairOptions {
    const char *machine;    /* "pc" */
    const char *options;    /* of both sides; "-m 128" */
    const char *primary;    /* of one side */
    const char *secondary;
    unsigned int pages;     /* that the guest writes; all */
    bool idle;              /* no guest, no checkpoint by time */
    bool relay;             /* a relay between them */
    bool wait;              /* the primary is not migrated yet */
    bool whole_pages;       /* and not only what has changed of them */
} PairOptions;

typedef struct Pair {
    QTestState *primary;
    QTestState *secondary;
    Relay *relay;
    char *uri;              /* where the primary migrates to */
    unsigned int end;       /* of the memory that the guest writes */
    uint64_t pauses;        /* that were waited for */
} Pair;

/* Where the test's files are; made by pairs_begin() */
extern char *pair_directory;

void pairs_begin(void);
void pairs_end(void);

/* A test that hangs fails, with its name, after a few minutes. */
Pair pair_start(const PairOptions *options);
/* With .wait: starts to migrate, and so the checkpoints. */
void pair_go(Pair *pair, const PairOptions *options);
/* In the place of one that was quit; then pair_go(). */
void pair_new_secondary(Pair *pair, const PairOptions *options);
void pair_end(Pair *pair);

/* Asks for a checkpoint, by setting the interval to what it is. */
void pair_checkpoint(Pair *pair);
/*
 * The same, with a relay, which keeps back what is behind the first @bytes of
 * the primary's stream.
 */
void pair_checkpoint_stopped(Pair *pair, uint64_t bytes);
/* Each checkpoint stops the primary and starts it again: the next @count. */
void pair_wait_pauses(Pair *pair, unsigned int count);
void pair_wait_colo(Pair *pair);
/* A number of the primary's query-colo-status, "checkpoints" */
uint64_t pair_count(Pair *pair, const char *what);

/*
 * The primary's host dies. By SIGSTOP: nothing closes the connection, which is
 * what a secondary sees when a host vanishes. (And libqtest takes a QEMU that
 * was killed for a crash.) Returns when the secondary runs.
 */
void pair_fail_over(Pair *pair);
void lost_heartbeat(QTestState *who);

bool is_running(QTestState *who);
/* What checkpoint-testdev "t" of @who has seen */
char *testdev_log(QTestState *who);
uint64_t testdev_number(QTestState *who, const char *property);
void testdev_set_number(QTestState *who, const char *property, uint64_t value);
void testdev_clear_log(QTestState *who);
/* Waits until the log of @who contains @entry. */
void testdev_wait(QTestState *who, const char *entry);

/*
 * The guest increments one byte of each page, in order, forever: at any instant
 * all pages have the same value up to one edge. What a checkpoint lost, or had
 * of another moment, shows as a second one. With the VM stopped.
 */
void check_ram(Pair *pair, QTestState *who);
/* Fails over, checks the memory, and that the guest goes on. */
void pair_fail_over_and_check(Pair *pair);

#endif
