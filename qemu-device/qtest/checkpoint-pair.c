// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Two QEMUs with continuous checkpoints to a passive secondary, for tests: see
 * checkpoint-pair.h
 */

#include "qemu/osdep.h"
#include <sys/wait.h>
#include "checkpoint-pair.h"
#include "migration/bootfile.h"
#include "migration/migration-qmp.h"
#include "qemu/bswap.h"
#include "qobject/qdict.h"
#include "qobject/qlist.h"

#define START X86_TEST_MEM_START
#define END X86_TEST_MEM_END
/* Only there to end a test that hangs; no test waits for it. */
#define HANG_SECONDS 240
#define NEVER_MS 100000000

char *pair_directory;
static char *bootpath;

/* Of the pair that was started last, for hangs() */
static int watched[2];

/* Each thread of a process: number, name, state ("T": stopped) */
static void report_threads(int pid)
{
    g_autofree char *tasks = g_strdup_printf("/proc/%d/task", pid);
    g_autoptr(GDir) dir = g_dir_open(tasks, 0, NULL);
    const char *name;

    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *path = g_strdup_printf("%s/%s/stat", tasks, name);
        g_autofree char *stat = NULL;

        if (g_file_get_contents(path, &stat, NULL, NULL)) {
            char *end = strrchr(stat, ')');

            fprintf(stderr, "    %.*s\n", end ? (int)(end - stat + 3) : 20,
                    stat);
        }
    }
}

/* SIGALRM. What it calls is not for signals, but the test is lost already. */
static void hangs(int number)
{
    struct sigaction ends = { .sa_handler = SIG_DFL };

    fprintf(stderr, "%s hangs. Threads of primary and secondary:\n",
            g_test_get_path());
    for (int i = 0; i < 2; i++) {
        fprintf(stderr, "  process %d\n", watched[i]);
        report_threads(watched[i]);
    }
    sigaction(SIGALRM, &ends, NULL);
    raise(SIGALRM);
}

void pairs_begin(void)
{
    struct sigaction hang = { .sa_handler = hangs };
    g_autoptr(GError) error = NULL;

    sigaction(SIGALRM, &hang, NULL);
    pair_directory = g_dir_make_tmp("checkpoint-test-XXXXXX", &error);
    g_assert_no_error(error);
}

void pairs_end(void)
{
    bootfile_delete();
    rmdir(pair_directory);
    g_free(pair_directory);
}

/* Makes the guest write @pages: its program compares with the end twice. */
static void shorten_guest(unsigned int pages)
{
    g_autofree char *program = NULL;
    gsize bytes;
    int found = 0;

    bootfile_delete();
    bootpath = bootfile_create(qtest_get_arch(), pair_directory, false);
    if (!pages) {
        return;
    }
    g_assert_true(g_file_get_contents(bootpath, &program, &bytes, NULL));
    for (gsize at = 0; at + 4 <= bytes; at++) {
        if (ldl_le_p(program + at) == END) {
            stl_le_p(program + at, START + pages * TEST_MEM_PAGE_SIZE);
            found++;
        }
    }
    g_assert_cmpint(found, ==, 2);
    g_assert_true(g_file_set_contents(bootpath, program, bytes, NULL));
}

static QTestState *start_qemu(const char *side, const PairOptions *o,
                              const char *more, const char *incoming)
{
    g_autoptr(QList) oob = qlist_new();
    g_autofree char *guest = g_strdup_printf(
        "-drive if=none,id=d0,file=%s,format=raw,snapshot=on "
        "-device ide-hd,drive=d0,secs=1,cyls=1,heads=1 "
        "-serial file:%s/%s_serial", bootpath, pair_directory, side);
    g_autofree char *args = g_strdup_printf(
        "-accel tcg -machine %s -name %s,debug-threads=on %s %s "
        "-device checkpoint-testdev,id=t %s %s", o->machine ?: "pc", side,
        o->options ?: "-m 128", o->idle ? "" : guest, more ?: "", incoming);

    qlist_append_str(oob, "oob");
    return qtest_init_with_env_and_capabilities(NULL, args, oob, true);
}

/* The guest prints 'A', then a 'B' for each round over its memory. */
static void wait_for_guest(const char *side)
{
    g_autofree char *path = g_strdup_printf("%s/%s_serial", pair_directory,
                                            side);
    g_autofree char *text = NULL;

    for (;;) {
        if (g_file_get_contents(path, &text, NULL, NULL) &&
            strchr(text, 'B')) {
            return;
        }
        g_clear_pointer(&text, g_free);
        g_usleep(10 * 1000);
    }
}

void pair_new_secondary(Pair *pair, const PairOptions *o)
{
    g_autofree char *socket = g_strdup_printf("%s/migration", pair_directory);

    unlink(socket);
    pair->secondary = start_qemu("secondary", o, o->secondary,
                                 "-incoming defer "
                                 "-global migration.x-colo-passive=on");
    watched[1] = qtest_pid(pair->secondary);
    migrate_set_capability(pair->secondary, "x-colo", true);
}

Pair pair_start(const PairOptions *o)
{
    g_autofree char *socket = g_strdup_printf("%s/migration", pair_directory);
    g_autofree char *outside = g_strdup_printf("%s/relay", pair_directory);
    g_autofree char *uri = g_strdup_printf("unix:%s", socket);
    Pair pair = { };

    alarm(HANG_SECONDS);
    shorten_guest(o->pages);
    pair.end = o->pages ? START + o->pages * TEST_MEM_PAGE_SIZE : END;
    pair.primary = start_qemu("primary", o, o->primary, "");
    pair_new_secondary(&pair, o);
    watched[0] = qtest_pid(pair.primary);
    if (!o->idle) {
        wait_for_guest("primary");
    }
    migrate_set_capability(pair.primary, "x-colo", true);
    migrate_set_capability(pair.primary, "x-colo-delta", !o->whole_pages);
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay",
                              o->idle ? NEVER_MS : 50);
    migrate_set_parameter_int(pair.primary, "max-bandwidth", 10737418240);
    migrate_set_parameter_int(pair.primary, "downtime-limit", 20000);
    if (o->relay) {
        pair.relay = relay_new(outside, socket);
    }
    pair.uri = g_strdup_printf("unix:%s", o->relay ? outside : socket);
    if (!o->wait) {
        qtest_qmp_assert_success(pair.secondary,
                                 "{ 'execute': 'migrate-incoming',"
                                 "  'arguments': { 'uri': %s } }", uri);
        pair_go(&pair, o);
    }
    return pair;
}

void pair_go(Pair *pair, const PairOptions *o)
{
    if (o->wait) {
        g_autofree char *uri = g_strdup_printf("unix:%s/migration",
                                               pair_directory);

        qtest_qmp_assert_success(pair->secondary,
                                 "{ 'execute': 'migrate-incoming',"
                                 "  'arguments': { 'uri': %s } }", uri);
    }
    qtest_qmp_assert_success(pair->primary,
                             "{ 'execute': 'migrate',"
                             "  'arguments': { 'uri': %s } }", pair->uri);
}

void pair_end(Pair *pair)
{
    static const char *const files[] = {
        "migration", "relay", "primary_serial", "secondary_serial",
    };

    if (pair->relay) {
        relay_free(pair->relay);
    }
    kill(qtest_pid(pair->primary), SIGCONT);
    if (pair->secondary) {
        qtest_quit(pair->secondary);
    }
    qtest_quit(pair->primary);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        g_autofree char *path = g_strdup_printf("%s/%s", pair_directory,
                                                files[i]);
        unlink(path);
    }
    g_free(pair->uri);
    alarm(0);
}

/* ---- checkpoints ------------------------------------------------------- */

void pair_checkpoint(Pair *pair)
{
    migrate_set_parameter_int(pair->primary, "x-checkpoint-delay", NEVER_MS);
}

void pair_checkpoint_stopped(Pair *pair, uint64_t bytes)
{
    relay_hold(pair->relay, COLO_MESSAGE_CHECKPOINT_REPLY);
    pair_checkpoint(pair);
    relay_wait_held(pair->relay);
    relay_hold_none(pair->relay);
    relay_stop_stream(pair->relay, bytes);
    relay_pass(pair->relay);
}

void pair_wait_pauses(Pair *pair, unsigned int count)
{
    pair->pauses += count;
    while (pair_count(pair, "pauses") < pair->pauses) {
        g_usleep(1000);
    }
}

static char *colo_mode(QTestState *who, QDict **status)
{
    *status = qtest_qmp_assert_success_ref(
        who, "{ 'execute': 'query-colo-status' }");
    return g_strdup(qdict_get_str(*status, "mode"));
}

void pair_wait_colo(Pair *pair)
{
    for (;;) {
        QDict *status;
        g_autofree char *mode = colo_mode(pair->primary, &status);

        qobject_unref(status);
        if (g_str_equal(mode, "primary") && is_running(pair->primary)) {
            break;
        }
        g_usleep(10 * 1000);
    }
    /* Those of the migration itself; of checkpoints nobody is told. */
    qtest_qmp_eventwait(pair->primary, "STOP");
    qtest_qmp_eventwait(pair->primary, "RESUME");
    pair->pauses = pair_count(pair, "pauses");
}

uint64_t pair_count(Pair *pair, const char *what)
{
    QDict *status;
    g_autofree char *mode = colo_mode(pair->primary, &status);
    QDict *counts = qdict_get_qdict(status, "checkpoints");
    uint64_t count = counts ? qdict_get_int(counts, what) : 0;

    qobject_unref(status);
    return count;
}

/* ---- failover ---------------------------------------------------------- */

void lost_heartbeat(QTestState *who)
{
    qtest_qmp_assert_success(who, "{ 'execute': 'x-colo-lost-heartbeat' }");
}

void pair_fail_over(Pair *pair)
{
    g_assert_cmpint(kill(qtest_pid(pair->primary), SIGSTOP), ==, 0);
    lost_heartbeat(pair->secondary);
    qtest_qmp_eventwait(pair->secondary, "RESUME");
}

bool is_running(QTestState *who)
{
    QDict *status = qtest_qmp_assert_success_ref(
        who, "{ 'execute': 'query-status' }");
    bool running = qdict_get_bool(status, "running");

    qobject_unref(status);
    return running;
}

/* ---- witnesses --------------------------------------------------------- */

char *testdev_log(QTestState *who)
{
    QDict *answer = qtest_qmp(who,
                              "{ 'execute': 'qom-get', 'arguments': "
                              "  { 'path': '/machine/peripheral/t', "
                              "    'property': 'log' } }");
    char *log;

    g_assert_true(qdict_haskey(answer, "return"));
    log = g_strdup(qdict_get_str(answer, "return"));
    qobject_unref(answer);
    return log;
}

uint64_t testdev_number(QTestState *who, const char *property)
{
    QDict *answer = qtest_qmp(who,
                              "{ 'execute': 'qom-get', 'arguments': "
                              "  { 'path': '/machine/peripheral/t', "
                              "    'property': %s } }", property);
    uint64_t number;

    g_assert_true(qdict_haskey(answer, "return"));
    number = qdict_get_int(answer, "return");
    qobject_unref(answer);
    return number;
}

void testdev_set_number(QTestState *who, const char *property, uint64_t value)
{
    qtest_qmp_assert_success(who,
                             "{ 'execute': 'qom-set', 'arguments': "
                             "  { 'path': '/machine/peripheral/t', "
                             "    'property': %s, 'value': %" PRIu64 " } }",
                             property, value);
}

void testdev_clear_log(QTestState *who)
{
    qtest_qmp_assert_success(who,
                             "{ 'execute': 'qom-set', 'arguments': "
                             "  { 'path': '/machine/peripheral/t', "
                             "    'property': 'log', 'value': '' } }");
}

void testdev_wait(QTestState *who, const char *entry)
{
    for (;;) {
        g_autofree char *log = testdev_log(who);

        if (strstr(log, entry)) {
            return;
        }
        g_usleep(5 * 1000);
    }
}

void check_ram(Pair *pair, QTestState *who)
{
    uint8_t first, last, byte;
    bool edge = false;

    qtest_memread(who, START, &first, 1);
    last = first;
    for (unsigned int at = START; at < pair->end; at += TEST_MEM_PAGE_SIZE) {
        qtest_memread(who, at, &byte, 1);
        if (byte != last) {
            g_assert_cmphex((uint8_t)(byte + 1), ==, last);
            g_assert_false(edge);
            edge = true;
            last = byte;
        }
    }
}

void pair_fail_over_and_check(Pair *pair)
{
    uint8_t before, after;

    g_assert_false(is_running(pair->secondary));
    pair_fail_over(pair);
    qtest_qmp_assert_success(pair->secondary, "{ 'execute': 'stop' }");
    qtest_qmp_eventwait(pair->secondary, "STOP");
    check_ram(pair, pair->secondary);
    qtest_memread(pair->secondary, START, &before, 1);
    qtest_qmp_assert_success(pair->secondary, "{ 'execute': 'cont' }");
    do {
        g_usleep(10 * 1000);
        qtest_memread(pair->secondary, START, &after, 1);
    } while (after == before);
}
