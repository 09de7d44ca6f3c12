// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Two QEMUs with a writable disk each, for tests: see checkpoint-disk-pair.h
 */

#include "qemu/osdep.h"
#include "qemu/units.h"
#include "checkpoint-disk-pair.h"
#include "qobject/qdict.h"

char *make_image(const char *side, int64_t bytes, int byte)
{
    char *path = g_strdup_printf("%s/%s_disk", pair_directory, side);
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    uint8_t block[4096];

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, bytes), ==, 0);
    memset(block, byte, sizeof(block));
    for (int64_t at = 0; byte && at < bytes; at += sizeof(block)) {
        g_assert_cmpint(pwrite(fd, block, MIN(sizeof(block), bytes - at), at),
                        >, 0);
    }
    close(fd);
    return path;
}

char *disk_options(const char *image)
{
    return g_strdup_printf(
        "-drive if=none,id=d0,node-name=d,driver=checkpoint-disk,"
        "file.driver=raw,file.file.driver=file,file.file.filename=%s "
        "-device virtio-blk-pci,drive=d0", image);
}

void end_disk_pair(Pair *pair)
{
    pair_end(pair);
    for (int i = 0; i < 2; i++) {
        g_autofree char *path = g_strdup_printf("%s/%s_disk", pair_directory,
                                                i ? "first" : "second");
        unlink(path);
    }
}

Pair disk_pair_of(const char *primary, const char *secondary)
{
    return pair_start(&(PairOptions) { .idle = true, .primary = primary,
                                       .secondary = secondary });
}

Pair disk_pair(int64_t bytes, int first, int second)
{
    g_autofree char *first_image = make_image("first", bytes, first);
    g_autofree char *second_image = make_image("second", bytes, second);
    g_autofree char *primary = disk_options(first_image);
    g_autofree char *secondary = disk_options(second_image);
    Pair pair = disk_pair_of(primary, secondary);

    pair_wait_colo(&pair);
    return pair;
}

bool disk_has(const char *side, uint8_t byte, int64_t at, int64_t bytes)
{
    g_autofree char *path = g_strdup_printf("%s/%s_disk", pair_directory, side);
    int fd = open(path, O_RDONLY);
    g_autofree uint8_t *found = g_malloc(bytes);
    bool has = true;

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(pread(fd, found, bytes, at), ==, bytes);
    close(fd);
    for (int64_t i = 0; i < bytes && has; i++) {
        has = found[i] == byte;
    }
    return has;
}

void disk_io(QTestState *who, const char *command, uint8_t byte, int64_t at,
             int64_t bytes)
{
    g_free(qtest_hmp(who, "qemu-io d0 \"%s -q -P %u %" PRId64 " %" PRId64 "\"",
                     command, byte, at, bytes));
}

void disk_write(Pair *pair, uint8_t byte, int64_t at, int64_t bytes)
{
    disk_io(pair->primary, "write", byte, at, bytes);
    g_assert_true(disk_has("first", byte, at, bytes));
}

void commit_checkpoint(Pair *pair)
{
    uint64_t before = pair_count(pair, "committed");
    g_autofree char *loaded = NULL;

    pair_checkpoint(pair);
    while (pair_count(pair, "committed") == before) {
        g_usleep(2 * 1000);
    }
    loaded = g_strdup_printf(" checkpoint=%" PRIu64 " ",
                             testdev_number(pair->primary, "sequence"));
    testdev_wait(pair->secondary, loaded);
}

bool disk_is_complete(QTestState *who)
{
    return qtest_qom_get_bool(who, DISK, "complete");
}

unsigned int copy_disk(Pair *pair)
{
    unsigned int checkpoints = 0;

    while (!disk_is_complete(pair->primary)) {
        g_assert_false(disk_is_complete(pair->secondary));
        commit_checkpoint(pair);
        checkpoints++;
    }
    g_assert_true(disk_is_complete(pair->secondary));
    return checkpoints;
}
