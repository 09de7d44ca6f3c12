// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checkpoint-disk: the first copy is read while the guest runs
 *
 * A new secondary gets all of the disk, some of it with each checkpoint. If
 * that were read when the VM stands still, a slow disk would stop the guest for
 * as long as it takes. So a coroutine reads it before: after a commit it begins
 * with what the next checkpoint is to bring, and stops as soon as somebody
 * wants the disk at rest, as a checkpoint does.
 *
 * A secondary that takes them gets copies beside its checkpoints: the COLO
 * thread sends what was read ahead while no checkpoint is due, and the
 * secondary writes it to its image at once. That image is of no use before it
 * is complete, which a checkpoint says, and all copies are in the stream
 * before that one. To another secondary they go in the checkpoints.
 *
 * What the guest writes meanwhile is no harm. A part that it has written since
 * it was read, or while it was, is marked as changed at the checkpoint, which
 * reads it again; what was read ahead of it is thrown away then.
 */

#include "qemu/osdep.h"
#include "qemu/cutils.h"
#include "qemu/lockable.h"
#include "qemu/memalign.h"
#include "qapi/error.h"
#include "block/aio-wait.h"
#include "block/block.h"
#include "checkpoint-disk.h"
#include "migration/colo.h"

/* For one checkpoint: all of it travels with the VM's state */
#define COPY_BYTES (4 * MiB)
#define COPY_ZERO_BYTES (64 * MiB)

/*
 * With the lock. False: enough, nothing is missing, or not now. Whole parts:
 * the end of a disk whose size is none may be among what was read before.
 */
static bool next_range(CheckpointDisk *s, unsigned int run, DiskRange *r)
{
    if (!s->primary || s->run != run || s->draining ||
        g_get_monotonic_time() < s->rest_until_us ||
        s->ahead_bytes >= COPY_BYTES ||
        s->ahead_zero_bytes > COPY_ZERO_BYTES - PART_BYTES ||
        !hbitmap_next_dirty_area(s->missing, 0, s->size,
                                 QEMU_ALIGN_DOWN(COPY_ZERO_BYTES -
                                                 s->ahead_zero_bytes,
                                                 PART_BYTES),
                                 &r->offset, &r->bytes)) {
        return false;
    }
    /* Until it is known to be zeroes. */
    s->reading = (DiskSpan) { r->offset, r->bytes };
    hbitmap_reset(s->missing, r->offset, r->bytes);
    return true;
}

/*
 * Shortens @r to what is all zeroes without a look at it, or to what can be
 * read at once.
 */
static void coroutine_fn GRAPH_RDLOCK
look_at_range(CheckpointDisk *s, DiskRange *r, bool *zeroes)
{
    int64_t known = 0;
    int ret = bdrv_co_block_status_above(s->bs->file->bs, NULL, r->offset,
                                         r->bytes, &known, NULL, NULL);

    *zeroes = ret >= 0 && (ret & BDRV_BLOCK_ZERO) &&
              (known >= PART_BYTES || known == r->bytes);
    if (ret >= 0 && known > 0) {
        if (r->offset + known < s->size) {
            known = *zeroes ? QEMU_ALIGN_DOWN(known, PART_BYTES)
                            : QEMU_ALIGN_UP(known, PART_BYTES);
        }
        r->bytes = MIN(known, r->bytes);
    }
    if (!*zeroes) {
        r->bytes = MIN(r->bytes, DATA_RANGE_BYTES);
    }
}

static int coroutine_fn GRAPH_RDLOCK
read_range(CheckpointDisk *s, DiskRange *r)
{
    bool zeroes;
    int ret;

    look_at_range(s, r, &zeroes);
    if (zeroes) {
        return 0;
    }
    r->data = qemu_try_blockalign(s->bs, r->bytes);
    if (!r->data) {
        return -ENOMEM;
    }
    ret = bdrv_co_pread(s->bs->file, r->offset, r->bytes, r->data, 0);
    if (ret < 0 || buffer_is_zero(r->data, r->bytes)) {
        g_clear_pointer(&r->data, qemu_vfree);
    }
    return ret;
}

/* With the lock: the guest has its share of the disk. */
static void rest(CheckpointDisk *s, int64_t began_us)
{
    int64_t now_us = g_get_monotonic_time();
    int64_t rest_us = checkpoint_disk_pace_rest(&s->pace, now_us - began_us,
                                                now_us);

    if (s->beside && rest_us) {
        s->rest_until_us = now_us + rest_us;
        timer_mod(s->rested, qemu_clock_get_us(QEMU_CLOCK_REALTIME) + rest_us);
    }
}

/* With the lock: what was taken from `missing` and not read goes back. */
static void put_back(CheckpointDisk *s, int64_t start, int64_t end)
{
    int64_t at = start, changed, bytes;

    if (start >= end) {
        return;
    }
    hbitmap_set(s->missing, start, end - start);
    while (hbitmap_next_dirty_area(s->changed, at, end, end - at, &changed,
                                   &bytes)) {
        hbitmap_reset(s->missing, changed, bytes);
        at = changed + bytes;
    }
}

static void end_range(CheckpointDisk *s, unsigned int run, DiskRange *r,
                      int64_t began_us, int ret)
{
    QEMU_LOCK_GUARD(&s->lock);
    if (!s->primary || s->run != run) {
        qemu_vfree(r->data); /* nobody has noted what was written meanwhile */
        return;
    }
    if (ret < 0) {
        put_back(s, s->reading.offset, s->reading.offset + s->reading.bytes);
        s->ahead_error = ret;
    } else {
        put_back(s, r->offset + r->bytes,
                 s->reading.offset + s->reading.bytes);
        g_array_append_val(s->ahead, *r);
        *(r->data ? &s->ahead_bytes : &s->ahead_zero_bytes) += r->bytes;
        rest(s, began_us);
        if (s->beside) {
            colo_copy_waits();
        }
    }
    s->reading.bytes = 0;
}

static bool begin_range(CheckpointDisk *s, unsigned int run, DiskRange *r)
{
    QEMU_LOCK_GUARD(&s->lock);
    *r = (DiskRange) { .was_read = true };
    return !s->ahead_error && next_range(s, run, r);
}

static void coroutine_fn copy_entry(void *opaque)
{
    CheckpointDisk *s = opaque;
    unsigned int run = s->copying_run;
    DiskRange range;

    while (begin_range(s, run, &range)) {
        int64_t began_us = g_get_monotonic_time();
        int ret;

        WITH_GRAPH_RDLOCK_GUARD() {
            ret = read_range(s, &range);
        }
        end_range(s, run, &range, began_us, ret);
    }
    qatomic_set(&s->copying, false);
    bdrv_dec_in_flight(s->bs);
}

/* BQL. After a commit, or at the begin. */
void checkpoint_disk_copy_ahead(CheckpointDisk *s)
{
    if (qatomic_read(&s->copying)) {
        return; /* of an earlier secondary; with the next commit, then */
    }
    s->copying = true;
    s->copying_run = s->run;
    bdrv_inc_in_flight(s->bs);
    aio_co_enter(bdrv_get_aio_context(s->bs),
                 qemu_coroutine_create(copy_entry, s));
}

/* BQL. The copy has rested for as long as the guest needs. */
void checkpoint_disk_rested(void *opaque)
{
    CheckpointDisk *s = opaque;

    if (s->primary) {
        checkpoint_disk_copy_ahead(s);
    }
}

/* With the lock. False: nothing was read that is not sent. */
static bool pop_ahead(CheckpointDisk *s, DiskRange *r)
{
    if (!s->ahead->len) {
        return false;
    }
    *r = g_array_index(s->ahead, DiskRange, 0);
    g_array_index(s->ahead, DiskRange, 0).data = NULL; /* it is the caller's */
    g_array_remove_index(s->ahead, 0);
    *(r->data ? &s->ahead_bytes : &s->ahead_zero_bytes) -= r->bytes;
    hbitmap_set(s->unsure, r->offset, r->bytes);
    s->copied_bytes += r->bytes;
    return true;
}

/* BQL, in the COLO thread, between two checkpoints */
bool checkpoint_disk_next_copy(ReplicationState *rs, ReplicationCopy *copy)
{
    CheckpointDisk *s = rs->opaque;
    const char *name = bdrv_get_node_name(s->bs);
    DiskRange r;
    bool found;

    if (!s->primary || !s->beside) {
        return false;
    }
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        found = pop_ahead(s, &r);
    }
    checkpoint_disk_copy_ahead(s);
    if (found) {
        CheckpointDiskCopy head = {
            .name = name,
            .name_bytes = strlen(name),
            .size = s->size,
            .range = { .offset = r.offset, .bytes = r.bytes, .data = r.data },
        };

        QEMU_BUILD_BUG_ON(CHECKPOINT_DISK_MAX_COPY_BYTES >
                          REPLICATION_COPY_HEAD_BYTES);
        QEMU_BUILD_BUG_ON(CHECKPOINT_DISK_DATA_BYTES >
                          REPLICATION_COPY_DATA_BYTES);
        copy->head_bytes = checkpoint_disk_write_copy(copy->head, &head);
        copy->data = r.data;
        copy->data_bytes = r.data ? r.bytes : 0;
    }
    return found;
}

static void load_copy(CheckpointDisk *s, const CheckpointDiskCopy *head,
                      const ReplicationCopy *copy, Error **errp)
{
    const char *name = bdrv_get_node_name(s->bs);
    int64_t length = bdrv_getlength(s->bs);
    DiskRange range = {
        .offset = head->range.offset,
        .bytes = head->range.bytes,
        .data = head->range.data ? copy->data : NULL,
    };
    g_autoptr(GArray) ranges = g_array_new(FALSE, FALSE, sizeof(DiskRange));
    int ret;

    /* A complete image is what a checkpoint was: nothing else may change it. */
    if (!s->secondary || s->complete || length < 0 || head->size != length) {
        error_setg(errp, "disk %s: the primary sends a copy of a disk of "
                   "%" PRIu64 " bytes, and %s", name, head->size,
                   !s->secondary ? "this is no standby" :
                   s->complete ? "this one is complete" :
                   "this one has another size");
        return;
    }
    g_array_append_val(ranges, range);
    ret = checkpoint_disk_transfer(s, ranges, true);
    if (ret < 0) {
        error_setg(errp, "disk %s: a copy of the primary's can't be written to "
                   "the image: %s", name, strerror(-ret));
    }
}

bool checkpoint_disk_load_copy(ReplicationState *rs,
                               const ReplicationCopy *copy, Error **errp)
{
    CheckpointDisk *s = rs->opaque;
    const char *name = bdrv_get_node_name(s->bs);
    CheckpointDiskCopy head;
    const char *why = checkpoint_disk_read_copy(copy->head, copy->head_bytes,
                                                copy->data_bytes, &head);

    if (why) {
        error_setg(errp, "a copy of a disk is broken: %s", why);
        return true;
    }
    if (strlen(name) != head.name_bytes ||
        memcmp(name, head.name, head.name_bytes)) {
        return false;
    }
    load_copy(s, &head, copy, errp);
    return true;
}

/* What of @r nobody has written since: mostly all of it, else copies of it */
static bool keep_pieces(CheckpointDisk *s, GArray *kept, DiskRange *r)
{
    int64_t at = r->offset, end = r->offset + r->bytes;

    while (at < end) {
        DiskRange piece = { .offset = at, .was_read = true };
        int64_t written = end, bytes = 0;

        hbitmap_next_dirty_area(s->sent, at, end, end - at, &written, &bytes);
        piece.bytes = written - at;
        if (piece.bytes) {
            if (piece.bytes == r->bytes) {
                piece.data = g_steal_pointer(&r->data);
            } else if (r->data) {
                piece.data = qemu_try_blockalign(s->bs, piece.bytes);
                if (!piece.data) {
                    return false;
                }
                memcpy(piece.data, r->data + (at - r->offset), piece.bytes);
            }
            g_array_append_val(kept, piece);
        }
        at = written + bytes;
    }
    return true;
}

/*
 * The VM stands still for a checkpoint, and `sent` has all that was written
 * since the last one. Gives what was read ahead to @ranges if @take; what was
 * written since it was read is not in it any more, in either case.
 */
int checkpoint_disk_take_ahead(CheckpointDisk *s, GArray *ranges, bool take)
{
    g_autoptr(GArray) old = NULL;
    g_autoptr(GArray) kept = checkpoint_disk_new_ranges();
    bool all_kept = true;
    int ret;

    /* A commit that came when the VM stood still already has begun it again. */
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        s->draining++;
    }
    BDRV_POLL_WHILE(s->bs, qatomic_read(&s->copying));

    QEMU_LOCK_GUARD(&s->lock);
    s->draining--;
    old = g_steal_pointer(&s->ahead);
    s->ahead = checkpoint_disk_new_ranges();
    s->ahead_bytes = s->ahead_zero_bytes = 0;
    for (guint i = 0; i < old->len && all_kept; i++) {
        all_kept = keep_pieces(s, kept, &g_array_index(old, DiskRange, i));
    }
    if (!all_kept) {
        for (guint i = 0; i < old->len; i++) {
            DiskRange *r = &g_array_index(old, DiskRange, i);

            hbitmap_set(s->missing, r->offset, r->bytes);
        }
        return -ENOMEM;
    }
    for (guint i = 0; i < kept->len; i++) {
        DiskRange *r = &g_array_index(kept, DiskRange, i);

        if (take) {
            hbitmap_set(s->sent, r->offset, r->bytes);
            s->copied += r->bytes;
            s->copied_bytes += r->bytes;
        } else {
            *(r->data ? &s->ahead_bytes : &s->ahead_zero_bytes) += r->bytes;
        }
        g_array_append_vals(take ? ranges : s->ahead, r, 1);
        r->data = NULL; /* it has another owner now */
    }
    ret = s->ahead_error;
    s->ahead_error = 0;
    return ret;
}
