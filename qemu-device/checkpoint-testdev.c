// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checkpoint-testdev: a device that writes down what continuous checkpoints do
 * to it
 *
 * For tests only. A device whose state lives outside of QEMU depends on the
 * order of the calls that it gets on both sides: this one keeps them as a line
 * of text ("log"), and can fail at each of them on request. Every checkpoint
 * of the primary gets the next number, which is the device's whole state.
 *
 * All of it runs with the BQL, which only "ready" releases while it is held.
 */

#include "qemu/osdep.h"

#include "block/replication.h"
#include "exec/address-spaces.h"
#include "exec/memory.h"
#include "hw/core/cpu.h"
#include "hw/qdev-core.h"
#include "hw/resettable.h"
#include "migration/colo.h"
#include "migration/vmstate.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "qemu/main-loop.h"
#include "qom/object.h"
#include "system/reset.h"
#include "system/runstate.h"

#define TYPE_CHECKPOINT_TESTDEV "checkpoint-testdev"
OBJECT_DECLARE_SIMPLE_TYPE(CheckpointTestdev, CHECKPOINT_TESTDEV)

#define LOG_BYTES 16384

struct CheckpointTestdev {
    DeviceState parent_obj;

    ReplicationState *replication;
    VMChangeStateEntry *vm_state;
    GString *log;           /* newest LOG_BYTES, entries end with a space */
    uint64_t sequence;      /* state: number of the checkpoint */
    uint64_t commits;
    uint32_t fail_checkpoints; /* that many of the next ones */
    uint32_t fail_readies;
    uint32_t stop_ms; /* how long a failover takes, with the BQL */
    uint64_t watched; /* guest-physical address of a byte in RAM */
    bool hold_ready;
    bool fail_load;
    bool fail_start;
};

static void G_GNUC_PRINTF(2, 3) note(CheckpointTestdev *s, const char *format,
                                     ...)
{
    va_list ap;

    va_start(ap, format);
    g_string_append_vprintf(s->log, format, ap);
    va_end(ap);
    g_string_append_c(s->log, ' ');
    if (s->log->len > LOG_BYTES) {
        g_string_erase(s->log, 0, s->log->len - LOG_BYTES);
    }
}

/* ---- replication ------------------------------------------------------- */

static void testdev_start(ReplicationState *rs, ReplicationMode mode,
                          Error **errp)
{
    CheckpointTestdev *s = rs->opaque;

    note(s, "start:%s", ReplicationMode_str(mode));
    if (s->fail_start) {
        error_setg(errp, "%s: told to fail", TYPE_CHECKPOINT_TESTDEV);
    }
}

static void testdev_checkpoint(ReplicationState *rs, Error **errp)
{
    CheckpointTestdev *s = rs->opaque;

    if (migration_incoming_in_colo_state() && !s->fail_checkpoints) {
        note(s, "checkpoint=%" PRIu64, s->sequence);
        return;
    }
    if (s->fail_checkpoints) {
        s->fail_checkpoints--;
        note(s, "fail");
        error_setg(errp, "%s: told to fail", TYPE_CHECKPOINT_TESTDEV);
        return;
    }
    s->sequence++;
    note(s, "checkpoint=%" PRIu64, s->sequence);
}

static void testdev_ready(ReplicationState *rs, Error **errp)
{
    CheckpointTestdev *s = rs->opaque;

    object_ref(OBJECT(s));
    if (s->hold_ready) {
        note(s, "wait=%" PRIu64, s->sequence);
    }
    while (s->hold_ready) {
        bql_unlock();
        g_usleep(1000);
        bql_lock();
    }
    if (s->fail_readies) {
        s->fail_readies--;
        note(s, "fail");
        error_setg(errp, "%s: told to fail", TYPE_CHECKPOINT_TESTDEV);
    } else {
        note(s, "ready=%" PRIu64, s->sequence);
    }
    object_unref(OBJECT(s));
}

static void testdev_get_error(ReplicationState *rs, Error **errp)
{
    note(rs->opaque, "get_error");
}

static void testdev_commit(ReplicationState *rs)
{
    CheckpointTestdev *s = rs->opaque;

    s->commits++;
    note(s, "commit=%" PRIu64, s->sequence);
}

static void testdev_stop(ReplicationState *rs, bool failover, Error **errp)
{
    CheckpointTestdev *s = rs->opaque;

    note(s, failover ? "stop:failover" : "stop");
    g_usleep(s->stop_ms * (gulong)1000);
}

static ReplicationOps testdev_replication_ops = {
    .start = testdev_start,
    .checkpoint = testdev_checkpoint,
    .get_error = testdev_get_error,
    .ready = testdev_ready,
    .commit = testdev_commit,
    .stop = testdev_stop,
};

/* ---- state ------------------------------------------------------------- */

static int testdev_pre_save(void *opaque)
{
    CheckpointTestdev *s = opaque;

    note(s, "save=%" PRIu64, s->sequence);
    return 0;
}

static int testdev_post_load(void *opaque, int version_id)
{
    CheckpointTestdev *s = opaque;

    note(s, "load=%" PRIu64, s->sequence);
    return s->fail_load ? -EINVAL : 0;
}

static const VMStateDescription vmstate_testdev = {
    .name = TYPE_CHECKPOINT_TESTDEV,
    .version_id = 1,
    .minimum_version_id = 1,
    .pre_save = testdev_pre_save,
    .post_load = testdev_post_load,
    .fields = (const VMStateField[]) {
        VMSTATE_UINT64(sequence, CheckpointTestdev),
        VMSTATE_END_OF_LIST()
    },
};

static void testdev_reset_hold(Object *obj, ResetType type)
{
    note(CHECKPOINT_TESTDEV(obj),
         type == RESET_TYPE_SNAPSHOT_LOAD ? "reset:load" : "reset");
}

static void testdev_vm_state(void *opaque, bool running, RunState state)
{
    note(opaque, "%s", running ? "run" : "pause");
}

/* ---- a dirty log that is read all the time ----------------------------- */

#define PAGE_BYTES 4096 /* as virtio-vgpu-log.c: x86 only */
#define LOG_PAGES 64 /* in one word of the log, which is cleared as a whole */
#define LOOKS 200000

/*
 * Reads and clears the dirty log of the watched byte's page, over and over, and
 * returns how often, at most, the byte was found changed in a row without the
 * log saying so. One such change is right: a processor that is emulated marks
 * the page just before it stores. The guest has to change the byte all the
 * time.
 */
static uint64_t testdev_count_unseen(uint64_t address, Error **errp)
{
    MemoryRegionSection section =
        memory_region_find(get_system_memory(), address, 1);
    uint64_t page = ROUND_DOWN(section.offset_within_region,
                               PAGE_BYTES);
    uint64_t unseen = 0, most = 0;
    const uint8_t *byte;
    uint8_t last;

    if (!section.mr || !memory_region_is_ram(section.mr)) {
        error_setg(errp, "%s: no RAM at 0x%" PRIx64, TYPE_CHECKPOINT_TESTDEV,
                   address);
        return 0;
    }
    byte = (uint8_t *)memory_region_get_ram_ptr(section.mr) +
           section.offset_within_region;
    last = qatomic_read(byte);
    memory_region_set_log(section.mr, true, DIRTY_MEMORY_VGA);
    for (unsigned int look = 0; look < LOOKS; look++) {
        g_autofree DirtyBitmapSnapshot *snapshot =
            memory_region_snapshot_and_clear_dirty(
                section.mr, ROUND_DOWN(page, LOG_PAGES * PAGE_BYTES),
                LOG_PAGES * PAGE_BYTES, DIRTY_MEMORY_VGA);
        uint8_t now = qatomic_read(byte);

        if (memory_region_snapshot_get_dirty(section.mr, snapshot, page,
                                             PAGE_BYTES)) {
            unseen = 0;
        } else if (now != last) {
            unseen++;
            most = MAX(most, unseen);
        }
        last = now;
        if (look % 64 == 0) {
            /* The guest's program prints, which needs the lock. */
            bql_unlock();
            bql_lock();
        }
    }
    memory_region_set_log(section.mr, false, DIRTY_MEMORY_VGA);
    memory_region_unref(section.mr);
    return most;
}

static void testdev_get_unseen(Object *obj, Visitor *v, const char *name,
                               void *opaque, Error **errp)
{
    ERRP_GUARD();
    uint64_t most = testdev_count_unseen(CHECKPOINT_TESTDEV(obj)->watched,
                                         errp);

    if (!*errp) {
        visit_type_uint64(v, name, &most, errp);
    }
}

/* ---- properties -------------------------------------------------------- */

static char *testdev_get_log(Object *obj, Error **errp)
{
    return g_strdup(CHECKPOINT_TESTDEV(obj)->log->str);
}

/* Whatever is written, the log becomes it: "" clears it. */
static void testdev_set_log(Object *obj, const char *value, Error **errp)
{
    g_string_assign(CHECKPOINT_TESTDEV(obj)->log, value);
}

static bool testdev_get_false(Object *obj, Error **errp)
{
    return false;
}

static void testdev_set_checkpoint_now(Object *obj, bool value, Error **errp)
{
    if (value) {
        colo_checkpoint_now();
    }
}

/* Atomic: for how long, and that it has begun */
static uint32_t busy_cpu_ms;
static bool cpu_is_busy;

static void testdev_keep_cpu_busy(CPUState *cpu, run_on_cpu_data unused)
{
    bql_unlock();
    qatomic_set(&cpu_is_busy, true);
    for (uint32_t ms = 0; ms < qatomic_read(&busy_cpu_ms); ms++) {
        g_usleep(1000);
    }
    qatomic_set(&cpu_is_busy, false);
    bql_lock();
}

static bool testdev_get_cpu_is_busy(Object *obj, Error **errp)
{
    return qatomic_read(&cpu_is_busy);
}

/*
 * Whoever wants to stop the VM waits for its first CPU for so long once that is
 * busy, or until this is 0.
 */
static void testdev_set_busy_cpu_ms(Object *obj, Visitor *v, const char *name,
                                    void *opaque, Error **errp)
{
    uint32_t ms;

    if (visit_type_uint32(v, name, &ms, errp)) {
        qatomic_set(&busy_cpu_ms, MIN(ms, 60000));
        if (ms) {
            async_run_on_cpu(first_cpu, testdev_keep_cpu_busy,
                             RUN_ON_CPU_NULL);
        }
    }
}

static bool testdev_get_hold_ready(Object *obj, Error **errp)
{
    return CHECKPOINT_TESTDEV(obj)->hold_ready;
}

static void testdev_set_hold_ready(Object *obj, bool value, Error **errp)
{
    CHECKPOINT_TESTDEV(obj)->hold_ready = value;
}

static bool testdev_get_fail_load(Object *obj, Error **errp)
{
    return CHECKPOINT_TESTDEV(obj)->fail_load;
}

static void testdev_set_fail_load(Object *obj, bool value, Error **errp)
{
    CHECKPOINT_TESTDEV(obj)->fail_load = value;
}

static bool testdev_get_fail_start(Object *obj, Error **errp)
{
    return CHECKPOINT_TESTDEV(obj)->fail_start;
}

/* What every clock of the machine is made of, in ns */
static void testdev_get_guest_clock(Object *obj, Visitor *v, const char *name,
                                    void *opaque, Error **errp)
{
    uint64_t ns = qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL);

    visit_type_uint64(v, name, &ns, errp);
}

static void testdev_set_fail_start(Object *obj, bool value, Error **errp)
{
    CHECKPOINT_TESTDEV(obj)->fail_start = value;
}

/* As a device that can't go on */
static void testdev_set_io_error(Object *obj, bool value, Error **errp)
{
    if (value) {
        qemu_system_vmstop_request_prepare();
        qemu_system_vmstop_request(RUN_STATE_IO_ERROR);
    }
}

static void testdev_init(Object *obj)
{
    CheckpointTestdev *s = CHECKPOINT_TESTDEV(obj);

    s->log = g_string_new("");
    object_property_add_uint64_ptr(obj, "commits", &s->commits,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "sequence", &s->sequence,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint32_ptr(obj, "fail-checkpoints",
                                   &s->fail_checkpoints,
                                   OBJ_PROP_FLAG_READWRITE);
    object_property_add_uint32_ptr(obj, "fail-readies", &s->fail_readies,
                                   OBJ_PROP_FLAG_READWRITE);
    object_property_add_uint32_ptr(obj, "stop-ms", &s->stop_ms,
                                   OBJ_PROP_FLAG_READWRITE);
    object_property_add_uint64_ptr(obj, "watched", &s->watched,
                                   OBJ_PROP_FLAG_READWRITE);
}

static void testdev_finalize(Object *obj)
{
    g_string_free(CHECKPOINT_TESTDEV(obj)->log, true);
}

static void testdev_realize(DeviceState *dev, Error **errp)
{
    CheckpointTestdev *s = CHECKPOINT_TESTDEV(dev);

    s->replication = replication_new(s, &testdev_replication_ops);
    s->vm_state = qemu_add_vm_change_state_handler(testdev_vm_state, s);
    /* It is on no bus that would reset it. */
    qemu_register_resettable(OBJECT(s));
}

static void testdev_unrealize(DeviceState *dev)
{
    CheckpointTestdev *s = CHECKPOINT_TESTDEV(dev);

    qemu_unregister_resettable(OBJECT(s));
    qemu_del_vm_change_state_handler(s->vm_state);
    replication_remove(s->replication);
}

static void testdev_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    ResettableClass *rc = RESETTABLE_CLASS(klass);

    dc->desc = "Test device of continuous checkpoints";
    dc->vmsd = &vmstate_testdev;
    dc->realize = testdev_realize;
    dc->unrealize = testdev_unrealize;
    rc->phases.hold = testdev_reset_hold;
    set_bit(DEVICE_CATEGORY_MISC, dc->categories);
    object_class_property_add_str(klass, "log", testdev_get_log,
                                  testdev_set_log);
    object_class_property_add(klass, "unseen", "uint64", testdev_get_unseen,
                              NULL, NULL, NULL);
    object_class_property_add(klass, "guest-clock", "uint64",
                              testdev_get_guest_clock, NULL, NULL, NULL);
    object_class_property_add_bool(klass, "checkpoint-now", testdev_get_false,
                                   testdev_set_checkpoint_now);
    object_class_property_add(klass, "busy-cpu-ms", "uint32", NULL,
                              testdev_set_busy_cpu_ms, NULL, NULL);
    object_class_property_add_bool(klass, "cpu-is-busy",
                                   testdev_get_cpu_is_busy, NULL);
    object_class_property_add_bool(klass, "hold-ready", testdev_get_hold_ready,
                                   testdev_set_hold_ready);
    object_class_property_add_bool(klass, "fail-start", testdev_get_fail_start,
                                   testdev_set_fail_start);
    object_class_property_add_bool(klass, "fail-load", testdev_get_fail_load,
                                   testdev_set_fail_load);
    object_class_property_add_bool(klass, "io-error", NULL,
                                   testdev_set_io_error);
}

static const TypeInfo checkpoint_testdev_types[] = {
    {
        .name = TYPE_CHECKPOINT_TESTDEV,
        .parent = TYPE_DEVICE,
        .instance_size = sizeof(CheckpointTestdev),
        .instance_init = testdev_init,
        .instance_finalize = testdev_finalize,
        .class_init = testdev_class_init,
    },
};

DEFINE_TYPES(checkpoint_testdev_types)
