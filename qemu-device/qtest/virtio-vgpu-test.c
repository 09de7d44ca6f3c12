// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu
 *
 * With the null backend, which runs inside QEMU: configuration, requests,
 * window, records, and reset, stop, unplug and end with work in flight. What a
 * hostile guest does is in virtio-vgpu-hostile.c. With the backend in a worker
 * process ($KAGEMUSHA_WORKER): what depends on shared memory and on its life.
 */
#include "qemu/osdep.h"

#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include "hw/pci/pci_regs.h"
#include "qobject/qdict.h"
#include "libqmp.h"
#include "standard-headers/linux/virtio_pci.h"
#include "virtio-vgpu-driver.h"
#include "virtio-vgpu-tests.h"


/* ---- tests: what the device is ----------------------------------------- */

static void test_config(void)
{
    Driver *d = driver_new(",window-size=16M,max-files=3");
    QVirtioDevice *vdev = &d->dev->vdev;
    QPCIDevice *pdev = d->dev->pdev;

    g_assert_cmphex(qpci_config_readw(pdev, PCI_VENDOR_ID), ==, 0x1af4);
    g_assert_cmphex(qpci_config_readw(pdev, PCI_DEVICE_ID), ==, 0x107f);
    g_assert_cmphex(qpci_config_readw(pdev, PCI_CLASS_DEVICE), ==, 0x1200);
    g_assert_cmpuint(vdev->device_type, ==, VGPU_VIRTIO_ID);

#define CONFIG(field) offsetof(struct vgpu_config, field)
    g_assert_cmpuint(qvirtio_config_readl(vdev, CONFIG(abi_version)), ==,
                     VGPU_ABI_VERSION);
    g_assert_cmpuint(qvirtio_config_readl(vdev, CONFIG(max_files)), ==, 3);
    g_assert_cmpuint(qvirtio_config_readq(vdev, CONFIG(window_bytes)), ==,
                     WINDOW_BYTES);
    g_assert_cmpuint(qvirtio_config_readl(vdev, CONFIG(max_stream_bytes)), <=,
                     VGPU_MAX_STREAM_BYTES);
    g_assert_cmpuint(qvirtio_config_readl(vdev, CONFIG(max_segments)), <=,
                     VGPU_MAX_SEGMENTS);
    g_assert_cmpuint(qvirtio_config_readl(vdev, CONFIG(max_segments)), >, 0);
    /* The largest request has 870 descriptors. QEMU may make queues larger. */
    g_assert_cmpuint(d->requests->size, ==, 1024);
    g_assert_cmpuint(d->events->size, >=, 64);

    driver_open(d, 1);
    driver_open(d, 2);
    driver_open(d, 3);
    g_assert_cmpuint(driver_simple(d, VGPU_REQUEST_OPEN, 4), ==,
                     VGPU_STATUS_LIMIT);
    driver_free(d);
}

#define expect_refused(qts, properties, sentence)                           \
    expect_error(qtest_qmp(qts, "{'execute': 'device_add', 'arguments': {"  \
                           "'driver': 'virtio-vgpu-pci'," properties "}}"), \
                 sentence)

static void test_refused(void)
{
    QTestState *qts = qtest_init(RAM);

    expect_refused(qts, "'backend': 'null', 'sandbox': 'perhaps'",
                   "required, best-effort");
    expect_refused(qts, "'backend': 'null', 'window-size': 3145728", "power");
    expect_refused(qts, "'backend': 'null', 'window-size': 1024",
                   "less than a page");
    expect_refused(qts, "'backend': 'abacus'", "abacus");
    expect_refused(qts, "'backend': 'null', 'iommu_platform': true",
                   "iommu_platform");
    qtest_quit(qts);

    /* Without shared memory: the answer is the options to use. */
    qts = qtest_init("-machine pc -m 64M");
    expect_refused(qts, "'backend': 'null'", "not shared");
    qtest_quit(qts);
}

/* ---- tests: requests --------------------------------------------------- */

static void exercise_files(Driver *d)
{
    driver_open(d, 7);
    g_assert_cmpuint(driver_stat(d, "files-open"), ==, 1);
    g_assert_cmpuint(driver_simple(d, VGPU_REQUEST_OPEN, 7), !=,
                     VGPU_STATUS_OK);
    driver_make_objects(d, 7);
    driver_close(d, 7);
    g_assert_cmpuint(driver_simple(d, VGPU_REQUEST_CLOSE, 7), ==,
                     VGPU_STATUS_NO_FILE);
    g_assert_cmpuint(driver_stat(d, "files-open"), ==, 0);
    g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
}

static void test_files(const void *properties)
{
    Driver *d = driver_new(properties);

    exercise_files(d);
    driver_free(d);
}

/* One payload in two pieces, in reverse order, equals one in one piece. */
static void test_segments(const void *properties)
{
    Driver *d = driver_new(properties);
    uint64_t memory = guest_alloc(&d->alloc, 8192);
    char whole[64], pieces[64];
    Stream one = { 0 }, two = { 0 };
    uint64_t bytes;

    driver_open(d, 1);
    qtest_memset(d->qts, memory, 0, 8192);
    stream_device_name(&one, 64);
    stream_segment(&one, memory, 64, 0);
    stream_payload(&one, VGPU_PAYLOAD_WRITE, 64, 1);
    bytes = driver_call(d, 1, &one).result_bytes;
    g_assert_cmpuint(bytes, >, 3);
    qtest_memread(d->qts, memory, whole, 64);
    g_assert_cmpuint(strlen(whole) + 1, ==, bytes);

    stream_device_name(&two, 64);
    stream_segment(&two, memory + 4096 + 13, 3, 0);
    stream_segment(&two, memory + 1024, 61, 0);
    stream_payload(&two, VGPU_PAYLOAD_WRITE, 64, 2);
    driver_call(d, 1, &two);
    qtest_memread(d->qts, memory + 4096 + 13, pieces, 3);
    qtest_memread(d->qts, memory + 1024, pieces + 3, 61);
    g_assert_cmpmem(pieces, bytes, whole, bytes);
    driver_free(d);
}

/* ---- tests: the window ------------------------------------------------- */

static uint8_t find_shm_cap(QPCIDevice *pdev)
{
    uint8_t cap = 0;

    while ((cap = qpci_find_capability(pdev, PCI_CAP_ID_VNDR, cap)) != 0) {
        if (qpci_config_readb(pdev, cap + 3) ==
            VIRTIO_PCI_CAP_SHARED_MEMORY_CFG) {
            return cap;
        }
    }
    g_assert_not_reached();
}

static void test_window(void)
{
    Driver *d = driver_new(",window-size=16M");
    QPCIDevice *pdev = d->dev->pdev;
    uint8_t cap = find_shm_cap(pdev);
    Stream s = { 0 };
    uint64_t bar_bytes;
    char name[64];

#define CAP(field) (cap + offsetof(struct virtio_pci_cap64, field))
    g_assert_cmpuint(qpci_config_readb(pdev, CAP(cap.id)), ==,
                     VGPU_SHM_WINDOW);
    g_assert_cmpuint(qpci_config_readb(pdev, CAP(cap.bar)), ==, 4);
    g_assert_cmpuint(qpci_config_readl(pdev, CAP(cap.length)), ==,
                     WINDOW_BYTES);
    g_assert_cmpuint(qpci_config_readl(pdev, CAP(length_hi)), ==, 0);
    g_assert_cmpuint(qpci_config_readl(pdev, CAP(cap.offset)), ==, 0);

    /* 64 bits, prefetchable, and too large for a place below 4 GiB. */
    g_assert_cmphex(qpci_config_readl(pdev, PCI_BASE_ADDRESS_4) & 0xf, ==,
                    PCI_BASE_ADDRESS_MEM_TYPE_64 |
                    PCI_BASE_ADDRESS_MEM_PREFETCH);
    qpci_config_writel(pdev, PCI_BASE_ADDRESS_4, 0xffffffff);
    qpci_config_writel(pdev, PCI_BASE_ADDRESS_5, 0xffffffff);
    bar_bytes = qpci_config_readl(pdev, PCI_BASE_ADDRESS_4) & ~0xfU;
    bar_bytes |= (uint64_t)qpci_config_readl(pdev, PCI_BASE_ADDRESS_5) << 32;
    g_assert_cmphex(~bar_bytes + 1, ==, 4ULL << 30);

    driver_put_window(d, WINDOW_ADDRESS);

    /* Memory, to its last byte ... */
    qtest_writeq(d->qts, WINDOW_ADDRESS, 0x1122334455667788);
    qtest_writeq(d->qts, WINDOW_ADDRESS + WINDOW_BYTES - 8, 0x99);
    g_assert_cmphex(qtest_readq(d->qts, WINDOW_ADDRESS), ==,
                    0x1122334455667788);
    g_assert_cmphex(qtest_readq(d->qts, WINDOW_ADDRESS + WINDOW_BYTES - 8), ==,
                    0x99);

    /* ... which a payload can name. */
    driver_open(d, 1);
    stream_device_name(&s, 64);
    stream_segment(&s, WINDOW_BYTES - 64, 64, VGPU_SEGMENT_WINDOW);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 64, 1);
    g_assert_cmpuint(driver_call(d, 1, &s).result_bytes, >, 1);
    qtest_memread(d->qts, WINDOW_ADDRESS + WINDOW_BYTES - 64, name, 64);
    g_assert_cmpuint(strnlen(name, 64), >, 1);
    driver_free(d);
}

/* ---- tests: records ---------------------------------------------------- */

static void put_markers(Driver *d, uint32_t file, unsigned count,
                        uint64_t first_event)
{
    Stream s = { 0 };

    for (unsigned i = 0; i < count; i++) {
        struct vgpu_cmd_sync *marker;

        marker = stream_add(&s, VGPU_CMD_MARKER, sizeof(*marker));
        marker->enqueue.queue = QUEUE;
        marker->enqueue.event = first_event + i;
    }
    s.completions = count;
    driver_call(d, file, &s);
}

/* Without a buffer nothing is lost; several records share one buffer. */
static void test_records(void)
{
    Driver *d = driver_new("");
    uint64_t seen = 0;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    put_markers(d, 1, 10, 100);
    driver_wait_stat(d, "events-completed", 10);
    driver_wait_stat(d, "device-event-starvations", 1);

    /* One that is too small comes back empty, and is not the end. */
    driver_post_event_buffer(d, 64);
    g_assert_cmpuint(driver_wait_event_buffer(d), ==, 0);

    while (seen != 0x3ff) {
        uint64_t at = driver_post_event_buffer(d, VGPU_EVENT_BUFFER_BYTES);
        uint32_t len = driver_wait_event_buffer(d);
        struct vgpu_event_batch batch;

        qtest_memread(d->qts, at, &batch, sizeof(batch));
        g_assert_cmpuint(batch.count, >, 0);
        g_assert_cmpuint(len, ==, sizeof(batch) + batch.bytes);
        at += sizeof(batch);
        for (uint32_t i = 0; i < batch.count; i++) {
            struct vgpu_record_completion record;

            qtest_memread(d->qts, at, &record, sizeof(record));
            g_assert_cmpuint(record.record.type, ==, VGPU_RECORD_COMPLETION);
            g_assert_cmpuint(record.record.file, ==, 1);
            g_assert_cmpint(record.status, ==, 0);
            g_assert_cmpuint(record.event, >=, 100);
            g_assert_cmpuint(record.event, <, 110);
            g_assert_cmphex(seen & (1ULL << (record.event - 100)), ==, 0);
            seen |= 1ULL << (record.event - 100);
            at += record.record.bytes;
        }
    }
    g_assert_cmpuint(driver_stat(d, "device-records"), ==, 10);
    driver_free(d);
}

/* ---- tests: life with work in flight ----------------------------------- */

static Pending start_work(Driver *d, uint64_t *memory)
{
    Pending read;

    *memory = guest_alloc(&d->alloc, 4096);
    driver_open(d, 1);
    driver_make_objects(d, 1);
    read = driver_put_waiting_read(d, 1, *memory, 0);
    driver_wait_stat(d, "requests-in-flight", 1);
    return read;
}

static void test_reset(const void *properties)
{
    Driver *d = driver_new(properties);
    uint64_t memory;
    Pending read = start_work(d, &memory);

    driver_restart_device(d);
    g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
    g_assert_cmpuint(driver_stat(d, "files-open"), ==, 0);
    /* A reset answers nothing. */
    g_assert_cmphex(qtest_readl(d->qts, read.response), ==, 0xeeeeeeee);
    exercise_files(d);
    driver_free(d);
}

static void test_system_reset(void)
{
    Driver *d = driver_new("");
    uint64_t memory;

    start_work(d, &memory);
    qtest_system_reset(d->qts);
    driver_wait_stat(d, "requests-in-flight", 0);
    g_assert_cmpuint(driver_stat(d, "files-open"), ==, 0);
    driver_free(d);
}

/* While the VM is stopped nothing happens; what was put then is not lost. */
static void test_stop(const void *properties)
{
    Driver *d = driver_new(properties);
    uint64_t memory;
    Pending read = start_work(d, &memory), set;
    uint32_t head, len;

    qtest_qmp_assert_success(d->qts, "{'execute': 'stop'}");
    driver_set_user_event(d, 1, &set);
    for (int i = 0; i < 100; i++) {
        g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 1);
        g_assert_false(qvirtqueue_get_buf(d->qts, d->requests, &head, &len));
    }
    qtest_qmp_assert_success(d->qts, "{'execute': 'cont'}");
    driver_wait_both(d, &read, &set);
    driver_close(d, 1);
    driver_free(d);
}

static void test_quit(const void *properties)
{
    Driver *d = driver_new(properties);
    uint64_t memory;

    start_work(d, &memory);
    driver_free(d);
}

#define ACPI_PCIHP_SEL 0xae10
#define ACPI_PCIHP_EJ 0xae08

/* Surprise removal: the guest ejects without having stopped the device. */
static void test_unplug(void)
{
    Driver *d = driver_new("");
    uint64_t memory;

    start_work(d, &memory);
    qtest_qmp_device_del_send(d->qts, "vgpu0");
    qtest_outl(d->qts, ACPI_PCIHP_SEL, 0);
    qtest_outl(d->qts, ACPI_PCIHP_EJ, 1 << SLOT);
    qtest_qmp_eventwait(d->qts, "DEVICE_DELETED");
    driver_forget_device(d);

    /* And another one in its place. */
    qtest_qmp_device_add(d->qts, "virtio-vgpu-pci", "vgpu0",
                         "{'addr': '04.0', 'backend': 'null',"
                         " 'x-in-process': true}");
    driver_find_device(d);
    exercise_files(d);
    driver_free(d);
}

static void test_shared_iothread(void)
{
    Driver *d = driver_new_without_device(
        RAM "-object iothread,id=io0 -device " VGPU ",iothread=io0"
        " -device virtio-vgpu-pci,backend=null,x-in-process=on,iothread=io0");

    driver_find_device(d);
    exercise_files(d);
    driver_free(d);
}

static void test_migration_is_blocked(void)
{
    Driver *d = driver_new("");

    expect_error(qtest_qmp(d->qts, "{'execute': 'migrate', 'arguments': {"
                           "'uri': 'exec:cat > /dev/null'}}"), "vgpu0");
    driver_free(d);
}

/* ---- tests: replication ------------------------------------------------ */

static QTestState *start_standby(void)
{
    g_autofree char *address = standby_address_new();

    return qtest_initf(RAM "-incoming defer -device " VGPU REPLICATION
                       ",standby-listen=%s", address);
}

/* Two QEMUs: the second one's VM never runs, and its device follows. */
static void test_pair(void)
{
    Driver *d = driver_new(REPLICATION ",replicable=on");
    QTestState *standby = start_standby();

    wait_replication(d->qts, "role", "primary");
    wait_replication(d->qts, "state", "off");
    wait_replication(standby, "role", "standby");
    wait_replication(standby, "state", "listening");
    exercise_files(d);

    replicate_to(d->qts, standby);
    wait_replication(d->qts, "state", "protecting");
    wait_replication(d->qts, "degraded", "");
    wait_replication(standby, "state", "ready");
    expect_error(qtest_qmp(d->qts, "{'execute': 'qom-set', 'arguments': {"
                           "'path': '/machine/peripheral/vgpu0',"
                           "'property': 'replicate-to',"
                           "'value': 'unix:other'}}"), "already");

    driver_open(d, 9);
    driver_make_objects(d, 9);
    driver_close(d, 9);
    wait_replication(d->qts, "lag-entries", "0");
    wait_replication(standby, "faults", "0");

    qtest_quit(standby); /* ends well, with the device at work */
    wait_replication(d->qts, "state", "disconnected");
    exercise_files(d);
    driver_free(d);
}

/* A guest in its firmware, or without our module, is protected, too. */
static void test_pair_without_driver(void)
{
    Driver *d = driver_new_without_device(RAM "-device " VGPU REPLICATION
                                          ",replicable=on");
    QTestState *standby = start_standby();

    replicate_to(d->qts, standby);
    wait_replication(d->qts, "state", "protecting");
    wait_replication(standby, "state", "ready");
    driver_find_device(d);
    exercise_files(d);
    wait_replication(d->qts, "lag-entries", "0");
    wait_replication(standby, "faults", "0");
    driver_free(d);
    qtest_quit(standby);
}

static void test_replication_refused(void)
{
    QTestState *qts = qtest_init(RAM);

    expect_refused(qts, "'backend': 'null', 'replicable': true", "vm_id");
    expect_refused(qts, "'backend': 'null', 'vm-id': 'a', 'replicable': true,"
                   "'standby-listen': '127.0.0.1:0'", "not both");
    expect_refused(qts, "'backend': 'null', 'vm-id': 'a',"
                   "'standby-listen': '0.0.0.0:0'", "TLS");
    /* Each user of this machine could connect. */
    expect_refused(qts, "'backend': 'null', 'vm-id': 'a',"
                   "'standby-listen': '127.0.0.1:0'", "TLS");
    expect_refused(qts, "'backend': 'null', 'vm-id': 'a', 'replicable': true,"
                   "'heartbeat-ms': 100, 'heartbeat-budget-ms': 200",
                   "one lost heartbeat");
    qtest_quit(qts);
}

/* ---- tests: with a worker process -------------------------------------- */

#define WORKER ",x-in-process=off,sandbox=best-effort"
#define CRASH_AT_FIRST_INFO WORKER ",backend=faulty," \
                            "options=on=info:1,,do=crash:11"

/* The worker dies of a request: LOST, a record says so, all else goes on. */
static void test_crash(const void *properties)
{
    Driver *d = driver_new(properties);
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t events = driver_post_event_buffer(d, VGPU_EVENT_BUFFER_BYTES);
    struct vgpu_record_lost lost;
    Stream s = { 0 };
    Pending p;

    driver_open(d, 1);
    stream_device_name(&s, 64);
    stream_segment(&s, memory, 64, 0);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 64, 1);
    p = driver_put_stream(d, 1, &s);
    g_assert_cmpuint(driver_wait(d, &p).status, ==, VGPU_STATUS_LOST);

    driver_wait_event_buffer(d);
    qtest_memread(d->qts, events + sizeof(struct vgpu_event_batch), &lost,
                  sizeof(lost));
    g_assert_cmpuint(lost.record.type, ==, VGPU_RECORD_LOST);
    g_assert_cmpuint(lost.record.file, ==, 1);
    g_assert_cmpuint(lost.reason, ==, VGPU_LOST_CRASHED);
    g_assert_cmpuint(driver_stat(d, "workers-lost"), ==, 1);

    driver_close(d, 1);
    exercise_files(d);
    driver_free(d);
}

/* The tests that matter for memory and life, with a process of its own. */
static void add_worker_tests(void)
{
    if (!g_getenv("KAGEMUSHA_WORKER")) {
        g_printerr("KAGEMUSHA_WORKER is not set: no tests with a worker\n");
        return;
    }
    qtest_add_data_func("virtio-vgpu/worker/files", WORKER, test_files);
    qtest_add_data_func("virtio-vgpu/worker/segments", WORKER, test_segments);
    qtest_add_data_func("virtio-vgpu/worker/reset", WORKER, test_reset);
    qtest_add_data_func("virtio-vgpu/worker/stop", WORKER, test_stop);
    qtest_add_data_func("virtio-vgpu/worker/quit", WORKER, test_quit);
    qtest_add_data_func("virtio-vgpu/worker/crash", CRASH_AT_FIRST_INFO,
                        test_crash);
}

/* The first child of the main thread of `pid`, or 0. */
static pid_t child_of(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%d/children", pid,
                                            pid);
    g_autofree char *text = NULL;

    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return atoi(text);
}

static unsigned entries_of(const char *directory)
{
    g_autoptr(GDir) dir = g_dir_open(directory, 0, NULL);
    unsigned count = 0;

    g_assert_nonnull(dir);
    while (g_dir_read_name(dir)) {
        count++;
    }
    return count;
}

/* It has QEMU's memory and nothing else of it, and ends with it. */
static void test_memory_keeper(void)
{
    QTestState *qts = qtest_init("-machine none -device memory-keeper");
    gint64 start = g_get_monotonic_time();
    pid_t qemu = qtest_pid(qts);
    pid_t keeper = child_of(qemu);
    g_autofree char *process = g_strdup_printf("/proc/%d", keeper);
    g_autofree char *files = g_strdup_printf("%s/fd", process);
    g_autofree char *name = g_strdup_printf("%s/comm", process);
    g_autofree char *text = NULL;

    g_assert_cmpint(keeper, !=, 0);
    g_assert_true(g_file_get_contents(name, &text, NULL, NULL));
    g_assert_cmpstr(text, ==, "memory-keeper\n");
    g_assert_cmpint(getpriority(PRIO_PROCESS, keeper), ==, 10);
    while (entries_of(files) != 1) { /* it is told of QEMU's end by it */
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
#ifdef SYS_kcmp
    g_assert_cmpint(syscall(SYS_kcmp, qemu, keeper, KCMP_VM, 0, 0), ==, 0);
#endif
    kill(keeper, SIGTERM); /* QEMU's handler would end QEMU */
    qtest_qmp_assert_success(qts, "{ 'execute': 'query-status' }");
    g_assert_cmpint(child_of(qemu), ==, keeper);
    qtest_quit(qts);
    while (g_file_test(process, G_FILE_TEST_EXISTS)) {
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
}

static int filters_of(pid_t process)
{
    g_autofree char *name = g_strdup_printf("/proc/%d/status", process);
    g_autofree char *text = NULL;
    const char *line;

    g_assert_true(g_file_get_contents(name, &text, NULL, NULL));
    line = strstr(text, "\nSeccomp:\t");
    return line ? atoi(line + strlen("\nSeccomp:\t")) : -1;
}

/*
 * QEMU's sandbox lets nothing be started, so the keeper comes before it, and
 * has a filter of its own: QEMU could write its code. (Without patch 42 QEMU
 * ends: "can't be started: Operation not permitted".)
 */
static void test_memory_keeper_sandbox(void)
{
    QTestState *qts = qtest_init("-machine none -device memory-keeper"
                                 " -sandbox on,obsolete=deny,"
                                 "elevateprivileges=deny,spawn=deny,"
                                 "resourcecontrol=deny");
    pid_t qemu = qtest_pid(qts);
    pid_t keeper = child_of(qemu);

    g_assert_cmpint(keeper, !=, 0);
    g_assert_cmpint(filters_of(qemu), ==, SECCOMP_MODE_FILTER);
    g_assert_cmpint(filters_of(keeper), ==, SECCOMP_MODE_FILTER);
    g_assert_cmpint(getpriority(PRIO_PROCESS, keeper), ==, 10);
    qtest_quit(qts);
}

/* One monitor of several, which its I/O thread looks after. */
static int connect_monitor(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpuint(g_strlcpy(address.sun_path, path,
                               sizeof(address.sun_path)), <,
                     sizeof(address.sun_path));
    g_assert_cmpint(connect(fd, (void *)&address, sizeof(address)), ==, 0);
    qobject_unref(qmp_fd_receive(fd)); /* the greeting */
    qobject_unref(qmp_fd(fd, "{ 'execute': 'qmp_capabilities',"
                         " 'arguments': { 'enable': ['oob'] } }"));
    return fd;
}

/*
 * Commands that come while QEMU ends are lost, and QEMU ends as it should.
 * (Without patch 32 one round of some 40 ends with SIGSEGV.)
 */
static void test_commands_at_the_end(void)
{
    enum { ROUNDS = 40, MONITORS = 12, COMMANDS = 6, PAUSE_US = 400 };
    static const char command[] = "{ 'execute': 'query-status' }";
    g_autofree char *directory = g_dir_make_tmp("qmp-XXXXXX", NULL);

    g_assert_nonnull(directory);
    for (int round = 0; round < ROUNDS; round++) {
        g_autoptr(GString) arguments = g_string_new("-machine none");
        int fd[MONITORS];
        QTestState *qts;

        for (int i = 0; i < MONITORS; i++) {
            g_string_append_printf(arguments,
                                   " -qmp unix:%s/%d,server=on,wait=off",
                                   directory, i);
        }
        qts = qtest_init(arguments->str);
        for (int i = 0; i < MONITORS; i++) {
            g_autofree char *path = g_strdup_printf("%s/%d", directory, i);

            fd[i] = connect_monitor(path);
        }
        qtest_qmp_send_raw(qts, "{ 'execute': 'quit' }");
        for (int n = 0; n < COMMANDS; n++) { /* more would wait for answers */
            for (int i = 0; i < MONITORS; i++) {
                send(fd[i], command, strlen(command), MSG_NOSIGNAL);
            }
            g_usleep(PAUSE_US);
        }
        qtest_wait_qemu(qts);
        qtest_quit(qts); /* fails the test if QEMU did not end well */
        for (int i = 0; i < MONITORS; i++) {
            g_autofree char *path = g_strdup_printf("%s/%d", directory, i);

            close(fd[i]);
            unlink(path);
        }
    }
    rmdir(directory);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    qtest_add_func("virtio-vgpu/config", test_config);
    qtest_add_func("virtio-vgpu/refused", test_refused);
    qtest_add_data_func("virtio-vgpu/files", "", test_files);
    qtest_add_data_func("virtio-vgpu/files/no-ioeventfd", ",ioeventfd=off",
                        test_files);
    qtest_add_func("virtio-vgpu/files/shared-iothread", test_shared_iothread);
    qtest_add_data_func("virtio-vgpu/segments", "", test_segments);
    qtest_add_func("virtio-vgpu/window", test_window);
    qtest_add_func("virtio-vgpu/records", test_records);
    qtest_add_data_func("virtio-vgpu/reset", "", test_reset);
    qtest_add_func("virtio-vgpu/reset/system", test_system_reset);
    qtest_add_data_func("virtio-vgpu/stop", "", test_stop);
    qtest_add_data_func("virtio-vgpu/stop/no-ioeventfd", ",ioeventfd=off",
                        test_stop);
    qtest_add_data_func("virtio-vgpu/quit", "", test_quit);
    qtest_add_func("virtio-vgpu/unplug", test_unplug);
    qtest_add_func("virtio-vgpu/migration-is-blocked",
                   test_migration_is_blocked);
    qtest_add_func("virtio-vgpu/replication", test_pair);
    qtest_add_func("virtio-vgpu/replication/without-driver",
                   test_pair_without_driver);
    qtest_add_func("virtio-vgpu/replication/refused", test_replication_refused);
    qtest_add_func("memory-keeper", test_memory_keeper);
    qtest_add_func("memory-keeper/sandbox", test_memory_keeper_sandbox);
    qtest_add_func("commands-at-the-end", test_commands_at_the_end);
    add_hostile_tests();
    add_copies_tests();
    add_worker_tests();
    return g_test_run();
}
