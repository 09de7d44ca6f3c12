// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu: checkpoints of the VM, and taking over
 *
 * Two QEMUs on one machine, a device with the null backend in each. The test
 * is the guest's driver: in the first QEMU until that "dies" (SIGSTOP, as in
 * checkpoint-test.c), then in the second one, with the same ring in what must
 * be the same memory. A request is kept in flight over that without timing: a
 * read that waits for a user event stays until the event is set.
 *
 * virtio-vgpu-late-log.c has checkpoints that wait for the GPU's log.
 */
#include "qemu/osdep.h"

#include <sys/wait.h>
#include "migration/migration-qmp.h"
#include "byte-relay.h"
#include "qemu/bswap.h"
#include "qobject/qdict.h"
#include "qobject/qlist.h"
#include "hw/pci/pci_regs.h"
#include "standard-headers/linux/virtio_ring.h"
#include "virtio-vgpu-driver.h"
#include "standard-headers/linux/virtio_pci.h"
#include "virtio-vgpu-takeover.h"


static char *tmpfs;

/* ---- a protected VM ---------------------------------------------------- */

QTestState *start_standby(const char *more)
{
    g_autoptr(QList) oob = qlist_new();
    g_autofree char *address = standby_address_new();
    g_autofree char *arguments = g_strdup_printf(
        RAM "-incoming defer -device " VGPU REPLICATION DEVICE
        ",standby-listen=%s %s", address, more);

    qlist_append_str(oob, "oob");
    return qtest_init_with_env_and_capabilities(NULL, arguments, oob, true);
}

/* The GPU first: without a copy of it a checkpoint is worth nothing. */
static void vm_protect_gpu(Vm *vm)
{
    replicate_to(vm->primary, vm->standby);
    wait_replication(vm->primary, "state", "protecting");
}

static Vm vm_start(void)
{
    Vm vm = { .d = driver_new(REPLICATION DEVICE ",replicable=on") };

    vm.primary = vm.d->qts;
    vm.standby = start_standby(PASSIVE);
    vm_protect_gpu(&vm);
    return vm;
}

/* @to: by way of which the standby is reached at @listen */
static void vm_protect_through(Vm *vm, const char *listen, const char *to)
{
    migrate_set_capability(vm->primary, "x-colo", true);
    migrate_set_capability(vm->standby, "x-colo", true);
    migrate_set_parameter_int(vm->primary, "x-checkpoint-delay", 50);
    migrate_set_parameter_int(vm->primary, "max-bandwidth", 10737418240);
    migrate_set_parameter_int(vm->primary, "downtime-limit", 20000);
    qtest_qmp_assert_success(vm->standby,
                             "{ 'execute': 'migrate-incoming',"
                             "  'arguments': { 'uri': %s } }", listen);
    qtest_qmp_assert_success(vm->primary,
                             "{ 'execute': 'migrate',"
                             "  'arguments': { 'uri': %s } }", to);
    wait_for_migration_status(vm->primary, "colo", (const char * []) {
        "failed", "completed", NULL
    });
}

void vm_protect(Vm *vm)
{
    g_autofree char *uri = g_strdup_printf("unix:%s/migration", tmpfs);

    vm_protect_through(vm, uri, uri);
}

uint64_t replication_number(QTestState *qts, const char *name)
{
    g_autofree char *text = replication(qts, name);

    return g_ascii_strtoull(text, NULL, 10);
}

void vm_checkpoint(Vm *vm)
{
    /*
     * One may be under way; the next one begins after that, and the third when
     * the standby has the second.
     */
    uint64_t pauses = vm_checkpoints(vm->primary, "pauses") + 3;

    while (vm_checkpoints(vm->primary, "pauses") < pauses) {
        g_usleep(1000);
    }
}

QTestState *vm_fail_over(Vm *vm)
{
    QTestState *dead = vm->primary;

    g_assert_cmpint(kill(qtest_pid(dead), SIGSTOP), ==, 0);
    /* Out of band: the main loop may wait for the primary. */
    qtest_qmp_assert_success(vm->standby,
                             "{ 'exec-oob': 'yank', 'id': 'yank', "
                             "  'arguments': { 'instances': "
                             "      [ { 'type': 'migration' } ] } }");
    qtest_qmp_assert_success(vm->standby,
                             "{ 'execute': 'x-colo-lost-heartbeat' }");
    qtest_qmp_eventwait(vm->standby, "RESUME");
    vm->primary = vm->standby;
    vm->standby = NULL;
    driver_continue_in(vm->d, vm->primary);
    return dead;
}

void end_dead(QTestState *dead)
{
    g_autofree char *path = g_strdup_printf("%s/migration", tmpfs);

    kill(qtest_pid(dead), SIGCONT);
    qtest_quit(dead);
    unlink(path);
}

/* ---- what the guest does ------------------------------------------------- */

#define PATTERN 0x5a

void write_pattern(Driver *d, uint32_t file)
{
    Stream s = { 0 };
    struct vgpu_cmd_transfer_buffer *write;

    write = stream_add(&s, VGPU_CMD_WRITE_BUFFER, sizeof(*write) + 64);
    write->enqueue.queue = QUEUE;
    write->buffer = BUFFER;
    write->data = (struct vgpu_payload_ref) {
        .bytes = 64, .index = VGPU_PAYLOAD_INLINE,
    };
    memset(write + 1, PATTERN, 64);
    driver_call(d, file, &s);
}

void read_buffer(Driver *d, uint32_t file, uint64_t memory)
{
    Stream s = { 0 };
    struct vgpu_cmd_transfer_buffer *read;

    read = stream_add(&s, VGPU_CMD_READ_BUFFER, sizeof(*read));
    read->enqueue.queue = QUEUE;
    read->buffer = BUFFER;
    read->data = (struct vgpu_payload_ref) { .bytes = 4096, .index = 0 };
    stream_segment(&s, memory, 4096, 0);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 4096, 1);
    driver_call(d, file, &s);
}

void assert_pattern(Driver *d, uint64_t memory)
{
    uint8_t bytes[65];

    qtest_memread(d->qts, memory, bytes, sizeof(bytes));
    for (int i = 0; i < 64; i++) {
        g_assert_cmphex(bytes[i], ==, PATTERN);
    }
    g_assert_cmphex(bytes[64], ==, 0);
}

static void exercise_files(Driver *d)
{
    driver_open(d, 7);
    driver_make_objects(d, 7);
    driver_close(d, 7);
    g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
}

static void assert_nothing_more(Driver *d)
{
    uint32_t head, len;

    g_assert_false(qvirtqueue_get_buf(d->qts, d->requests, &head, &len));
    g_assert_false(qvirtqueue_get_buf(d->qts, d->events, &head, &len));
}

/* The events that one event buffer tells of, each completed. */
static void expect_completion(Driver *d, uint64_t buffer, uint64_t event)
{
    struct vgpu_event_batch batch;
    struct vgpu_record_completion record;

    driver_wait_event_buffer(d);
    qtest_memread(d->qts, buffer, &batch, sizeof(batch));
    g_assert_cmpuint(batch.count, ==, 1);
    qtest_memread(d->qts, buffer + sizeof(batch), &record, sizeof(record));
    g_assert_cmpuint(record.record.type, ==, VGPU_RECORD_COMPLETION);
    g_assert_cmpuint(record.event, ==, event);
    g_assert_cmpint(record.status, ==, 0);
}

static void marker(Driver *d, uint32_t file, uint64_t event)
{
    Stream s = { 0 };
    struct vgpu_cmd_sync *sync = stream_add(&s, VGPU_CMD_MARKER, sizeof(*sync));

    sync->enqueue.queue = QUEUE;
    sync->enqueue.event = event;
    s.completions = 1;
    driver_call(d, file, &s);
}

/*
 * One that the standby has loaded when this returns; there is no other before
 * somebody asks again.
 */
static void ask_for_checkpoint(Vm *vm)
{
    uint64_t committed = vm_checkpoints(vm->primary, "committed");
    uint64_t epoch;

    migrate_set_parameter_int(vm->primary, "x-checkpoint-delay", 3600000);
    while (vm_checkpoints(vm->primary, "committed") == committed) {
        g_usleep(1000);
    }
    epoch = replication_number(vm->primary, "checkpoint-epoch");
    while (replication_number(vm->standby, "checkpoint-epoch") < epoch) {
        g_usleep(1000);
    }
}

/* ---- tests --------------------------------------------------------------- */

/* What the guest finds of a queue when it asks the transport */
static void expect_queue(Driver *d, uint16_t index, const QVirtQueue *vq)
{
    QVirtioPCIDevice *dev = d->dev;
    uint64_t common = dev->common_cfg_offset;

    qpci_io_writew(dev->pdev, dev->bar, common + VIRTIO_PCI_COMMON_Q_SELECT,
                   index);
    g_assert_cmpuint(qpci_io_readw(dev->pdev, dev->bar,
                                   common + VIRTIO_PCI_COMMON_Q_ENABLE), ==, 1);
    g_assert_cmpuint(qpci_io_readw(dev->pdev, dev->bar,
                                   common + VIRTIO_PCI_COMMON_Q_SIZE), ==,
                     vq->size);
    g_assert_cmphex(qpci_io_readl(dev->pdev, dev->bar,
                                  common + VIRTIO_PCI_COMMON_Q_DESCLO), ==,
                    (uint32_t)vq->desc);
    g_assert_cmphex(qpci_io_readl(dev->pdev, dev->bar,
                                  common + VIRTIO_PCI_COMMON_Q_AVAILLO), ==,
                    (uint32_t)vq->avail);
    g_assert_cmphex(qpci_io_readl(dev->pdev, dev->bar,
                                  common + VIRTIO_PCI_COMMON_Q_USEDLO), ==,
                    (uint32_t)vq->used);
}

/*
 * A read in flight is answered once on the survivor, with what the GPU's
 * buffer had on the primary; objects are there in spite of the reset that
 * comes before each load; events are told that were not told, and only those.
 */
static void test_in_flight(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t events[2];
    Pending read, set;
    QTestState *dead;

    events[0] = driver_post_event_buffer(d, VGPU_EVENT_BUFFER_BYTES);
    events[1] = driver_post_event_buffer(d, VGPU_EVENT_BUFFER_BYTES);
    qtest_memset(d->qts, memory, 0xee, 4096);
    driver_open(d, 1);
    driver_make_objects(d, 1);
    write_pattern(d, 1);
    vm_protect(&vm);
    marker(d, 1, 100);
    expect_completion(d, events[0], 100);
    read = driver_put_waiting_read(d, 1, memory, 101);
    vm_checkpoint(&vm);
    g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 1);

    dead = vm_fail_over(&vm);
    wait_replication(vm.primary, "role", "primary");
    wait_replication(vm.primary, "takeovers", "1");
    driver_wait_stat(d, "device-resumed", 1);
    driver_wait_stat(d, "requests-in-flight", 1);
    expect_queue(d, VGPU_QUEUE_REQUEST, d->requests);
    expect_queue(d, VGPU_QUEUE_EVENT, d->events);
    g_assert_cmphex(qtest_readl(d->qts, read.response), ==, 0xeeeeeeee);
    g_assert_cmphex(qtest_readl(d->qts, memory), ==, 0xeeeeeeee);
    assert_nothing_more(d);

    driver_set_user_event(d, 1, &set);
    driver_wait_both(d, &read, &set);
    assert_pattern(d, memory);
    expect_completion(d, events[1], 101);
    assert_nothing_more(d);
    driver_close(d, 1);
    exercise_files(d);
    driver_restart_device(d);
    exercise_files(d);
    end_dead(dead);
    driver_free(d);
}

/* In flight and spoiled by the guest: answered MALFORMED, nothing else. */
static void test_spoiled(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    struct vgpu_response response;
    Pending read;
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    vm_protect(&vm);
    read = driver_put_waiting_read(d, 1, memory, 0);
    qtest_writel(d->qts, read.readable + offsetof(struct vgpu_request, type),
                 VGPU_REQUEST_OPEN);
    vm_checkpoint(&vm);

    dead = vm_fail_over(&vm);
    response = driver_wait(d, &read);
    g_assert_cmpuint(response.status, ==, VGPU_STATUS_MALFORMED);
    assert_nothing_more(d);
    driver_close(d, 1);
    exercise_files(d);
    end_dead(dead);
    driver_free(d);
}

/* Its descriptors spoiled: as on any ring that lies, until the next reset. */
static void test_spoiled_ring(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t desc;
    Pending read;
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    vm_protect(&vm);
    read = driver_put_waiting_read(d, 1, memory, 0);
    desc = d->requests->desc + read.head * sizeof(struct vring_desc);
    qtest_writew(d->qts, desc + offsetof(struct vring_desc, next), read.head);
    vm_checkpoint(&vm);

    dead = vm_fail_over(&vm);
    g_assert_cmpuint(driver_stat(d, "device-resumed"), ==, 0);
    g_assert_cmphex(qtest_readl(d->qts, read.response), ==, 0xeeeeeeee);
    driver_restart_device(d);
    exercise_files(d);
    end_dead(dead);
    driver_free(d);
}

#define LOG_PAGES 64

/* The log of stores into the first pages of the window. */
static uint64_t ask_log(Driver *d, uint64_t address)
{
    g_assert_cmpuint(driver_ask_log(d, 0, LOG_PAGES, address), ==,
                     VGPU_STATUS_OK);
    return qtest_readq(d->qts, address);
}

/*
 * What the guest sees through the BAR is the VM's memory. The log of stores is
 * not in the checkpoints: after a failover it says that all was stored into.
 * Asking for it takes nothing from the checkpoints.
 */
static void test_window(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t last = WINDOW_ADDRESS + WINDOW_BYTES - 4096;
    uint64_t log = guest_alloc(&d->alloc, 4096);
    Stream s = { 0 };
    struct vgpu_cmd_transfer_buffer *read;
    QTestState *dead;

    driver_put_window(d, WINDOW_ADDRESS);
    qtest_writeq(d->qts, WINDOW_ADDRESS, 0x1122334455667788);
    driver_open(d, 1);
    driver_make_objects(d, 1);
    write_pattern(d, 1);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    /* From now on only what is marked dirty reaches the standby. */
    ask_log(d, log);
    qtest_writeq(d->qts, WINDOW_ADDRESS + 8, 0x99);
    g_assert_cmphex(ask_log(d, log), ==, 1);
    read = stream_add(&s, VGPU_CMD_READ_BUFFER, sizeof(*read));
    read->enqueue.queue = QUEUE;
    read->buffer = BUFFER;
    read->data = (struct vgpu_payload_ref) { .bytes = 4096, .index = 0 };
    stream_segment(&s, WINDOW_BYTES - 4096, 4096, VGPU_SEGMENT_WINDOW);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 4096, 1);
    driver_call(d, 1, &s);
    assert_pattern(d, last);
    vm_checkpoint(&vm);

    dead = vm_fail_over(&vm);
    g_assert_cmphex(qtest_readq(d->qts, WINDOW_ADDRESS), ==,
                    0x1122334455667788);
    g_assert_cmphex(qtest_readq(d->qts, WINDOW_ADDRESS + 8), ==, 0x99);
    assert_pattern(d, last);
    g_assert_cmphex(ask_log(d, log), ==, UINT64_MAX);
    qtest_writeq(d->qts, WINDOW_ADDRESS + 5 * 4096, 1);
    g_assert_cmphex(ask_log(d, log), ==, 1 << 5);
    driver_close(d, 1);
    end_dead(dead);
    driver_free(d);
}

/*
 * The guest moves the window and moves it back: the standby, which keeps maps
 * of memory from one load to the next, has the one of the last checkpoint.
 */
static void test_window_moves(void)
{
    static const uint64_t places[] = { 0, 1, 0, 2, 1, 0, 3 };
    static const uint64_t apart = 64ULL << 30; /* more than its BAR */
    const uint64_t last = WINDOW_ADDRESS + 3 * apart;
    const uint64_t content = 0x1122334455667788;
    Vm vm = vm_start();
    Driver *d = vm.d;
    QTestState *dead;

    driver_put_window(d, WINDOW_ADDRESS);
    qtest_writeq(d->qts, WINDOW_ADDRESS, content);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
        uint64_t place = WINDOW_ADDRESS + places[i] * apart;

        driver_put_window(d, place);
        qtest_writeq(d->qts, place + 8 * (1 + i), i);
        vm_checkpoint(&vm);
    }

    dead = vm_fail_over(&vm);
    for (unsigned place = 0; place < 3; place++) {
        g_assert_cmphex(qtest_readq(d->qts, WINDOW_ADDRESS + place * apart), !=,
                        content);
    }
    g_assert_cmphex(qtest_readq(d->qts, last), ==, content);
    for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
        g_assert_cmphex(qtest_readq(d->qts, last + 8 * (1 + i)), ==, i);
    }
    end_dead(dead);
    driver_free(d);
}

/* The survivor is protected again, and dies: its GPU's state goes on. */
static void test_chain(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    Pending read, set;
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    write_pattern(d, 1);
    vm_protect(&vm);
    read = driver_put_waiting_read(d, 1, memory, 0);
    vm_checkpoint(&vm);
    dead = vm_fail_over(&vm);
    driver_wait_stat(d, "device-resumed", 1);
    driver_set_user_event(d, 1, &set);
    driver_wait_both(d, &read, &set);
    assert_pattern(d, memory);
    end_dead(dead);

    vm.standby = start_standby(PASSIVE);
    vm_protect_gpu(&vm);
    vm_protect(&vm);
    driver_open(d, 2);
    driver_make_objects(d, 2);
    qtest_memset(d->qts, memory, 0xee, 4096);
    read = driver_put_waiting_read(d, 2, memory, 0);
    vm_checkpoint(&vm);
    dead = vm_fail_over(&vm);
    driver_wait_stat(d, "device-resumed", 1);
    g_assert_cmphex(qtest_readl(d->qts, memory), ==, 0xeeeeeeee);
    driver_set_user_event(d, 2, &set);
    driver_wait_both(d, &read, &set);
    g_assert_cmphex(qtest_readl(d->qts, memory), ==, 0);
    read_buffer(d, 1, memory);
    assert_pattern(d, memory);
    assert_nothing_more(d);
    driver_close(d, 1);
    driver_close(d, 2);
    end_dead(dead);
    driver_free(d);
}

/*
 * Another object can't commit a checkpoint that the VM has loaded, and the host
 * of the primary dies: what the GPU has done is of that checkpoint, too.
 */
static void test_not_committed(void)
{
    Vm vm = {
        .d = driver_new(REPLICATION DEVICE ",replicable=on"
                        " -device checkpoint-testdev,id=t"),
        .standby = start_standby(PASSIVE " -device checkpoint-testdev,id=t"),
    };
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    QTestState *dead;

    vm.primary = d->qts;
    vm_protect_gpu(&vm);
    driver_open(d, 1);
    driver_make_objects(d, 1);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    ask_for_checkpoint(&vm);
    write_pattern(d, 1);
    qtest_qmp_assert_success(vm.standby, "{ 'execute': 'qom-set',"
                             "  'arguments': { 'path':"
                             "      '/machine/peripheral/t', 'property':"
                             "      'fail-checkpoints', 'value': 1 } }");
    migrate_set_parameter_int(vm.primary, "x-checkpoint-delay", 3600000);
    qtest_qmp_eventwait(vm.standby, "COLO_EXIT");

    dead = vm_fail_over(&vm);
    read_buffer(d, 1, memory);
    assert_pattern(d, memory);
    end_dead(dead);
    driver_free(d);
}

/* ---- tests: what is refused ---------------------------------------------- */

static void expect_migration_fails(QTestState *qts, const char *sentence)
{
    QDict *answer;
    const char *desc;

    qtest_qmp_assert_success(qts, "{ 'execute': 'migrate',"
                             "  'arguments': {"
                             "      'uri': 'exec:cat > /dev/null' } }");
    wait_for_migration_status(qts, "failed", (const char * []) {
        "completed", "colo", NULL
    });
    answer = qtest_qmp_assert_success_ref(qts,
                                          "{ 'execute': 'query-migrate' }");
    desc = qdict_get_str(answer, "error-desc");
    if (!strstr(desc, sentence)) {
        g_error("'%s' is not in '%s'", sentence, desc);
    }
    qobject_unref(answer);
}

/* A migration that can't end well fails at once, and the VM goes on. */
static void test_refused(void)
{
    Driver *d = driver_new(REPLICATION DEVICE ",replicable=on");

    expect_migration_fails(d->qts, "x-colo");
    exercise_files(d);
    migrate_set_capability(d->qts, "x-colo", true);
    expect_migration_fails(d->qts, "no standby has a complete copy");
    exercise_files(d);
    driver_free(d);
}

/* ---- tests: a hostile primary -------------------------------------------- */

/*
 * What comes right before the generation in the device's state: the limits
 * that both hosts have to have in common, as virtio-vgpu-checkpoint.c says.
 */
static void limits_in_state(Driver *d, uint8_t bytes[20])
{
    static const uint8_t order[] = {
        offsetof(struct vgpu_config, max_files),
        offsetof(struct vgpu_config, max_requests_per_file),
        offsetof(struct vgpu_config, max_events_per_file),
        offsetof(struct vgpu_config, max_stream_bytes),
        offsetof(struct vgpu_config, max_segments),
    };

    for (int i = 0; i < ARRAY_SIZE(order); i++) {
        stl_be_p(bytes + 4 * i, qvirtio_config_readl(&d->dev->vdev, order[i]));
    }
}

/*
 * Tokens of the survivor are made of the generation, and bit 63 is not its own:
 * a checkpoint with such a one is not loaded, also if nothing is in flight.
 */
static void test_generation(void)
{
    static const uint8_t bad[8] = { 0, 0x20 }; /* 2^53 */
    g_autofree char *uri = g_strdup_printf("unix:%s/migration", tmpfs);
    Vm vm = vm_start();
    Driver *d = vm.d;
    ByteRelay *relay = byte_relay_new(uri);
    uint8_t limits[20];
    uint64_t before;

    vm_protect_through(&vm, uri, byte_relay_address(relay));
    vm_checkpoint(&vm);
    before = vm_checkpoints(vm.primary, "committed");
    qtest_set_expected_status(vm.standby, EXIT_FAILURE);
    limits_in_state(d, limits);
    byte_relay_spoil(relay, limits, sizeof(limits), bad, sizeof(bad));
    while (qtest_probe_child(vm.standby)) {
        /* One may have been on its way. */
        g_assert_cmpuint(vm_checkpoints(vm.primary, "committed"), <,
                         before + 4);
        g_usleep(10 * 1000);
    }
    exercise_files(d); /* the primary goes on without it */
    qtest_quit(vm.standby);
    byte_relay_free(relay);
    driver_free(d);
    unlink(uri + strlen("unix:"));
}

/* ---- tests: failures that are held --------------------------------------- */

/* What the property `failure` says of the GPU */
static char *failure(QTestState *qts)
{
    QDict *answer = qtest_qmp(qts, "{ 'execute': 'qom-get', 'arguments': {"
                              " 'path': '/machine/peripheral/vgpu0',"
                              " 'property': 'failure' } }");
    char *text = g_strdup(qdict_get_str(answer, "return"));

    qobject_unref(answer);
    return text;
}

static void wait_failure(QTestState *qts)
{
    for (unsigned i = 0; i < 6000; i++) {
        g_autofree char *text = failure(qts);

        if (*text) {
            return;
        }
        g_usleep(10 * 1000);
    }
    g_error("the GPU never failed");
}

/*
 * A stopped device tells its guest nothing: a failure that was held, and that
 * the guest is to be told of while its VM is stopped, waits until it runs, and
 * a reset finds no event buffer half filled.
 */
static void test_report_failures_while_stopped(void)
{
    Driver *d = driver_new(REPLICATION ",backend=faulty,"
                           "options=memory=1,,on=info:1,,do=lost,"
                           "window-size=16M,replicable=on,hold-failures=on");
    Vm vm = { .d = d, .primary = d->qts, .standby = start_standby(PASSIVE) };
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    Stream s = { 0 };

    driver_post_event_buffer(d, VGPU_EVENT_BUFFER_BYTES);
    driver_open(d, 1);
    vm_protect_gpu(&vm);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    stream_device_name(&s, 64);
    stream_segment(&s, memory, 64, 0);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 64, 1);
    driver_put_stream(d, 1, &s);
    wait_failure(d->qts);

    qtest_qmp_assert_success(d->qts, "{ 'execute': 'stop' }");
    qtest_qom_set_bool(d->qts, "/machine/peripheral/vgpu0", "report-failures",
                       true);
    g_assert_cmpuint(driver_stat(d, "device-records"), ==, 0);
    /*
     * Not started before the VM runs: no guest does that, and a checkpoint
     * may come.
     */
    qvirtio_reset(&d->dev->vdev);
    qtest_qmp_assert_success(d->qts, "{ 'execute': 'cont' }");
    driver_restart_device(d);
    exercise_files(d);
    driver_free(d);
    end_dead(vm.standby);
}

/*
 * A VM that somebody stopped, as before a switchover, gets checkpoints, too,
 * and hears of no change of its state between them: each closes an epoch of
 * its own, and the standby has what the GPU did since the last one.
 */
static void test_stopped(void)
{
    Vm vm = vm_start();
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t epoch;
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    write_pattern(d, 1);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    qtest_qmp_assert_success(d->qts, "{ 'execute': 'stop' }");
    for (unsigned i = 0; i < 3; i++) {
        epoch = replication_number(vm.primary, "checkpoint-epoch");
        ask_for_checkpoint(&vm);
        g_assert_cmpuint(replication_number(vm.primary, "checkpoint-epoch"),
                         >, epoch);
    }
    qtest_qmp_assert_success(d->qts, "{ 'execute': 'cont' }");
    migrate_set_parameter_int(vm.primary, "x-checkpoint-delay", 50);
    vm_checkpoint(&vm);

    dead = vm_fail_over(&vm);
    read_buffer(d, 1, memory);
    assert_pattern(d, memory);
    end_dead(dead);
    driver_free(d);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    int result;

    g_test_init(&argc, &argv, NULL);
    tmpfs = g_dir_make_tmp("virtio-vgpu-takeover-XXXXXX", &error);
    g_assert_no_error(error);

    qtest_add_func("virtio-vgpu-takeover/in-flight", test_in_flight);
    qtest_add_func("virtio-vgpu-takeover/spoiled", test_spoiled);
    qtest_add_func("virtio-vgpu-takeover/spoiled/ring", test_spoiled_ring);
    qtest_add_func("virtio-vgpu-takeover/window", test_window);
    qtest_add_func("virtio-vgpu-takeover/window/moves", test_window_moves);
    qtest_add_func("virtio-vgpu-takeover/chain", test_chain);
    qtest_add_func("virtio-vgpu-takeover/not-committed", test_not_committed);
    qtest_add_func("virtio-vgpu-takeover/refused", test_refused);
    qtest_add_func("virtio-vgpu-takeover/generation", test_generation);
    qtest_add_func("virtio-vgpu-takeover/report-failures-while-stopped",
                   test_report_failures_while_stopped);
    qtest_add_func("virtio-vgpu-takeover/stopped", test_stopped);
    late_log_add();
    result = g_test_run();

    rmdir(tmpfs);
    g_free(tmpfs);
    return result;
}
