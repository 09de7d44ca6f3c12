// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: what the device tells about itself
 *
 *   qom-get path=/machine/peripheral/ID property=stats      counters
 *   qom-get path=/machine/peripheral/ID property=gpu-name
 *   qom-get path=/machine/peripheral/ID property=unsupported
 *
 * In main, at any time: the library's counters and ours may be read while the
 * IOThread is at work. Each is right by itself; two of them may be an instant
 * apart.
 */
#include "qemu/osdep.h"

#include "qapi/visitor.h"
#include "virtio-vgpu.h"

static const struct {
    const char *name;
    size_t offset;
} virtio_vgpu_stats[] = {
#define STAT(qmp_name, field) \
    { qmp_name, offsetof(kagemusha_device_stats, field) }
    STAT("files-open", files_open),
    STAT("files-total", files_total),
    STAT("requests", requests),
    STAT("requests-in-flight", requests_in_flight),
    STAT("requests-refused", requests_refused),
    STAT("commands", commands),
    STAT("launches", launches),
    STAT("calls", calls),
    STAT("bytes-to-gpu", bytes_to_gpu),
    STAT("bytes-from-gpu", bytes_from_gpu),
    STAT("events-completed", events_completed),
    STAT("events-failed", events_failed),
    STAT("objects", objects),
    STAT("memory-bytes", memory_bytes),
    STAT("workers-started", workers_started),
    STAT("workers-lost", workers_lost),
    STAT("workers-killed-hung", workers_killed_hung),
    STAT("text-bytes", text_bytes),
    STAT("text-dropped-bytes", text_dropped_bytes),
    STAT("doorbells", doorbells),
    STAT("workers-ending", workers_ending),
    STAT("workers-delayed", workers_delayed),
    STAT("workers-waiting", workers_waiting),
#undef STAT
};

static const struct {
    const char *name;
    size_t offset;
} virtio_vgpu_counters[] = {
#define COUNTER(qmp_name, field) \
    { qmp_name, offsetof(VirtIOVGPUCounters, field) }
    COUNTER("device-malformed", malformed),
    COUNTER("device-bad-addresses", bad_addresses),
    COUNTER("device-records", records),
    COUNTER("device-event-buffers", event_buffers),
    COUNTER("device-event-starvations", event_starvations),
    COUNTER("device-resumed", resumed),
#undef COUNTER
};

static bool virtio_vgpu_visit_stats(VirtIOVGPU *s, Visitor *v, Error **errp)
{
    kagemusha_device_stats stats = { .struct_bytes = sizeof(stats) };

    if (s->device) {
        kagemusha_device_get_stats(s->device, &stats);
    }
    for (size_t i = 0; i < ARRAY_SIZE(virtio_vgpu_stats); i++) {
        uint64_t *value = (void *)&stats + virtio_vgpu_stats[i].offset;

        if (!visit_type_uint64(v, virtio_vgpu_stats[i].name, value, errp)) {
            return false;
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(virtio_vgpu_counters); i++) {
        uint64_t *counter = (void *)&s->counters +
                            virtio_vgpu_counters[i].offset;
        uint64_t value = qatomic_read_u64(counter);

        if (!visit_type_uint64(v, virtio_vgpu_counters[i].name, &value, errp)) {
            return false;
        }
    }
    return visit_check_struct(v, errp);
}

static void virtio_vgpu_get_stats(Object *obj, Visitor *v, const char *name,
                                  void *opaque, Error **errp)
{
    if (!visit_start_struct(v, name, NULL, 0, errp)) {
        return;
    }
    virtio_vgpu_visit_stats(VIRTIO_VGPU(obj), v, errp);
    visit_end_struct(v, NULL);
}

static char *virtio_vgpu_get_gpu_name(Object *obj, Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);

    return g_strdup(s->device ? kagemusha_device_gpu_name(s->device) : "");
}

static char *virtio_vgpu_get_unsupported(Object *obj, Error **errp)
{
    VirtIOVGPU *s = VIRTIO_VGPU(obj);
    char text[8192] = "";

    if (s->device) {
        kagemusha_device_unsupported(s->device, text, sizeof(text));
    }
    return g_strdup(text);
}

void virtio_vgpu_stats_class_init(ObjectClass *klass)
{
    object_class_property_add(klass, "stats", "VirtIOVGPUStats",
                              virtio_vgpu_get_stats, NULL, NULL, NULL);
    object_class_property_set_description(klass, "stats",
        "Counters of the GPU library and of this device");
    object_class_property_add_str(klass, "gpu-name", virtio_vgpu_get_gpu_name,
                                  NULL);
    object_class_property_set_description(klass, "gpu-name",
        "Name of the host's GPU that this device uses");
    object_class_property_add_str(klass, "unsupported",
                                  virtio_vgpu_get_unsupported, NULL);
    object_class_property_set_description(klass, "unsupported",
        "Functions that programs called and the guest's driver does not have");
}
