// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints: one that needs more than RAM and devices
 *
 * What a replication object has to bring to the secondary's side itself is
 * waited for when the VM runs again, and before the secondary may have the
 * checkpoint. checkpoint-testdev waits for as long as the test says.
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"

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

    qtest_qmp_assert_success(pair.primary,
                             "{ 'execute': 'qom-set', 'arguments': "
                             "  { 'path': '/machine/peripheral/t', "
                             "    'property': 'fail-readies', 'value': 1 } }");
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

void checkpoint_ready_add(void)
{
    qtest_add_func("/checkpoint/ready", test_ready);
    qtest_add_func("/checkpoint/ready/fails", test_ready_fails);
    qtest_add_func("/checkpoint/ready/failover", test_ready_failover);
    qtest_add_func("/checkpoint/ready/secondary-lost",
                   test_ready_secondary_lost);
}
