// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checkpoint-disk: a writable disk in the checkpoints of its VM
 *
 * A block filter above a disk's image. Each host has an image of its own. What
 * the guest writes on the primary goes to the primary's image at once, and into
 * the next checkpoint of the VM, beside the state of the devices. The secondary
 * writes it to its image when it loads that checkpoint. So its disk is at each
 * moment what the VM had at the last checkpoint, exactly as its memory is:
 * nothing of an epoch that was not committed can be in it, there is no second
 * connection that could fail alone, and nothing to be undone at a failover.
 *
 *     -drive if=none,id=disk0,node-name=disk0,driver=checkpoint-disk,
 *     file.driver=raw,file.file.driver=file,file.file.filename=disk.img
 *     -device virtio-blk-pci,drive=disk0
 *
 * Which parts were written is kept in bitmaps; the data is read from the image
 * when the VM is stopped for a checkpoint, which also is right when requests
 * overlap. Each part is in one of these:
 *
 *   missing    the secondary has never got it. At the start that is all of the
 *              disk; some of it goes with each checkpoint that was committed,
 *              and is read before (checkpoint-disk-copy.c)
 *   changed    written since the last checkpoint was taken
 *   sent       in a checkpoint that was taken. A commit forgets it; without one
 *              it is part of the next checkpoint, too
 *   unsure     in a checkpoint that was committed, and perhaps not loaded yet,
 *              or in a copy that went beside the checkpoints
 *   none       the secondary's image has it
 *
 * Without a secondary all but the last is *kept*, with what is written from
 * then on, for one whose image is still as this stream has left it
 * (checkpoint-disk-state.c).
 *
 * What one checkpoint has to bring is bounded: when it gets much, a checkpoint
 * is asked for, and then the guest's writes wait for its commit. They wait
 * without being in the way of a drained section, which lets them go on; so
 * somewhat more can come together, at most what a guest has in flight.
 *
 * Here are the guest's requests and the driver's life; how the parts get into a
 * checkpoint and out of it is in checkpoint-disk-state.c.
 *
 * "/objects/NODE-NAME" says how it stands ("complete": the other side has all
 * of the disk; "failure": why no checkpoint can be taken). Setting "flushing"
 * flushes the image; when that is false again it is through, and
 * "flush-failure" says whether it failed. Requests run in the
 * AioContext of the disk, everything else with the BQL; `lock` guards what both
 * need.
 *
 * Why not block/replication.c: docs/spec/takeover.md, section 6.
 */

#include "qemu/osdep.h"
#include "qemu/lockable.h"
#include "qemu/module.h"
#include "qapi/error.h"
#include "block/block.h"
#include "checkpoint-disk.h"
#include "hw/vmstate-if.h"
#include "migration/colo.h"

typedef struct BDRVCheckpointDisk {
    CheckpointDisk *disk;
} BDRVCheckpointDisk;

static CheckpointDisk *disk_of(BlockDriverState *bs)
{
    return ((BDRVCheckpointDisk *)bs->opaque)->disk;
}

/* ---- requests ------------------------------------------------------------ */

static uint64_t held_bytes(CheckpointDisk *s)
{
    return hbitmap_count(s->changed) + hbitmap_count(s->sent) -
           MIN(s->copied, hbitmap_count(s->sent));
}

/* With the lock: as many as there is room for, or all of a drained section. */
void checkpoint_disk_let_writes_go(CheckpointDisk *s)
{
    while ((!s->primary || s->draining || held_bytes(s) < HELD_BYTES) &&
           qemu_co_enter_next(&s->wait, &s->lock)) {
        /* it takes its room before the next one is looked at */
    }
}

static void mark_changed(CheckpointDisk *s, int64_t offset, int64_t bytes)
{
    int64_t end = MIN(offset + bytes, s->size);
    int64_t first = QEMU_ALIGN_DOWN(offset, PART_BYTES);
    int64_t count = MIN(QEMU_ALIGN_UP(end, PART_BYTES), s->size) - first;

    if (offset < end && s->primary) {
        hbitmap_set(s->changed, first, count);
        hbitmap_reset(s->missing, first, count);
    } else if (offset < end && s->kept) {
        hbitmap_set(s->kept, first, count);
    }
}

/* Before a write: waits while there is too much that is not committed. */
static void coroutine_fn checkpoint_disk_begin(CheckpointDisk *s,
                                               int64_t offset, int64_t bytes)
{
    QEMU_LOCK_GUARD(&s->lock);
    while (s->primary && !s->draining && held_bytes(s) >= HELD_BYTES) {
        qemu_co_queue_wait(&s->wait, &s->lock);
    }
    mark_changed(s, offset, bytes);
    checkpoint_disk_pace_begin(&s->pace, g_get_monotonic_time());
    if (s->primary && !s->asked && held_bytes(s) >= HELD_BYTES / 2) {
        s->asked = true;
        colo_checkpoint_now();
    }
}

/*
 * After it: a checkpoint may have been taken meanwhile, with whatever was in
 * the image. (Not of a guest's write: its VM is stopped when all have ended.)
 */
static void coroutine_fn checkpoint_disk_end(CheckpointDisk *s, int64_t offset,
                                             int64_t bytes)
{
    QEMU_LOCK_GUARD(&s->lock);
    mark_changed(s, offset, bytes);
    checkpoint_disk_pace_end(&s->pace, g_get_monotonic_time());
}

/* Of a request that changes nothing */
static void coroutine_fn checkpoint_disk_count(CheckpointDisk *s, bool ends)
{
    int64_t now_us = g_get_monotonic_time();

    QEMU_LOCK_GUARD(&s->lock);
    if (ends) {
        checkpoint_disk_pace_end(&s->pace, now_us);
    } else {
        checkpoint_disk_pace_begin(&s->pace, now_us);
    }
}

static int coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_preadv(BlockDriverState *bs, int64_t offset, int64_t bytes,
                          QEMUIOVector *qiov, BdrvRequestFlags flags)
{
    int ret;

    checkpoint_disk_count(disk_of(bs), false);
    ret = bdrv_co_preadv(bs->file, offset, bytes, qiov, flags);
    checkpoint_disk_count(disk_of(bs), true);
    return ret;
}

static int coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_pwritev(BlockDriverState *bs, int64_t offset, int64_t bytes,
                           QEMUIOVector *qiov, BdrvRequestFlags flags)
{
    int ret;

    checkpoint_disk_begin(disk_of(bs), offset, bytes);
    ret = bdrv_co_pwritev(bs->file, offset, bytes, qiov, flags);
    checkpoint_disk_end(disk_of(bs), offset, bytes);
    return ret;
}

static int coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_pwrite_zeroes(BlockDriverState *bs, int64_t offset,
                                 int64_t bytes, BdrvRequestFlags flags)
{
    int ret;

    checkpoint_disk_begin(disk_of(bs), offset, bytes);
    ret = bdrv_co_pwrite_zeroes(bs->file, offset, bytes, flags);
    checkpoint_disk_end(disk_of(bs), offset, bytes);
    return ret;
}

static int coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_pdiscard(BlockDriverState *bs, int64_t offset, int64_t bytes)
{
    int ret;

    /* What is there afterwards may be anything: it is read like a write. */
    checkpoint_disk_begin(disk_of(bs), offset, bytes);
    ret = bdrv_co_pdiscard(bs->file, offset, bytes);
    checkpoint_disk_end(disk_of(bs), offset, bytes);
    return ret;
}

static int coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_flush(BlockDriverState *bs)
{
    int ret;

    checkpoint_disk_count(disk_of(bs), false);
    ret = bdrv_co_flush(bs->file->bs);
    checkpoint_disk_count(disk_of(bs), true);
    return ret;
}

static int64_t coroutine_fn GRAPH_RDLOCK
checkpoint_disk_co_getlength(BlockDriverState *bs)
{
    return bdrv_co_getlength(bs->file->bs);
}

static void checkpoint_disk_drain_begin(BlockDriverState *bs)
{
    CheckpointDisk *s = disk_of(bs);

    if (!s) { /* it could not be opened */
        return;
    }
    QEMU_LOCK_GUARD(&s->lock);
    s->draining++;
    checkpoint_disk_let_writes_go(s);
}

static void checkpoint_disk_drain_end(BlockDriverState *bs)
{
    CheckpointDisk *s = disk_of(bs);

    if (!s) {
        return;
    }
    QEMU_LOCK_GUARD(&s->lock);
    s->draining--;
}

/* ---- life ---------------------------------------------------------------- */

static void checkpoint_disk_close(BlockDriverState *bs)
{
    BDRVCheckpointDisk *state = bs->opaque;
    CheckpointDisk *s = state->disk;

    if (s->replication) {
        replication_remove(s->replication);
    }
    vmstate_unregister(VMSTATE_IF(s), &vmstate_checkpoint_disk, s);
    checkpoint_disk_free_state(s);
    timer_free(s->rested);
    s->rested = NULL;
    state->disk = NULL;
    if (OBJECT(s)->parent) {
        object_unparent(OBJECT(s));
    }
    object_unref(OBJECT(s));
}

static int checkpoint_disk_open_file(BlockDriverState *bs, QDict *options,
                                     int flags, Error **errp)
{
    const char *name = bdrv_get_node_name(bs);
    int ret;

    if (!*name || *name == '#') {
        error_setg(errp, "checkpoint-disk needs 'node-name': both hosts know "
                   "the disk by it");
        return -EINVAL;
    }
    if (!(flags & BDRV_O_RDWR)) {
        error_setg(errp, "disk %s is read-only: it needs no checkpoint-disk",
                   name);
        return -EINVAL;
    }
    ret = bdrv_open_file_child(NULL, options, "file", bs, errp);
    if (ret < 0) {
        return ret;
    }
    GRAPH_RDLOCK_GUARD_MAINLOOP();
    bs->supported_write_flags = BDRV_REQ_WRITE_UNCHANGED |
        (BDRV_REQ_FUA & bs->file->bs->supported_write_flags);
    bs->supported_zero_flags = BDRV_REQ_WRITE_UNCHANGED |
        ((BDRV_REQ_FUA | BDRV_REQ_MAY_UNMAP | BDRV_REQ_NO_FALLBACK) &
         bs->file->bs->supported_zero_flags);
    return 0;
}

static int checkpoint_disk_open(BlockDriverState *bs, QDict *options, int flags,
                                Error **errp)
{
    BDRVCheckpointDisk *state = bs->opaque;
    const char *name = bdrv_get_node_name(bs);
    CheckpointDisk *s = CHECKPOINT_DISK(object_new(TYPE_CHECKPOINT_DISK));
    int ret;

    /* Opening its file drains this node, too. */
    s->bs = bs;
    s->rested = timer_new_us(QEMU_CLOCK_REALTIME, checkpoint_disk_rested, s);
    state->disk = s;
    ret = checkpoint_disk_open_file(bs, options, flags, errp);
    if (ret < 0) {
        checkpoint_disk_close(bs);
        return ret;
    }
    if (!object_property_try_add_child(object_get_objects_root(), name,
                                       OBJECT(s), errp)) {
        checkpoint_disk_close(bs);
        return -EINVAL;
    }
    if (vmstate_register_any(VMSTATE_IF(s), &vmstate_checkpoint_disk, s) < 0) {
        error_setg(errp, "disk %s: its state can't be part of the VM's", name);
        checkpoint_disk_close(bs);
        return -EINVAL;
    }
    s->replication = replication_new(s, &checkpoint_disk_ops);
    return 0;
}

/* A secondary writes its image while its guest's device has no use for it. */
static void GRAPH_RDLOCK
checkpoint_disk_child_perm(BlockDriverState *bs, BdrvChild *c,
                           BdrvChildRole role, BlockReopenQueue *reopen_queue,
                           uint64_t perm, uint64_t shared,
                           uint64_t *nperm, uint64_t *nshared)
{
    bdrv_default_perms(bs, c, role, reopen_queue, perm, shared, nperm, nshared);
    if (!(bs->open_flags & BDRV_O_INACTIVE)) {
        *nperm |= BLK_PERM_WRITE;
        /* Nobody else may write: it would be in no checkpoint. */
        *nshared &= ~(BLK_PERM_WRITE | BLK_PERM_RESIZE);
    }
}

static BlockDriver bdrv_checkpoint_disk = {
    .format_name            = TYPE_CHECKPOINT_DISK,
    .instance_size          = sizeof(BDRVCheckpointDisk),
    .is_filter              = true,

    .bdrv_open              = checkpoint_disk_open,
    .bdrv_close             = checkpoint_disk_close,
    .bdrv_child_perm        = checkpoint_disk_child_perm,

    .bdrv_co_getlength      = checkpoint_disk_co_getlength,
    .bdrv_co_preadv         = checkpoint_disk_co_preadv,
    .bdrv_co_pwritev        = checkpoint_disk_co_pwritev,
    .bdrv_co_pwrite_zeroes  = checkpoint_disk_co_pwrite_zeroes,
    .bdrv_co_pdiscard       = checkpoint_disk_co_pdiscard,
    .bdrv_co_flush          = checkpoint_disk_co_flush,

    .bdrv_drain_begin       = checkpoint_disk_drain_begin,
    .bdrv_drain_end         = checkpoint_disk_drain_end,
};

static char *checkpoint_disk_get_id(VMStateIf *obj)
{
    return g_strdup(bdrv_get_node_name(CHECKPOINT_DISK(obj)->bs));
}

static void checkpoint_disk_init(Object *obj)
{
    CheckpointDisk *s = CHECKPOINT_DISK(obj);

    qemu_mutex_init(&s->lock);
    qemu_co_queue_init(&s->wait);
    object_property_add_uint64_ptr(obj, "missing-bytes", &s->missing_bytes,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "checkpoint-bytes",
                                   &s->checkpoint_bytes, OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "ahead-bytes", &s->ahead_bytes,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "copied-bytes", &s->copied_bytes,
                                   OBJ_PROP_FLAG_READ);
}

static void checkpoint_disk_finalize(Object *obj)
{
    qemu_mutex_destroy(&CHECKPOINT_DISK(obj)->lock);
}

static bool checkpoint_disk_get_complete(Object *obj, Error **errp)
{
    return CHECKPOINT_DISK(obj)->complete;
}

static char *checkpoint_disk_get_failure(Object *obj, Error **errp)
{
    return g_strdup(CHECKPOINT_DISK(obj)->failure ?: "");
}

static bool checkpoint_disk_get_flushing(Object *obj, Error **errp)
{
    return qatomic_read(&CHECKPOINT_DISK(obj)->flushing) != 0;
}

static void checkpoint_disk_set_flushing(Object *obj, bool value, Error **errp)
{
    CheckpointDisk *s = CHECKPOINT_DISK(obj);

    if (value) {
        qatomic_set(&s->flush_error, 0);
        checkpoint_disk_flush(s);
    }
}

static char *checkpoint_disk_get_flush_failure(Object *obj, Error **errp)
{
    int ret = qatomic_read(&CHECKPOINT_DISK(obj)->flush_error);

    return g_strdup(ret ? strerror(-ret) : "");
}

/*
 * "replica": of the secondary that comes next, its supervisor's name for what
 * this primary is about to leave in its image; it takes copies beside
 * checkpoints. "replica-base": the name of what is in it now.
 */
static char *checkpoint_disk_get_replica(Object *obj, Error **errp)
{
    return g_strdup(CHECKPOINT_DISK(obj)->replica ?: "");
}

static void checkpoint_disk_set_replica(Object *obj, const char *value,
                                        Error **errp)
{
    g_free(CHECKPOINT_DISK(obj)->replica);
    CHECKPOINT_DISK(obj)->replica = *value ? g_strdup(value) : NULL;
}

static char *checkpoint_disk_get_replica_base(Object *obj, Error **errp)
{
    return g_strdup(CHECKPOINT_DISK(obj)->replica_base ?: "");
}

static void checkpoint_disk_set_replica_base(Object *obj, const char *value,
                                             Error **errp)
{
    g_free(CHECKPOINT_DISK(obj)->replica_base);
    CHECKPOINT_DISK(obj)->replica_base = *value ? g_strdup(value) : NULL;
}

static void checkpoint_disk_class_init(ObjectClass *klass, void *data)
{
    VMSTATE_IF_CLASS(klass)->get_id = checkpoint_disk_get_id;
    object_class_property_add_bool(klass, "complete",
                                   checkpoint_disk_get_complete, NULL);
    object_class_property_add_str(klass, "failure",
                                  checkpoint_disk_get_failure, NULL);
    object_class_property_add_bool(klass, "flushing",
                                   checkpoint_disk_get_flushing,
                                   checkpoint_disk_set_flushing);
    object_class_property_add_str(klass, "flush-failure",
                                  checkpoint_disk_get_flush_failure, NULL);
    object_class_property_add_str(klass, "replica", checkpoint_disk_get_replica,
                                  checkpoint_disk_set_replica);
    object_class_property_add_str(klass, "replica-base",
                                  checkpoint_disk_get_replica_base,
                                  checkpoint_disk_set_replica_base);
}

static const TypeInfo checkpoint_disk_types[] = {
    {
        .name = TYPE_CHECKPOINT_DISK,
        .parent = TYPE_OBJECT,
        .instance_size = sizeof(CheckpointDisk),
        .instance_init = checkpoint_disk_init,
        .instance_finalize = checkpoint_disk_finalize,
        .class_init = checkpoint_disk_class_init,
        .interfaces = (InterfaceInfo[]) {
            { TYPE_VMSTATE_IF },
            { }
        },
    },
};

DEFINE_TYPES(checkpoint_disk_types)

static void bdrv_checkpoint_disk_init(void)
{
    bdrv_register(&bdrv_checkpoint_disk);
}

block_init(bdrv_checkpoint_disk_init);
