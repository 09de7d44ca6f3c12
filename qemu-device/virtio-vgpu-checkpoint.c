// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: checkpoints of the VM, and taking over
 *
 * COLO checkpoints the VM to a paused secondary. What of that concerns this
 * device, in the order in which it happens (all in the COLO thread or main,
 * with the BQL):
 *
 *   primary                             secondary
 *   the VM stops: stop()
 *   checkpoint: closing the log begins  reset for a snapshot load
 *   pre_save: it is closed; state       post_load: kept as data
 *   the VM runs                         get_error: can it be committed?
 *   ready: the secondary has the log    checkpoint: it is committed
 *   commit: the secondary has it all
 *
 *   the primary is dead                 stop(failover): a take-over is due
 *                                       the VM starts: take_over(), then
 *                                       start() resumes what was in flight
 *
 * The library decides what a state is, whether it fits the log, and how each
 * request ends. The device adds which element of the ring each request in
 * flight was: its token and the head of its descriptors. The request itself is
 * in guest memory, and goes through framing checks and translation again when
 * it is resumed: the guest may have changed it, and addresses are this host's.
 * (QEMU's own way to migrate an element saves its mappings, 49 KiB each, and
 * ends QEMU if they can't be mapped again.)
 *
 * The take-over waits for the start of the VM because a checkpoint that has
 * arrived as a whole may still be loaded after stop(failover).
 */
#include "qemu/osdep.h"

#include "block/aio-wait.h"
#include "hw/qdev-properties.h"
#include "migration/colo.h"
#include "migration/migration.h"
#include "migration/misc.h"
#include "migration/options.h"
#include "migration/vmstate.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "system/runstate.h"
#include "virtio-vgpu.h"
#include "trace.h"

#define TOKEN_SLOTS VIRTIO_VGPU_REQUEST_QUEUE_SIZE

/* ---- calls of the library (main) --------------------------------------- */

typedef struct VirtIOVGPUCall {
    VirtIOVGPU *s;
    int (*function)(VirtIOVGPU *s, char *error, size_t error_bytes);
    int result;
    char error[512];
} VirtIOVGPUCall;

static void virtio_vgpu_call_bh(void *opaque)
{
    VirtIOVGPUCall *call = opaque;

    call->result = call->function(call->s, call->error, sizeof(call->error));
}

/* Calls it in whatever thread the library belongs to, and waits. */
static int virtio_vgpu_call(VirtIOVGPU *s,
                            int (*function)(VirtIOVGPU *s, char *error,
                                            size_t error_bytes),
                            const char *what, Error **errp)
{
    VirtIOVGPUCall call = { .s = s, .function = function };

    if (s->started || s->standby) {
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_call_bh, &call);
    } else {
        virtio_vgpu_call_bh(&call);
    }
    if (call.result < 0) {
        error_setg(errp, "virtio-vgpu %s: %s: %s", s->name, what,
                   *call.error ? call.error : strerror(-call.result));
    }
    return call.result;
}

static int virtio_vgpu_use_checkpoints(VirtIOVGPU *s, char *error,
                                       size_t error_bytes)
{
    return kagemusha_device_use_checkpoints(s->device, 1, error, error_bytes);
}

static int virtio_vgpu_end_checkpoints(VirtIOVGPU *s, char *error,
                                       size_t error_bytes)
{
    return kagemusha_device_use_checkpoints(s->device, 0, error, error_bytes);
}

static int virtio_vgpu_begin_close_epoch(VirtIOVGPU *s, char *error,
                                         size_t error_bytes)
{
    return kagemusha_device_begin_close_epoch(s->device, error, error_bytes);
}

static int virtio_vgpu_close_epoch(VirtIOVGPU *s, char *error,
                                   size_t error_bytes)
{
    return kagemusha_device_close_epoch(s->device, 0, error, error_bytes);
}

static int virtio_vgpu_check_state(VirtIOVGPU *s, char *error,
                                   size_t error_bytes)
{
    return kagemusha_device_check_state(s->device, s->checkpoint.state,
                                        s->checkpoint.state_bytes, error,
                                        error_bytes);
}

static int virtio_vgpu_commit_state(VirtIOVGPU *s, char *error,
                                    size_t error_bytes)
{
    return kagemusha_device_commit_state(s->device, s->checkpoint.state,
                                         s->checkpoint.state_bytes, error,
                                         error_bytes);
}

/* ---- the library while a thread is in it that does not own it ------------ */

/* Any thread. False: the library's device has ended, or is about to. */
static bool virtio_vgpu_hold_library(VirtIOVGPU *s)
{
    bool held;

    qemu_mutex_lock(&s->waiting.lock);
    held = !s->waiting.ended;
    s->waiting.threads += held;
    qemu_mutex_unlock(&s->waiting.lock);
    return held;
}

static void virtio_vgpu_release_library(VirtIOVGPU *s)
{
    qemu_mutex_lock(&s->waiting.lock);
    s->waiting.threads--;
    qemu_cond_broadcast(&s->waiting.none);
    qemu_mutex_unlock(&s->waiting.lock);
}

/* Main: before the library's device is destroyed. */
void virtio_vgpu_end_waits(VirtIOVGPU *s)
{
    kagemusha_device_end_waits(s->device);
    qemu_mutex_lock(&s->waiting.lock);
    s->waiting.ended = true;
    while (s->waiting.threads) {
        qemu_cond_wait(&s->waiting.none, &s->waiting.lock);
    }
    qemu_mutex_unlock(&s->waiting.lock);
}

/* ---- vmstate (main, while stopped) -------------------------------------- */

static int virtio_vgpu_compare_tokens(const void *a, const void *b)
{
    uint64_t x = ((const VirtIOVGPUInFlight *)a)->token;
    uint64_t y = ((const VirtIOVGPUInFlight *)b)->token;

    return x < y ? -1 : x > y;
}

/* A token's high part counts up, so their order is that of submission. */
static void virtio_vgpu_save_in_flight(VirtIOVGPU *s)
{
    VirtIOVGPUCheckpoint *checkpoint = &s->checkpoint;

    checkpoint->n_in_flight = 0;
    for (uint32_t i = 0; i < ARRAY_SIZE(s->in_flight); i++) {
        const VirtIOVGPURequest *req = s->in_flight[i];

        if (req) {
            checkpoint->in_flight[checkpoint->n_in_flight++] =
                (VirtIOVGPUInFlight) {
                    .token = req->token, .head = req->elem.index,
                };
        }
    }
    qsort(checkpoint->in_flight, checkpoint->n_in_flight,
          sizeof(checkpoint->in_flight[0]), virtio_vgpu_compare_tokens);
}

/*
 * What is saved outside of COLO's checkpoints is worth nothing to a GPU, so it
 * is refused, with one exception: COLO begins with an ordinary migration, whose
 * state no secondary ever goes on from.
 */
static bool virtio_vgpu_can_save(VirtIOVGPU *s)
{
    if (s->standby) {
        error_report("virtio-vgpu %s: a standby can't be saved or migrated",
                     s->name);
        return false;
    }
    if (!migrate_colo()) {
        error_report("virtio-vgpu %s: the state of a GPU can't be saved or"
                     " migrated, except to a standby (capability x-colo)",
                     s->name);
        return false;
    }
    if (migration_in_colo_state() && !s->checkpoint.closing) {
        error_report("virtio-vgpu %s: the epoch was not closed", s->name);
        return false;
    }
    return true;
}

static int virtio_vgpu_pre_save(void *opaque)
{
    VirtIOVGPU *s = opaque;
    VirtIOVGPUCheckpoint *checkpoint = &s->checkpoint;
    const void *state = NULL;
    size_t bytes = 0;

    if (!virtio_vgpu_can_save(s)) {
        return -EINVAL;
    }
    if (checkpoint->closing) {
        checkpoint->closing = false;
        virtio_vgpu_call(s, virtio_vgpu_close_epoch,
                         "the epoch can't be closed", &checkpoint->not_closed);
        trace_virtio_vgpu_close_epoch(s, !checkpoint->not_closed);
    }
    assert(!s->started);
    assert(!s->event_elem); /* every entry ends with a flush */

    kagemusha_device_save_state(s->device, &state, &bytes);
    if (bytes > VIRTIO_VGPU_MAX_STATE_BYTES) {
        error_report("virtio-vgpu %s: a state of %zu bytes is too large for a"
                     " checkpoint", s->name, bytes);
        return -E2BIG;
    }
    g_free(checkpoint->state);
    checkpoint->state = g_memdup2(state, bytes);
    checkpoint->state_bytes = bytes;
    checkpoint->generation = s->generation;
    checkpoint->opened = s->opened;
    checkpoint->event_starved = s->event_starved;
    virtio_vgpu_save_in_flight(s);
    trace_virtio_vgpu_save(s, checkpoint->n_in_flight, bytes);
    return 0;
}

static int virtio_vgpu_post_save(void *opaque)
{
    VirtIOVGPU *s = opaque;

    virtio_vgpu_forget_checkpoint(s);
    return 0;
}

/* Also if the standby has a state already: the new one replaces it. */
static int virtio_vgpu_pre_load(void *opaque)
{
    VirtIOVGPU *s = opaque;

    virtio_vgpu_forget_checkpoint(s);
    return 0;
}

static bool virtio_vgpu_valid_count(void *opaque, int version_id)
{
    VirtIOVGPU *s = opaque;

    return s->checkpoint.n_in_flight <= ARRAY_SIZE(s->checkpoint.in_flight);
}

static bool virtio_vgpu_valid_state_bytes(void *opaque, int version_id)
{
    VirtIOVGPU *s = opaque;

    return s->checkpoint.state_bytes <= VIRTIO_VGPU_MAX_STATE_BYTES;
}

/*
 * The primary made it, but what is wrong here would crash us later. Heads need
 * no check: the ring, which the guest can have changed, is looked at when they
 * are used.
 */
static int virtio_vgpu_post_load(void *opaque, int version_id)
{
    VirtIOVGPU *s = opaque;
    VirtIOVGPUCheckpoint *checkpoint = &s->checkpoint;
    DECLARE_BITMAP(slots, TOKEN_SLOTS);
    uint64_t last = 0;

    bitmap_zero(slots, TOKEN_SLOTS);
    /* Tokens are made of it, also if none is in flight: bit 63 is not ours. */
    if (checkpoint->generation > INT64_MAX / TOKEN_SLOTS / 2) {
        error_report("virtio-vgpu %s: a checkpoint with a generation out of"
                     " bounds", s->name);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < checkpoint->n_in_flight; i++) {
        uint64_t token = checkpoint->in_flight[i].token;

        if (token <= last || token / TOKEN_SLOTS > checkpoint->generation ||
            test_and_set_bit(token % TOKEN_SLOTS, slots)) {
            error_report("virtio-vgpu %s: a checkpoint with a wrong list of"
                         " requests in flight", s->name);
            return -EINVAL;
        }
        last = token;
    }
    checkpoint->loaded = true;
    trace_virtio_vgpu_load(s, checkpoint->n_in_flight,
                           checkpoint->state_bytes);
    return 0;
}

static const VMStateDescription vmstate_virtio_vgpu_in_flight = {
    .name = "virtio-vgpu/in-flight",
    .minimum_version_id = 1,
    .version_id = 1,
    .fields = (const VMStateField[]) {
        VMSTATE_UINT64(token, VirtIOVGPUInFlight),
        VMSTATE_UINT32(head, VirtIOVGPUInFlight),
        VMSTATE_END_OF_LIST()
    },
};

#define SAME_LIMIT(field) \
    VMSTATE_UINT32_EQUAL(limits.field, VirtIOVGPU, \
                         "the devices of both hosts have other limits")

const VMStateDescription vmstate_virtio_vgpu = {
    .name = "virtio-vgpu",
    .minimum_version_id = 1,
    .version_id = 1,
    .pre_save = virtio_vgpu_pre_save,
    .post_save = virtio_vgpu_post_save,
    .pre_load = virtio_vgpu_pre_load,
    .post_load = virtio_vgpu_post_load,
    .fields = (const VMStateField[]) {
        VMSTATE_VIRTIO_DEVICE,
        SAME_LIMIT(max_files),
        SAME_LIMIT(max_requests_per_file),
        SAME_LIMIT(max_events_per_file),
        SAME_LIMIT(max_stream_bytes),
        SAME_LIMIT(max_segments),
        VMSTATE_UINT64(checkpoint.generation, VirtIOVGPU),
        VMSTATE_BOOL(checkpoint.opened, VirtIOVGPU),
        VMSTATE_BOOL(checkpoint.event_starved, VirtIOVGPU),
        VMSTATE_UINT32(checkpoint.n_in_flight, VirtIOVGPU),
        VMSTATE_VALIDATE("number of requests in flight",
                         virtio_vgpu_valid_count),
        VMSTATE_STRUCT_VARRAY_UINT32(checkpoint.in_flight, VirtIOVGPU,
                                     checkpoint.n_in_flight, 1,
                                     vmstate_virtio_vgpu_in_flight,
                                     VirtIOVGPUInFlight),
        VMSTATE_UINT32(checkpoint.state_bytes, VirtIOVGPU),
        VMSTATE_VALIDATE("size of the library's state",
                         virtio_vgpu_valid_state_bytes),
        VMSTATE_VBUFFER_ALLOC_UINT32(checkpoint.state, VirtIOVGPU, 1, NULL,
                                     checkpoint.state_bytes),
        VMSTATE_END_OF_LIST()
    },
};

void virtio_vgpu_forget_checkpoint(VirtIOVGPU *s)
{
    g_clear_pointer(&s->checkpoint.state, g_free);
    s->checkpoint.state_bytes = 0;
    s->checkpoint.n_in_flight = 0;
    s->checkpoint.loaded = s->checkpoint.fits = false;
}

/* ---- COLO's hooks (COLO thread or main, with the BQL) -------------------- */

static void virtio_vgpu_checkpoints_start(ReplicationState *rs,
                                          ReplicationMode mode, Error **errp)
{
    VirtIOVGPU *s = rs->opaque;

    if (mode == REPLICATION_MODE_PRIMARY) {
        if (s->standby) {
            error_setg(errp, "virtio-vgpu %s: a standby can't be checkpointed",
                       s->name);
            return;
        }
        virtio_vgpu_call(s, virtio_vgpu_use_checkpoints,
                         "checkpoints can't begin", errp);
    } else if (!s->standby) {
        error_setg(errp, "virtio-vgpu %s: the device is no standby of a GPU"
                   " (standby-listen)", s->name);
    } else if (!migrate_get_current()->colo_passive) {
        error_setg(errp, "virtio-vgpu %s: the VM of a standby must not run"
                   " (-global migration.x-colo-passive=on)", s->name);
    }
}

/*
 * Primary: the VM is stopped. Another thread closes the log while devices are
 * saved; pre_save() waits for it, and ready() says if it could not be.
 * Secondary: it has the state.
 */
static void virtio_vgpu_checkpoint(ReplicationState *rs, Error **errp)
{
    VirtIOVGPU *s = rs->opaque;

    if (!s->standby) {
        g_clear_pointer(&s->checkpoint.not_closed, error_free);
        s->checkpoint.closing =
            virtio_vgpu_call(s, virtio_vgpu_begin_close_epoch,
                             "the epoch can't be closed", errp) >= 0;
        return;
    }
    if (virtio_vgpu_call(s, virtio_vgpu_commit_state,
                         "the checkpoint can't be committed", errp) >= 0) {
        s->checkpoint.fits = true;
        s->checkpoint.committed++;
        trace_virtio_vgpu_commit(s, s->checkpoint.committed);
    }
}

/*
 * Primary, when the VM runs again: until the secondary has the log of the
 * epoch it must not have the checkpoint. Without the BQL, because nobody else
 * has to wait for that. An epoch that is late stays closed; what is in it
 * belongs to the next checkpoint, too.
 */
static void virtio_vgpu_checkpoint_ready(ReplicationState *rs, Error **errp)
{
    VirtIOVGPU *s = rs->opaque;
    char error[512] = "the device is going away";
    int result = -ENODEV;

    if (s->checkpoint.not_closed) {
        error_propagate(errp, g_steal_pointer(&s->checkpoint.not_closed));
        return;
    }
    object_ref(OBJECT(s));
    bql_unlock();
    if (virtio_vgpu_hold_library(s)) {
        result = kagemusha_device_wait_epoch(s->device, s->checkpoint_wait_ms,
                                             error, sizeof(error));
        virtio_vgpu_release_library(s);
    }
    bql_lock();
    trace_virtio_vgpu_ready(s, result);
    if (result < 0) {
        error_setg(errp, "virtio-vgpu %s: the standby does not have the"
                   " commands of this epoch: %s", s->name, error);
    }
    object_unref(OBJECT(s));
}

/* Secondary, before that. */
static void virtio_vgpu_checkpoint_get_error(ReplicationState *rs, Error **errp)
{
    VirtIOVGPU *s = rs->opaque;

    if (s->standby) {
        virtio_vgpu_call(s, virtio_vgpu_check_state,
                         "the checkpoint does not fit", errp);
    }
}

/* Primary: the secondary has everything. The VM may run already. */
static void virtio_vgpu_checkpoint_committed(ReplicationState *rs)
{
    VirtIOVGPU *s = rs->opaque;

    s->checkpoint.committed++;
    trace_virtio_vgpu_commit(s, s->checkpoint.committed);
}

static void virtio_vgpu_checkpoints_stop(ReplicationState *rs, bool failover,
                                         Error **errp)
{
    VirtIOVGPU *s = rs->opaque;

    if (!s->standby) {
        virtio_vgpu_call(s, virtio_vgpu_end_checkpoints,
                         "checkpoints can't end", errp);
    } else if (failover) {
        s->take_over_due = true;
    }
}

static ReplicationOps virtio_vgpu_checkpoint_ops = {
    .start = virtio_vgpu_checkpoints_start,
    .checkpoint = virtio_vgpu_checkpoint,
    .get_error = virtio_vgpu_checkpoint_get_error,
    .ready = virtio_vgpu_checkpoint_ready,
    .commit = virtio_vgpu_checkpoint_committed,
    .stop = virtio_vgpu_checkpoints_stop,
};

/* ---- taking over (main) -------------------------------------------------- */

static int virtio_vgpu_call_take_over(VirtIOVGPU *s, char *error,
                                      size_t error_bytes)
{
    return kagemusha_device_take_over(s->device, error, error_bytes);
}

/* From here on the device is an ordinary one: io has it from start() on. */
static void virtio_vgpu_take_over(VirtIOVGPU *s)
{
    VirtIOVGPUCheckpoint *checkpoint = &s->checkpoint;
    Error *err = NULL;

    virtio_vgpu_stop_standby(s);
    s->standby = false;
    if (checkpoint->loaded && !checkpoint->fits) {
        /*
         * The VM is there already. If it was another object that could not
         * commit the checkpoint, the GPU follows; else the library has to know
         * which files the guest will miss.
         */
        virtio_vgpu_call(s, virtio_vgpu_commit_state, "", NULL);
    }
    if (virtio_vgpu_call(s, virtio_vgpu_call_take_over,
                         "took over without the GPU's state, so what programs"
                         " have on the GPU is lost", &err) < 0) {
        error_report_err(err);
    }
    if (!(VIRTIO_DEVICE(s)->status & VIRTIO_CONFIG_S_DRIVER_OK)) {
        virtio_vgpu_serve_without_driver(s, true);
    }
    trace_virtio_vgpu_take_over(s, !err, checkpoint->n_in_flight);
    if (checkpoint->loaded) {
        s->generation = checkpoint->generation;
        s->opened = checkpoint->opened;
        s->event_starved = checkpoint->event_starved;
        s->resume = true;
    } else {
        /* The VM was reset since: its guest knows of nothing. */
        kagemusha_device_reset(s->device);
    }
}

/* Before virtio's own handler starts the device: it was added earlier. */
static void virtio_vgpu_vm_change(void *opaque, bool running, RunState state)
{
    VirtIOVGPU *s = opaque;

    s->checkpoint.closing = false;
    if (running && s->take_over_due) {
        s->take_over_due = false;
        virtio_vgpu_take_over(s);
        /* This host may have more or fewer processors to spare. */
        virtio_notify_config(VIRTIO_DEVICE(s));
    }
}

/* ---- asking for a checkpoint --------------------------------------------- */

/* Library callback, from any thread. */
void virtio_vgpu_epoch_wanted(void *opaque)
{
    trace_virtio_vgpu_epoch_wanted(opaque);
    colo_checkpoint_now();
}

/* ---- life (main) -------------------------------------------------------- */

/* Before virtio_init(), see virtio_vgpu_vm_change(). */
void virtio_vgpu_checkpoint_init(VirtIOVGPU *s)
{
    if (s->replicated) {
        s->vm_change = qdev_add_vm_change_state_handler(DEVICE(s),
                                                        virtio_vgpu_vm_change,
                                                        s);
        s->replication_hooks = replication_new(s, &virtio_vgpu_checkpoint_ops);
        virtio_vgpu_watch_migrations(s);
    }
}

void virtio_vgpu_checkpoint_cleanup(VirtIOVGPU *s)
{
    if (s->replication_hooks) {
        migration_remove_notifier(&s->migration_notifier);
        replication_remove(s->replication_hooks);
        s->replication_hooks = NULL;
        qemu_del_vm_change_state_handler(s->vm_change);
        s->vm_change = NULL;
    }
    g_clear_pointer(&s->checkpoint.not_closed, error_free);
    virtio_vgpu_forget_checkpoint(s);
}
