/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * checkpoint-disk: its part of a checkpoint, as bytes
 *
 * Without QEMU, so that a fuzzer and a unit test link it (tests/fuzz,
 * tests/device). The peer is hostile: each length is checked before anybody
 * allocates for it, and what is held is bounded by what was sent.
 *
 * Big-endian. First a head: size of the disk (8 bytes), whether nothing is
 * missing now (1: 0 or 1), how many ranges (4). Then each range, in ascending
 * order and without overlap: offset (8), bytes (4), whether data follows (1: 0
 * or 1) or it is all zeroes, and the data.
 *
 * Ranges are of whole parts, but for the end of a disk whose size is none: a
 * range has memory and an alignment of its own, so a million of one byte each
 * would cost three hundred times what they are on the wire.
 */

#ifndef CHECKPOINT_DISK_STREAM_H
#define CHECKPOINT_DISK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* What is kept apart: a page, a file system's usual block */
    CHECKPOINT_DISK_PART_BYTES = 4096,
    /* What a range with data may have: the secondary allocates it. */
    CHECKPOINT_DISK_DATA_BYTES = 1 << 20,
    /* What one without may have */
    CHECKPOINT_DISK_ZERO_BYTES = 64 << 20,
    /* With data that is 4 GiB at least: more than COLO lets through */
    CHECKPOINT_DISK_MAX_RANGES = 1 << 20,

    CHECKPOINT_DISK_HEAD_BYTES = 13,
    CHECKPOINT_DISK_RANGE_BYTES = 13,
};

typedef struct CheckpointDiskHead {
    uint64_t size; /* of the primary's disk */
    bool complete;
    uint32_t n_ranges;
} CheckpointDiskHead;

typedef struct CheckpointDiskRange {
    uint64_t offset;
    uint32_t bytes;
    bool data; /* else all zeroes */
} CheckpointDiskRange;

/* Where the bytes come from, and where the ranges go to */
typedef struct CheckpointDiskSource {
    void *opaque;
    /* Reads all of @bytes. False: the stream ended, or broke. */
    bool (*get)(void *opaque, void *buffer, size_t bytes);
    /*
     * Takes one range, which was checked. With data: *@data is set to where its
     * bytes will be read to; the taker owns that memory, also if the stream
     * ends in it. False: there is no memory for it.
     */
    bool (*add)(void *opaque, const CheckpointDiskRange *range, uint8_t **data);
} CheckpointDiskSource;

/*
 * Both return NULL, or why the bytes are no part of a checkpoint, as a piece of
 * a sentence.
 */
const char *checkpoint_disk_read_head(const CheckpointDiskSource *source,
                                      CheckpointDiskHead *head);
/* @size: of the image here, which the caller has compared with head->size. */
const char *checkpoint_disk_read_ranges(const CheckpointDiskSource *source,
                                        const CheckpointDiskHead *head,
                                        uint64_t size);

void checkpoint_disk_write_head(uint8_t bytes[CHECKPOINT_DISK_HEAD_BYTES],
                                const CheckpointDiskHead *head);
/* The data, if there is any, comes behind it. */
void checkpoint_disk_write_range(uint8_t bytes[CHECKPOINT_DISK_RANGE_BYTES],
                                 const CheckpointDiskRange *range);

#ifdef __cplusplus
}
#endif

#endif
