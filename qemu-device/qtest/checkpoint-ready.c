// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints: one that needs more than RAM and devices
 *
 * What a replication object has to bring to the secondary's side itself is
 * waited for when the VM runs again, and before the secondary may have the
 * checkpoint. checkpoint-testdev waits for as long as the test says.
 *
 * And disks (checkpoint-disk): each side has an image, and the secondary's is
 * what the primary's was at the last checkpoint. The test writes through
 * qemu-io, as a guest would.
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-disk-pair.h"
#include "checkpoint-tests.h"
#include "qobject/qdict.h"

#define TESTDEV "/machine/peripheral/t"
#define BLOCK (16 * MiB) /* where tests write */

static Pair idle_pair(void)
{
    Pair pair = pair_start(&(PairOptions) { .idle = true });

    pair_wait_colo(&pair);
    return pair;
}

static void assert_memory(QTestState *who, uint64_t at, uint64_t bytes,
                          uint8_t value)
{
    uint8_t byte;

    for (uint64_t i = 0; i < bytes; i += 4 * KiB) {
        qtest_memread(who, at + i, &byte, 1);
        g_assert_cmphex(byte, ==, value);
    }
}

/* The checkpoint @number has been sent but for its end; the VM runs. */
static void hold_checkpoint(Pair *pair, unsigned int number)
{
    g_autofree char *waits = g_strdup_printf("wait=%u ", number);

    qtest_qom_set_bool(pair->primary, TESTDEV, "hold-ready", true);
    pair_checkpoint(pair);
    testdev_wait(pair->primary, waits);
    g_assert_true(is_running(pair->primary));
    g_assert_cmpuint(testdev_number(pair->primary, "commits"), ==, number - 1);
}

static void release_checkpoint(Pair *pair)
{
    qtest_qom_set_bool(pair->primary, TESTDEV, "hold-ready", false);
}

/* The VM does not stand still for it, and nothing is committed before. */
static void test_ready(void)
{
    Pair pair = idle_pair();
    g_autofree char *log = NULL;

    qtest_memset(pair.primary, BLOCK, 0x11, 4 * MiB);
    hold_checkpoint(&pair, 1);
    /* Of the next checkpoint, though this one is not over */
    qtest_memset(pair.primary, BLOCK, 0x22, 4 * MiB);
    g_assert_cmpuint(testdev_number(pair.secondary, "sequence"), ==, 0);
    release_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    testdev_wait(pair.secondary, "checkpoint=1 ");
    assert_memory(pair.secondary, BLOCK, 4 * MiB, 0x11);
    log = testdev_log(pair.primary);
    g_assert_nonnull(strstr(log, "pause checkpoint=1 save=1 run "
                                 "wait=1 ready=1 commit=1 "));
    pair_checkpoint(&pair);
    testdev_wait(pair.secondary, "checkpoint=2 ");
    assert_memory(pair.secondary, BLOCK, 4 * MiB, 0x22);
    pair_end(&pair);
}

/*
 * It fails: the checkpoint is taken back when the secondary has its RAM
 * already. That RAM is not sent again, and the next checkpoint has it.
 */
static void test_ready_fails(void)
{
    Pair pair = idle_pair();
    g_autofree char *log = NULL;

    testdev_set_number(pair.primary, "fail-readies", 1);
    qtest_memset(pair.primary, BLOCK, 0x11, 8 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "fail ");
    while (!pair_count(&pair, "aborted")) {
        g_usleep(5 * 1000);
    }
    g_assert_true(is_running(pair.primary));
    g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, 0);

    qtest_memset(pair.primary, BLOCK + 8 * MiB, 0x22, 1 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "ready=2 commit=2 ");
    g_assert_cmpuint(pair_count(&pair, "dirty-bytes"), <, 8 * MiB);
    testdev_wait(pair.secondary, "checkpoint=2 ");
    log = testdev_log(pair.secondary);
    g_assert_null(strstr(log, "load=1 "));
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    assert_memory(pair.secondary, BLOCK, 8 * MiB, 0x11);
    assert_memory(pair.secondary, BLOCK + 8 * MiB, 1 * MiB, 0x22);
    pair_end(&pair);
}

/* The primary dies meanwhile: what the checkpoint before had goes on. */
static void test_ready_failover(void)
{
    Pair pair = idle_pair();

    qtest_memset(pair.primary, BLOCK, 0x11, 4 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.secondary, "checkpoint=1 ");
    qtest_memset(pair.primary, BLOCK, 0x22, 4 * MiB);
    hold_checkpoint(&pair, 2);
    pair_fail_over(&pair);
    assert_memory(pair.secondary, BLOCK, 4 * MiB, 0x11);
    g_assert_cmpuint(testdev_number(pair.secondary, "sequence"), ==, 1);
    pair_end(&pair);
}

/* The secondary is given up meanwhile: the VM goes on alone. */
static void test_ready_secondary_lost(void)
{
    Pair pair = idle_pair();
    g_autofree char *log = NULL;

    hold_checkpoint(&pair, 1);
    lost_heartbeat(pair.primary);
    testdev_wait(pair.primary, "stop:failover ");
    release_checkpoint(&pair);
    testdev_wait(pair.primary, "stop:failover ready=1 run ");
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    log = testdev_log(pair.primary);
    g_assert_null(strstr(log, "commit"));
    pair_end(&pair);
}

/* ---- disks --------------------------------------------------------------- */

/* An image in which this @iotype fails at this sector */
static char *bad_disk_options(const char *image, const char *iotype, int sector)
{
    return g_strdup_printf(
        "-drive if=none,id=d0,node-name=d,driver=checkpoint-disk,"
        "file.driver=blkdebug,file.inject-error.0.event=none,"
        "file.inject-error.0.iotype=%s,file.inject-error.0.sector=%d,"
        "file.image.driver=file,file.image.filename=%s "
        "-device virtio-blk-pci,drive=d0", iotype, sector, image);
}

/* The secondary can't go on; the primary does, alone. */
static void wait_secondary_gives_up(Pair *pair)
{
    qtest_wait_qemu(pair->secondary);
    qtest_quit(pair->secondary);
    pair->secondary = NULL;
    while (!is_running(pair->primary)) {
        g_usleep(2 * 1000);
    }
    disk_write(pair, 0x22, 1 * MiB, 64 * KiB);
}

/* Whatever the secondary's image was; what has no data is not kept, either. */
static void test_disk_copy(void)
{
    Pair pair = disk_pair(DISK_BYTES + 512, 0, 0x77);

    disk_write(&pair, 0x11, 5 * MiB, 3 * MiB);
    disk_write(&pair, 0x12, DISK_BYTES, 512);
    g_assert_cmpuint(copy_disk(&pair), >=, 1);
    g_assert_true(disk_has("second", 0, 0, 5 * MiB));
    g_assert_true(disk_has("second", 0x11, 5 * MiB, 3 * MiB));
    g_assert_true(disk_has("second", 0, 8 * MiB, DISK_BYTES - 8 * MiB));
    g_assert_true(disk_has("second", 0x12, DISK_BYTES, 512));
    end_disk_pair(&pair);
}

/* The guest writes while it is copied, a part with each checkpoint. */
static void test_disk_copy_written(void)
{
    Pair pair = disk_pair(DISK_BYTES, 0x11, 0);

    commit_checkpoint(&pair);
    g_assert_false(disk_is_complete(pair.primary));
    disk_write(&pair, 0x22, 1 * MiB, 64 * KiB);  /* was sent */
    disk_write(&pair, 0x33, 8 * MiB, 64 * KiB);  /* was not */
    g_assert_cmpuint(copy_disk(&pair), >=, 2);
    g_assert_true(disk_has("second", 0x11, 0, 1 * MiB));
    g_assert_true(disk_has("second", 0x22, 1 * MiB, 64 * KiB));
    g_assert_true(disk_has("second", 0x11, 2 * MiB, 6 * MiB));
    g_assert_true(disk_has("second", 0x33, 8 * MiB, 64 * KiB));
    end_disk_pair(&pair);
}

/* A flush of the primary's image would never return; no checkpoint has one. */
static void test_disk_not_flushed(void)
{
    g_autofree char *first = make_image("first", DISK_BYTES, 0);
    g_autofree char *second = make_image("second", DISK_BYTES, 0);
    g_autofree char *primary = g_strdup_printf(
        "-drive if=none,id=d0,node-name=d,driver=checkpoint-disk,"
        "file.driver=raw,file.file.driver=blkdebug,"
        "file.file.image.driver=file,file.file.image.filename=%s "
        "-device virtio-blk-pci,drive=d0", first);
    g_autofree char *secondary = disk_options(second);
    Pair pair = disk_pair_of(primary, secondary);

    pair_wait_colo(&pair);
    copy_disk(&pair);
    g_free(qtest_hmp(pair.primary, "qemu-io d0 \"break flush_to_disk A\""));
    disk_write(&pair, 0x22, 1 * MiB, 64 * KiB);
    commit_checkpoint(&pair);
    g_assert_true(disk_has("second", 0x22, 1 * MiB, 64 * KiB));
    g_free(qtest_hmp(pair.primary, "qemu-io d0 \"remove_break A\""));
    end_disk_pair(&pair);
}

static void fail_once(Pair *pair, const char *what)
{
    testdev_set_number(pair->primary, what, 1);
}

static void wait_aborted(Pair *pair, uint64_t count)
{
    while (pair_count(pair, "aborted") != count) {
        g_usleep(2 * 1000);
    }
}

static void wait_ahead(Pair *pair, uint64_t bytes)
{
    uint64_t ahead = 0;

    while (ahead < bytes) {
        QDict *answer = qtest_qmp(pair->primary,
                                  "{ 'execute': 'qom-get', 'arguments': "
                                  "  { 'path': %s, "
                                  "    'property': 'ahead-bytes' } }", DISK);
        ahead = qdict_get_int(answer, "return");
        qobject_unref(answer);
        g_usleep(2 * 1000);
    }
}

/*
 * What was read before the guest wrote it is not sent, not even after a
 * checkpoint that brought what was written and left what was read ahead.
 */
static void test_disk_copy_ahead(void)
{
    Pair pair = disk_pair(DISK_BYTES, 0x11, 0);

    commit_checkpoint(&pair);
    wait_ahead(&pair, 4 * MiB);
    disk_write(&pair, 0x22, 5 * MiB, 64 * KiB);
    disk_write(&pair, 0x33, 6 * MiB + 512, 1024);
    fail_once(&pair, "fail-checkpoints");
    pair_checkpoint(&pair);
    wait_aborted(&pair, 1);
    commit_checkpoint(&pair);
    g_assert_true(disk_has("second", 0x22, 5 * MiB, 64 * KiB));
    g_assert_false(disk_is_complete(pair.primary));
    copy_disk(&pair);
    g_assert_true(disk_has("second", 0x11, 0, 5 * MiB));
    g_assert_true(disk_has("second", 0x22, 5 * MiB, 64 * KiB));
    g_assert_true(disk_has("second", 0x33, 6 * MiB + 512, 1024));
    g_assert_true(disk_has("second", 0x11, 6 * MiB + 1536, 2 * MiB));
    end_disk_pair(&pair);
}

/* A failover: all of the last checkpoint, nothing of what came after it. */
static void test_disk_failover(void)
{
    Pair pair = disk_pair(DISK_BYTES, 0x11, 0);

    copy_disk(&pair);
    disk_write(&pair, 0x22, 1 * MiB, 1536);
    disk_write(&pair, 0x23, 1 * MiB + 1536, 512);
    g_assert_true(disk_has("second", 0x11, 1 * MiB, 2048));
    commit_checkpoint(&pair);
    disk_write(&pair, 0x44, 1 * MiB, 4096);
    disk_write(&pair, 0x55, 7 * MiB, 1 * MiB);
    hold_checkpoint(&pair, testdev_number(pair.primary, "sequence") + 1);
    pair_fail_over(&pair);
    g_assert_true(disk_has("second", 0x22, 1 * MiB, 1536));
    g_assert_true(disk_has("second", 0x23, 1 * MiB + 1536, 512));
    g_assert_true(disk_has("second", 0x11, 1 * MiB + 2048, 7 * MiB));
    disk_io(pair.secondary, "write", 0x66, 1 * MiB, 4096);
    g_assert_true(disk_has("second", 0x66, 1 * MiB, 4096));
    end_disk_pair(&pair);
}

/* A checkpoint that is taken back: the next one has its writes, too. */
static void test_disk_taken_back(void)
{
    Pair pair = disk_pair(DISK_BYTES, 0x11, 0);
    static const char *const failures[] = { "fail-checkpoints",
                                            "fail-readies" };

    copy_disk(&pair);
    for (size_t i = 0; i < ARRAY_SIZE(failures); i++) {
        fail_once(&pair, failures[i]);
        disk_write(&pair, 0x22 + i, 1 * MiB, 64 * KiB);
        pair_checkpoint(&pair);
        wait_aborted(&pair, i + 1);
        g_assert_false(disk_has("second", 0x22 + i, 1 * MiB, 64 * KiB));
        disk_write(&pair, 0x33 + i, 2 * MiB, 64 * KiB);
        commit_checkpoint(&pair);
        g_assert_true(disk_has("second", 0x22 + i, 1 * MiB, 64 * KiB));
        g_assert_true(disk_has("second", 0x33 + i, 2 * MiB, 64 * KiB));
    }
    end_disk_pair(&pair);
}

/*
 * With as much written as may wait for a commit, none of which comes until
 * "hold-ready" is false, and one write more (0x22, at 128 MiB).
 */
static Pair disk_pair_at_its_bound(void)
{
    Pair pair = disk_pair(LARGE_DISK_BYTES, 0, 0);

    copy_disk(&pair);
    qtest_qom_set_bool(pair.primary, TESTDEV, "hold-ready", true);
    for (int i = 0; i < 2; i++) {
        disk_write(&pair, 0x11, i * 32 * MiB, 32 * MiB);
    }
    /* Nobody but the disk has asked for a checkpoint. */
    testdev_wait(pair.primary, "wait=");
    disk_io(pair.primary, "aio_write", 0x22, 128 * MiB, 1 * MiB);
    return pair;
}

/*
 * Much is written while nothing can be committed: writes wait, and the VM can
 * be stopped all the same. They go on with the commit, or without a secondary.
 */
static void test_disk_bound(void)
{
    for (int lost = 0; lost < 2; lost++) {
        Pair pair = disk_pair_at_its_bound();

        g_usleep(100 * 1000);
        g_assert_true(disk_has("first", 0, 128 * MiB, 1 * MiB));
        if (lost) {
            lost_heartbeat(pair.primary);
        }
        qtest_qom_set_bool(pair.primary, TESTDEV, "hold-ready", false);
        while (!disk_has("first", 0x22, 128 * MiB, 1 * MiB)) {
            g_usleep(2 * 1000);
        }
        if (!lost) {
            commit_checkpoint(&pair);
            g_assert_true(disk_has("second", 0x11, 0, 64 * MiB));
            g_assert_true(disk_has("second", 0x22, 128 * MiB, 1 * MiB));
        }
        end_disk_pair(&pair);
    }
}

static bool disk_failure_has(QTestState *vm, const char *words)
{
    QDict *answer = qtest_qmp(vm, "{ 'execute': 'qom-get', 'arguments': "
                              "  { 'path': %s, 'property': 'failure' } }",
                              DISK);
    bool has = strstr(qdict_get_str(answer, "return"), words);

    qobject_unref(answer);
    return has;
}

/* A part that can't be read: no checkpoint, the VM goes on, and it is told. */
static void test_disk_unreadable(void)
{
    g_autofree char *first_image = make_image("first", DISK_BYTES, 0x11);
    g_autofree char *second_image = make_image("second", DISK_BYTES, 0);
    g_autofree char *primary = bad_disk_options(first_image, "read", 12288);
    g_autofree char *secondary = disk_options(second_image);
    Pair pair = disk_pair_of(primary, secondary);

    pair_wait_colo(&pair);
    commit_checkpoint(&pair);
    /*
     * When it has come so far. The next checkpoint that needs nothing of that
     * part succeeds, and then there is no failure to be told.
     */
    while (!disk_failure_has(pair.primary, "can't be read")) {
        pair_checkpoint(&pair);
        g_usleep(20 * 1000);
    }
    g_assert_cmpint(pair_count(&pair, "aborted"), >, 0);
    g_assert_true(is_running(pair.primary));
    g_assert_false(disk_is_complete(pair.primary));
    end_disk_pair(&pair);
}

/* The secondary's image can't be written, because it is full, say. */
static void test_disk_unwritable(void)
{
    g_autofree char *first_image = make_image("first", DISK_BYTES, 0x11);
    g_autofree char *second_image = make_image("second", DISK_BYTES, 0);
    g_autofree char *primary = disk_options(first_image);
    g_autofree char *secondary = bad_disk_options(second_image, "write", 0);
    Pair pair = disk_pair_of(primary, secondary);

    pair_wait_colo(&pair);
    qtest_set_expected_status(pair.secondary, EXIT_FAILURE);
    pair_checkpoint(&pair);
    wait_secondary_gives_up(&pair);
    end_disk_pair(&pair);
}

/* Images of two sizes are found out before the first checkpoint. */
static void test_disk_of_another_size(void)
{
    g_autofree char *first_image = make_image("first", DISK_BYTES, 0x11);
    g_autofree char *second_image = make_image("second", 2 * DISK_BYTES, 0x77);
    g_autofree char *primary = disk_options(first_image);
    g_autofree char *secondary = disk_options(second_image);
    Pair pair = disk_pair_of(primary, secondary);

    qtest_set_expected_status(pair.secondary, EXIT_FAILURE);
    wait_secondary_gives_up(&pair);
    g_assert_true(disk_has("second", 0x77, 0, 2 * DISK_BYTES));
    end_disk_pair(&pair);
}

/* A write that waits is let go by whoever needs the disk at rest. */
static void test_disk_bound_drained(void)
{
    Pair pair = disk_pair_at_its_bound();

    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    g_assert_true(disk_has("first", 0x22, 128 * MiB, 1 * MiB));
    qtest_qom_set_bool(pair.primary, TESTDEV, "hold-ready", false);
    end_disk_pair(&pair);
}

void checkpoint_ready_add(void)
{
    qtest_add_func("/checkpoint/ready", test_ready);
    qtest_add_func("/checkpoint/ready/fails", test_ready_fails);
    qtest_add_func("/checkpoint/ready/failover", test_ready_failover);
    qtest_add_func("/checkpoint/ready/secondary-lost",
                   test_ready_secondary_lost);
    qtest_add_func("/checkpoint/disk/copy", test_disk_copy);
    qtest_add_func("/checkpoint/disk/copy/written", test_disk_copy_written);
    qtest_add_func("/checkpoint/disk/not-flushed", test_disk_not_flushed);
    qtest_add_func("/checkpoint/disk/copy/ahead", test_disk_copy_ahead);
    qtest_add_func("/checkpoint/disk/failover", test_disk_failover);
    qtest_add_func("/checkpoint/disk/taken-back", test_disk_taken_back);
    qtest_add_func("/checkpoint/disk/unreadable", test_disk_unreadable);
    qtest_add_func("/checkpoint/disk/unwritable", test_disk_unwritable);
    qtest_add_func("/checkpoint/disk/another-size", test_disk_of_another_size);
    qtest_add_func("/checkpoint/disk/bound", test_disk_bound);
    qtest_add_func("/checkpoint/disk/bound/drained", test_disk_bound_drained);
}
