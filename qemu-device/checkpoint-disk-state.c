// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checkpoint-disk: its part of a checkpoint
 *
 * On the primary: which ranges a checkpoint brings, and their data. On the
 * secondary: what came is checked and written to the image. Both go through
 * VMState, so that a checkpoint has all of it or there is none.
 *
 * checkpoint-disk-stream.c knows how that is as bytes.
 *
 * All of it with the BQL, while no request of the guest is on its way. The
 * first copy of the disk is read before: checkpoint-disk-copy.c.
 */

#include "qemu/osdep.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/lockable.h"
#include "qemu/memalign.h"
#include "qapi/error.h"
#include "block/aio-wait.h"
#include "block/block.h"
#include "checkpoint-disk.h"
#include "migration/qemu-file-types.h"

/* Reads or writes of an image at a time */
#define AT_A_TIME 32

/* ---- many reads or writes of the image ---------------------------------- */

typedef struct Transfer {
    BlockDriverState *bs;
    GArray *ranges;
    guint next;
    unsigned int running;
    bool write;
    int ret;
} Transfer;

static int coroutine_fn GRAPH_RDLOCK transfer_range(Transfer *t,
                                                    DiskRange *r)
{
    BdrvChild *file = t->bs->file;

    if (!t->write) {
        return r->data && !r->was_read
            ? bdrv_co_pread(file, r->offset, r->bytes, r->data, 0) : 0;
    }
    if (!r->data) {
        return bdrv_co_pwrite_zeroes(file, r->offset, r->bytes,
                                     BDRV_REQ_MAY_UNMAP);
    }
    return bdrv_co_pwrite(file, r->offset, r->bytes, r->data, 0);
}

static void coroutine_fn transfer_worker(void *opaque)
{
    Transfer *t = opaque;
    BlockDriverState *bs = t->bs; /* the last worker's end is that of @t */

    while (t->ret >= 0 && t->next < t->ranges->len) {
        DiskRange *r = &g_array_index(t->ranges, DiskRange, t->next++);
        int ret;

        WITH_GRAPH_RDLOCK_GUARD() {
            ret = transfer_range(t, r);
        }
        if (ret < 0) {
            t->ret = ret;
        }
    }
    qatomic_dec(&t->running);
    bdrv_dec_in_flight(bs);
}

/* Ranges do not overlap, so their order does not matter. */
int checkpoint_disk_transfer(CheckpointDisk *s, GArray *ranges, bool write)
{
    Transfer t = { .bs = s->bs, .ranges = ranges, .write = write };
    unsigned int workers = MIN(ranges->len, AT_A_TIME);

    t.running = workers;
    while (workers--) {
        bdrv_inc_in_flight(s->bs);
        aio_co_enter(bdrv_get_aio_context(s->bs),
                     qemu_coroutine_create(transfer_worker, &t));
    }
    BDRV_POLL_WHILE(s->bs, qatomic_read(&t.running));
    return t.ret;
}

static void forget_range(void *range)
{
    qemu_vfree(((DiskRange *)range)->data);
}

GArray *checkpoint_disk_new_ranges(void)
{
    GArray *ranges = g_array_new(FALSE, FALSE, sizeof(DiskRange));

    g_array_set_clear_func(ranges, forget_range);
    return ranges;
}

/* ---- a checkpoint is taken (primary) ------------------------------------ */

static void checkpoint_disk_forget(CheckpointDisk *s)
{
    g_clear_pointer(&s->ranges, g_array_unref);
}

/* Takes `bytes` of what is to be sent. Returns false without the memory. */
static bool add_range(CheckpointDisk *s, int64_t start, int64_t bytes,
                      Error **errp)
{
    DiskRange range = { .offset = start, .bytes = bytes };

    range.data = qemu_try_blockalign(s->bs, bytes);
    if (!range.data || s->ranges->len == CHECKPOINT_DISK_MAX_RANGES) {
        qemu_vfree(range.data);
        error_setg(errp, "disk %s: no memory for what the guest has written",
                   bdrv_get_node_name(s->bs));
        return false;
    }
    g_array_append_val(s->ranges, range);
    return true;
}

/* All of `sent` */
static bool take_sent(CheckpointDisk *s, Error **errp)
{
    int64_t at = 0, start, bytes;

    while (hbitmap_next_dirty_area(s->sent, at, s->size, DATA_RANGE_BYTES,
                                   &start, &bytes)) {
        if (!add_range(s, start, bytes, errp)) {
            return false;
        }
        at = start + bytes;
    }
    return true;
}

static gint compare_ranges(gconstpointer a, gconstpointer b)
{
    const DiskRange *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void checkpoint_disk_take(CheckpointDisk *s, Error **errp)
{
    bool committed;
    int ret;

    checkpoint_disk_forget(s);
    s->ranges = checkpoint_disk_new_ranges();
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        committed = hbitmap_empty(s->sent);
        hbitmap_merge(s->changed, s->sent, s->sent);
        hbitmap_reset_all(s->changed);
        s->asked = false;
    }
    if (!take_sent(s, errp)) {
        checkpoint_disk_forget(s);
        return;
    }
    /* One that was not committed has enough to bring already. */
    ret = checkpoint_disk_take_ahead(s, s->ranges, committed && !s->beside);
    g_array_sort(s->ranges, compare_ranges);
    s->taken_complete = hbitmap_empty(s->missing) && s->ahead->len == 0;
    s->missing_bytes = hbitmap_count(s->missing) + s->ahead_bytes +
                       s->ahead_zero_bytes;
    if (ret >= 0) {
        ret = checkpoint_disk_transfer(s, s->ranges, false);
    }
    if (ret < 0) {
        error_setg_errno(errp, -ret, "disk %s: what the guest has written can't"
                         " be read", bdrv_get_node_name(s->bs));
        checkpoint_disk_forget(s);
        return;
    }
    s->checkpoint_bytes = 0;
    for (guint i = 0; i < s->ranges->len; i++) {
        DiskRange *r = &g_array_index(s->ranges, DiskRange, i);

        if (r->data && buffer_is_zero(r->data, r->bytes)) {
            qemu_vfree(r->data);
            r->data = NULL;
        }
        s->checkpoint_bytes += r->data ? r->bytes : 0;
    }
}

/* ---- the state in a checkpoint ------------------------------------------- */

static int put_changes(QEMUFile *f, void *opaque, size_t size,
                       const VMStateField *field, JSONWriter *vmdesc)
{
    CheckpointDisk *s = opaque;
    CheckpointDiskHead head = {
        .complete = s->ranges && s->taken_complete,
        .n_ranges = s->ranges ? s->ranges->len : 0,
    };
    uint8_t head_bytes[CHECKPOINT_DISK_HEAD_BYTES];
    int64_t length = bdrv_getlength(s->bs);

    if (length < 0) {
        return length;
    }
    head.size = length;
    checkpoint_disk_write_head(head_bytes, &head);
    qemu_put_buffer(f, head_bytes, sizeof(head_bytes));
    for (uint32_t i = 0; i < head.n_ranges; i++) {
        DiskRange *r = &g_array_index(s->ranges, DiskRange, i);
        CheckpointDiskRange range = {
            .offset = r->offset, .bytes = r->bytes, .data = r->data,
        };
        uint8_t range_bytes[CHECKPOINT_DISK_RANGE_BYTES];

        checkpoint_disk_write_range(range_bytes, &range);
        qemu_put_buffer(f, range_bytes, sizeof(range_bytes));
        if (r->data) {
            qemu_put_buffer(f, r->data, r->bytes);
        }
    }
    checkpoint_disk_forget(s);
    return 0;
}

/* What get_changes() reads a checkpoint from, and into */
typedef struct Incoming {
    QEMUFile *file;
    GArray *ranges;
} Incoming;

static bool get_bytes(void *opaque, void *buffer, size_t bytes)
{
    Incoming *in = opaque;

    return qemu_get_buffer(in->file, buffer, bytes) == bytes &&
           !qemu_file_get_error(in->file);
}

static bool get_range(void *opaque, const CheckpointDiskRange *r,
                      uint8_t **data)
{
    Incoming *in = opaque;
    DiskRange range = { .offset = r->offset, .bytes = r->bytes };

    if (r->data) {
        *data = range.data = qemu_try_memalign(PART_BYTES, r->bytes);
        if (!range.data) {
            return false;
        }
    }
    g_array_append_val(in->ranges, range);
    return true;
}

static int get_changes(QEMUFile *f, void *opaque, size_t size,
                       const VMStateField *field)
{
    CheckpointDisk *s = opaque;
    const char *name = bdrv_get_node_name(s->bs);
    int64_t length = bdrv_getlength(s->bs);
    g_autoptr(GArray) ranges = checkpoint_disk_new_ranges();
    Incoming in = { .file = f, .ranges = ranges };
    const CheckpointDiskSource source = {
        .opaque = &in, .get = get_bytes, .add = get_range,
    };
    CheckpointDiskHead head;
    const char *why = checkpoint_disk_read_head(&source, &head);
    int ret;

    if (!why && (length < 0 || head.size != length)) {
        error_report("disk %s: the primary's has %" PRIu64 " bytes, the image "
                     "here %" PRId64 ": make them of one size", name, head.size,
                     length);
        return -EINVAL;
    }
    /* Beside checkpoints nothing is sent: the images are what they are. */
    if (!why && (head.n_ranges || head.complete) && !s->secondary) {
        why = "it brings something, and this is no checkpoint";
    }
    why = why ?: checkpoint_disk_read_ranges(&source, &head, length);
    if (why) {
        error_report("disk %s: its part of the VM's state is broken: %s", name,
                     why);
        return qemu_file_get_error(f) ?: -EINVAL;
    }
    ret = checkpoint_disk_transfer(s, ranges, true);
    if (ret < 0) {
        error_report("disk %s: a checkpoint can't be written to the image: %s",
                     name, strerror(-ret));
        return ret;
    }
    s->complete = head.complete;
    return 0;
}

static const VMStateInfo vmstate_info_changes = {
    .name = "changes of a disk",
    .get = get_changes,
    .put = put_changes,
};

const VMStateDescription vmstate_checkpoint_disk = {
    .name = TYPE_CHECKPOINT_DISK,
    .version_id = 1,
    .minimum_version_id = 1,
    .fields = (const VMStateField[]) {
        {
            .name = "changes",
            .info = &vmstate_info_changes,
            .flags = VMS_SINGLE,
        },
        VMSTATE_END_OF_LIST()
    },
};

/* ---- what a secondary lacks ---------------------------------------------- */

/*
 * A secondary that was away for a while still has most of the disk. When one is
 * gone, all that its image may lack is kept: what it never got, what was
 * written since the last checkpoint, and what was sent but is perhaps not in
 * its image, because it ended before it had written it. Whatever the guest
 * writes from then on is added.
 *
 * The next one gets only that, if its image is exactly what the former one's
 * stream has left: its supervisor says so by the name of that replica. Nothing
 * of this is on the primary's disk: another QEMU copies everything.
 *
 * All of this with the BQL and the lock.
 */
static void checkpoint_disk_free_bitmaps(CheckpointDisk *s)
{
    g_clear_pointer(&s->missing, hbitmap_free);
    g_clear_pointer(&s->changed, hbitmap_free);
    g_clear_pointer(&s->sent, hbitmap_free);
    g_clear_pointer(&s->unsure, hbitmap_free);
    g_clear_pointer(&s->kept, hbitmap_free);
    g_clear_pointer(&s->ahead, g_array_unref);
}

static void add_parts(HBitmap *bitmap, int64_t offset, int64_t bytes)
{
    if (bytes) {
        hbitmap_set(bitmap, offset, bytes);
    }
}

/* There is no secondary any more, or another one comes. */
static void checkpoint_disk_keep(CheckpointDisk *s)
{
    HBitmap *kept = g_steal_pointer(&s->missing);

    g_clear_pointer(&s->kept_for, g_free);
    if (!s->present) {
        checkpoint_disk_free_bitmaps(s);
        g_clear_pointer(&kept, hbitmap_free);
        return;
    }
    hbitmap_merge(kept, s->changed, kept);
    hbitmap_merge(kept, s->sent, kept);
    hbitmap_merge(kept, s->unsure, kept);
    for (guint i = 0; i < s->ahead->len; i++) {
        DiskRange *r = &g_array_index(s->ahead, DiskRange, i);

        add_parts(kept, r->offset, r->bytes);
    }
    add_parts(kept, s->reading.offset, s->reading.bytes);
    checkpoint_disk_free_bitmaps(s);
    s->kept = kept;
    s->kept_size = s->size;
    s->kept_for = g_steal_pointer(&s->present);
}

/* A secondary comes, whose image has what "replica-base" says. */
static void checkpoint_disk_begin_anew(CheckpointDisk *s, int64_t length)
{
    HBitmap *missing = NULL;

    if (s->primary) {
        checkpoint_disk_keep(s);
    }
    if (s->kept && checkpoint_disk_base_fits(s->kept_for, s->kept_size,
                                             s->replica_base, length)) {
        missing = g_steal_pointer(&s->kept);
    }
    checkpoint_disk_free_bitmaps(s);
    g_clear_pointer(&s->kept_for, g_free);
    g_clear_pointer(&s->replica_base, g_free);
    s->present = g_steal_pointer(&s->replica);
    s->beside = s->present;
    s->size = length;
    s->changed = hbitmap_alloc(length, PART_BITS);
    s->sent = hbitmap_alloc(length, PART_BITS);
    s->unsure = hbitmap_alloc(length, PART_BITS);
    s->missing = missing ?: hbitmap_alloc(length, PART_BITS);
    if (!missing) {
        add_parts(s->missing, 0, length);
    }
    s->missing_bytes = hbitmap_count(s->missing);
    s->copied = 0;
    s->copied_bytes = 0;
    s->ahead = checkpoint_disk_new_ranges();
    s->ahead_bytes = s->ahead_zero_bytes = 0;
    s->ahead_error = 0;
    s->reading.bytes = 0;
    s->rest_until_us = 0;
    s->run++;
    s->asked = false;
    s->primary = true;
}

/*
 * The secondary has received a checkpoint. It has loaded the one before, and
 * written the copies that came between them.
 */
static void checkpoint_disk_commit_sent(CheckpointDisk *s)
{
    HBitmap *loaded = s->unsure;

    if (!hbitmap_empty(loaded)) {
        hbitmap_reset_all(loaded);
    }
    s->unsure = s->sent;
    s->sent = loaded;
    s->copied = 0;
}

/* ---- replication --------------------------------------------------------- */

void checkpoint_disk_free_state(CheckpointDisk *s)
{
    checkpoint_disk_free_bitmaps(s);
    checkpoint_disk_forget(s);
    g_clear_pointer(&s->failure, g_free);
    g_clear_pointer(&s->kept_for, g_free);
    g_clear_pointer(&s->present, g_free);
    g_clear_pointer(&s->replica, g_free);
    g_clear_pointer(&s->replica_base, g_free);
}

static void checkpoint_disk_start(ReplicationState *rs, ReplicationMode mode,
                                  Error **errp)
{
    CheckpointDisk *s = rs->opaque;
    int64_t length = bdrv_getlength(s->bs);

    s->complete = false;
    g_clear_pointer(&s->failure, g_free);
    if (mode == REPLICATION_MODE_SECONDARY) {
        s->secondary = true;
        return;
    }
    if (length < 0) {
        error_setg_errno(errp, -length, "disk %s: its size can't be found out",
                         bdrv_get_node_name(s->bs));
        return;
    }
    WITH_QEMU_LOCK_GUARD(&s->lock) {
        checkpoint_disk_begin_anew(s, length);
    }
    checkpoint_disk_copy_ahead(s);
}

static void checkpoint_disk_checkpoint(ReplicationState *rs, Error **errp)
{
    CheckpointDisk *s = rs->opaque;
    ERRP_GUARD();

    if (s->primary) {
        checkpoint_disk_take(s, errp);
        /* Who looks after the VM has to decide: it may well last. */
        g_free(s->failure);
        s->failure = *errp ? g_strdup(error_get_pretty(*errp)) : NULL;
    }
}

static void checkpoint_disk_get_error(ReplicationState *rs, Error **errp)
{
}

static void checkpoint_disk_commit(ReplicationState *rs)
{
    CheckpointDisk *s = rs->opaque;

    if (s->primary) {
        WITH_QEMU_LOCK_GUARD(&s->lock) {
            checkpoint_disk_commit_sent(s);
            s->complete = s->taken_complete;
            checkpoint_disk_let_writes_go(s);
        }
        checkpoint_disk_copy_ahead(s);
    }
}

static void coroutine_fn checkpoint_disk_flush_entry(void *opaque)
{
    CheckpointDisk *s = opaque;
    BlockDriverState *bs = s->bs;
    int ret;

    WITH_GRAPH_RDLOCK_GUARD() {
        ret = bdrv_co_flush(bs);
    }
    if (ret < 0) {
        error_report("disk %s: what the guest had flushed on the other host "
                     "can't be flushed here: %s", bdrv_get_node_name(bs),
                     strerror(-ret));
        qatomic_set(&s->flush_error, ret);
    }
    qatomic_dec(&s->flushing);
    bdrv_dec_in_flight(bs);
}

/* With the BQL; is not waited for. "flushing" says when it is through. */
void checkpoint_disk_flush(CheckpointDisk *s)
{
    qatomic_inc(&s->flushing);
    bdrv_inc_in_flight(s->bs);
    aio_co_enter(bdrv_get_aio_context(s->bs),
                 qemu_coroutine_create(checkpoint_disk_flush_entry, s));
}

static void checkpoint_disk_stop(ReplicationState *rs, bool failover,
                                 Error **errp)
{
    CheckpointDisk *s = rs->opaque;

    if (s->primary) {
        QEMU_LOCK_GUARD(&s->lock);
        s->primary = false;
        s->complete = false;
        checkpoint_disk_let_writes_go(s);
        checkpoint_disk_keep(s);
    } else if (s->secondary) {
        s->secondary = false;
        if (failover && !s->complete) {
            error_setg(errp, "disk %s: this host never got all of it; what "
                       "this VM reads from it may be anything",
                       bdrv_get_node_name(s->bs));
        }
        s->complete = false;
        if (failover) {
            checkpoint_disk_flush(s); /* what the guest had flushed */
        }
    }
}

ReplicationOps checkpoint_disk_ops = {
    .start = checkpoint_disk_start,
    .checkpoint = checkpoint_disk_checkpoint,
    .get_error = checkpoint_disk_get_error,
    .commit = checkpoint_disk_commit,
    .next_copy = checkpoint_disk_next_copy,
    .load_copy = checkpoint_disk_load_copy,
    .stop = checkpoint_disk_stop,
};
