// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: the queues
 *
 * Takes requests off the request queue, checks their framing once on a private
 * copy, hands them to the library and answers them; fills event buffers with
 * the library's records. What is inside a stream of commands is the library's
 * business.
 *
 * Everything here runs in the IOThread without the BQL, except where a comment
 * says otherwise. Every function that may give something to the guest is
 * followed by one virtio_vgpu_flush(), which sends at most one interrupt per
 * queue for all of it.
 *
 * The guest is hostile. A request that breaks a rule is answered MALFORMED; one
 * without room for an answer is given back empty; a ring that lies is virtio's
 * matter (virtqueue_pop() stops the device until the next reset).
 */
#include "qemu/osdep.h"

#include "qapi/error.h"
#include "qemu/iov.h"
#include "qemu/log.h"
#include "qemu/timer.h"
#include "virtio-vgpu.h"
#include "trace.h"

#define GUEST_ERRORS_PER_SECOND 10

QEMU_BUILD_BUG_ON(sizeof(struct vgpu_request) % 8);
QEMU_BUILD_BUG_ON(sizeof(struct vgpu_event_batch) + VGPU_MAX_RECORD_BYTES >
                  VGPU_EVENT_BUFFER_BYTES);
QEMU_BUILD_BUG_ON(VIRTIO_VGPU_REQUEST_QUEUE_SIZE > UINT16_MAX);

/* ---- guest errors ------------------------------------------------------ */

/* A guest can break rules as fast as it likes; the log can't take that. */
static void virtio_vgpu_guest_error(VirtIOVGPU *s, const char *what)
{
    int64_t now_ms = qemu_clock_get_ms(QEMU_CLOCK_REALTIME);

    virtio_vgpu_count(s, malformed);
    trace_virtio_vgpu_malformed(s, what);
    if (now_ms - s->error_window_ms >= 1000) {
        if (s->error_lines > GUEST_ERRORS_PER_SECOND) {
            qemu_log_mask(LOG_GUEST_ERROR,
                          "virtio-vgpu %s: %u more errors were not shown\n",
                          s->name, s->error_lines - GUEST_ERRORS_PER_SECOND);
        }
        s->error_window_ms = now_ms;
        s->error_lines = 0;
    }
    if (s->error_lines++ < GUEST_ERRORS_PER_SECOND) {
        qemu_log_mask(LOG_GUEST_ERROR, "virtio-vgpu %s: %s\n", s->name, what);
    }
}

/* ---- requests in flight ------------------------------------------------ */

/*
 * A token is a number of a slot and a generation, never a pointer: one that
 * the library made up or returned twice finds nothing.
 */
static void virtio_vgpu_track(VirtIOVGPU *s, VirtIOVGPURequest *req)
{
    uint32_t slot;

    assert(s->n_free_slots > 0); /* see virtio_vgpu_pop_request() */
    slot = s->free_slots[--s->n_free_slots];
    req->token = ++s->generation * VIRTIO_VGPU_REQUEST_QUEUE_SIZE + slot;
    s->in_flight[slot] = req;
}

/* The same for one that has its token from the primary. */
static void virtio_vgpu_track_resumed(VirtIOVGPU *s, VirtIOVGPURequest *req)
{
    uint32_t slot = req->token % VIRTIO_VGPU_REQUEST_QUEUE_SIZE;

    for (uint32_t i = 0; i < s->n_free_slots; i++) {
        if (s->free_slots[i] == slot) {
            s->free_slots[i] = s->free_slots[--s->n_free_slots];
            s->in_flight[slot] = req;
            return;
        }
    }
    g_assert_not_reached(); /* post_load has seen that no two are the same */
}

static VirtIOVGPURequest *virtio_vgpu_untrack(VirtIOVGPU *s, uint64_t token)
{
    uint32_t slot = token % VIRTIO_VGPU_REQUEST_QUEUE_SIZE;
    VirtIOVGPURequest *req = s->in_flight[slot];

    if (!req || req->token != token) {
        return NULL;
    }
    s->in_flight[slot] = NULL;
    s->free_slots[s->n_free_slots++] = slot;
    return req;
}

static void virtio_vgpu_free_request(VirtIOVGPU *s, VirtIOVGPURequest *req)
{
    g_free(req);
}

/* Gives an element back and ends its life here. */
static void virtio_vgpu_answer(VirtIOVGPU *s, VirtIOVGPURequest *req,
                               const struct vgpu_response *host)
{
    struct vgpu_response response = {
        .status = cpu_to_le32(host->status),
        .result = cpu_to_le32(host->result),
        .failed_offset = cpu_to_le32(host->failed_offset),
        .result_bytes = cpu_to_le64(host->result_bytes),
        .value = cpu_to_le64(host->value),
    };

    if (s->discarding) {
        virtqueue_detach_element(s->request_vq, &req->elem, 0);
    } else {
        iov_from_buf(req->elem.in_sg, req->elem.in_num, 0, &response,
                     sizeof(response));
        virtqueue_push(s->request_vq, &req->elem, sizeof(response));
        s->notify_requests = true;
    }
    virtio_vgpu_free_request(s, req);
}

static void virtio_vgpu_refuse(VirtIOVGPU *s, VirtIOVGPURequest *req,
                               uint32_t status)
{
    struct vgpu_response response = {
        .status = status,
        .failed_offset = status == VGPU_STATUS_MALFORMED ? UINT32_MAX : 0,
    };

    trace_virtio_vgpu_refuse(s, status);
    virtio_vgpu_answer(s, req, &response);
}

static void virtio_vgpu_malformed(VirtIOVGPU *s, VirtIOVGPURequest *req,
                                  const char *what)
{
    virtio_vgpu_guest_error(s, what);
    virtio_vgpu_refuse(s, req, VGPU_STATUS_MALFORMED);
}

/*
 * Library callback. In the IOThread, or in main while the device is stopped
 * (reset, end). From here on no worker touches the request's memory.
 */
void virtio_vgpu_request_done(void *opaque, uint64_t token,
                              const struct vgpu_response *response)
{
    VirtIOVGPU *s = opaque;
    VirtIOVGPURequest *req = virtio_vgpu_untrack(s, token);

    assert(req); /* the library's contract: exactly once for each request */
    trace_virtio_vgpu_request_done(s, token, response->status,
                                   response->result, response->result_bytes);
    virtio_vgpu_answer(s, req, response);
}

/* ---- taking requests --------------------------------------------------- */

static void virtio_vgpu_handle_open(VirtIOVGPU *s, VirtIOVGPURequest *req,
                                    uint32_t file)
{
    if (!s->opened) {
        Error *err = NULL;

        /* Last chance for memory that was plugged since realize. */
        if (!virtio_vgpu_add_regions(s, &err)) {
            warn_report_err(err);
        }
        s->opened = true;
    }
    virtio_vgpu_track(s, req);
    kagemusha_device_open_file(s->device, file, req->token);
}

/*
 * Each payload must be inside the segment table. Naming more segments than
 * there are is refused too: it would let 4096 payloads of the whole table make
 * half a billion ranges of three megabytes.
 */
static bool virtio_vgpu_check_payloads(const struct vgpu_payload *payloads,
                                       uint32_t n_payloads, uint32_t n_segments)
{
    uint64_t named = 0;

    for (uint32_t i = 0; i < n_payloads; i++) {
        uint64_t first = le32_to_cpu(payloads[i].first_segment);
        uint64_t count = le32_to_cpu(payloads[i].segment_count);

        named += count;
        if (first + count > n_segments || named > n_segments ||
            payloads[i].pad ||
            (le32_to_cpu(payloads[i].flags) & ~VGPU_PAYLOAD_WRITE)) {
            return false;
        }
    }
    return true;
}

static void virtio_vgpu_handle_submit(VirtIOVGPU *s, VirtIOVGPURequest *req,
                                      const struct vgpu_request *head)
{
    size_t payloads_at = head->stream_bytes;
    size_t segments_at = payloads_at +
                         head->payload_count * sizeof(struct vgpu_payload);
    size_t bytes = segments_at +
                   head->segment_count * sizeof(struct vgpu_segment);
    const struct vgpu_payload *payloads;

    if (bytes > s->scratch_bytes) {
        void *bigger = g_try_realloc(s->scratch, bytes);

        if (!bigger) {
            virtio_vgpu_refuse(s, req, VGPU_STATUS_NO_MEMORY);
            return;
        }
        s->scratch = bigger;
        s->scratch_bytes = bytes;
    }
    iov_to_buf(req->elem.out_sg, req->elem.out_num, sizeof(*head), s->scratch,
               bytes);

    payloads = s->scratch + payloads_at;
    if (!virtio_vgpu_check_payloads(payloads, head->payload_count,
                                    head->segment_count)) {
        virtio_vgpu_malformed(s, req, "payload table: a range outside the"
                              " segment table or unknown bits");
        return;
    }
    switch (virtio_vgpu_translate(s, payloads, head->payload_count,
                                  s->scratch + segments_at)) {
    case VIRTIO_VGPU_SPAN_OK:
        break;
    case VIRTIO_VGPU_SPAN_BAD_ADDRESS:
        virtio_vgpu_count(s, bad_addresses);
        virtio_vgpu_malformed(s, req, "segment table: a range that is not"
                              " guest RAM, or unknown bits");
        return;
    case VIRTIO_VGPU_SPAN_TOO_MANY:
        virtio_vgpu_refuse(s, req, VGPU_STATUS_LIMIT);
        return;
    }
    if (req->token) {
        virtio_vgpu_track_resumed(s, req);
    } else {
        virtio_vgpu_track(s, req);
    }
    trace_virtio_vgpu_submit(s, req->token, head->file, head->sequence,
                             head->stream_bytes, head->payload_count,
                             s->segments->len);
    kagemusha_device_submit(s->device, &(kagemusha_request) {
        .token = req->token,
        .file = head->file,
        .completion_count = head->completion_count,
        .stream = s->scratch,
        .stream_bytes = head->stream_bytes,
        .payload_count = head->payload_count,
        .payloads = s->payloads,
        .segments = (const void *)s->segments->data,
        .segment_count = s->segments->len,
    });
}

static bool virtio_vgpu_has_body(const struct vgpu_request *head)
{
    return head->stream_bytes || head->payload_count || head->segment_count ||
           head->completion_count;
}

static void virtio_vgpu_handle_request(VirtIOVGPU *s, VirtIOVGPURequest *req)
{
    struct vgpu_request head;
    uint64_t expected;
    size_t readable = iov_size(req->elem.out_sg, req->elem.out_num);

    if (iov_size(req->elem.in_sg, req->elem.in_num) <
        sizeof(struct vgpu_response)) {
        virtio_vgpu_guest_error(s, "request without room for its response");
        virtqueue_push(s->request_vq, &req->elem, 0);
        s->notify_requests = true;
        virtio_vgpu_free_request(s, req);
        return;
    }
    /* The only read of the header: the guest may change it meanwhile. */
    if (iov_to_buf(req->elem.out_sg, req->elem.out_num, 0, &head,
                   sizeof(head)) != sizeof(head)) {
        virtio_vgpu_malformed(s, req, "request shorter than its header");
        return;
    }
    head.type = le32_to_cpu(head.type);
    head.flags = le32_to_cpu(head.flags);
    head.file = le32_to_cpu(head.file);
    head.stream_bytes = le32_to_cpu(head.stream_bytes);
    head.payload_count = le32_to_cpu(head.payload_count);
    head.segment_count = le32_to_cpu(head.segment_count);
    head.completion_count = le32_to_cpu(head.completion_count);
    head.sequence = le64_to_cpu(head.sequence);
    trace_virtio_vgpu_request(s, head.type, head.file, head.sequence, readable);

    if (head.flags || head.pad || !head.file) {
        virtio_vgpu_malformed(s, req, "request: unknown flags, or file 0");
        return;
    }
    if (head.stream_bytes > s->limits.max_stream_bytes ||
        head.stream_bytes % 8 || head.payload_count > VGPU_MAX_PAYLOADS ||
        head.segment_count > s->limits.max_segments) {
        virtio_vgpu_malformed(s, req, "request: a length or count beyond the"
                              " device's limits");
        return;
    }
    expected = sizeof(head) + (uint64_t)head.stream_bytes +
               head.payload_count * (uint64_t)sizeof(struct vgpu_payload) +
               head.segment_count * (uint64_t)sizeof(struct vgpu_segment);
    if (readable != expected) {
        virtio_vgpu_malformed(s, req, "request: descriptors and header differ"
                              " about its length");
        return;
    }

    switch (head.type) {
    case VGPU_REQUEST_OPEN:
    case VGPU_REQUEST_CLOSE:
        if (virtio_vgpu_has_body(&head)) {
            virtio_vgpu_malformed(s, req, "OPEN or CLOSE with a body");
        } else if (req->token) {
            /*
             * A CLOSE waits for its worker, and its file is closed in the log.
             * An OPEN is answered at once, so this was something else.
             */
            if (head.type == VGPU_REQUEST_CLOSE) {
                virtio_vgpu_refuse(s, req, VGPU_STATUS_OK);
            } else {
                virtio_vgpu_malformed(s, req,
                                      "request changed while in flight");
            }
        } else if (head.type == VGPU_REQUEST_OPEN) {
            virtio_vgpu_handle_open(s, req, head.file);
        } else {
            virtio_vgpu_track(s, req);
            kagemusha_device_close_file(s->device, head.file, req->token);
        }
        break;
    case VGPU_REQUEST_SUBMIT:
        virtio_vgpu_handle_submit(s, req, &head);
        break;
    default:
        virtio_vgpu_malformed(s, req, "unknown type of request");
    }
}

/*
 * A ring lets no more elements out than it has, and so many slots there are,
 * unless the guest has moved the used index, which counts after a takeover.
 */
static VirtIOVGPURequest *virtio_vgpu_pop_request(VirtIOVGPU *s)
{
    VirtIOVGPURequest *req;

    if (!s->n_free_slots && !virtio_queue_empty(s->request_vq)) {
        virtio_error(VIRTIO_DEVICE(s), "virtio-vgpu %s: more requests than the"
                     " queue can hold", s->name);
        return NULL;
    }
    req = virtqueue_pop(s->request_vq, sizeof(*req));
    if (req) {
        req->token = 0;
    }
    return req;
}

/*
 * Bounded: a guest that submits faster than we take must not keep completions
 * from being dispatched. The rest gets its turn after them.
 */
static void virtio_vgpu_take_requests(VirtIOVGPU *s)
{
    unsigned budget = VIRTIO_VGPU_REQUEST_BATCH;

    do {
        VirtIOVGPURequest *req;

        virtio_queue_set_notification(s->request_vq, 0);
        while (budget && !kagemusha_device_congested(s->device) &&
               (req = virtio_vgpu_pop_request(s))) {
            budget--;
            virtio_vgpu_handle_request(s, req);
        }
        if (!budget) {
            qemu_bh_schedule(s->kick_bh);
            return;
        }
        if (kagemusha_device_congested(s->device)) {
            /* The rest waits in the ring; the library says when to go on. */
            trace_virtio_vgpu_congested(s);
            return;
        }
        virtio_queue_set_notification(s->request_vq, 1);
    } while (!virtio_queue_empty(s->request_vq));
}

/*
 * After a takeover, before anything else: what was in flight at the checkpoint,
 * in the order of its submission and with the tokens that the library knows. It
 * is read from guest memory again and checked again. A request that the guest
 * has spoiled meanwhile is answered MALFORMED.
 */
void virtio_vgpu_resume_requests(VirtIOVGPU *s)
{
    VirtIOVGPUCheckpoint *checkpoint = &s->checkpoint;

    for (uint32_t i = 0; i < checkpoint->n_in_flight; i++) {
        VirtIOVGPURequest *req =
            virtqueue_get_in_flight(s->request_vq,
                                    checkpoint->in_flight[i].head,
                                    sizeof(*req));

        if (!req) {
            break; /* a broken ring: nothing goes on before a reset */
        }
        req->token = checkpoint->in_flight[i].token;
        trace_virtio_vgpu_resume(s, req->token, req->elem.index);
        virtio_vgpu_count(s, resumed);
        virtio_vgpu_handle_request(s, req);
    }
    virtio_vgpu_forget_checkpoint(s);
}

/* ---- records ----------------------------------------------------------- */

static void virtio_vgpu_flush_events(VirtIOVGPU *s)
{
    struct vgpu_event_batch head = {
        .bytes = cpu_to_le32(s->event_bytes),
        .count = cpu_to_le32(s->event_count),
    };
    VirtQueueElement *elem = s->event_elem;

    if (!elem) {
        return;
    }
    trace_virtio_vgpu_flush_events(s, s->event_count, s->event_bytes);
    iov_from_buf(elem->in_sg, elem->in_num, 0, &head, sizeof(head));
    iov_from_buf(elem->in_sg, elem->in_num, sizeof(head), s->event_buffer,
                 s->event_bytes);
    virtqueue_push(s->event_vq, elem, sizeof(head) + s->event_bytes);
    virtio_vgpu_count(s, event_buffers);
    s->notify_events = true;
    g_free(elem);
    s->event_elem = NULL;
    s->event_bytes = 0;
    s->event_count = 0;
}

/* Makes s->event_elem an empty buffer, if the guest has posted one. */
static bool virtio_vgpu_get_event_buffer(VirtIOVGPU *s)
{
    /* A ring of buffers that are all too small ends this loop, too. */
    for (unsigned n = 0; n < VIRTIO_VGPU_EVENT_QUEUE_SIZE; n++) {
        VirtQueueElement *elem = virtqueue_pop(s->event_vq, sizeof(*elem));

        if (!elem) {
            /* Ask for a kick, then look again: it may just have come. */
            virtio_queue_set_notification(s->event_vq, 1);
            elem = virtqueue_pop(s->event_vq, sizeof(*elem));
            if (!elem) {
                return false;
            }
            virtio_queue_set_notification(s->event_vq, 0);
        }
        if (iov_size(elem->in_sg, elem->in_num) >= VGPU_EVENT_BUFFER_BYTES) {
            s->event_elem = elem;
            return true;
        }
        virtio_vgpu_guest_error(s, "event buffer that is too small");
        virtqueue_push(s->event_vq, elem, 0);
        s->notify_events = true;
        g_free(elem);
    }
    virtio_queue_set_notification(s->event_vq, 1);
    return false;
}

/* Library callback; thread as virtio_vgpu_request_done(). */
int virtio_vgpu_record(void *opaque, const void *record, size_t bytes)
{
    VirtIOVGPU *s = opaque;

    assert(bytes <= VGPU_MAX_RECORD_BYTES); /* the library's contract */
    if (s->discarding) {
        return 0; /* the driver is gone, or about to be told so */
    }
    if (sizeof(struct vgpu_event_batch) + s->event_bytes + bytes >
        VGPU_EVENT_BUFFER_BYTES) {
        virtio_vgpu_flush_events(s);
    }
    if (!s->event_elem && !virtio_vgpu_get_event_buffer(s)) {
        if (!s->event_starved) {
            s->event_starved = true;
            virtio_vgpu_count(s, event_starvations);
            trace_virtio_vgpu_event_starved(s);
        }
        return -EAGAIN;
    }
    memcpy(s->event_buffer + s->event_bytes, record, bytes);
    s->event_bytes += bytes;
    s->event_count++;
    virtio_vgpu_count(s, records);
    trace_virtio_vgpu_record(s, ((const struct vgpu_record *)record)->type,
                             ((const struct vgpu_record *)record)->file, bytes);
    return 0;
}

static void virtio_vgpu_take_event_buffers(VirtIOVGPU *s)
{
    if (!s->event_starved) {
        /* Nobody waits for buffers, so kicks would only cost time. */
        virtio_queue_set_notification(s->event_vq, 0);
        return;
    }
    if (virtio_queue_empty(s->event_vq)) {
        return;
    }
    s->event_starved = false;
    kagemusha_device_event_space(s->device);
}

/* ---- entries ----------------------------------------------------------- */

/* Hands over what is pending and interrupts the guest once per queue. */
void virtio_vgpu_flush(VirtIOVGPU *s)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);

    virtio_vgpu_flush_events(s);
    if (s->notify_requests) {
        s->notify_requests = false;
        virtio_notify_irqfd(vdev, s->request_vq);
    }
    if (s->notify_events) {
        s->notify_events = false;
        virtio_notify_irqfd(vdev, s->event_vq);
    }
}

/* ---- how long the IOThread stays awake --------------------------------- */

/*
 * A program that waits for each small read goes through this thread twice: its
 * request, and the answer. To wake it costs 10 us and more each time. So it
 * stays awake for a while after something came, as long as the next thing comes
 * so soon; the rule is that of replicator/base/look_window.hpp, which is the
 * one of QEMU's own polling. That can't be used: the library's descriptor has
 * nothing to poll, and a queue that is polled has its notifications off, which
 * a checkpoint would keep and a standby would start with.
 *
 * Awake means a bottom half that is scheduled again and again: the thread's
 * loop looks at its descriptors each time, and does not sleep. Not where there
 * are few processors, nor where the IOThread has poll-max-ns=0.
 */
#define AWAKE_MOST_NS   100000
#define AWAKE_FIRST_NS  10000
#define AWAKE_PROCESSORS 8

static void virtio_vgpu_awake_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    if (get_clock() < s->awake.until_ns) {
        qemu_bh_schedule(s->awake.bh);
    }
}

void virtio_vgpu_awake_init(VirtIOVGPU *s)
{
    s->awake.bh = aio_bh_new(s->ctx, virtio_vgpu_awake_bh, s);
    s->awake.most_ns =
        g_get_num_processors() >= AWAKE_PROCESSORS ? AWAKE_MOST_NS : 0;
}

/* In the IOThread. */
void virtio_vgpu_awake_cleanup(VirtIOVGPU *s)
{
    qemu_bh_delete(s->awake.bh);
    s->awake.bh = NULL;
}

/* In the IOThread: something came. */
static void virtio_vgpu_awake(VirtIOVGPU *s)
{
    int64_t now = get_clock();
    int64_t waited = now - s->awake.came_ns;
    int64_t most = s->ctx->poll_max_ns ? s->awake.most_ns : 0;

    s->awake.came_ns = now;
    if (waited > most) {
        s->awake.look_ns = 0;
    } else if (waited > s->awake.look_ns) {
        s->awake.look_ns = MIN(most, MAX(AWAKE_FIRST_NS,
                                         2 * s->awake.look_ns));
    }
    if (s->awake.look_ns) {
        s->awake.until_ns = now + s->awake.look_ns;
        qemu_bh_schedule(s->awake.bh);
    }
}

/* ---- the IOThread's events --------------------------------------------- */

/* The library's descriptor is readable: completions, deaths, timers. */
void virtio_vgpu_dispatch(void *opaque)
{
    VirtIOVGPU *s = opaque;

    QEMU_LOCK_GUARD(&s->gate);
    if (!s->running) {
        /* Paused: whatever it is would be told again and again until then. */
        aio_set_fd_handler(s->ctx, s->poll_fd, NULL, NULL, NULL, NULL, NULL);
        s->deaf = true;
        return;
    }
    kagemusha_device_dispatch(s->device);
    virtio_vgpu_flush(s);
    virtio_vgpu_awake(s);
}

void virtio_vgpu_kick_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    QEMU_LOCK_GUARD(&s->gate);
    if (!s->running) {
        s->kicked = true;
        return; /* start() or resume() will look at the queues */
    }
    virtio_vgpu_take_event_buffers(s);
    virtio_vgpu_take_requests(s);
    virtio_vgpu_flush(s);
    virtio_vgpu_awake(s);
}

/*
 * In the IOThread if ioeventfds work. Else in a vCPU with the BQL; also in main
 * for a kick that came in while the notifiers were taken away.
 */
void virtio_vgpu_handle_output(VirtIODevice *vdev, VirtQueue *vq)
{
    VirtIOVGPU *s = VIRTIO_VGPU(vdev);

    if (qemu_get_current_aio_context() != s->ctx) {
        qemu_bh_schedule(s->kick_bh);
        return;
    }
    QEMU_LOCK_GUARD(&s->gate);
    if (!s->running) {
        s->kicked = true;
        return;
    }
    if (vq == s->event_vq) {
        virtio_vgpu_take_event_buffers(s);
    } else {
        virtio_vgpu_take_requests(s);
    }
    virtio_vgpu_flush(s);
    virtio_vgpu_awake(s);
}

/* ---- life -------------------------------------------------------------- */

void virtio_vgpu_queue_init(VirtIOVGPU *s)
{
    s->payloads = g_new(kagemusha_payload, VGPU_MAX_PAYLOADS);
    s->segments = g_array_new(false, false, sizeof(kagemusha_segment));
    s->event_buffer = g_malloc(VGPU_EVENT_BUFFER_BYTES);
    s->n_free_slots = 0;
    for (uint32_t i = VIRTIO_VGPU_REQUEST_QUEUE_SIZE; i > 0; i--) {
        s->free_slots[s->n_free_slots++] = i - 1;
    }
}

void virtio_vgpu_queue_cleanup(VirtIOVGPU *s)
{
    assert(s->n_free_slots == VIRTIO_VGPU_REQUEST_QUEUE_SIZE);
    g_clear_pointer(&s->payloads, g_free);
    g_clear_pointer(&s->event_buffer, g_free);
    g_clear_pointer(&s->scratch, g_free);
    s->scratch_bytes = 0;
    g_array_free(s->segments, true);
    s->segments = NULL;
}
