// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: a primary, or a standby
 *
 * Everything about replication is the library's. Here: what its configuration
 * is, how the device obeys it (requests wait in the ring while the log is
 * full; a standby is dispatched whether its VM runs or not), and what people
 * can ask and tell through QOM:
 *
 *   replicate-to        also at run time: names the standby of a running VM
 *                       (once; the device needs replicable=on)
 *   replication         how it stands
 *   replication-digest  write: compare GPU memory with the standby's now; on:
 *                       all of it, off: what was written since the last time
 *   failure             with hold-failures=on: the GPU failed, and the guest is
 *                       not told while a standby can go on without it
 *   report-failures     write: tell it, and go on
 *
 * It also refuses migrations of the VM that are no checkpoints for a standby.
 */
#include "qemu/osdep.h"

#include "block/aio-wait.h"
#include "migration/misc.h"
#include "migration/options.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "qemu/uuid.h"
#include "system/system.h"
#include "virtio-vgpu.h"
#include "trace.h"

/* ---- migrations (main) -------------------------------------------------- */

/* A migration that must fail does so before it costs anything. */
static int virtio_vgpu_migration_event(NotifierWithReturn *notifier,
                                       MigrationEvent *event, Error **errp)
{
    VirtIOVGPU *s = container_of(notifier, VirtIOVGPU, migration_notifier);
    kagemusha_replication_status status = { .struct_bytes = sizeof(status) };
    const char *why = "replicate-to is empty";

    if (event->type != MIG_EVENT_PRECOPY_SETUP) {
        return 0;
    }
    kagemusha_device_get_replication_status(s->device, &status);
    if (*status.degraded) {
        why = status.degraded;
    }
    if (s->standby) {
        error_setg(errp, "virtio-vgpu %s: a standby can't be migrated",
                   s->name);
    } else if (!migrate_colo()) {
        error_setg(errp, "virtio-vgpu %s: the state of a GPU can't be migrated,"
                   " except to a standby (capability x-colo)", s->name);
    } else if (status.state != KAGEMUSHA_REPLICATION_PROTECTING) {
        error_setg(errp, "virtio-vgpu %s: no standby has a complete copy of the"
                   " GPU's state yet: %s", s->name, why);
    } else {
        return 0;
    }
    return -EINVAL;
}

void virtio_vgpu_watch_migrations(VirtIOVGPU *s)
{
    migration_add_notifier(&s->migration_notifier,
                           virtio_vgpu_migration_event);
}

/* ---- configuration (main, at realize) ---------------------------------- */

/* Library callback, in the IOThread: the log has room again. */
static void virtio_vgpu_room(void *opaque)
{
    VirtIOVGPU *s = opaque;

    trace_virtio_vgpu_room(s);
    qemu_bh_schedule(s->kick_bh);
}

void virtio_vgpu_configure_replication(VirtIOVGPU *s)
{
    if (!s->vm_id && qemu_uuid_set) {
        s->vm_id = qemu_uuid_unparse_strdup(&qemu_uuid);
    }
    s->config.vm_id = s->vm_id;
    s->config.replicate_to = s->replicate_to;
    s->config.standby_listen = s->standby_listen;
    s->config.tls_directory = s->tls_dir;
    s->config.replicable = s->replicable;
    s->config.compression = s->compression;
    s->config.differences = s->ship_differences ? KAGEMUSHA_DIFFERENCES_SHIP
                                                : KAGEMUSHA_DIFFERENCES_REPAIR;
    s->config.ship_kernels = s->ship_kernels;
    s->config.callbacks.room = virtio_vgpu_room;
    s->config.callbacks.epoch_wanted = virtio_vgpu_epoch_wanted;
    s->standby = s->standby_listen && *s->standby_listen;
    s->replicated = s->standby || s->replicable ||
                    (s->replicate_to && *s->replicate_to);
}

/* ---- a standby's IOThread ---------------------------------------------- */

static void virtio_vgpu_bare_dispatch(void *opaque)
{
    VirtIOVGPU *s = opaque;

    kagemusha_device_dispatch(s->device);
}

static void virtio_vgpu_attach_standby_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    aio_set_fd_handler(s->ctx, s->poll_fd, virtio_vgpu_bare_dispatch, NULL,
                       NULL, NULL, s);
}

static void virtio_vgpu_detach_standby_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    aio_set_fd_handler(s->ctx, s->poll_fd, NULL, NULL, NULL, NULL, NULL);
}

/* Main. From here until stop_standby() the library belongs to io. */
void virtio_vgpu_start_standby(VirtIOVGPU *s)
{
    if (s->standby) {
        trace_virtio_vgpu_standby(s,
                                  kagemusha_device_standby_address(s->device));
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_attach_standby_bh, s);
    }
}

void virtio_vgpu_stop_standby(VirtIOVGPU *s)
{
    if (s->standby) {
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_detach_standby_bh, s);
    }
}

/* ---- a primary without a driver (main) ----------------------------------- */

/*
 * Without a driver the device is not started, and yet it may get a standby,
 * whose copy of nothing has to be made like any other. There are no requests
 * then, so nothing can reach the guest. Main's own handlers: unlike those of
 * its AioContext no wait inside of something else runs them.
 */
void virtio_vgpu_serve_without_driver(VirtIOVGPU *s, bool on)
{
    if (s->device && s->replicated && !s->standby) {
        qemu_set_fd_handler(s->poll_fd, on ? virtio_vgpu_bare_dispatch : NULL,
                            NULL, s);
    }
}

/* ---- told through QOM (main) ------------------------------------------- */

typedef struct VirtIOVGPUTold {
    VirtIOVGPU *s;
    const char *address; /* replicate to; NULL: a digest */
    bool everything;
    int result;
    char error[512];
} VirtIOVGPUTold;

/* In whatever thread the library belongs to. */
static void virtio_vgpu_report_bh(void *opaque)
{
    VirtIOVGPUTold *told = opaque;

    if (told->address) {
        told->result = kagemusha_device_replicate_to(told->s->device,
                                                     told->address, told->error,
                                                     sizeof(told->error));
    } else {
        told->result = kagemusha_device_request_digest(told->s->device,
                                                       told->everything);
    }
}

static void virtio_vgpu_report(VirtIOVGPUTold *told)
{
    VirtIOVGPU *s = told->s;

    if (s->started || s->standby) {
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_report_bh, told);
    } else {
        virtio_vgpu_report_bh(told);
    }
}

static char *virtio_vgpu_get_replicate_to(Object *obj, Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    return g_strdup(s->replicate_to ?: "");
}

static void virtio_vgpu_set_replicate_to(Object *obj, const char *value,
                                         Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    if (s->device) {
        VirtIOVGPUTold told = { .s = s, .address = value };

        trace_virtio_vgpu_replicate_to(s, value);
        virtio_vgpu_report(&told);
        if (told.result < 0) {
            error_setg(errp, "virtio-vgpu: replicate-to: %s", told.error);
            return;
        }
    }
    g_free(s->replicate_to);
    s->replicate_to = g_strdup(value);
}

static void virtio_vgpu_set_digest(Object *obj, bool value, Error **errp)
{
    VirtIOVGPUTold told = { .s = VIRTIO_VGPU(obj), .everything = value };

    if (!told.s->device) {
        error_setg(errp, "virtio-vgpu: the device is not realized");
        return;
    }
    virtio_vgpu_report(&told);
    if (told.result < 0) {
        error_setg(errp, "virtio-vgpu: there is no standby with a complete copy"
                   " to compare with");
    }
}

static void virtio_vgpu_report_failures_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    kagemusha_device_report_failures(s->device);
    virtio_vgpu_flush(s);
}

static void virtio_vgpu_set_report_failures(Object *obj, bool value,
                                            Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    if (!s->device || s->standby || !value) {
        return;
    }
    if (s->started) {
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_report_failures_bh, s);
    } else {
        /* a stopped device tells its guest nothing */
        s->report_failures = true;
    }
}

/* ---- asked through QOM (main) ------------------------------------------ */

static const char *const virtio_vgpu_roles[] = {
    [KAGEMUSHA_ROLE_NONE] = "none",
    [KAGEMUSHA_ROLE_PRIMARY] = "primary",
    [KAGEMUSHA_ROLE_STANDBY] = "standby",
};

static const char *const virtio_vgpu_states[] = {
    [KAGEMUSHA_REPLICATION_OFF] = "off",
    [KAGEMUSHA_REPLICATION_DISCONNECTED] = "disconnected",
    [KAGEMUSHA_REPLICATION_GREETING] = "greeting",
    [KAGEMUSHA_REPLICATION_SYNCING] = "syncing",
    [KAGEMUSHA_REPLICATION_PROTECTING] = "protecting",
    [KAGEMUSHA_REPLICATION_LISTENING] = "listening",
    [KAGEMUSHA_REPLICATION_FOLLOWING] = "following",
    [KAGEMUSHA_REPLICATION_READY] = "ready",
    [KAGEMUSHA_REPLICATION_TAKEN_OVER] = "taken-over",
    [KAGEMUSHA_REPLICATION_ENDED] = "ended",
};

static const struct {
    const char *name;
    size_t offset;
} virtio_vgpu_replication_numbers[] = {
#define NUMBER(qmp_name, field) \
    { qmp_name, offsetof(kagemusha_replication_status, field) }
    NUMBER("epoch", epoch),
    NUMBER("committed-epoch", committed_epoch),
    NUMBER("appended", appended),
    NUMBER("sent", sent),
    NUMBER("received", received),
    NUMBER("executed", executed),
    NUMBER("lag-entries", lag_entries),
    NUMBER("lag-bytes", lag_bytes),
    NUMBER("lag-ms", lag_ms),
    NUMBER("sent-bytes", sent_bytes),
    NUMBER("received-bytes", received_bytes),
    NUMBER("digests-compared", digests_compared),
    NUMBER("digests-different", digests_different),
    NUMBER("digests-repaired", digests_repaired),
    NUMBER("memory-shipped", memory_shipped),
    NUMBER("held-bytes", held_bytes),
    NUMBER("registry-bytes", registry_bytes),
    NUMBER("transferred-bytes", transferred_bytes),
    NUMBER("held-back-ns", held_back_ns),
    NUMBER("connections", connections),
    NUMBER("faults", faults),
    NUMBER("round-trip-ms", round_trip_ms),
    NUMBER("compression-saved-bytes", compression_saved_bytes),
    NUMBER("checkpoint-epoch", checkpoint_epoch),
    NUMBER("checkpoint-wait-ns", checkpoint_wait_ns),
    NUMBER("takeovers", takeovers),
    NUMBER("committed-at-ns", committed_at_ns),
    NUMBER("took-over-at-ns", took_over_at_ns),
    NUMBER("first-completion-at-ns", first_completion_at_ns),
    NUMBER("copy-lost", copy_lost),
    NUMBER("behind-ms", behind_ms),
    NUMBER("unexecuted-ms", unexecuted_ms),
    NUMBER("built-packs", built_packs),
    NUMBER("built-bytes", built_bytes),
    NUMBER("built-dropped", built_dropped),
#undef NUMBER
};

static bool virtio_vgpu_visit_text(Visitor *v, const char *name,
                                   const char *text, Error **errp)
{
    char *copy = g_strdup(text);
    bool ok = visit_type_str(v, name, &copy, errp);

    g_free(copy);
    return ok;
}

static bool virtio_vgpu_visit_replication(VirtIOVGPU *s, Visitor *v,
                                          Error **errp)
{
    kagemusha_replication_status status = { .struct_bytes = sizeof(status) };
    const char *address = "";

    if (s->device) {
        kagemusha_device_get_replication_status(s->device, &status);
        address = kagemusha_device_standby_address(s->device);
    }
    assert(status.role < ARRAY_SIZE(virtio_vgpu_roles));
    assert(status.state < ARRAY_SIZE(virtio_vgpu_states));
    if (!virtio_vgpu_visit_text(v, "role", virtio_vgpu_roles[status.role],
                                errp) ||
        !virtio_vgpu_visit_text(v, "state", virtio_vgpu_states[status.state],
                                errp) ||
        !virtio_vgpu_visit_text(v, "degraded", status.degraded, errp) ||
        !virtio_vgpu_visit_text(v, "peer-gpu", status.peer_gpu, errp) ||
        !virtio_vgpu_visit_text(v, "standby-address", address, errp)) {
        return false;
    }
    for (size_t i = 0; i < ARRAY_SIZE(virtio_vgpu_replication_numbers); i++) {
        uint64_t *value = (void *)&status +
                          virtio_vgpu_replication_numbers[i].offset;

        if (!visit_type_uint64(v, virtio_vgpu_replication_numbers[i].name,
                               value, errp)) {
            return false;
        }
    }
    return visit_check_struct(v, errp);
}

static void virtio_vgpu_get_replication(Object *obj, Visitor *v,
                                        const char *name, void *opaque,
                                        Error **errp)
{
    if (!visit_start_struct(v, name, NULL, 0, errp)) {
        return;
    }
    virtio_vgpu_visit_replication(VIRTIO_VGPU(obj), v, errp);
    visit_end_struct(v, NULL);
}

static char *virtio_vgpu_get_failure(Object *obj, Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);
    char text[512] = "";

    if (s->device && kagemusha_device_failure(s->device, text, sizeof(text)) &&
        !*text) {
        g_strlcpy(text, "the GPU failed", sizeof(text));
    }
    return g_strdup(text);
}

static void virtio_vgpu_count_writers_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    s->writers = kagemusha_device_writers(s->device);
}

static void virtio_vgpu_get_writers(Object *obj, Visitor *v, const char *name,
                                    void *opaque, Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);
    uint32_t writers = 0;

    if (s->device) {
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_count_writers_bh, s);
        writers = s->writers;
    }
    visit_type_uint32(v, name, &writers, errp);
}

void virtio_vgpu_replication_class_init(ObjectClass *klass)
{
    object_class_property_add_str(klass, "failure", virtio_vgpu_get_failure,
                                  NULL);
    object_class_property_set_description(klass, "failure",
        "What happened to the GPU, if the guest is not told (hold-failures)");
    object_class_property_add(klass, "writers", "uint32",
                              virtio_vgpu_get_writers, NULL, NULL, NULL);
    object_class_property_set_description(klass, "writers",
        "Workers that were killed, have not ended and may write guest memory");
    object_class_property_add_bool(klass, "report-failures", NULL,
                                   virtio_vgpu_set_report_failures);
    object_class_property_set_description(klass, "report-failures",
        "Write: tell the guest what hold-failures held back");
    object_class_property_add_str(klass, "replicate-to",
                                  virtio_vgpu_get_replicate_to,
                                  virtio_vgpu_set_replicate_to);
    object_class_property_set_description(klass, "replicate-to",
        "The standby: HOST:PORT or unix:PATH");
    object_class_property_add(klass, "replication", "VirtIOVGPUReplication",
                              virtio_vgpu_get_replication, NULL, NULL, NULL);
    object_class_property_set_description(klass, "replication",
        "How the replication to a standby, or from a primary, stands");
    object_class_property_add_bool(klass, "replication-digest", NULL,
                                   virtio_vgpu_set_digest);
    object_class_property_set_description(klass, "replication-digest",
        "Write: compare GPU memory with the standby's (on: all of it)");
}
