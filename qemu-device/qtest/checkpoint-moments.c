// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints: single moments of one checkpoint
 *
 * Most tests have no guest, so that nothing happens but what the test does,
 * and a relay between the two QEMUs that stops the dialogue where it matters.
 */

#include "qemu/osdep.h"
#include <sys/wait.h>
#include "qemu/bswap.h"
#include "qemu/units.h"
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"
#include "migration/migration-qmp.h"
#include "qobject/qdict.h"
#include "qobject/qlist.h"

#define BLOCK (16 * MiB) /* where tests write */

static PairOptions idle = { .idle = true, .relay = true };

static Pair idle_pair(void)
{
    Pair pair = pair_start(&idle);

    pair_wait_colo(&pair);
    return pair;
}

static void assert_log(QTestState *who, const char *wanted)
{
    g_autofree char *log = testdev_log(who);

    g_assert_cmpstr(log, ==, wanted);
}

/* Its thread has done all that it had to do. */
static void wait_migration_over(QTestState *who)
{
    size_t instances;

    do {
        QDict *answer = qtest_qmp(who, "{ 'execute': 'query-yank' }");
        QListEntry *entry;

        instances = 0;
        QLIST_FOREACH_ENTRY(qdict_get_qlist(answer, "return"), entry) {
            QDict *instance = qobject_to(QDict, qlist_entry_obj(entry));

            instances += g_str_equal(qdict_get_str(instance, "type"),
                                     "migration");
        }
        qobject_unref(answer);
    } while (instances);
}

/*
 * The order that a device with state outside of QEMU depends on. On the
 * primary a commit belongs to the checkpoint before it, whether the VM runs
 * already or not; on the secondary everything is loaded when it is told.
 */
static void test_order(void)
{
    Pair pair = idle_pair();

    testdev_clear_log(pair.primary);
    testdev_clear_log(pair.secondary);
    for (int i = 1; i <= 2; i++) {
        g_autofree char *commit = g_strdup_printf("commit=%d ", i);
        g_autofree char *loaded = g_strdup_printf("checkpoint=%d ", i);

        relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_RECEIVED);
        pair_checkpoint(&pair);
        pair_wait_pauses(&pair, 1);
        relay_wait_held(pair.relay);
        g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, i - 1);
        relay_pass(pair.relay);
        testdev_wait(pair.primary, commit);
        testdev_wait(pair.secondary, loaded);
    }
    assert_log(pair.primary,
               "pause checkpoint=1 save=1 run ready=1 commit=1 "
               "pause checkpoint=2 save=2 run ready=2 commit=2 ");
    assert_log(pair.secondary,
               "reset:load load=1 get_error checkpoint=1 "
               "reset:load load=2 get_error checkpoint=2 ");
    g_assert_cmpuint(pair_count(&pair, "committed"), ==, 2);

    relay_hold_none(pair.relay);
    testdev_clear_log(pair.secondary);
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    assert_log(pair.secondary, "stop:failover run ");
    pair_end(&pair);
}

/* The primary does not wait for the load, but its next checkpoint does. */
static void test_load_is_not_waited_for(void)
{
    Pair pair = idle_pair();

    relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_LOADED);
    pair_checkpoint(&pair);
    pair_wait_pauses(&pair, 1);
    testdev_wait(pair.primary, "commit=1 ");
    relay_wait_held(pair.relay);
    g_assert_true(is_running(pair.primary));

    pair_checkpoint(&pair);
    g_assert_cmpuint(testdev_number(pair.primary, "sequence"), ==, 1);
    relay_hold_none(pair.relay);
    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=2 ");
    pair_end(&pair);
}

/* A checkpoint that no socket can hold leaves after the VM runs again. */
static void test_stage(void)
{
    Pair pair = idle_pair();
    uint8_t byte;

    qtest_memset(pair.primary, BLOCK, 0x5a, 32 * MiB);
    pair_checkpoint_stopped(&pair, 0);
    pair_wait_pauses(&pair, 1);
    g_assert_true(is_running(pair.primary));
    g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, 0);

    /* What is written now is not part of it. */
    qtest_memset(pair.primary, BLOCK, 0x77, 32 * MiB);
    relay_go_on(pair.relay);
    testdev_wait(pair.primary, "commit=1 ");
    g_assert_cmpuint(pair_count(&pair, "spilled-bytes"), ==, 0);
    g_assert_cmpuint(pair_count(&pair, "dirty-bytes"), >=, 32 * MiB);
    testdev_wait(pair.secondary, "checkpoint=1 ");
    qtest_memread(pair.secondary, BLOCK + 31 * MiB, &byte, 1);
    g_assert_cmphex(byte, ==, 0x5a);
    pair_end(&pair);
}

/* More than the staging area holds: its beginning is sent before. */
static void test_spill(void)
{
    PairOptions options = {
        .idle = true,
        .primary = "-global migration.x-colo-stage-size=4M",
    };
    Pair pair = pair_start(&options);
    /* libqtest's time for a read grows with the square of its bytes. */
    static uint8_t data[128 * KiB];

    pair_wait_colo(&pair);
    qtest_memset(pair.primary, BLOCK, 0x5a, 32 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    g_assert_cmpuint(pair_count(&pair, "spilled-bytes"), >=, 28 * MiB);
    g_assert_cmpuint(pair_count(&pair, "spilled-bytes"), <, 36 * MiB);
    testdev_wait(pair.secondary, "checkpoint=1 ");
    for (size_t at = 0; at < 32 * MiB; at += sizeof(data)) {
        qtest_memread(pair.secondary, BLOCK + at, data, sizeof(data));
        for (size_t i = 0; i < sizeof(data); i++) {
            g_assert_cmphex(data[i], ==, 0x5a);
        }
    }
    pair_end(&pair);
}

/*
 * Pages are sent while the VM runs: next to nothing is left to copy. If the
 * checkpoint then never comes, they are dropped.
 */
static void test_ahead(void)
{
    Pair pair = idle_pair();
    uint8_t byte;

    qtest_memset(pair.primary, BLOCK, 0x11, 48 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    g_assert_cmpuint(pair_count(&pair, "ahead-bytes"), ==, 0);
    g_assert_cmpuint(pair_count(&pair, "dirty-bytes"), >=, 48 * MiB);

    qtest_memset(pair.primary, BLOCK, 0x22, 48 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=2 ");
    g_assert_cmpuint(pair_count(&pair, "ahead-bytes"), >=, 48 * MiB);
    g_assert_cmpuint(pair_count(&pair, "dirty-bytes"), <, 8 * MiB);
    testdev_wait(pair.secondary, "checkpoint=2 ");
    qtest_memread(pair.secondary, BLOCK + 40 * MiB, &byte, 1);
    g_assert_cmphex(byte, ==, 0x22);

    /* Everything of the next one was sent ahead, but not the rest. */
    relay_hold(pair.relay, COLO_MESSAGE_CHECKPOINT_REPLY);
    qtest_memset(pair.primary, BLOCK, 0x33, 48 * MiB);
    pair_checkpoint(&pair);
    relay_wait_held(pair.relay);
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    for (int i = 0; i < 48; i++) {
        qtest_memread(pair.secondary, BLOCK + i * MiB, &byte, 1);
        g_assert_cmphex(byte, ==, 0x22);
    }
    pair_end(&pair);
}

/* A limit for migrations, set while checkpoints are taken, holds none up. */
static void test_ahead_limit(void)
{
    Pair pair = idle_pair();

    qtest_memset(pair.primary, BLOCK, 0x11, 48 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    migrate_set_parameter_int(pair.primary, "max-bandwidth", 10);
    qtest_memset(pair.primary, BLOCK, 0x22, 48 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=2 ");
    g_assert_cmpuint(pair_count(&pair, "ahead-bytes"), >=, 48 * MiB);
    pair_end(&pair);
}

/* An error takes a checkpoint back; the VM runs, and the next one is good. */
static void test_abort(void)
{
    Pair pair = idle_pair();

    testdev_clear_log(pair.primary);
    testdev_clear_log(pair.secondary);
    testdev_set_number(pair.primary, "fail-checkpoints", 2);
    for (int i = 0; i < 2; i++) {
        pair_checkpoint(&pair);
        pair_wait_pauses(&pair, 1);
    }
    pair_checkpoint(&pair);
    pair_wait_pauses(&pair, 1);
    testdev_wait(pair.primary, "commit=1 ");
    testdev_wait(pair.secondary, "checkpoint=1 ");
    assert_log(pair.primary,
               "pause fail run pause fail run "
               "pause checkpoint=1 save=1 run ready=1 commit=1 ");
    assert_log(pair.secondary, "reset:load load=1 get_error checkpoint=1 ");
    g_assert_cmpuint(pair_count(&pair, "aborted"), ==, 2);
    g_assert_cmpuint(pair_count(&pair, "committed"), ==, 1);
    pair_end(&pair);
}

/* The connection ends while a checkpoint is on its way: the VM goes on. */
static void test_connection_lost(void)
{
    Pair pair = idle_pair();

    relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_RECEIVED);
    pair_checkpoint(&pair);
    relay_wait_held(pair.relay);
    relay_free(pair.relay);
    pair.relay = NULL;
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    g_assert_true(is_running(pair.primary));
    g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, 0);
    lost_heartbeat(pair.primary);
    testdev_wait(pair.primary, "stop:failover ");
    pair_end(&pair);
}

/* ... also when it ends while the VM stands still. */
static void test_connection_lost_in_pause(void)
{
    PairOptions options = {
        .idle = true, .relay = true,
        .primary = "-global migration.x-colo-stage-size=1M",
    };
    Pair pair = pair_start(&options);

    pair_wait_colo(&pair);
    qtest_memset(pair.primary, BLOCK, 0x5a, 32 * MiB);
    pair_checkpoint_stopped(&pair, 0);
    relay_wait_stopped(pair.relay);
    g_assert_false(is_running(pair.primary));
    relay_free(pair.relay);
    pair.relay = NULL;
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    g_assert_true(is_running(pair.primary));
    g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, 0);
    pair_end(&pair);
}

/* The second checkpoint stops in the middle of its RAM. */
static Pair pair_stopped_in_ram(void)
{
    Pair pair = idle_pair();

    qtest_memset(pair.primary, BLOCK, 0x44, 4 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    testdev_wait(pair.secondary, "checkpoint=1 ");

    qtest_memset(pair.primary, BLOCK, 0x55, 4 * MiB);
    pair_checkpoint_stopped(&pair, 1 * MiB);
    relay_wait_stopped(pair.relay);
    return pair;
}

static void check_first_checkpoint(Pair *pair)
{
    uint8_t byte;

    qtest_qmp_eventwait(pair->secondary, "RESUME");
    for (unsigned int at = BLOCK; at < BLOCK + 4 * MiB; at += 4 * KiB) {
        qtest_memread(pair->secondary, at, &byte, 1);
        g_assert_cmphex(byte, ==, 0x44);
    }
    g_assert_cmpuint(testdev_number(pair->secondary, "sequence"), ==, 1);
}

/*
 * The primary falls silent in the middle of its RAM. The secondary answers,
 * and takes over at once, with what the checkpoint before had. No yank.
 */
static void test_silent_primary(void)
{
    Pair pair = pair_stopped_in_ram();

    g_assert_false(is_running(pair.secondary));
    lost_heartbeat(pair.secondary);
    check_first_checkpoint(&pair);
    pair_end(&pair);
}

/*
 * The rest of the RAM comes while the secondary already takes over: it is too
 * late for it to count. (A failover that takes long, so that all of it comes.)
 */
static void test_late_ram(void)
{
    Pair pair = pair_stopped_in_ram();

    testdev_set_number(pair.secondary, "stop-ms", 1000);
    qtest_qmp_send(pair.secondary, "{ 'execute': 'x-colo-lost-heartbeat' }");
    g_usleep(200 * 1000);
    relay_go_on(pair.relay);
    qobject_unref(qtest_qmp_receive(pair.secondary));
    check_first_checkpoint(&pair);
    pair_end(&pair);
}

/*
 * The secondary falls silent while a checkpoint is sent. The VM runs; and when
 * somebody says that the secondary is lost, it goes on alone.
 */
static void test_silent_secondary(void)
{
    Pair pair = idle_pair();

    qtest_memset(pair.primary, BLOCK, 0x5a, 32 * MiB);
    pair_checkpoint_stopped(&pair, 0);
    pair_wait_pauses(&pair, 1);
    relay_wait_stopped(pair.relay);

    g_assert_true(is_running(pair.primary));
    lost_heartbeat(pair.primary);
    wait_migration_over(pair.primary);
    g_assert_true(is_running(pair.primary));
    g_assert_cmpuint(testdev_number(pair.primary, "commits"), ==, 0);
    pair_end(&pair);
}

/*
 * The secondary has a whole checkpoint, but its acknowledgement does not get
 * out. It can't know that; so the checkpoint counts.
 */
static void test_acknowledged(void)
{
    Pair pair = idle_pair();

    pair_checkpoint_stopped(&pair, 0);
    testdev_clear_log(pair.secondary);
    relay_finish_and_cut(pair.relay);
    qtest_qmp_eventwait(pair.secondary, "COLO_EXIT");
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    assert_log(pair.secondary,
               "reset:load load=1 get_error checkpoint=1 stop:failover run ");
    pair_end(&pair);
}

/* Half of a checkpoint must never run. */
static void test_load_fails(void)
{
    Pair pair = idle_pair();

    qtest_qom_set_bool(pair.secondary, "/machine/peripheral/t", "fail-load",
                       true);
    qtest_set_expected_status(pair.secondary, EXIT_FAILURE);
    pair_checkpoint(&pair);
    qtest_wait_qemu(pair.secondary);
    qtest_quit(pair.secondary);
    pair.secondary = NULL;
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    g_assert_true(is_running(pair.primary));
    pair_end(&pair);
}

/*
 * Whoever sends is hostile: where RAM comes, which is received without the BQL,
 * there is a device's section, or a command. It is refused, and what was
 * complete before goes on.
 */
static void check_not_ram(const uint8_t *bytes, size_t length)
{
    Pair pair = idle_pair();
    uint8_t head[4];

    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    relay_hold(pair.relay, COLO_MESSAGE_CHECKPOINT_REPLY);
    pair_checkpoint(&pair);
    relay_wait_held(pair.relay);
    stl_be_p(head, COLO_MESSAGE_VMSTATE_SEND);
    relay_insert(pair.relay, head, sizeof(head));
    relay_insert(pair.relay, bytes, length);
    qtest_qmp_eventwait(pair.secondary, "COLO_EXIT");
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    g_assert_true(is_running(pair.secondary));
    pair_end(&pair);
}

static void test_section_among_ram(void)
{
    /* The clock of the VM, complete: type, id, name, instance, version */
    const uint8_t section[] = {
        4, 0, 0, 0, 99, 5, 't', 'i', 'm', 'e', 'r', 0, 0, 0, 0, 0, 0, 0, 2,
        1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
        0x7e, 0, 0, 0, 99
    };

    check_not_ram(section, sizeof(section));
}

static void test_command_among_ram(void)
{
    /* MIG_CMD_PING, which asks for an answer on another channel */
    const uint8_t command[] = { 8, 0, 2, 0, 4, 0, 0, 0, 1 };

    check_not_ram(command, sizeof(command));
}

/*
 * The user stops the VM. Checkpoints go on, but do not start it: nothing is
 * lost when the secondary takes over then.
 */
static void test_stop(void)
{
    Pair pair = idle_pair();
    uint8_t byte;

    qtest_memset(pair.primary, BLOCK, 0x66, 1 * MiB);
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    for (int i = 1; i <= 2; i++) {
        g_autofree char *commit = g_strdup_printf("commit=%d ", i);

        relay_hold(pair.relay, COLO_MESSAGE_CHECKPOINT_REPLY);
        pair_checkpoint(&pair);
        relay_wait_held(pair.relay);
        relay_hold_none(pair.relay);
        relay_pass(pair.relay);
        testdev_wait(pair.primary, commit);
        g_assert_false(is_running(pair.primary));
    }
    testdev_wait(pair.secondary, "checkpoint=2 ");

    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'cont' }");
    g_assert_true(is_running(pair.primary));
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=3 ");
    g_assert_true(is_running(pair.primary));

    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    qtest_memset(pair.primary, BLOCK, 0x67, 1 * MiB);
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=4 ");
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    qtest_memread(pair.secondary, BLOCK, &byte, 1);
    g_assert_cmphex(byte, ==, 0x67);

    /* The primary is not started by its own failover either. */
    pair_checkpoint(&pair);
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    lost_heartbeat(pair.primary);
    wait_migration_over(pair.primary);
    g_assert_false(is_running(pair.primary));
    pair_end(&pair);
}

/* A VM that is stopped gets a secondary. */
static void test_stop_before(void)
{
    PairOptions options = { .idle = true, .wait = true };
    Pair pair = pair_start(&options);

    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    pair_go(&pair, &options);
    testdev_wait(pair.primary, "start:primary ");
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    g_assert_false(is_running(pair.primary));
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'cont' }");
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=2 ");
    g_assert_true(is_running(pair.primary));
    pair_end(&pair);
}

/* Checkpoints can't begin: the VM goes on all the same. */
static void test_start_fails(void)
{
    PairOptions options = { .idle = true, .wait = true };
    Pair pair = pair_start(&options);

    qtest_qom_set_bool(pair.primary, "/machine/peripheral/t", "fail-start",
                       true);
    pair_go(&pair, &options);
    testdev_wait(pair.primary, "start:primary run ");
    g_assert_true(is_running(pair.primary));
    lost_heartbeat(pair.primary);
    wait_migration_over(pair.primary);
    g_assert_true(is_running(pair.primary));
    pair_end(&pair);
}

/* "stop" while the VM stands still for a checkpoint: it lasts, and is told. */
static void test_stop_in_pause(void)
{
    PairOptions options = {
        .idle = true, .relay = true,
        .primary = "-global migration.x-colo-stage-size=1M",
    };
    Pair pair = pair_start(&options);

    pair_wait_colo(&pair);
    qtest_memset(pair.primary, BLOCK, 0x5a, 32 * MiB);
    pair_checkpoint_stopped(&pair, 0);
    relay_wait_stopped(pair.relay);
    /* It waits for the relay to take more. */
    g_assert_false(is_running(pair.primary));
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    relay_go_on(pair.relay);
    qtest_qmp_eventwait(pair.primary, "STOP");
    testdev_wait(pair.primary, "commit=1 ");
    g_assert_false(is_running(pair.primary));
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'cont' }");
    g_assert_true(is_running(pair.primary));
    pair_end(&pair);
}

/* A device asks for a checkpoint. */
static void test_now(void)
{
    Pair pair = idle_pair();

    qtest_qom_set_bool(pair.primary, "/machine/peripheral/t", "checkpoint-now",
                       true);
    testdev_wait(pair.primary, "commit=1 ");

    /* While one is taken: then there is another one. */
    relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_RECEIVED);
    qtest_qom_set_bool(pair.primary, "/machine/peripheral/t", "checkpoint-now",
                       true);
    relay_wait_held(pair.relay);
    qtest_qom_set_bool(pair.primary, "/machine/peripheral/t", "checkpoint-now",
                       true);
    /* It is handled in order with other commands. */
    g_assert_true(is_running(pair.primary));
    relay_hold_none(pair.relay);
    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=3 ");

    /* On the secondary, and without COLO, it does nothing. */
    qtest_qom_set_bool(pair.secondary, "/machine/peripheral/t",
                       "checkpoint-now", true);
    lost_heartbeat(pair.secondary);
    qtest_qmp_eventwait(pair.secondary, "RESUME");
    qtest_qom_set_bool(pair.secondary, "/machine/peripheral/t",
                       "checkpoint-now", true);
    g_assert_true(is_running(pair.secondary));
    pair_end(&pair);
}

void checkpoint_moments_add(void)
{
    qtest_add_func("/checkpoint/order", test_order);
    qtest_add_func("/checkpoint/load-not-waited-for",
                   test_load_is_not_waited_for);
    qtest_add_func("/checkpoint/stage", test_stage);
    qtest_add_func("/checkpoint/spill", test_spill);
    qtest_add_func("/checkpoint/ahead", test_ahead);
    qtest_add_func("/checkpoint/ahead/limit", test_ahead_limit);
    qtest_add_func("/checkpoint/abort", test_abort);
    qtest_add_func("/checkpoint/connection-lost", test_connection_lost);
    qtest_add_func("/checkpoint/connection-lost/in-pause",
                   test_connection_lost_in_pause);
    qtest_add_func("/checkpoint/silent-primary", test_silent_primary);
    qtest_add_func("/checkpoint/late-ram", test_late_ram);
    qtest_add_func("/checkpoint/silent-secondary", test_silent_secondary);
    qtest_add_func("/checkpoint/acknowledged", test_acknowledged);
    qtest_add_func("/checkpoint/load-fails", test_load_fails);
    qtest_add_func("/checkpoint/section-among-ram", test_section_among_ram);
    qtest_add_func("/checkpoint/command-among-ram", test_command_among_ram);
    qtest_add_func("/checkpoint/stop", test_stop);
    qtest_add_func("/checkpoint/stop/before", test_stop_before);
    qtest_add_func("/checkpoint/start-fails", test_start_fails);
    qtest_add_func("/checkpoint/stop/in-pause", test_stop_in_pause);
    qtest_add_func("/checkpoint/now", test_now);
}
