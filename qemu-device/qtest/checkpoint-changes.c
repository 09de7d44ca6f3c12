/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * checkpoint-test: of a page that a checkpoint sends again, only what has
 * changed goes (x-colo-delta)
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"
#include "migration/migration-qmp.h"
#include "qobject/qdict.h"

#define PAGE 4096

/* Adds two numbers of the same checkpoint. */
static void add_counts(Pair *pair, uint64_t *sent, uint64_t *dirty)
{
    QDict *status = qtest_qmp_assert_success_ref(
        pair->primary, "{ 'execute': 'query-colo-status' }");
    QDict *counts = qdict_get_qdict(status, "checkpoints");

    *sent += qdict_get_int(counts, "sent-bytes");
    *dirty += qdict_get_int(counts, "dirty-bytes");
    qobject_unref(status);
}

static void run_busy(bool whole, uint64_t *sent, uint64_t *dirty)
{
    PairOptions options = { .pages = 64, .whole_pages = whole };
    Pair pair = pair_start(&options);

    *sent = *dirty = 0;
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 1);
    pair_wait_pauses(&pair, 100);
    for (int i = 0; i < 90; i++) {
        pair_wait_pauses(&pair, 10);
        add_counts(&pair, sent, dirty);
    }
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/* A thousand checkpoints of a guest that changes a byte of each of 64 pages */
static void test_busy(void)
{
    uint64_t sent, dirty;

    run_busy(false, &sent, &dirty);
    g_assert_cmpuint(dirty, >=, 64 * PAGE);
    g_assert_cmpuint(sent, <, dirty / 4);
}

/* For a secondary that does not decode them */
static void test_whole(void)
{
    uint64_t sent, dirty;

    run_busy(true, &sent, &dirty);
    g_assert_cmpuint(dirty, >=, 64 * PAGE);
    /* A page whose byte is 0 goes without content. */
    g_assert_cmpuint(sent, >, dirty / 2);
}

/* Checkpoint @number, of a VM of which nothing takes one by itself */
static void commit(Pair *pair, unsigned int number)
{
    g_autofree char *entry = g_strdup_printf("commit=%u ", number);

    pair_checkpoint(pair);
    testdev_wait(pair->primary, entry);
    testdev_clear_log(pair->primary);
}

/*
 * The secondary's cache gives pages back that were loaded. A difference of such
 * a page is one to what was loaded.
 */
static void test_given_back(void)
{
    enum { HOT = 16, BURST_PAGES = 3000, ROUNDS = 300 };
    const uint64_t hot_at = 32 * MiB, burst_at = 64 * MiB;
    g_autofree char *path = g_strdup_printf("%s/trace", pair_directory);
    g_autofree char *secondary = g_strdup_printf(
        "-trace enable=colo_cache_base -D %s", path);
    g_autofree uint8_t *hot = g_malloc(HOT * PAGE);
    g_autofree uint8_t *found = g_malloc(HOT * PAGE);
    PairOptions options = {
        .options = "-m 2G",
        /* All of it in the checkpoint, and no page sent ahead */
        .primary = "-global migration.x-colo-ahead-size=1G",
        .secondary = secondary,
        .idle = true,
    };
    Pair pair = pair_start(&options);
    unsigned int bases = 0, round;

    pair_wait_colo(&pair);
    for (int i = 0; i < HOT * PAGE; i++) {
        hot[i] = g_test_rand_int_range(0, 256);
    }
    qtest_memwrite(pair.primary, hot_at, hot, HOT * PAGE);
    testdev_clear_log(pair.primary);
    for (round = 0; round < ROUNDS && bases < 2 * HOT; round++) {
        uint64_t at = burst_at + (round % 32) * BURST_PAGES * PAGE;
        g_autofree char *trace = NULL;

        for (int page = 0; page < HOT; page++) {
            int byte = page * PAGE + g_test_rand_int_range(0, PAGE);

            hot[byte]++;
            qtest_memwrite(pair.primary, hot_at + byte, hot + byte, 1);
        }
        qtest_memset(pair.primary, at, round + 1, BURST_PAGES * PAGE);
        commit(&pair, round + 1);
        g_assert_true(g_file_get_contents(path, &trace, NULL, NULL));
        bases = 0;
        for (const char *c = trace; (c = strstr(c, "colo_cache_base")); c++) {
            bases++;
        }
    }
    g_test_message("%u bases that were given back, in %u rounds", bases, round);
    g_assert_cmpuint(bases, >=, 2 * HOT);
    pair_fail_over(&pair);
    qtest_memread(pair.secondary, hot_at, found, HOT * PAGE);
    g_assert_cmpmem(found, HOT * PAGE, hot, HOT * PAGE);
    pair_end(&pair);
    unlink(path);
}

/*
 * The primary ends in the middle of telling what has changed of the devices:
 * the checkpoint before goes on.
 */
static void test_cut(void)
{
    static const size_t told[] = { 2, 4, 9, 12, 15, 17 };
    const uint64_t at = 32 * MiB;

    for (unsigned int i = 0; i < ARRAY_SIZE(told); i++) {
        PairOptions options = { .idle = true, .relay = true };
        Pair pair = pair_start(&options);

        pair_wait_colo(&pair);
        testdev_clear_log(pair.primary);
        qtest_writeb(pair.primary, at, 1);
        commit(&pair, 1); /* the state of the devices goes whole */
        commit(&pair, 2);
        qtest_writeb(pair.primary, at, 2);
        pair_checkpoint_stopped(&pair, 0);
        relay_cut_in_changes(pair.relay, told[i]);
        qtest_qmp_eventwait(pair.secondary, "COLO_EXIT");
        lost_heartbeat(pair.secondary);
        qtest_qmp_eventwait(pair.secondary, "RESUME");
        g_assert_cmpuint(qtest_readb(pair.secondary, at), ==, 1);
        pair_end(&pair);
    }
}

void checkpoint_changes_add(void)
{
    qtest_add_func("/checkpoint/changes/cut", test_cut);
    qtest_add_func("/checkpoint/changes/busy", test_busy);
    qtest_add_func("/checkpoint/changes/whole", test_whole);
    qtest_add_func("/checkpoint/changes/given-back", test_given_back);
}
