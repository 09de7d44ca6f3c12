// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: life of the device
 *
 * Properties, realize, start and stop of the IOThread's work, reset, end. The
 * queues are in virtio-vgpu-queue.c, guest memory is in virtio-vgpu-memory.c;
 * threads are described in virtio-vgpu.h.
 *
 * While the VM is stopped the device is stopped: the library is not dispatched,
 * so no completion or record reaches the guest and no interrupt is raised. The
 * GPU may still be at work for requests in flight and write into their buffers;
 * that memory becomes dirty when the library hears of it, after the VM goes on
 * and before the guest is told. A checkpoint says which requests were in flight
 * (virtio-vgpu-checkpoint.c), and the library which of their memory was
 * written; who goes on from it lets the GPU write the rest.
 */
#include "qemu/osdep.h"

#include "block/aio-wait.h"
#include "hw/qdev-properties.h"
#include "hw/virtio/virtio-bus.h"
#include "migration/blocker.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/module.h"
#include "qemu/timer.h"
#include "qemu/units.h"
#include "system/runstate.h"
#include "system/system.h"
#include "virtio-vgpu.h"
#include "proto/abi/vgpu_page_copy.h"
#include "trace.h"

/* ---- start and stop (main) --------------------------------------------- */

/* In the IOThread, with the gate. */
static void virtio_vgpu_listen(VirtIOVGPU *s)
{
    if (s->report_failures) {
        s->report_failures = false;
        kagemusha_device_report_failures(s->device);
        virtio_vgpu_flush(s);
    }
    s->deaf = false;
    if (!s->standby) {
        aio_set_fd_handler(s->ctx, s->poll_fd, virtio_vgpu_dispatch, NULL, NULL,
                           NULL, s);
    }
}

/* In the IOThread. */
static void virtio_vgpu_start_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    WITH_QEMU_LOCK_GUARD(&s->gate) {
        s->running = true;
        if (s->resume) {
            s->resume = false;
            virtio_vgpu_resume_requests(s);
            virtio_vgpu_flush(s);
        }
        virtio_vgpu_listen(s);
    }
    if (s->host_notifiers) {
        /*
         * Kicks both queues. Without polling: the library's descriptor can't
         * be polled, and one such descriptor turns polling off for all.
         */
        virtio_queue_aio_attach_host_notifier_no_poll(s->request_vq, s->ctx);
        virtio_queue_aio_attach_host_notifier_no_poll(s->event_vq, s->ctx);
    } else {
        virtio_vgpu_kick_bh(s);
    }
}

/* In the IOThread. When it returns, nothing of this device runs there. */
static void virtio_vgpu_stop_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    if (s->host_notifiers) {
        virtio_queue_aio_detach_host_notifier(s->request_vq, s->ctx);
        virtio_queue_aio_detach_host_notifier(s->event_vq, s->ctx);
    }
    if (!s->standby) {
        aio_set_fd_handler(s->ctx, s->poll_fd, NULL, NULL, NULL, NULL, NULL);
    }
    WITH_QEMU_LOCK_GUARD(&s->gate) {
        s->running = false;
    }
}

static bool virtio_vgpu_set_host_notifiers(VirtIOVGPU *s, bool assign)
{
    VirtioBusState *bus = VIRTIO_BUS(qdev_get_parent_bus(DEVICE(s)));
    int set = 0;

    /* One transaction: it updates the ioeventfds of the whole machine. */
    memory_region_transaction_begin();
    if (assign) {
        while (set < VGPU_QUEUE_COUNT &&
               virtio_bus_set_host_notifier(bus, set, true) == 0) {
            set++;
        }
        if (set == VGPU_QUEUE_COUNT) {
            memory_region_transaction_commit();
            return true;
        }
    } else {
        set = VGPU_QUEUE_COUNT;
    }
    for (int i = 0; i < set; i++) {
        virtio_bus_set_host_notifier(bus, i, false);
    }
    /* The commit needs the ioeventfds still open. */
    memory_region_transaction_commit();
    for (int i = 0; i < set; i++) {
        virtio_bus_cleanup_host_notifier(bus, i);
    }
    return false;
}

static int virtio_vgpu_start(VirtIOVGPU *s, bool ioeventfd)
{
    BusState *qbus = qdev_get_parent_bus(DEVICE(s));
    VirtioBusClass *k = VIRTIO_BUS_GET_CLASS(qbus);
    int r;

    /*
     * Without a device QEMU ends: main has left its lock, and a migration
     * thread that was waiting for it starts the VM once more.
     */
    if (s->started || !s->device) {
        return 0;
    }
    r = k->set_guest_notifiers(qbus->parent, VGPU_QUEUE_COUNT, true);
    if (r < 0) {
        virtio_error(VIRTIO_DEVICE(s), "virtio-vgpu %s: no way to interrupt the"
                     " guest from an IOThread: %s", s->name, strerror(-r));
        return r;
    }
    s->host_notifiers = ioeventfd && virtio_vgpu_set_host_notifiers(s, true);
    trace_virtio_vgpu_start(s, s->host_notifiers);
    virtio_vgpu_serve_without_driver(s, false);
    s->started = true;
    aio_wait_bh_oneshot(s->ctx, virtio_vgpu_start_bh, s);
    return 0;
}

static void virtio_vgpu_stop(VirtIOVGPU *s)
{
    BusState *qbus = qdev_get_parent_bus(DEVICE(s));
    VirtioBusClass *k = VIRTIO_BUS_GET_CLASS(qbus);

    virtio_vgpu_finish_copies(s);
    if (!s->started) {
        return;
    }
    trace_virtio_vgpu_stop(s, VIRTIO_VGPU_REQUEST_QUEUE_SIZE - s->n_free_slots);
    s->started = false; /* first: the wait below runs main's events */
    aio_wait_bh_oneshot(s->ctx, virtio_vgpu_stop_bh, s);
    if (s->host_notifiers) {
        virtio_vgpu_set_host_notifiers(s, false);
        s->host_notifiers = false;
    }
    k->set_guest_notifiers(qbus->parent, VGPU_QUEUE_COUNT, false);
}

/*
 * A checkpoint's pause. Two waits for the IOThread, and giving the notifiers up
 * and making them again, would be a good part of it.
 *
 * What was kicked and not taken is in the ring, which the checkpoint has: here
 * it is taken after resume(), there after start(). What io has raised while it
 * had the gate reaches the guest before the devices are saved.
 */
static bool virtio_vgpu_pause_ioeventfd(VirtIODevice *vdev)
{
    VirtIOVGPU *s = VIRTIO_VGPU(vdev);

    if (!s->started || !s->host_notifiers || s->standby) {
        return false;
    }
    virtio_vgpu_finish_copies(s);
    trace_virtio_vgpu_stop(s, VIRTIO_VGPU_REQUEST_QUEUE_SIZE - s->n_free_slots);
    s->started = false;
    s->paused = true;
    WITH_QEMU_LOCK_GUARD(&s->gate) {
        s->running = false;
    }
    virtio_device_flush_guest_notifiers(vdev, VGPU_QUEUE_COUNT);
    return true;
}

/* In the IOThread: what was left while the gate was shut. */
static void virtio_vgpu_resume_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    WITH_QEMU_LOCK_GUARD(&s->gate) {
        if (s->running) {
            s->kicked = false;
            virtio_vgpu_listen(s);
        }
    }
    virtio_vgpu_kick_bh(s);
}

static void virtio_vgpu_resume_ioeventfd(VirtIODevice *vdev)
{
    VirtIOVGPU *s = VIRTIO_VGPU(vdev);
    bool left;

    if (!s->paused) { /* QEMU ends */
        return;
    }
    trace_virtio_vgpu_start(s, s->host_notifiers);
    s->paused = false;
    s->started = true;
    WITH_QEMU_LOCK_GUARD(&s->gate) {
        s->running = true;
        left = s->deaf || s->kicked || s->report_failures;
    }
    if (left) {
        aio_bh_schedule_oneshot(s->ctx, virtio_vgpu_resume_bh, s);
    }
}

/* The usual way: the transport has ioeventfds, and starts and stops us. */
static int virtio_vgpu_start_ioeventfd(VirtIODevice *vdev)
{
    return virtio_vgpu_start(VIRTIO_VGPU(vdev), true);
}

static void virtio_vgpu_stop_ioeventfd(VirtIODevice *vdev)
{
    virtio_vgpu_stop(VIRTIO_VGPU(vdev));
}

/* The other way (ioeventfd=off): follow the driver's and the VM's state. */
static void virtio_vgpu_set_status(VirtIODevice *vdev, uint8_t status)
{
    if (virtio_device_ioeventfd_enabled(vdev)) {
        return;
    }
    if ((status & VIRTIO_CONFIG_S_DRIVER_OK) && vdev->vm_running) {
        virtio_vgpu_start(VIRTIO_VGPU(vdev), false);
    } else {
        virtio_vgpu_stop(VIRTIO_VGPU(vdev));
    }
}

/* ---- reset (main, after stop) ------------------------------------------ */

/*
 * In the IOThread: the library's thread is the same as for requests. A worker
 * that was killed may be a moment in giving its memory back; main waits for
 * this, so it is a moment only.
 */
static void virtio_vgpu_reset_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;
    int64_t deadline_ms = qemu_clock_get_ms(QEMU_CLOCK_REALTIME) +
                          VIRTIO_VGPU_RESET_WAIT_MS;

    s->discarding = true;
    s->writers = kagemusha_device_reset(s->device);
    s->discarding = false;
    if (s->report_failures) { /* no file is left to tell it of */
        s->report_failures = false;
        kagemusha_device_report_failures(s->device);
    }
    while (s->writers &&
           qemu_clock_get_ms(QEMU_CLOCK_REALTIME) < deadline_ms) {
        g_usleep(1000);
        s->writers = kagemusha_device_writers(s->device);
    }

    /* The library's contract: everything is answered. */
    assert(s->n_free_slots == VIRTIO_VGPU_REQUEST_QUEUE_SIZE);
    assert(!s->event_elem);
    s->event_starved = false;
    s->notify_requests = false;
    s->notify_events = false;
}

/*
 * The guest believes that nobody writes its memory any more, and the GPU of a
 * worker that is stuck in its driver may. Better a VM that stands still.
 */
static void virtio_vgpu_stop_vm_for_writers(VirtIOVGPU *s)
{
    if (s->writers) {
        error_report("virtio-vgpu %s: the device was reset, but %" PRIu32
                     " workers that may still write the guest's memory do not"
                     " end: the GPU's driver is stuck, and the VM is stopped."
                     " See the host's kernel log. 'writers' becomes 0 when"
                     " they have ended, and 'cont' lets the VM go on",
                     s->name, s->writers);
        qemu_system_vmstop_request_prepare();
        qemu_system_vmstop_request(RUN_STATE_IO_ERROR);
    }
}

static void virtio_vgpu_reset(VirtIODevice *vdev)
{
    VirtIOVGPU *s = VIRTIO_VGPU(vdev);

    trace_virtio_vgpu_reset(s, VIRTIO_VGPU_REQUEST_QUEUE_SIZE -
                            s->n_free_slots);
    virtio_vgpu_stop(s);
    virtio_vgpu_serve_without_driver(s, false);
    if (s->device) {
        /* A standby's library leaves its copy of the GPU alone. */
        aio_wait_bh_oneshot(s->ctx, virtio_vgpu_reset_bh, s);
        virtio_vgpu_stop_vm_for_writers(s);
    }
    virtio_vgpu_serve_without_driver(s, true);
    s->resume = false;
    virtio_vgpu_end_log(s);
    virtio_vgpu_forget_checkpoint(s);
}

/* ---- what the guest sees ----------------------------------------------- */

static void virtio_vgpu_get_config(VirtIODevice *vdev, uint8_t *data)
{
    VirtIOVGPU *s = VIRTIO_VGPU(vdev);
    struct vgpu_config config = {
        .abi_version = cpu_to_le32(VGPU_ABI_VERSION),
        .max_files = cpu_to_le32(s->limits.max_files),
        .window_bytes = cpu_to_le64(s->window_bytes),
        .max_stream_bytes = cpu_to_le32(s->limits.max_stream_bytes),
        .max_segments = cpu_to_le32(s->limits.max_segments),
        .max_requests_per_file = cpu_to_le32(s->limits.max_requests_per_file),
        .max_events_per_file = cpu_to_le32(s->limits.max_events_per_file),
    };
    uint32_t copy_threads = cpu_to_le32(s->copy_threads);

    virtio_vgpu_finish_copies(s);
    /* What lies between is the driver's. */
    memcpy(data, &config, sizeof(config));
    memcpy(data + VGPU_CONFIG_COPY_THREADS, &copy_threads,
           sizeof(copy_threads));
}

/* The transport has put what was written, of any field, into vdev->config. */
static void virtio_vgpu_set_config(VirtIODevice *vdev, const uint8_t *data)
{
    virtio_vgpu_ask_log(VIRTIO_VGPU(vdev));
    virtio_vgpu_ask_copies(VIRTIO_VGPU(vdev));
}

static uint64_t virtio_vgpu_get_features(VirtIODevice *vdev, uint64_t features,
                                         Error **errp)
{
    /* A reset of one queue would leave its requests with the library. */
    virtio_clear_feature(&features, VIRTIO_F_RING_RESET);
    /* What is in flight can be found again only in a plain split ring. */
    virtio_clear_feature(&features, VIRTIO_F_RING_PACKED);
    virtio_clear_feature(&features, VIRTIO_F_IN_ORDER);
    virtio_add_feature(&features, VGPU_F_WRITE_RUNS);
    if (VIRTIO_VGPU(vdev)->window_bytes) {
        virtio_add_feature(&features, VGPU_F_STORE_LOG);
        virtio_add_feature(&features, VGPU_F_PAGE_COPY);
    }
    return features;
}

/* ---- the library ------------------------------------------------------- */

/* The library puts the device's name in front. */
static void virtio_vgpu_log(void *opaque, int level, const char *message)
{
    VirtIOVGPU *s = opaque;

    switch (level) {
    case KAGEMUSHA_LOG_ERROR:
        error_report("virtio-vgpu: %s", message);
        break;
    case KAGEMUSHA_LOG_WARNING:
        warn_report("virtio-vgpu: %s", message);
        break;
    case KAGEMUSHA_LOG_INFO:
        info_report("virtio-vgpu: %s", message);
        break;
    default:
        trace_virtio_vgpu_log(s, message);
    }
}

static bool virtio_vgpu_parse_sandbox(VirtIOVGPU *s, Error **errp)
{
    static const char *const modes[] = { "required", "best-effort", "off" };
    const char *mode = s->sandbox ?: "required";

    for (uint32_t i = 0; i < ARRAY_SIZE(modes); i++) {
        if (!strcmp(mode, modes[i])) {
            s->config.sandbox = i;
            return true;
        }
    }
    error_setg(errp, "virtio-vgpu: sandbox=%s: it is required, best-effort or"
               " off", mode);
    return false;
}

static bool virtio_vgpu_create_library_device(VirtIOVGPU *s, Error **errp)
{
    ERRP_GUARD();
    char error[1024] = "";
    int r;

    if (!virtio_vgpu_parse_sandbox(s, errp)) {
        return false;
    }
    s->config.api_version = KAGEMUSHA_DEVICE_API_VERSION;
    s->config.struct_bytes = sizeof(s->config);
    s->config.name = s->name;
    s->config.backend = s->backend ?: "opencl";
    s->config.gpu = s->gpu ?: "";
    s->config.options = s->options ?: "";
    s->config.worker_path = s->worker;
    s->config.in_process = s->in_process;
    s->config.user_data = s;
    s->config.callbacks = (kagemusha_callbacks) {
        .request_done = virtio_vgpu_request_done,
        .record = virtio_vgpu_record,
        .memory_written = virtio_vgpu_memory_written,
        .log = virtio_vgpu_log,
    };
    virtio_vgpu_configure_replication(s);
    r = kagemusha_device_create(&s->config, &s->device, error, sizeof(error));
    if (r < 0) {
        s->device = NULL;
        error_setg(errp, "virtio-vgpu: %s", *error ? error : strerror(-r));
        error_append_hint(errp, "`kage gpus` lists the GPUs of this host.\n");
        return false;
    }
    s->waiting.ended = false;
    if (s->hold_failures && s->replicated) {
        kagemusha_device_hold_failures(s->device, 1);
    }
    kagemusha_device_get_limits(s->device, &s->limits);
    s->poll_fd = kagemusha_device_poll_fd(s->device);
    return true;
}

/* Main, while stopped: the library belongs to this thread then. */
static void virtio_vgpu_destroy_library_device(VirtIOVGPU *s)
{
    if (!s->device) {
        return;
    }
    virtio_vgpu_end_waits(s);
    virtio_vgpu_serve_without_driver(s, false);
    s->discarding = true;
    kagemusha_device_destroy(s->device);
    s->discarding = false;
    s->device = NULL;
}

/*
 * QEMU ends without unrealizing devices. The VM was stopped before, so this
 * device is, too; if not, somebody called exit() in the middle of something,
 * and the workers notice by themselves that we are gone.
 */
static void virtio_vgpu_exit(Notifier *notifier, void *data)
{
    VirtIOVGPU *s = container_of(notifier, VirtIOVGPU, exit_notifier);

    if (!s->started && s->device) {
        if (s->paused) {
            s->paused = false;
            aio_wait_bh_oneshot(s->ctx, virtio_vgpu_stop_bh, s);
        }
        virtio_vgpu_stop_standby(s);
        virtio_vgpu_destroy_library_device(s);
    }
}

/* ---- realize and unrealize (main) -------------------------------------- */

static bool virtio_vgpu_get_iothread(VirtIOVGPU *s, Error **errp)
{
    static unsigned created;
    g_autofree char *id = NULL;

    if (!s->iothread) {
        id = g_strdup_printf("virtio-vgpu-%u", created++);
        s->own_iothread = iothread_create(id, errp);
        if (!s->own_iothread) {
            return false;
        }
    }
    s->ctx = iothread_get_aio_context(s->iothread ?: s->own_iothread);
    s->kick_bh = aio_bh_new_guarded(s->ctx, virtio_vgpu_kick_bh, s,
                                    &DEVICE(s)->mem_reentrancy_guard);
    virtio_vgpu_awake_init(s);
    return true;
}

/* In the IOThread: a last kick may be just running there. */
static void virtio_vgpu_put_iothread_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    qemu_bh_delete(s->kick_bh);
    s->kick_bh = NULL;
    virtio_vgpu_awake_cleanup(s);
}

static void virtio_vgpu_put_iothread(VirtIOVGPU *s)
{
    aio_wait_bh_oneshot(s->ctx, virtio_vgpu_put_iothread_bh, s);
    s->ctx = NULL;
    g_clear_pointer(&s->own_iothread, iothread_destroy);
}

/* For people who have several VMs, and several GPUs in one. */
static char *virtio_vgpu_make_name(VirtIOVGPU *s)
{
    DeviceState *transport = qdev_get_parent_bus(DEVICE(s))->parent;
    const char *vm = qemu_get_vm_name();
    const char *id = transport->id ?: "vgpu";

    return vm ? g_strdup_printf("%s/%s", vm, id) : g_strdup(id);
}

static bool virtio_vgpu_check_transport(VirtIOVGPU *s, Error **errp)
{
    BusState *qbus = qdev_get_parent_bus(DEVICE(s));
    VirtioBusClass *k = VIRTIO_BUS_GET_CLASS(qbus);

    if (!k->set_guest_notifiers || !k->ioeventfd_assign) {
        error_setg(errp, "virtio-vgpu: this transport can't be used from an"
                   " IOThread; use virtio-vgpu-pci");
        return false;
    }
    if (virtio_host_has_feature(VIRTIO_DEVICE(s), VIRTIO_F_IOMMU_PLATFORM)) {
        error_setg(errp, "virtio-vgpu: iommu_platform=on is not supported:"
                   " requests name guest-physical addresses");
        return false;
    }
    if (s->window_bytes && !is_power_of_2(s->window_bytes)) {
        error_setg(errp, "virtio-vgpu: window-size must be a power of two, or"
                   " 0 for no window");
        return false;
    }
    if (s->window_bytes && s->window_bytes < qemu_real_host_page_size()) {
        error_setg(errp, "virtio-vgpu: window-size is less than a page");
        return false;
    }
    return true;
}

/* Only a standby can go on with a GPU's state. */
static bool virtio_vgpu_block_migration(VirtIOVGPU *s, Error **errp)
{
    if (s->replicated) {
        return true;
    }
    error_setg(&s->migration_blocker, "virtio-vgpu %s: the state of a GPU can't"
               " be migrated or saved; unplug the device first", s->name);
    return migrate_add_blocker(&s->migration_blocker, errp) == 0;
}

static void virtio_vgpu_device_realize(DeviceState *dev, Error **errp)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(dev);
    VirtIOVGPU *s = VIRTIO_VGPU(dev);

    if (!virtio_vgpu_check_transport(s, errp) ||
        !virtio_vgpu_check_ram(s, errp) ||
        !virtio_vgpu_count_copy_threads(s, errp)) {
        return;
    }
    s->name = virtio_vgpu_make_name(s);
    virtio_vgpu_queue_init(s);
    if (!virtio_vgpu_get_iothread(s, errp)) {
        goto fail_iothread;
    }
    if (!virtio_vgpu_create_library_device(s, errp)) {
        goto fail_library;
    }
    if (!virtio_vgpu_create_window(s, errp)) {
        goto fail_window;
    }
    if (!virtio_vgpu_add_regions(s, errp)) {
        goto fail_regions;
    }
    if (!virtio_vgpu_block_migration(s, errp)) {
        goto fail_regions;
    }

    virtio_vgpu_checkpoint_init(s);
    virtio_init(vdev, VGPU_VIRTIO_ID, VGPU_CONFIG_BYTES);
    s->request_vq = virtio_add_queue(vdev, VIRTIO_VGPU_REQUEST_QUEUE_SIZE,
                                     virtio_vgpu_handle_output);
    s->event_vq = virtio_add_queue(vdev, VIRTIO_VGPU_EVENT_QUEUE_SIZE,
                                   virtio_vgpu_handle_output);
    s->exit_notifier.notify = virtio_vgpu_exit;
    qemu_add_exit_notifier(&s->exit_notifier);
    virtio_vgpu_start_standby(s);
    virtio_vgpu_serve_without_driver(s, true);
    trace_virtio_vgpu_realize(s, s->name, s->config.backend,
                              kagemusha_device_gpu_name(s->device));
    return;

fail_regions:
    virtio_vgpu_remove_window(s);
fail_window:
    virtio_vgpu_destroy_library_device(s);
    virtio_vgpu_put_regions(s);
fail_library:
    virtio_vgpu_put_iothread(s);
fail_iothread:
    virtio_vgpu_queue_cleanup(s);
    g_clear_pointer(&s->name, g_free);
}

/* The transport has reset the device; requests in flight are gone. */
static void virtio_vgpu_device_unrealize(DeviceState *dev)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(dev);
    VirtIOVGPU *s = VIRTIO_VGPU(dev);

    virtio_vgpu_stop(s);
    qemu_remove_exit_notifier(&s->exit_notifier);
    virtio_vgpu_stop_standby(s);
    virtio_vgpu_destroy_library_device(s);
    virtio_vgpu_put_iothread(s);
    virtio_vgpu_end_log(s);
    virtio_vgpu_end_copy_threads(s);
    virtio_vgpu_remove_window(s);
    virtio_vgpu_put_regions(s);
    virtio_vgpu_queue_cleanup(s);
    virtio_vgpu_checkpoint_cleanup(s);
    migrate_del_blocker(&s->migration_blocker);
    virtio_delete_queue(s->request_vq);
    virtio_delete_queue(s->event_vq);
    virtio_cleanup(vdev);
    g_clear_pointer(&s->name, g_free);
}

/* ---- type -------------------------------------------------------------- */

/* A limit whose default is the library's, see instance_init */
#define VIRTIO_VGPU_LIMIT32(name, field)                                  \
    DEFINE_PROP_UNSIGNED_NODEFAULT(name, VirtIOVGPU, config.field,        \
                                   qdev_prop_uint32, uint32_t)
#define VIRTIO_VGPU_LIMIT_SIZE(name, field)                               \
    DEFINE_PROP_UNSIGNED_NODEFAULT(name, VirtIOVGPU, config.field,        \
                                   qdev_prop_size, uint64_t)

static const Property virtio_vgpu_properties[] = {
    DEFINE_PROP_STRING("backend", VirtIOVGPU, backend),
    DEFINE_PROP_STRING("gpu", VirtIOVGPU, gpu),
    DEFINE_PROP_STRING("options", VirtIOVGPU, options),
    DEFINE_PROP_STRING("worker", VirtIOVGPU, worker),
    DEFINE_PROP_STRING("sandbox", VirtIOVGPU, sandbox),
    DEFINE_PROP_SIZE("window-size", VirtIOVGPU, window_bytes, 256 * MiB),
    DEFINE_PROP_UINT32("copy-threads", VirtIOVGPU, copy_threads,
                       VIRTIO_VGPU_COPY_THREADS_AUTO),
    DEFINE_PROP_LINK("iothread", VirtIOVGPU, iothread, TYPE_IOTHREAD,
                     IOThread *),
    VIRTIO_VGPU_LIMIT32("max-files", max_files),
    VIRTIO_VGPU_LIMIT32("max-requests-per-file", max_requests_per_file),
    VIRTIO_VGPU_LIMIT32("max-events-per-file", max_events_per_file),
    VIRTIO_VGPU_LIMIT32("max-objects-per-file", max_objects_per_file),
    VIRTIO_VGPU_LIMIT_SIZE("max-memory", max_memory_bytes),
    VIRTIO_VGPU_LIMIT_SIZE("max-file-memory", max_file_memory_bytes),
    VIRTIO_VGPU_LIMIT_SIZE("max-worker-memory", max_worker_bytes),
    VIRTIO_VGPU_LIMIT32("hang-timeout-ms", hang_timeout_ms),
    VIRTIO_VGPU_LIMIT32("end-timeout-ms", end_timeout_ms),
    VIRTIO_VGPU_LIMIT32("worker-start-burst", worker_start_burst),
    VIRTIO_VGPU_LIMIT32("worker-starts-per-second", worker_starts_per_second),
    DEFINE_PROP_BOOL("x-in-process", VirtIOVGPU, in_process, false),
    /* Replication; replicate-to is in virtio-vgpu-replication.c. */
    DEFINE_PROP_STRING("vm-id", VirtIOVGPU, vm_id),
    DEFINE_PROP_STRING("standby-listen", VirtIOVGPU, standby_listen),
    DEFINE_PROP_STRING("tls-dir", VirtIOVGPU, tls_dir),
    DEFINE_PROP_BOOL("replicable", VirtIOVGPU, replicable, false),
    DEFINE_PROP_BOOL("compression", VirtIOVGPU, compression, false),
    DEFINE_PROP_BOOL("ship-differences", VirtIOVGPU, ship_differences, false),
    DEFINE_PROP_STRING("ship-kernels", VirtIOVGPU, ship_kernels),
    DEFINE_PROP_BOOL("hold-failures", VirtIOVGPU, hold_failures, false),
    DEFINE_PROP_UINT32("checkpoint-wait-ms", VirtIOVGPU, checkpoint_wait_ms,
                       200),
    VIRTIO_VGPU_LIMIT32("epoch-ms", epoch_ms),
    VIRTIO_VGPU_LIMIT32("heartbeat-ms", heartbeat_ms),
    VIRTIO_VGPU_LIMIT32("heartbeat-budget-ms", heartbeat_budget_ms),
    VIRTIO_VGPU_LIMIT32("digest-interval-ms", digest_interval_ms),
    VIRTIO_VGPU_LIMIT32("max-behind-ms", max_behind_ms),
    VIRTIO_VGPU_LIMIT32("transfer-wait-ms", transfer_wait_ms),
    VIRTIO_VGPU_LIMIT_SIZE("log-size", log_bytes),
    VIRTIO_VGPU_LIMIT_SIZE("hold-size", hold_bytes),
};

static void virtio_vgpu_instance_init(Object *obj)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    kagemusha_device_config_init(&s->config);
    qemu_mutex_init(&s->gate);
    qemu_mutex_init(&s->waiting.lock);
    qemu_cond_init(&s->waiting.none);
}

static void virtio_vgpu_instance_finalize(Object *obj)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    g_free(s->replicate_to); /* no qdev property, see there */
    qemu_cond_destroy(&s->waiting.none);
    qemu_mutex_destroy(&s->waiting.lock);
    qemu_mutex_destroy(&s->gate);
}

static void virtio_vgpu_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    VirtioDeviceClass *vdc = VIRTIO_DEVICE_CLASS(klass);

    device_class_set_props(dc, virtio_vgpu_properties);
    dc->desc = "Kagemusha GPU for computing";
    dc->vmsd = &vmstate_virtio_vgpu;
    set_bit(DEVICE_CATEGORY_MISC, dc->categories);
    vdc->realize = virtio_vgpu_device_realize;
    vdc->unrealize = virtio_vgpu_device_unrealize;
    vdc->get_config = virtio_vgpu_get_config;
    vdc->set_config = virtio_vgpu_set_config;
    vdc->get_features = virtio_vgpu_get_features;
    vdc->set_status = virtio_vgpu_set_status;
    vdc->reset = virtio_vgpu_reset;
    vdc->start_ioeventfd = virtio_vgpu_start_ioeventfd;
    vdc->stop_ioeventfd = virtio_vgpu_stop_ioeventfd;
    vdc->pause_ioeventfd = virtio_vgpu_pause_ioeventfd;
    vdc->resume_ioeventfd = virtio_vgpu_resume_ioeventfd;

    virtio_vgpu_stats_class_init(klass);
    virtio_vgpu_replication_class_init(klass);
}

static const TypeInfo virtio_vgpu_info = {
    .name = TYPE_VIRTIO_VGPU,
    .parent = TYPE_VIRTIO_DEVICE,
    .instance_size = sizeof(VirtIOVGPU),
    .instance_init = virtio_vgpu_instance_init,
    .instance_finalize = virtio_vgpu_instance_finalize,
    .class_init = virtio_vgpu_class_init,
};

static void virtio_vgpu_register_types(void)
{
    type_register_static(&virtio_vgpu_info);
}

type_init(virtio_vgpu_register_types)
