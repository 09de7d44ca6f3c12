// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints to a passive secondary (COLO with
 * x-colo-passive): that a failover finds what the last checkpoint had
 *
 * checkpoint-moments.c looks at single moments of one checkpoint,
 * checkpoint-ready.c at one that has to wait after the pause,
 * checkpoint-output.c at the packets that leave the VM, and
 * checkpoint-requests.c at resets and stops that meet one.
 */

#include "qemu/osdep.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include "qemu/units.h"
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"
#include "migration/bootfile.h"
#include "migration/migration-qmp.h"
#include "qobject/qdict.h"
#include "qobject/qlist.h"

static void run_and_fail_over(const PairOptions *options)
{
    Pair pair = pair_start(options);

    pair_wait_pauses(&pair, 8);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/* More than one checkpoint; the secondary does not run; its RAM is right. */
static void test_failover(void)
{
    run_and_fail_over(&(PairOptions) { });
}

/* Guest RAM is not the first RAMBlock, and smaller than the first. */
static void test_failover_second_block(void)
{
    run_and_fail_over(&(PairOptions) {
        .machine = "pc,memory-backend=ram",
        .options = "-object memory-backend-ram,id=first,size=160M "
                   "-object memory-backend-ram,id=ram,size=128M -m 128",
    });
}

/* ... and larger. */
static void test_failover_small_first_block(void)
{
    run_and_fail_over(&(PairOptions) {
        .machine = "pc,memory-backend=ram",
        .options = "-object memory-backend-ram,id=first,size=32M "
                   "-object memory-backend-ram,id=ram,size=128M -m 128",
    });
}

/* Devices that have to be reset before their state is loaded. */
static void test_failover_q35(void)
{
    run_and_fail_over(&(PairOptions) { .machine = "q35" });
}

/* Most of a checkpoint does not fit into the staging area. */
static void test_failover_small_stage(void)
{
    run_and_fail_over(&(PairOptions) {
        .primary = "-global migration.x-colo-stage-size=1M "
                   "-global migration.x-colo-ahead-size=1G",
    });
}

/* Nothing is staged. */
static void test_failover_no_stage(void)
{
    run_and_fail_over(&(PairOptions) {
        .primary = "-global migration.x-colo-stage-size=0",
    });
}

/* Pages are sent ahead of every checkpoint. */
static void test_failover_ahead(void)
{
    run_and_fail_over(&(PairOptions) {
        .primary = "-global migration.x-colo-ahead-size=0",
    });
}

/*
 * A thousand checkpoints as fast as they go, each with pages sent ahead, of a
 * VM that writes to few pages all the time.
 */
static void test_failover_busy(void)
{
    PairOptions options = {
        .pages = 64,
        .primary = "-global migration.x-colo-ahead-size=0",
    };
    Pair pair = pair_start(&options);

    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 1);
    pair_wait_pauses(&pair, 1000);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/* A number of a process or thread, whose status in /proc is at @path */
static uint64_t status_number(const char *path, const char *name)
{
    g_autofree char *label = g_strdup_printf("\n%s:", name);
    g_autofree char *status = NULL;
    const char *line;

    g_assert_true(g_file_get_contents(path, &status, NULL, NULL));
    line = strstr(status, label);
    g_assert_nonnull(line);
    return g_ascii_strtoull(line + strlen(label), NULL, 10);
}

/* For how many files Linux has room in its table of the process's */
static uint64_t room_for_files(QTestState *qts)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/status", qtest_pid(qts));

    return status_number(path, "FDSize");
}

/*
 * A failover opens files. The kernel waits for tens of milliseconds when their
 * table has no room for them, so it has.
 */
static void test_failover_files(void)
{
    Pair pair = pair_start(&(PairOptions) { });

    pair_wait_pauses(&pair, 2);
    g_assert_cmpuint(room_for_files(pair.secondary), >=, 512);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/*
 * The VM runs before the secondary's copy of its RAM is freed, which takes
 * longer the more it is. QEMU's trace has the order.
 */
static void test_failover_cache(void)
{
    g_autofree char *path = g_strdup_printf("%s/trace", pair_directory);
    g_autofree char *secondary = g_strdup_printf(
        "-trace enable=vm_state_notify -trace enable=qemu_anon_ram_free "
        "-D %s", path);
    g_autofree char *trace = NULL;
    Pair pair = pair_start(&(PairOptions) { .secondary = secondary });
    const char *freed = NULL;

    pair_wait_pauses(&pair, 2);
    pair_fail_over(&pair);
    while (!freed) {
        g_usleep(10 * 1000);
        g_clear_pointer(&trace, g_free);
        g_assert_true(g_file_get_contents(path, &trace, NULL, NULL));
        freed = strstr(trace, " size 134217728\n");
    }
    g_assert_nonnull(g_strstr_len(trace, freed - trace,
                                  "vm_state_notify running 1 "));
    pair_end(&pair);
    unlink(path);
}

/* How often the primary has looked at what is dirty */
static int64_t syncs(Pair *pair)
{
    return read_ram_property_int(pair->primary, "dirty-sync-count");
}

/*
 * Pages that wait to be sent are found dirty again, and nothing else is: TCG
 * has to trap the next write to them all the same. A slow migration is busy
 * with other pages, while auto-converge looks at the dirty bits every 5 s.
 */
static void test_failover_rearm(void)
{
    /* So few that TCG remembers all of them */
    PairOptions options = { .pages = 64, .wait = true };
    Pair pair = pair_start(&options);
    int64_t wanted;

    migrate_set_capability(pair.primary, "auto-converge", true);
    migrate_set_parameter_int(pair.primary, "cpu-throttle-initial", 1);
    migrate_set_parameter_int(pair.primary, "cpu-throttle-increment", 1);
    /* A first pass over all memory, which does not end the migration. */
    migrate_set_parameter_int(pair.primary, "downtime-limit", 1);
    migrate_set_parameter_int(pair.primary, "avail-switchover-bandwidth",
                              1 * MiB);
    migrate_set_parameter_int(pair.primary, "max-bandwidth", 50 * MiB);
    pair_go(&pair, &options);
    while (syncs(&pair) < 3) {
        qtest_memset(pair.primary, 16 * MiB, 0x5a, 64 * MiB);
    }

    /* A few pages a second, and many that are not written again. */
    migrate_set_parameter_int(pair.primary, "max-bandwidth", 10);
    qtest_memset(pair.primary, 16 * MiB, 0x5a, 64 * MiB);
    wanted = syncs(&pair) + 4;
    while (syncs(&pair) < wanted) {
        g_usleep(10 * 1000);
    }

    migrate_set_parameter_int(pair.primary, "avail-switchover-bandwidth", 0);
    migrate_set_parameter_int(pair.primary, "downtime-limit", 20000);
    migrate_set_parameter_int(pair.primary, "max-bandwidth", 10737418240);
    pair_wait_pauses(&pair, 2);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/*
 * No store escapes TCG's trap when the dirty log is cleared at that moment: it
 * is cleared 200,000 times, while the guest stores into the page. A page that
 * has escaped is trapped again when the log is cleared the next time; stores of
 * the time between are lost.
 */
static void test_trapped(void)
{
    Pair pair = pair_start(&(PairOptions) { .pages = 16, .wait = true });

    testdev_set_number(pair.primary, "watched", X86_TEST_MEM_START);
    /* One is right: TCG logs a store just before it does it. */
    g_assert_cmpuint(testdev_number(pair.primary, "unseen"), <=, 1);
    pair_end(&pair);
}

/*
 * Checkpoints go on when somebody sets the host's clock back by an hour. A
 * library that is loaded into both QEMUs does it (tests/device).
 */
static void test_clock_set_back(void)
{
    const char *library = g_getenv("KAGEMUSHA_CLOCK");
    g_autofree char *file = g_strdup_printf("%s/set-back", pair_directory);
    Pair pair;

    if (!library) {
        g_test_skip("KAGEMUSHA_CLOCK names no library");
        return;
    }
    g_setenv("LD_PRELOAD", library, true);
    g_setenv("KAGEMUSHA_CLOCK_SET_BACK", file, true);
    pair = pair_start(&(PairOptions) { });
    g_unsetenv("LD_PRELOAD");
    g_unsetenv("KAGEMUSHA_CLOCK_SET_BACK");
    pair_wait_colo(&pair);
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 1000);
    pair_wait_pauses(&pair, 1);
    while (testdev_number(pair.primary, "commits") <
           testdev_number(pair.primary, "sequence")) {
        g_usleep(10 * 1000);
    }
    /* The timer of the next one runs by then. */
    g_usleep(200 * 1000);
    g_assert_true(g_file_set_contents(file, "", 0, NULL));
    pair_wait_pauses(&pair, 2);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
    unlink(file);
}

/*
 * Until the guest's clock, which was @first_ns, has counted all that passed
 * since @since_us on the host. A pause of more than 100 ms is made up for in
 * steps, at twice the clock's speed.
 */
static void wait_for_guest_clock(QTestState *qts, int64_t first_ns,
                                 int64_t since_us)
{
    const int64_t rounding_us = 10;
    int64_t end_us = g_get_monotonic_time() + 120 * G_USEC_PER_SEC;

    while (true) {
        int64_t us = g_get_monotonic_time();
        int64_t ns = testdev_number(qts, "guest-clock");

        if ((ns - first_ns) / 1000 >= us - since_us - rounding_us) {
            return;
        }
        g_assert_cmpint(us, <, end_us);
        g_usleep(10 * 1000);
    }
}

/*
 * The guest's clock counts the pauses of checkpoints, and after a failover the
 * time in which nobody ran the guest, but never takes a large step: a guest
 * whose clock is ACPI's timer would stand still. All clocks are of this host.
 */
static void test_guest_clock(void)
{
    const int64_t step_us = 100 * 1000;
    const unsigned int outage_us = 2 * G_USEC_PER_SEC;
    int64_t stopped_us, went_on_us;
    PairOptions options = { .pages = 64, .wait = true };
    Pair pair = pair_start(&options);
    int64_t first_us, last_us, first_ns, last_ns;

    first_ns = testdev_number(pair.primary, "guest-clock");
    first_us = g_get_monotonic_time();
    pair_go(&pair, &options);
    pair_wait_colo(&pair);
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 1);
    pair_wait_pauses(&pair, 100);

    /* No pause is under way any more when all checkpoints have ended. */
    migrate_set_parameter_int(pair.primary, "x-checkpoint-delay", 100000000);
    pair_wait_pauses(&pair, 1);
    while (testdev_number(pair.primary, "commits") <
           testdev_number(pair.primary, "sequence")) {
        g_usleep(10 * 1000);
    }
    wait_for_guest_clock(pair.primary, first_ns, first_us);

    last_us = g_get_monotonic_time();
    last_ns = testdev_number(pair.primary, "guest-clock");
    testdev_clear_log(pair.secondary);
    pair_checkpoint(&pair);
    testdev_wait(pair.secondary, "checkpoint=");
    g_assert_cmpint(kill(qtest_pid(pair.primary), SIGSTOP), ==, 0);
    stopped_us = g_get_monotonic_time();
    g_usleep(outage_us);
    went_on_us = g_get_monotonic_time();
    pair_fail_over(&pair);
    /* The primary's time, a step, and from then on at most twice as fast. */
    g_assert_cmpint((testdev_number(pair.secondary, "guest-clock") - last_ns) /
                    1000, <=, stopped_us - last_us + 2 * step_us +
                    2 * (g_get_monotonic_time() - went_on_us));
    wait_for_guest_clock(pair.secondary, last_ns, stopped_us);
    pair_end(&pair);
}

static void test_cont(void)
{
    Pair pair = pair_start(&(PairOptions) { });
    QDict *error;

    pair_wait_pauses(&pair, 2);
    error = qtest_qmp_assert_failure_ref(pair.secondary,
                                         "{ 'execute': 'cont' }");
    qobject_unref(error);
    g_assert_false(is_running(pair.secondary));
    pair_wait_pauses(&pair, 2);
    pair_fail_over(&pair);
    pair_end(&pair);
}

/* Monitors are told of a stop that lasts, and not of a checkpoint's pause. */
static void test_pauses_are_no_news(void)
{
    Pair pair = pair_start(&(PairOptions) { .pages = 16 });

    pair_wait_colo(&pair);
    pair_wait_pauses(&pair, 5);
    qtest_qmp_assert_success(pair.primary, "{ 'execute': 'stop' }");
    qtest_qmp_eventwait(pair.primary, "STOP");
    g_assert_null(qtest_qmp_event_ref(pair.primary, "STOP"));
    g_assert_null(qtest_qmp_event_ref(pair.primary, "RESUME"));
    pair_end(&pair);
}

/* How often the second vCPU of @qts has slept */
static uint64_t sleeps_of_second_cpu(QTestState *qts)
{
    QDict *answer = qtest_qmp(qts, "{ 'execute': 'query-cpus-fast' }");
    const QDict *cpu = qobject_to(QDict,
        qlist_entry_obj(QTAILQ_NEXT(
            qlist_first(qdict_get_qlist(answer, "return")), next)));
    g_autofree char *path =
        g_strdup_printf("/proc/%d/task/%" PRId64 "/status", qtest_pid(qts),
                        qdict_get_int(cpu, "thread-id"));

    qobject_unref(answer);
    return status_number(path, "voluntary_ctxt_switches");
}

/* A vCPU that has nothing to do sleeps on while the VM is paused. */
static void test_pauses_wake_nobody(void)
{
    Pair pair = pair_start(&(PairOptions) {
        .pages = 16,
        .options = "-m 128 -smp 2", /* the guest never starts the second */
    });
    uint64_t before;

    pair_wait_pauses(&pair, 5);
    before = sleeps_of_second_cpu(pair.primary);
    pair_wait_pauses(&pair, 20);
    g_assert_cmpuint(sleeps_of_second_cpu(pair.primary) - before, <, 20);
    pair_fail_over_and_check(&pair);
    pair_end(&pair);
}

/* ---- the channel ------------------------------------------------------- */

static void give_socket(QTestState *who, int fd)
{
    qtest_qmp_fds_assert_success(who, &fd, 1,
                                 "{ 'execute': 'getfd',"
                                 "  'arguments': { 'fdname': 'wire' } }");
}

static void assert_no_delay(int fd)
{
    int value = 0;
    socklen_t bytes = sizeof(value);

    g_assert_cmpint(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &bytes),
                    ==, 0);
    g_assert_cmpint(value, ==, 1);
}

/* Both ends of a TCP connection send at once; our copies of them tell. */
static void test_no_delay(void)
{
    PairOptions options = { .wait = true };
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int ends[2] = { socket(AF_INET, SOCK_STREAM, 0), -1 };
    Pair pair;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    g_assert_cmpint(bind(listener, (struct sockaddr *)&address, bytes), ==, 0);
    g_assert_cmpint(getsockname(listener, (struct sockaddr *)&address, &bytes),
                    ==, 0);
    g_assert_cmpint(listen(listener, 1), ==, 0);
    g_assert_cmpint(connect(ends[0], (struct sockaddr *)&address, bytes),
                    ==, 0);
    ends[1] = accept(listener, NULL, NULL);
    g_assert_cmpint(ends[1], >=, 0);

    pair = pair_start(&options);
    give_socket(pair.primary, ends[0]);
    give_socket(pair.secondary, ends[1]);
    qtest_qmp_assert_success(pair.secondary,
                             "{ 'execute': 'migrate-incoming',"
                             "  'arguments': { 'uri': 'fd:wire' } }");
    qtest_qmp_assert_success(pair.primary,
                             "{ 'execute': 'migrate',"
                             "  'arguments': { 'uri': 'fd:wire' } }");
    pair_wait_pauses(&pair, 3);
    assert_no_delay(ends[0]);
    assert_no_delay(ends[1]);
    pair_end(&pair);
    close(ends[0]);
    close(ends[1]);
    close(listener);
}

/*
 * A checkpoint comes while "stop" waits for a CPU: it waits, too, until the
 * devices have been told. It tells them only once.
 */
static void test_stop_under_way(void)
{
    PairOptions options = { .idle = true, .relay = true };
    Pair pair = pair_start(&options);
    g_autofree char *log = NULL;
    QDict *answer;

    pair_wait_colo(&pair);
    relay_hold(pair.relay, COLO_MESSAGE_CHECKPOINT_REPLY);
    pair_checkpoint(&pair);
    relay_wait_held(pair.relay);
    relay_hold_none(pair.relay);
    testdev_clear_log(pair.primary);
    testdev_set_number(pair.primary, "busy-cpu-ms", 1000);
    qtest_qmp_send(pair.primary, "{ 'execute': 'stop' }");
    g_usleep(200 * 1000); /* it does not answer before the CPU has stopped */
    relay_pass(pair.relay);
    answer = qtest_qmp_receive(pair.primary);
    g_assert_true(qdict_haskey(answer, "return"));
    qobject_unref(answer);
    testdev_wait(pair.primary, "commit=1 ");
    log = testdev_log(pair.primary);
    g_assert_cmpstr(log, ==, "pause checkpoint=1 save=1 ready=1 commit=1 ");
    g_assert_false(is_running(pair.primary));
    pair_end(&pair);
}

int main(int argc, char **argv)
{
    int result;

    g_test_init(&argc, &argv, NULL);
    pairs_begin();

    qtest_add_func("/checkpoint/failover", test_failover);
    qtest_add_func("/checkpoint/failover/second-block",
                   test_failover_second_block);
    qtest_add_func("/checkpoint/failover/small-first-block",
                   test_failover_small_first_block);
    if (qtest_has_machine("q35")) {
        qtest_add_func("/checkpoint/failover/q35", test_failover_q35);
    }
    qtest_add_func("/checkpoint/failover/small-stage",
                   test_failover_small_stage);
    qtest_add_func("/checkpoint/failover/no-stage", test_failover_no_stage);
    qtest_add_func("/checkpoint/failover/ahead", test_failover_ahead);
    qtest_add_func("/checkpoint/failover/cache", test_failover_cache);
    qtest_add_func("/checkpoint/failover/files", test_failover_files);
    qtest_add_func("/checkpoint/failover/rearm", test_failover_rearm);
    qtest_add_func("/checkpoint/failover/busy", test_failover_busy);
    qtest_add_func("/checkpoint/trapped", test_trapped);
    qtest_add_func("/checkpoint/clock-set-back", test_clock_set_back);
    qtest_add_func("/checkpoint/guest-clock", test_guest_clock);
    qtest_add_func("/checkpoint/cont", test_cont);
    qtest_add_func("/checkpoint/no-news", test_pauses_are_no_news);
    qtest_add_func("/checkpoint/wakes-nobody", test_pauses_wake_nobody);
    qtest_add_func("/checkpoint/no-delay", test_no_delay);
    qtest_add_func("/checkpoint/stop/under-way", test_stop_under_way);
    checkpoint_changes_add();
    checkpoint_moments_add();
    checkpoint_output_add();
    checkpoint_ready_add();
    checkpoint_requests_add();
    checkpoint_disk_copies_add();
    result = g_test_run();

    pairs_end();
    return result;
}
