// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu: hostile guests
 *
 * Requests that break a rule of the framing, and rings that lie. After each of
 * them the device must still serve a guest that behaves, and hold nothing.
 */
#include "qemu/osdep.h"

#include "standard-headers/linux/virtio_config.h"
#include "standard-headers/linux/virtio_ring.h"
#include "virtio-vgpu-driver.h"
#include "virtio-vgpu-tests.h"

#define NO_ANSWER UINT32_MAX /* given back, but without a response */

/* ---- malformed requests ------------------------------------------------ */

typedef struct Malformed {
    const char *name;
    struct vgpu_request head;
    struct vgpu_payload payload;
    struct vgpu_segment segment;
    /* bytes of the element that differ from what the header says */
    int32_t readable_delta;
    uint32_t writable; /* 0: as large as a response */
    bool no_writable;
    uint32_t status;
} Malformed;

#define SUBMIT(...) { .type = VGPU_REQUEST_SUBMIT, .file = 1, __VA_ARGS__ }
#define ONE_SEGMENT SUBMIT(.payload_count = 1, .segment_count = 1)
#define PAYLOAD(...) { .bytes = 64, .segment_count = 1, __VA_ARGS__ }
#define SEGMENT(...) { .address = 1 << 20, .bytes = 64, __VA_ARGS__ }
#define BAD VGPU_STATUS_MALFORMED

static const Malformed malformed[] = {
    { "type-0", { .type = 0, .file = 1 }, .status = BAD },
    { "type-unknown", { .type = 4, .file = 1 }, .status = BAD },
    { "type-huge", { .type = UINT32_MAX, .file = 1 }, .status = BAD },
    { "flags", SUBMIT(.flags = 1), .status = BAD },
    { "pad", SUBMIT(.pad = 1 << 31), .status = BAD },
    { "file-0", { .type = VGPU_REQUEST_OPEN, .file = 0 }, .status = BAD },
    { "open-with-stream",
      { .type = VGPU_REQUEST_OPEN, .file = 2, .stream_bytes = 8 },
      .status = BAD },
    { "open-with-completions",
      { .type = VGPU_REQUEST_OPEN, .file = 2, .completion_count = 1 },
      .status = BAD },
    { "close-with-segments",
      { .type = VGPU_REQUEST_CLOSE, .file = 1, .segment_count = 1 },
      .status = BAD },
    { "empty", SUBMIT(), .readable_delta = -(int)sizeof(struct vgpu_request),
      .status = BAD },
    { "header-cut", SUBMIT(), .readable_delta = -1, .status = BAD },
    { "one-byte", SUBMIT(),
      .readable_delta = 1 - (int)sizeof(struct vgpu_request), .status = BAD },
    { "longer-than-said", SUBMIT(), .readable_delta = 8, .status = BAD },
    { "shorter-than-said", SUBMIT(.stream_bytes = 64), .readable_delta = -8,
      .status = BAD },
    { "stream-not-aligned", SUBMIT(.stream_bytes = 12), .status = BAD },
    { "stream-too-long", SUBMIT(.stream_bytes = VGPU_MAX_STREAM_BYTES + 8),
      .readable_delta = -(int)VGPU_MAX_STREAM_BYTES, .status = BAD },
    { "stream-overflow", SUBMIT(.stream_bytes = UINT32_MAX - 7),
      .readable_delta = 8 - INT32_MAX, .status = BAD },
    { "payloads-too-many", SUBMIT(.payload_count = VGPU_MAX_PAYLOADS + 1),
      .status = BAD },
    { "payloads-overflow", SUBMIT(.payload_count = UINT32_MAX),
      .readable_delta = INT32_MIN, .status = BAD },
    { "segments-too-many", SUBMIT(.segment_count = VGPU_MAX_SEGMENTS + 1),
      .readable_delta = INT32_MIN, .status = BAD },
    { "segments-overflow", SUBMIT(.segment_count = UINT32_MAX),
      .readable_delta = INT32_MIN, .status = BAD },
    { "payload-first-outside", ONE_SEGMENT, PAYLOAD(.first_segment = 1),
      SEGMENT(), .status = BAD },
    { "payload-first-overflow", ONE_SEGMENT,
      PAYLOAD(.first_segment = UINT32_MAX), SEGMENT(), .status = BAD },
    { "payload-count-overflow", ONE_SEGMENT,
      { .bytes = 64, .segment_count = UINT32_MAX }, SEGMENT(), .status = BAD },
    { "payload-flags", ONE_SEGMENT, PAYLOAD(.flags = 2), SEGMENT(),
      .status = BAD },
    { "payload-pad", ONE_SEGMENT, PAYLOAD(.pad = 1), SEGMENT(),
      .status = BAD },
    { "segment-empty", ONE_SEGMENT, PAYLOAD(), { .address = 1 << 20 },
      .status = BAD },
    { "segment-flags", ONE_SEGMENT, PAYLOAD(), SEGMENT(.flags = 2),
      .status = BAD },
    { "segment-pad", ONE_SEGMENT, PAYLOAD(), SEGMENT(.pad = 1),
      .status = BAD },
    { "segment-wraps", ONE_SEGMENT, PAYLOAD(),
      { .address = UINT64_MAX - 8, .bytes = 64 }, .status = BAD },
    { "segment-all-memory", ONE_SEGMENT, PAYLOAD(),
      { .address = 0, .bytes = UINT64_MAX }, .status = BAD },
    { "segment-beyond-ram", ONE_SEGMENT, PAYLOAD(),
      { .address = RAM_BYTES - 32, .bytes = 64 }, .status = BAD },
    { "segment-in-hole", ONE_SEGMENT, PAYLOAD(),
      { .address = 0xe0000000, .bytes = 64 }, .status = BAD },
    { "segment-mmio", ONE_SEGMENT, PAYLOAD(), /* the local APIC */
      { .address = 0xfee00000, .bytes = 64 }, .status = BAD },
    { "segment-rom", ONE_SEGMENT, PAYLOAD(), /* the firmware */
      { .address = 0xffff0000, .bytes = 64 }, .status = BAD },
    { "window-beyond", ONE_SEGMENT, PAYLOAD(),
      { .address = (1 << 20) - 32, .bytes = 64,
        .flags = VGPU_SEGMENT_WINDOW }, .status = BAD },
    { "window-wraps", ONE_SEGMENT, PAYLOAD(),
      { .address = UINT64_MAX - 8, .bytes = 64,
        .flags = VGPU_SEGMENT_WINDOW }, .status = BAD },
    { "no-response", SUBMIT(), .no_writable = true, .status = NO_ANSWER },
    { "response-too-small", SUBMIT(),
      .writable = sizeof(struct vgpu_response) - 1, .status = NO_ANSWER },
};

static uint64_t expected_bytes(const struct vgpu_request *head)
{
    return sizeof(*head) + (uint64_t)head->stream_bytes +
           head->payload_count * (uint64_t)sizeof(struct vgpu_payload) +
           head->segment_count * (uint64_t)sizeof(struct vgpu_segment);
}

static Pending put_malformed(Driver *d, const Malformed *m)
{
    /* Sizes that nobody could send are cut: the header alone must do. */
    int64_t bytes = expected_bytes(&m->head) + m->readable_delta;
    g_autofree uint8_t *readable = NULL;
    size_t at = sizeof(m->head) + m->head.stream_bytes;

    if (bytes < 0 || bytes > 1 << 20) {
        bytes = m->readable_delta == INT32_MIN ? 4096 : MAX(bytes, 0);
        bytes = MIN(bytes, 4096);
    }
    readable = g_malloc0(MAX(bytes, 8192));
    memcpy(readable, &m->head, sizeof(m->head));
    if (m->payload.segment_count) {
        memcpy(readable + at, &m->payload, sizeof(m->payload));
        memcpy(readable + at + sizeof(m->payload), &m->segment,
               sizeof(m->segment));
    }
    return driver_put(d, readable, bytes, m->no_writable ? 0 :
                      m->writable ?: sizeof(struct vgpu_response));
}

static void test_malformed(void)
{
    Driver *d = driver_new(",window-size=1M");

    driver_open(d, 1);
    for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
        const Malformed *m = &malformed[i];
        Pending p;

        g_test_message("%s", m->name);
        p = put_malformed(d, m);
        if (m->status == NO_ANSWER) {
            g_assert_cmpuint(driver_wait_len(d, &p), ==, 0);
        } else {
            struct vgpu_response response = driver_wait(d, &p);

            g_assert_cmpuint(response.status, ==, m->status);
            g_assert_cmphex(response.failed_offset, ==, UINT32_MAX);
        }
        g_assert_cmpuint(driver_stat(d, "device-malformed"), ==, i + 1);
        g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
    }
    driver_make_objects(d, 1);
    driver_close(d, 1);
    driver_free(d);
}

/* Two payloads may not make more of the table than there is. */
static void test_segments_named_twice(void)
{
    Driver *d = driver_new("");
    Stream s = { 0 };
    Pending p;

    driver_open(d, 1);
    stream_segment(&s, 1 << 20, 64, 0);
    stream_payload(&s, 0, 64, 1);
    stream_payload(&s, 0, 64, 1);
    p = driver_put_stream(d, 1, &s);
    g_assert_cmpuint(driver_wait(d, &p).status, ==, VGPU_STATUS_MALFORMED);
    driver_free(d);
}

/*
 * Good requests with some bytes changed. What comes back does not matter, that
 * something does; `--seed` of the failed run repeats it.
 */
static void test_random(void)
{
    Driver *d = driver_new(",window-size=1M");
    uint64_t memory = guest_alloc(&d->alloc, 4096);

    for (int i = 0; i < 2000; i++) {
        struct vgpu_request head = { .type = VGPU_REQUEST_OPEN, .file = 1 };
        uint8_t bytes[sizeof(head) + 512];
        uint32_t used = sizeof(head);
        Stream s = { 0 };
        Pending p;

        if (i % 8) {
            stream_device_name(&s, 64);
            stream_segment(&s, memory, 64, 0);
            stream_payload(&s, VGPU_PAYLOAD_WRITE, 64, 1);
            used = stream_request(&s, 1, bytes, sizeof(bytes));
        } else {
            memcpy(bytes, &head, sizeof(head));
        }
        for (int n = g_test_rand_int_range(0, 4); n; n--) {
            /* Every other change hits the header. */
            uint32_t end = n % 2 ? sizeof(head) : used;

            bytes[g_test_rand_int_range(0, end)] ^=
                1 << g_test_rand_int_range(0, 8);
        }
        p = driver_put(d, bytes, used, sizeof(struct vgpu_response));
        driver_wait(d, &p);
        qvirtqueue_reset_pool(d->requests);
        g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
    }
    driver_restart_device(d);
    driver_open(d, 1);
    driver_make_objects(d, 1);
    driver_close(d, 1);
    driver_free(d);
}

/* ---- rings that lie ---------------------------------------------------- */

static void write_desc(Driver *d, uint64_t table, uint16_t index,
                       uint64_t address, uint32_t bytes, uint16_t flags,
                       uint16_t next)
{
    uint64_t at = table + index * sizeof(struct vring_desc);

    qtest_writeq(d->qts, at, address);
    qtest_writel(d->qts, at + 8, bytes);
    qtest_writew(d->qts, at + 12, flags);
    qtest_writew(d->qts, at + 14, next);
}

static void kick(Driver *d, uint32_t head)
{
    qvirtqueue_kick(d->qts, &d->dev->vdev, d->requests, head);
}

static void lie_head(Driver *d)
{
    kick(d, 60000);
}

static void lie_index(Driver *d)
{
    qtest_writew(d->qts, d->requests->avail + 2, 40000);
    d->dev->vdev.bus->virtqueue_kick(&d->dev->vdev, d->requests);
}

/* Longer than what QEMU would copy instead of map. */
static void lie_address(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 0xe0000000, 1 << 16, 0, 0);
    kick(d, 0);
}

static void lie_empty_descriptor(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 1 << 20, 0, 0, 0);
    kick(d, 0);
}

static void lie_loop(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 1 << 20, 8, VRING_DESC_F_NEXT, 1);
    write_desc(d, d->requests->desc, 1, 1 << 20, 8, VRING_DESC_F_NEXT, 0);
    kick(d, 0);
}

static void lie_next(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 1 << 20, 8, VRING_DESC_F_NEXT, 50000);
    kick(d, 0);
}

static void lie_order(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 1 << 20, 32,
               VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, 1);
    write_desc(d, d->requests->desc, 1, 1 << 20, 40, 0, 0);
    kick(d, 0);
}

static void lie_indirect_size(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 1 << 20, 17, VRING_DESC_F_INDIRECT, 0);
    kick(d, 0);
}

static void lie_indirect_outside(Driver *d)
{
    write_desc(d, d->requests->desc, 0, 0xe0000000, 16, VRING_DESC_F_INDIRECT,
               0);
    kick(d, 0);
}

/* The event ring lies, too; it is only looked at when there is a record. */
static void lie_event_address(Driver *d)
{
    Stream s = { 0 };
    struct vgpu_cmd_sync *marker;

    driver_open(d, 9);
    driver_make_objects(d, 9);
    write_desc(d, d->events->desc, 0, 0xe0000000, 1 << 16, VRING_DESC_F_WRITE,
               0);
    qvirtqueue_kick(d->qts, &d->dev->vdev, d->events, 0);
    marker = stream_add(&s, VGPU_CMD_MARKER, sizeof(*marker));
    marker->enqueue.queue = QUEUE;
    marker->enqueue.event = 77;
    s.completions = 1;
    driver_put_stream(d, 9, &s);
}

static const struct {
    const char *name;
    void (*tell)(Driver *d);
} lies[] = {
    { "head beyond the ring", lie_head },
    { "index far ahead, ring of old heads", lie_index },
    { "address of no memory", lie_address },
    { "descriptor of no bytes", lie_empty_descriptor },
    { "loop", lie_loop },
    { "next beyond the ring", lie_next },
    { "readable after writable", lie_order },
    { "indirect table of 17 bytes", lie_indirect_size },
    { "indirect table outside of memory", lie_indirect_outside },
    { "event buffer outside of memory", lie_event_address },
};

/* Each lie stops the device until the next reset, with work in flight. */
static void test_lies(void)
{
    Driver *d = driver_new("");

    for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
        gint64 start = g_get_monotonic_time();

        g_test_message("%s", lies[i].name);
        driver_open(d, 1);
        driver_make_objects(d, 1);
        driver_put_waiting_read(d, 1, 2 << 20, 0);
        lies[i].tell(d);
        while (!(d->dev->vdev.bus->get_status(&d->dev->vdev) &
                 VIRTIO_CONFIG_S_NEEDS_RESET)) {
            g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
        }
        driver_restart_device(d);
        g_assert_cmpuint(driver_stat(d, "files-open"), ==, 0);
        g_assert_cmpuint(driver_stat(d, "requests-in-flight"), ==, 0);
    }
    driver_open(d, 1);
    driver_make_objects(d, 1);
    driver_close(d, 1);
    driver_free(d);
}

/* A kick before the driver is ready is nothing. */
static void test_early_kick(void)
{
    Driver *d = driver_new("");
    QVirtioDevice *vdev = &d->dev->vdev;

    driver_free_queues(d);
    qvirtio_start_device(vdev);
    qvirtio_set_features(vdev, 1ULL << VIRTIO_F_VERSION_1);
    d->requests = qvirtqueue_setup(vdev, &d->alloc, VGPU_QUEUE_REQUEST);
    d->events = qvirtqueue_setup(vdev, &d->alloc, VGPU_QUEUE_EVENT);
    vdev->bus->virtqueue_kick(vdev, d->requests);
    vdev->bus->virtqueue_kick(vdev, d->events);
    qvirtio_set_driver_ok(vdev);
    driver_open(d, 1);
    driver_free(d);
}

/* ---- the log of stores -------------------------------------------------- */

static void assert_log(Driver *d, uint64_t bits, uint64_t first, uint64_t last)
{
    g_assert_cmpuint(driver_ask_log(d, 0, WINDOW_BYTES / 4096, bits), ==,
                     VGPU_STATUS_OK);
    g_assert_cmphex(qtest_readq(d->qts, bits), ==, first);
    g_assert_cmphex(qtest_readq(d->qts, bits + WINDOW_BYTES / 4096 / 8 - 8), ==,
                    last);
}

/* What a good driver asks is answered, and what is wrong changes nothing. */
static void test_store_log(void)
{
    static const struct {
        uint64_t offset;
        uint32_t pages;
        uint64_t address;
    } wrong[] = {
        { 4096, 64, 1 << 20 },           /* not the first of a group */
        { 1, 64, 1 << 20 },
        { 0, 63, 1 << 20 },              /* not a whole group */
        { 0, WINDOW_BYTES / 4096 + 64, 1 << 20 },
        { WINDOW_BYTES, 64, 1 << 20 },
        { UINT64_MAX - 262143, 64, 1 << 20 },
        { 0, VGPU_MAX_LOG_PAGES + 64, 1 << 20 },
        { 0, UINT32_MAX, 1 << 20 },
    };
    Driver *d = driver_new(",window-size=16M");
    uint64_t bits = guest_alloc(&d->alloc, 4096);

    driver_put_window(d, WINDOW_ADDRESS);
    /* The first answer knows nothing yet. */
    assert_log(d, bits, UINT64_MAX, UINT64_MAX);
    assert_log(d, bits, 0, 0);
    qtest_writeb(d->qts, WINDOW_ADDRESS + 3 * 4096 + 4095, 1);
    qtest_writeb(d->qts, WINDOW_ADDRESS + WINDOW_BYTES - 1, 1);
    assert_log(d, bits, 1 << 3, 1ULL << 63);
    assert_log(d, bits, 0, 0);

    qtest_writeb(d->qts, WINDOW_ADDRESS + 4096, 1);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        g_assert_cmpuint(driver_ask_log(d, wrong[i].offset, wrong[i].pages,
                                        wrong[i].address), ==,
                         VGPU_STATUS_MALFORMED);
    }
    assert_log(d, bits, 1 << 1, 0);
    /* A device's registers are no place for an answer, nor is nothing. */
    g_assert_cmpuint(driver_ask_log(d, 0, 64, 0xfee00000), ==,
                     VGPU_STATUS_MALFORMED);
    g_assert_cmpuint(driver_ask_log(d, 0, 64, UINT64_MAX - 3), ==,
                     VGPU_STATUS_MALFORMED);
    assert_log(d, bits, 0, 0);

    /* A driver that begins anew knows nothing again. */
    driver_restart_device(d);
    assert_log(d, bits, UINT64_MAX, UINT64_MAX);
    assert_log(d, bits, 0, 0);
    driver_free(d);

    /* Without a window there is no log. */
    d = driver_new(",window-size=0");
    g_assert_cmpuint(driver_ask_log(d, 0, 64, 1 << 20), ==,
                     VGPU_STATUS_MALFORMED);
    driver_free(d);
}

void add_hostile_tests(void)
{
    qtest_add_func("virtio-vgpu/hostile/malformed", test_malformed);
    qtest_add_func("virtio-vgpu/hostile/segments-named-twice",
                   test_segments_named_twice);
    qtest_add_func("virtio-vgpu/hostile/random", test_random);
    qtest_add_func("virtio-vgpu/hostile/lies", test_lies);
    qtest_add_func("virtio-vgpu/hostile/early-kick", test_early_kick);
    qtest_add_func("virtio-vgpu/hostile/store-log", test_store_log);
}
