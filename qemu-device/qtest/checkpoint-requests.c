// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints: what QEMU's main loop is asked to do to the
 * VM meanwhile
 *
 * A reset, the end or the sleep of the guest and a stop after an error are
 * requests that the main loop carries out. A checkpoint is another thread's,
 * and pauses the same vCPUs. Whichever comes first is done before the other.
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"
#include "migration/migration-qmp.h"
#include "qobject/qdict.h"

#define BLOCK (16 * MiB) /* where tests write */

/* PIIX4's power management: function 3 of the bridge, and its registers */
#define PM_CONFIG 0x80000b00
#define PM_BASE 0xb000
#define PM_CONTROL (PM_BASE + 4)
#define PM_SLEEP(type) (0x2000 | (type) << 10) /* of the ACPI tables of "pc" */

static const char *const small_stage =
    "-no-shutdown -global migration.x-colo-stage-size=1M";

static Pair idle_pair(void)
{
    Pair pair = pair_start(&(PairOptions) {
        .idle = true, .relay = true, .primary = small_stage,
        .secondary = "-no-shutdown",
    });

    pair_wait_colo(&pair);
    return pair;
}

/* A checkpoint is asked for, and comes no further than its first question. */
static void begin_checkpoint(Pair *pair)
{
    relay_hold(pair->relay, COLO_MESSAGE_CHECKPOINT_REPLY);
    pair_checkpoint(pair);
    relay_wait_held(pair->relay);
    relay_hold_none(pair->relay);
}

/* The VM stands still for a checkpoint, until relay_go_on(). */
static void pause_for_checkpoint(Pair *pair)
{
    qtest_memset(pair->primary, BLOCK, 0x5a, 32 * MiB);
    begin_checkpoint(pair);
    relay_stop_stream(pair->relay, 0);
    relay_pass(pair->relay);
    relay_wait_stopped(pair->relay);
    g_assert_false(is_running(pair->primary));
}

static void assert_status(QTestState *who, const char *wanted)
{
    QDict *status = qtest_qmp_assert_success_ref(
        who, "{ 'execute': 'query-status' }");

    g_assert_cmpstr(qdict_get_str(status, "status"), ==, wanted);
    qobject_unref(status);
}

/* A pause of the vCPUs waits for so long, or until "busy-cpu-ms" is 0. */
static void keep_cpu_busy(QTestState *who, unsigned int ms)
{
    testdev_set_number(who, "busy-cpu-ms", ms);
    while (!qtest_qom_get_bool(who, "/machine/peripheral/t", "cpu-is-busy")) {
        g_usleep(1000);
    }
}

/* The firmware may reset once more: it finds that it has run before. */
static void reset(QTestState *who)
{
    qtest_qmp_assert_success(who, "{ 'execute': 'system_reset' }");
}

static void guest_sleeps(QTestState *who, unsigned int type)
{
    qtest_outl(who, 0xcf8, PM_CONFIG | 0x40);
    qtest_outl(who, 0xcfc, PM_BASE);
    qtest_outl(who, 0xcf8, PM_CONFIG | 0x80);
    qtest_outb(who, 0xcfc, 1);
    qtest_outw(who, PM_CONTROL, PM_SLEEP(type));
}

/* The checkpoint has nothing of the reset, and the VM runs after both. */
static void test_reset_in_pause(void)
{
    Pair pair = idle_pair();
    g_autofree char *log = NULL;

    testdev_clear_log(pair.primary);
    pause_for_checkpoint(&pair);
    reset(pair.primary);
    assert_status(pair.primary, "colo");
    relay_go_on(pair.relay);
    qtest_qmp_eventwait(pair.primary, "RESET");
    testdev_wait(pair.primary, "commit=1 ");
    log = testdev_log(pair.primary);
    g_assert_true(g_str_has_prefix(log, "pause checkpoint=1 save=1 run "));
    g_assert_nonnull(strstr(log, "reset "));
    assert_status(pair.primary, "running");

    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=2 ");
    assert_status(pair.primary, "running");
    pair_end(&pair);
}

/* A checkpoint is about to begin, and for so long a vCPU does not stop. */
static Pair busy_pair(unsigned int ms)
{
    Pair pair = idle_pair();

    begin_checkpoint(&pair);
    testdev_clear_log(pair.primary);
    keep_cpu_busy(pair.primary, ms);
    return pair;
}

/* A checkpoint comes while a reset waits for a vCPU: it waits, too. */
static void test_reset_under_way(void)
{
    Pair pair = busy_pair(1000);
    g_autofree char *log = NULL;

    reset(pair.primary);
    g_usleep(200 * 1000); /* the main loop answers nothing before */
    relay_pass(pair.relay);
    qtest_qmp_eventwait(pair.primary, "RESET");
    testdev_wait(pair.primary, "commit=1 ");
    log = testdev_log(pair.primary);
    g_assert_true(g_str_has_prefix(log, "reset "));
    g_assert_nonnull(strstr(log, "reset pause checkpoint=1 "));
    assert_status(pair.primary, "running");
    pair_end(&pair);
}

/*
 * A reset is asked for while the checkpoint waits for a vCPU, which may be what
 * that vCPU does last: the checkpoint is taken back, and the next one is good.
 */
static void test_reset_asked_by_last_instruction(void)
{
    Pair pair = busy_pair(60000);
    g_autofree char *log = NULL;

    relay_pass(pair.relay);
    while (is_running(pair.primary)) {
        g_usleep(1000);
    }
    reset(pair.primary);
    testdev_set_number(pair.primary, "busy-cpu-ms", 0);
    qtest_qmp_eventwait(pair.primary, "RESET");
    assert_status(pair.primary, "running");
    log = testdev_log(pair.primary);
    g_assert_true(g_str_has_prefix(log, "pause run reset "));
    g_assert_cmpuint(pair_count(&pair, "committed"), ==, 0);

    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    assert_status(pair.primary, "running");
    pair_end(&pair);
}

/* Resets and checkpoints of a guest, each as fast as it goes */
static void test_reset_often(void)
{
    Pair pair = pair_start(&(PairOptions) { .pages = 16 });

    pair_wait_colo(&pair);
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 1);
    for (int i = 0; i < 500; i++) {
        reset(pair.primary);
        qtest_qmp_eventwait(pair.primary, "RESET");
    }
    pair_wait_pauses(&pair, 8);
    g_assert_false(is_running(pair.secondary));
    pair_fail_over(&pair);
    pair_end(&pair);
}

/* A secondary is never reset: it is what the primary was. */
static void test_reset_secondary(void)
{
    Pair pair = idle_pair();
    QDict *answer = qtest_qmp(pair.secondary, "{ 'execute': 'system_reset' }");

    g_assert_true(qdict_haskey(answer, "error"));
    qobject_unref(answer);
    assert_status(pair.secondary, "inmigrate");
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    reset(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESET");
    assert_status(pair.secondary, "running");
    pair_end(&pair);
}

/* The guest has ended: it does not go on after the pause. */
static void test_shutdown_in_pause(void)
{
    Pair pair = idle_pair();

    pause_for_checkpoint(&pair);
    guest_sleeps(pair.primary, 0);
    assert_status(pair.primary, "colo");
    relay_go_on(pair.relay);
    qtest_qmp_eventwait(pair.primary, "SHUTDOWN");
    assert_status(pair.primary, "shutdown");
    pair_end(&pair);
}

/* A device can't go on: neither does the VM. */
static void test_error_in_pause(void)
{
    Pair pair = idle_pair();

    pause_for_checkpoint(&pair);
    qtest_qom_set_bool(pair.primary, "/machine/peripheral/t", "io-error",
                       true);
    assert_status(pair.primary, "colo");
    relay_go_on(pair.relay);
    pair_wait_pauses(&pair, 1);
    while (is_running(pair.primary)) {
        g_usleep(1000);
    }
    assert_status(pair.primary, "io-error");
    pair_end(&pair);
}

/* A guest that sleeps sleeps on after a checkpoint, and on the secondary. */
static void test_suspend(void)
{
    Pair pair = idle_pair();

    guest_sleeps(pair.primary, 1);
    qtest_qmp_eventwait(pair.primary, "SUSPEND");
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    testdev_wait(pair.secondary, "checkpoint=1 ");
    assert_status(pair.primary, "suspended");
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'system_wakeup' }");
    qtest_qmp_eventwait(pair.primary, "WAKEUP");
    assert_status(pair.primary, "running");

    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    assert_status(pair.secondary, "suspended");
    qtest_qmp_assert_success(pair.secondary, "{ 'execute': 'system_wakeup' }");
    qtest_qmp_eventwait(pair.secondary, "WAKEUP");
    assert_status(pair.secondary, "running");
    pair_end(&pair);
}

void checkpoint_requests_add(void)
{
    qtest_add_func("/checkpoint/reset/in-pause", test_reset_in_pause);
    qtest_add_func("/checkpoint/reset/under-way", test_reset_under_way);
    qtest_add_func("/checkpoint/reset/last-instruction",
                   test_reset_asked_by_last_instruction);
    qtest_add_func("/checkpoint/reset/often", test_reset_often);
    qtest_add_func("/checkpoint/reset/secondary", test_reset_secondary);
    qtest_add_func("/checkpoint/shutdown/in-pause", test_shutdown_in_pause);
    qtest_add_func("/checkpoint/error/in-pause", test_error_in_pause);
    qtest_add_func("/checkpoint/suspend", test_suspend);
}
