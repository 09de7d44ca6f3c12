/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * checkpoint-disk: what its parts share (checkpoint-disk.c)
 */

#ifndef CHECKPOINT_DISK_H
#define CHECKPOINT_DISK_H

#include "qemu/coroutine.h"
#include "qemu/hbitmap.h"
#include "qemu/thread.h"
#include "qemu/units.h"
#include "block/block_int.h"
#include "block/replication.h"
#include "migration/vmstate.h"
#include "qom/object.h"
#include "checkpoint-disk-stream.h"

#define TYPE_CHECKPOINT_DISK "checkpoint-disk"
OBJECT_DECLARE_SIMPLE_TYPE(CheckpointDisk, CHECKPOINT_DISK)

#define PART_BITS 12
#define PART_BYTES CHECKPOINT_DISK_PART_BYTES
QEMU_BUILD_BUG_ON(PART_BYTES != 1 << PART_BITS);
/* Written and not committed: half of it asks for a checkpoint, all waits. */
#define HELD_BYTES (64 * MiB)
#define DATA_RANGE_BYTES CHECKPOINT_DISK_DATA_BYTES

typedef struct DiskRange {
    int64_t offset;
    int64_t bytes;
    uint8_t *data;              /* none: zeroes */
    bool was_read;              /* else the data is still in the image */
} DiskRange;

typedef struct DiskSpan {
    int64_t offset;
    int64_t bytes;
} DiskSpan;

/* The object is the driver's face: its properties, and a name for its state */
struct CheckpointDisk {
    Object parent_obj;

    BlockDriverState *bs;
    ReplicationState *replication;
    int64_t size;               /* fixed while somebody protects it */

    QemuMutex lock;             /* requests and the BQL's holder: up to wait */
    HBitmap *missing;
    HBitmap *changed;
    HBitmap *sent;
    uint64_t copied;            /* of `sent`: was missing, not written */
    HBitmap *unsure;            /* left here; maybe not yet in its image */
    HBitmap *kept;              /* no secondary: what the last one lacks … */
    int64_t kept_size;
    CoQueue wait;               /* writes, while there is too much */
    unsigned int draining;
    bool primary;
    bool asked;                 /* for a checkpoint, because of much */
    GArray *ahead;              /* read for the next checkpoint */
    uint64_t ahead_bytes;       /* of data in it */
    uint64_t ahead_zero_bytes;
    int ahead_error;            /* < 0: why the next one is none */
    DiskSpan reading; /* is in no bitmap just now */
    bool beside;                /* copies go beside checkpoints */
    CheckpointDiskPace pace;
    int64_t rest_until_us;
    uint64_t copied_bytes;      /* for this secondary: of what was missing */
    unsigned int run;           /* counts the secondaries */

    bool copying;               /* atomic: a coroutine reads ahead … */
    unsigned int copying_run;   /* … for this secondary */

    unsigned int flushing;      /* atomic: flushes that are under way */
    int flush_error;            /* atomic: of the last that failed; or 0 */

    /* With the BQL from here on */
    QEMUTimer *rested;
    char *kept_for;             /* … whose replica was this */
    char *present;              /* the same of the secondary that is there */
    char *replica;              /* of the next one: see "replica" */
    char *replica_base;
    bool secondary;
    bool taken_complete;        /* nothing is missing beside what was taken */
    bool complete;              /* the secondary's image is a whole copy */
    GArray *ranges;             /* of the checkpoint that is being taken */
    char *failure;              /* why that can't be */
    uint64_t checkpoint_bytes;  /* of data in the last one */
    uint64_t missing_bytes;
};

/* checkpoint-disk.c; with the lock: as many writes as there is room for */
void checkpoint_disk_let_writes_go(CheckpointDisk *s);

/* checkpoint-disk-copy.c */
void checkpoint_disk_copy_ahead(CheckpointDisk *s);
int checkpoint_disk_take_ahead(CheckpointDisk *s, GArray *ranges, bool take);
bool checkpoint_disk_next_copy(ReplicationState *rs, ReplicationCopy *copy);
bool checkpoint_disk_load_copy(ReplicationState *rs,
                               const ReplicationCopy *copy, Error **errp);
void checkpoint_disk_rested(void *opaque);

/* checkpoint-disk-state.c */
GArray *checkpoint_disk_new_ranges(void);
int checkpoint_disk_transfer(CheckpointDisk *s, GArray *ranges, bool write);
extern const VMStateDescription vmstate_checkpoint_disk;
extern ReplicationOps checkpoint_disk_ops;
void checkpoint_disk_free_state(CheckpointDisk *s);
void checkpoint_disk_flush(CheckpointDisk *s);

#endif
