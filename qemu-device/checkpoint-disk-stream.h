/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * checkpoint-disk: its part of a checkpoint as bytes, and what is decided about
 * the copy for a secondary: how much of the disk's time it takes from the
 * guest, and whether one that was here before gets only what changed
 *
 * Without QEMU, so that a fuzzer and unit tests link it (tests/fuzz,
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
 *
 * Beside checkpoints a disk's first copy comes, one range at a time: the length
 * of the disk's name (1), the name, size of the disk (8), the range as above;
 * its data is beside that.
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

    CHECKPOINT_DISK_NAME_BYTES = 255,
    CHECKPOINT_DISK_MAX_COPY_BYTES =
        1 + CHECKPOINT_DISK_NAME_BYTES + 8 + CHECKPOINT_DISK_RANGE_BYTES,
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

typedef struct CheckpointDiskCopy {
    const char *name; /* not terminated */
    uint8_t name_bytes;
    uint64_t size; /* of the primary's disk */
    CheckpointDiskRange range;
} CheckpointDiskCopy;

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

/*
 * The head of a copy, with @data_bytes of data beside it. @copy refers to
 * @bytes. The caller compares its size with the image's.
 */
const char *checkpoint_disk_read_copy(const uint8_t *bytes, size_t n,
                                      size_t data_bytes,
                                      CheckpointDiskCopy *copy);
/* Returns how many bytes it has. */
size_t
checkpoint_disk_write_copy(uint8_t bytes[CHECKPOINT_DISK_MAX_COPY_BYTES],
                           const CheckpointDiskCopy *copy);

void checkpoint_disk_write_head(uint8_t bytes[CHECKPOINT_DISK_HEAD_BYTES],
                                const CheckpointDiskHead *head);
/* The data, if there is any, comes behind it. */
void checkpoint_disk_write_range(uint8_t bytes[CHECKPOINT_DISK_RANGE_BYTES],
                                 const CheckpointDiskRange *range);

/* ---- decisions about the copy ----------------------------------------- */

enum {
    /*
     * Beside a guest that always has a request under way the copy rests four
     * times as long as it reads, so the guest keeps 0.8 of the disk's time.
     */
    CHECKPOINT_DISK_REST_FACTOR = 4,
    /* After a read that a slow disk has held up for long */
    CHECKPOINT_DISK_MAX_REST_US = 200 * 1000,
};

/* For how long the guest has had requests under way. All 0 at the beginning. */
typedef struct CheckpointDiskPace {
    unsigned int requests; /* under way */
    int64_t since_us;      /* the first of them */
    int64_t busy_us;       /* until then, since the last rest */
    int64_t looked_us;     /* when that was */
} CheckpointDiskPace;

void checkpoint_disk_pace_begin(CheckpointDiskPace *pace, int64_t now_us);
void checkpoint_disk_pace_end(CheckpointDiskPace *pace, int64_t now_us);
/* How long the copy rests after a read that has taken @took_us until now. */
int64_t checkpoint_disk_pace_rest(CheckpointDiskPace *pace, int64_t took_us,
                                  int64_t now_us);

/*
 * Whether a secondary lacks no more than what was kept. A replica is a name for
 * "what that stream has left in this image", which the secondary's supervisor
 * makes up anew for each QEMU. @kept: of the stream whose differences were
 * kept, for a disk of @kept_size bytes; @base: what the image has now. Each is
 * NULL or empty where there is none.
 */
bool checkpoint_disk_base_fits(const char *kept, int64_t kept_size,
                               const char *base, int64_t size);

#ifdef __cplusplus
}
#endif

#endif
