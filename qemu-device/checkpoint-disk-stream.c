// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * checkpoint-disk: its part of a checkpoint as bytes, and decisions; see
 * checkpoint-disk-stream.h
 *
 * Nothing of QEMU is included, not even osdep.h: others link this file.
 */

#include <string.h>

#include "checkpoint-disk-stream.h"

/* ---- numbers ------------------------------------------------------------- */

static void put_number(uint8_t *bytes, size_t n, uint64_t value)
{
    while (n--) {
        bytes[n] = value;
        value >>= 8;
    }
}

static uint64_t number_at(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* ---- written (primary) --------------------------------------------------- */

void checkpoint_disk_write_head(uint8_t bytes[CHECKPOINT_DISK_HEAD_BYTES],
                                const CheckpointDiskHead *head)
{
    put_number(bytes, 8, head->size);
    bytes[8] = head->complete;
    put_number(bytes + 9, 4, head->n_ranges);
}

void checkpoint_disk_write_range(uint8_t bytes[CHECKPOINT_DISK_RANGE_BYTES],
                                 const CheckpointDiskRange *range)
{
    put_number(bytes, 8, range->offset);
    put_number(bytes + 8, 4, range->bytes);
    bytes[12] = range->data;
}

size_t
checkpoint_disk_write_copy(uint8_t bytes[CHECKPOINT_DISK_MAX_COPY_BYTES],
                           const CheckpointDiskCopy *copy)
{
    uint8_t *after = bytes + 1 + copy->name_bytes;

    bytes[0] = copy->name_bytes;
    memcpy(bytes + 1, copy->name, copy->name_bytes);
    put_number(after, 8, copy->size);
    checkpoint_disk_write_range(after + 8, &copy->range);
    return after + 8 + CHECKPOINT_DISK_RANGE_BYTES - bytes;
}

/* ---- read (secondary) ---------------------------------------------------- */

static const char stream_ended[] = "the stream ends in it";

const char *checkpoint_disk_read_head(const CheckpointDiskSource *source,
                                      CheckpointDiskHead *head)
{
    uint8_t bytes[CHECKPOINT_DISK_HEAD_BYTES];

    if (!source->get(source->opaque, bytes, sizeof(bytes))) {
        return stream_ended;
    }
    if (bytes[8] > 1) {
        return "a flag has another value than 0 and 1";
    }
    *head = (CheckpointDiskHead) {
        .size = number_at(bytes, 8),
        .complete = bytes[8],
        .n_ranges = number_at(bytes + 9, 4),
    };
    if (head->n_ranges > CHECKPOINT_DISK_MAX_RANGES) {
        return "it has more ranges than a checkpoint can have";
    }
    return NULL;
}

static bool is_whole(uint64_t offset, uint32_t bytes, uint64_t size)
{
    return offset % CHECKPOINT_DISK_PART_BYTES == 0 &&
           (bytes % CHECKPOINT_DISK_PART_BYTES == 0 || offset + bytes == size);
}

/* @from: where the range before it ends */
static const char *check_range(const CheckpointDiskRange *r, uint64_t from,
                               uint64_t size)
{
    if (r->offset < from) {
        return "its ranges overlap, or do not ascend";
    }
    if (r->offset > size || r->bytes > size - r->offset) {
        return "a range is not within the disk";
    }
    if (r->bytes == 0 ||
        r->bytes > (r->data ? CHECKPOINT_DISK_DATA_BYTES
                            : CHECKPOINT_DISK_ZERO_BYTES)) {
        return "a range is empty, or longer than one may be";
    }
    if (!is_whole(r->offset, r->bytes, size)) {
        return "a range is not of whole parts";
    }
    return NULL;
}

/* The flag has been looked at. */
static CheckpointDiskRange range_at(const uint8_t *bytes)
{
    return (CheckpointDiskRange) {
        .offset = number_at(bytes, 8),
        .bytes = number_at(bytes + 8, 4),
        .data = bytes[12],
    };
}

const char *checkpoint_disk_read_copy(const uint8_t *bytes, size_t n,
                                      size_t data_bytes,
                                      CheckpointDiskCopy *copy)
{
    const uint8_t *after = bytes + 1;

    if (n == 0 || n != (size_t)1 + bytes[0] + 8 + CHECKPOINT_DISK_RANGE_BYTES) {
        return "it has another length than its name says";
    }
    after += bytes[0];
    if (after[8 + 12] > 1) {
        return "a flag has another value than 0 and 1";
    }
    *copy = (CheckpointDiskCopy) {
        .name = (const char *)bytes + 1,
        .name_bytes = bytes[0],
        .size = number_at(after, 8),
        .range = range_at(after + 8),
    };
    if (data_bytes != (copy->range.data ? copy->range.bytes : 0)) {
        return "its data is not as long as its range";
    }
    return check_range(&copy->range, 0, copy->size);
}

static const char *read_range(const CheckpointDiskSource *source, uint64_t from,
                              uint64_t size, CheckpointDiskRange *r)
{
    uint8_t bytes[CHECKPOINT_DISK_RANGE_BYTES];
    uint8_t *data = NULL;
    const char *why;

    if (!source->get(source->opaque, bytes, sizeof(bytes))) {
        return stream_ended;
    }
    if (bytes[12] > 1) {
        return "a flag has another value than 0 and 1";
    }
    *r = range_at(bytes);
    why = check_range(r, from, size);
    if (why) {
        return why;
    }
    if (!source->add(source->opaque, r, &data)) {
        return "there is no memory for it";
    }
    if (r->data && !source->get(source->opaque, data, r->bytes)) {
        return stream_ended;
    }
    return NULL;
}

const char *checkpoint_disk_read_ranges(const CheckpointDiskSource *source,
                                        const CheckpointDiskHead *head,
                                        uint64_t size)
{
    uint64_t from = 0;

    for (uint32_t i = 0; i < head->n_ranges; i++) {
        CheckpointDiskRange range;
        const char *why = read_range(source, from, size, &range);

        if (why) {
            return why;
        }
        from = range.offset + range.bytes;
    }
    return NULL;
}

/* ---- decisions about the copy -------------------------------------------- */

void checkpoint_disk_pace_begin(CheckpointDiskPace *pace, int64_t now_us)
{
    if (pace->requests++ == 0) {
        pace->since_us = now_us;
    }
}

void checkpoint_disk_pace_end(CheckpointDiskPace *pace, int64_t now_us)
{
    if (--pace->requests == 0) {
        pace->busy_us += now_us - pace->since_us;
    }
}

int64_t checkpoint_disk_pace_rest(CheckpointDiskPace *pace, int64_t took_us,
                                  int64_t now_us)
{
    int64_t passed_us = now_us - pace->looked_us;
    int64_t busy_us = pace->busy_us;
    int64_t rest_us;

    if (pace->requests) {
        busy_us += now_us - pace->since_us;
        pace->since_us = now_us;
    }
    pace->busy_us = 0;
    pace->looked_us = now_us;
    if (busy_us <= 0 || passed_us <= 0 || took_us <= 0) {
        return 0;
    }
    if (took_us > CHECKPOINT_DISK_MAX_REST_US) {
        took_us = CHECKPOINT_DISK_MAX_REST_US;
    }
    if (busy_us > passed_us) {
        busy_us = passed_us;
    }
    rest_us = took_us * CHECKPOINT_DISK_REST_FACTOR *
              (busy_us * 1024 / passed_us) / 1024;
    return rest_us < CHECKPOINT_DISK_MAX_REST_US ? rest_us
                                                 : CHECKPOINT_DISK_MAX_REST_US;
}

bool checkpoint_disk_base_fits(const char *kept, int64_t kept_size,
                               const char *base, int64_t size)
{
    return kept && *kept && base && kept_size == size && !strcmp(kept, base);
}
