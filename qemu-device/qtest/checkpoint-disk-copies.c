// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of checkpoint-disk: copies that go beside checkpoints
 *
 * A secondary with a "replica" gets its first copy between the checkpoints. One
 * whose image is what a former one's stream has left, its "replica-base", gets
 * only what that one lacks. To see what is sent, a test spoils the secondary's
 * image while nobody has it open: what is not sent stays spoiled.
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-disk-pair.h"
#include "checkpoint-tests.h"
#include "qobject/qdict.h"

#define COPY_DISK_BYTES (24 * MiB)
#define SPOILED_AT (17 * MiB)

static void set_text(QTestState *who, const char *property, const char *value)
{
    qtest_qmp_assert_success(who, "{ 'execute': 'qom-set', 'arguments': "
                             "  { 'path': %s, 'property': %s, 'value': %s } }",
                             DISK, property, value);
}

static uint64_t disk_number(QTestState *who, const char *property)
{
    QDict *answer = qtest_qmp(who, "{ 'execute': 'qom-get', 'arguments': "
                              "  { 'path': %s, 'property': %s } }", DISK,
                              property);
    uint64_t number = qdict_get_int(answer, "return");

    qobject_unref(answer);
    return number;
}

static PairOptions copies_options(const char *primary, const char *secondary)
{
    return (PairOptions) { .idle = true, .wait = true, .primary = primary,
                           .secondary = secondary };
}

static void go_as(Pair *pair, const PairOptions *o, const char *replica,
                  const char *base)
{
    set_text(pair->primary, "replica", replica);
    set_text(pair->primary, "replica-base", base);
    pair_go(pair, o);
    pair_wait_colo(pair);
}

/* All of the primary's image is 0x11, the secondary gets it as "one". */
static Pair copies_pair(int64_t bytes)
{
    g_autofree char *first = make_image("first", bytes, 0x11);
    g_autofree char *second = make_image("second", bytes, 0);
    g_autofree char *primary = disk_options(first);
    g_autofree char *secondary = disk_options(second);
    PairOptions o = copies_options(primary, secondary);
    Pair pair = pair_start(&o);

    go_as(&pair, &o, "one", "");
    return pair;
}

static void lose_secondary(Pair *pair)
{
    qtest_quit(pair->secondary);
    pair->secondary = NULL;
    lost_heartbeat(pair->primary);
    while (!is_running(pair->primary)) {
        g_usleep(2 * 1000);
    }
}

/* Another QEMU with the same image. */
static void find_secondary(Pair *pair, const char *replica, const char *base)
{
    g_autofree char *second = g_strdup_printf("%s/second_disk", pair_directory);
    g_autofree char *secondary = disk_options(second);
    PairOptions o = copies_options(NULL, secondary);

    pair_new_secondary(pair, &o);
    go_as(pair, &o, replica, base);
}

/* As somebody else would, whom nobody knows of */
static void spoil(uint8_t byte, int64_t at, int64_t bytes)
{
    g_autofree char *path = g_strdup_printf("%s/second_disk", pair_directory);
    g_autofree uint8_t *data = g_malloc(bytes);
    int fd = open(path, O_WRONLY);

    memset(data, byte, bytes);
    g_assert_cmpint(pwrite(fd, data, bytes, at), ==, bytes);
    close(fd);
}

static void assert_same_images(int64_t except, int64_t bytes)
{
    g_autofree char *first = g_strdup_printf("%s/first_disk", pair_directory);
    g_autofree char *second = g_strdup_printf("%s/second_disk", pair_directory);
    g_autofree char *a = NULL, *b = NULL;
    gsize a_bytes, b_bytes;

    g_assert_true(g_file_get_contents(first, &a, &a_bytes, NULL));
    g_assert_true(g_file_get_contents(second, &b, &b_bytes, NULL));
    g_assert_cmpuint(a_bytes, ==, b_bytes);
    memcpy(a + except, b + except, bytes);
    g_assert_cmpint(memcmp(a, b, a_bytes), ==, 0);
}

/* Without a checkpoint the image gets all; one checkpoint makes it complete. */
static void test_beside(void)
{
    Pair pair = copies_pair(COPY_DISK_BYTES);

    while (!disk_has("second", 0x11, 0, COPY_DISK_BYTES)) {
        g_usleep(2 * 1000);
    }
    g_assert_cmpuint(pair_count(&pair, "committed"), ==, 0);
    g_assert_false(disk_is_complete(pair.secondary));
    disk_write(&pair, 0x22, 1 * MiB, 64 * KiB);
    while (disk_number(pair.primary, "copied-bytes") != COPY_DISK_BYTES) {
        g_usleep(2 * 1000);
    }
    g_assert_cmpuint(copy_disk(&pair), ==, 1);
    g_assert_true(disk_is_complete(pair.secondary));
    assert_same_images(0, 0);
    end_disk_pair(&pair);
}

/* The guest writes what is being copied, and checkpoints come in between. */
static void test_beside_written(void)
{
    Pair pair = copies_pair(COPY_DISK_BYTES);

    for (int i = 0; i < 24; i++) {
        disk_write(&pair, 0x20 + i, i * MiB + 512, 640 * KiB);
        disk_write(&pair, 0x60 + i, (23 - i) * MiB + 700 * KiB, 4096);
        if (i % 3 == 0) {
            commit_checkpoint(&pair);
        }
    }
    commit_checkpoint(&pair);
    copy_disk(&pair);
    assert_same_images(0, 0);
    end_disk_pair(&pair);
}

/* A secondary that was away gets what changed, and nothing else. */
static void test_base(void)
{
    Pair pair = copies_pair(COPY_DISK_BYTES);

    while (disk_number(pair.primary, "copied-bytes") != COPY_DISK_BYTES) {
        g_usleep(2 * 1000);
    }
    copy_disk(&pair);
    disk_write(&pair, 0x22, 1 * MiB, 64 * KiB);
    commit_checkpoint(&pair);
    disk_write(&pair, 0x33, 3 * MiB, 64 * KiB);
    lose_secondary(&pair);
    disk_write(&pair, 0x44, 5 * MiB, 64 * KiB);
    /* It ended after it had acknowledged a checkpoint, before it was loaded. */
    spoil(0x11, 1 * MiB, 64 * KiB);
    spoil(0x99, SPOILED_AT, 4096);

    find_secondary(&pair, "two", "one");
    commit_checkpoint(&pair);
    copy_disk(&pair);
    g_assert_cmpuint(disk_number(pair.primary, "copied-bytes"), <=,
                     192 * KiB);
    g_assert_true(disk_has("second", 0x22, 1 * MiB, 64 * KiB));
    g_assert_true(disk_has("second", 0x33, 3 * MiB, 64 * KiB));
    g_assert_true(disk_has("second", 0x44, 5 * MiB, 64 * KiB));
    g_assert_true(disk_has("second", 0x99, SPOILED_AT, 4096));
    assert_same_images(SPOILED_AT, 4096);

    /* And again: what the second one was told is its base now. */
    disk_write(&pair, 0x55, 7 * MiB, 64 * KiB);
    lose_secondary(&pair);
    find_secondary(&pair, "three", "two");
    commit_checkpoint(&pair);
    copy_disk(&pair);
    g_assert_true(disk_has("second", 0x99, SPOILED_AT, 4096));
    assert_same_images(SPOILED_AT, 4096);
    end_disk_pair(&pair);
}

/* An image of which another thing is known, or nothing: everything is sent. */
static void test_base_of_another(void)
{
    static const char *const bases[] = { "", "other", "two" };

    for (size_t i = 0; i < ARRAY_SIZE(bases); i++) {
        Pair pair = copies_pair(DISK_BYTES);

        commit_checkpoint(&pair);
        copy_disk(&pair);
        lose_secondary(&pair);
        spoil(0x99, 7 * MiB, 4096);
        find_secondary(&pair, "two", bases[i]);
        commit_checkpoint(&pair);
        copy_disk(&pair);
        g_assert_cmpuint(disk_number(pair.primary, "copied-bytes"), ==,
                         DISK_BYTES);
        assert_same_images(0, 0);
        end_disk_pair(&pair);
    }
}

/* It was lost before it had everything: what it has is not sent again. */
static void test_base_incomplete(void)
{
    Pair pair = copies_pair(COPY_DISK_BYTES);

    while (!disk_has("second", 0x11, 4 * MiB, 1 * MiB)) {
        g_usleep(2 * 1000);
    }
    commit_checkpoint(&pair);
    lose_secondary(&pair);
    disk_write(&pair, 0x22, 2 * MiB, 64 * KiB);
    spoil(0x99, 1 * MiB, 4096);
    find_secondary(&pair, "two", "one");
    copy_disk(&pair);
    g_assert_true(disk_has("second", 0x99, 1 * MiB, 4096));
    assert_same_images(1 * MiB, 4096);
    end_disk_pair(&pair);
}

/* One that is told to end while copies come to it ends with status 0. */
static void test_told_to_end(void)
{
    Pair pair = copies_pair(COPY_DISK_BYTES);

    for (int round = 0; round < 8; round++) {
        while (disk_number(pair.primary, "copied-bytes") < 1 * MiB) {
            g_usleep(1000);
        }
        lose_secondary(&pair);
        find_secondary(&pair, "one", "");
    }
    end_disk_pair(&pair);
}

void checkpoint_disk_copies_add(void)
{
    qtest_add_func("/checkpoint/disk/beside", test_beside);
    qtest_add_func("/checkpoint/disk/beside/written", test_beside_written);
    qtest_add_func("/checkpoint/disk/base", test_base);
    qtest_add_func("/checkpoint/disk/base/another", test_base_of_another);
    qtest_add_func("/checkpoint/disk/base/incomplete", test_base_incomplete);
    qtest_add_func("/checkpoint/disk/told-to-end", test_told_to_end);
}
