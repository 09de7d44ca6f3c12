// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: a GPU for computing, forwarded to a GPU of the host
 *
 * The device takes requests off a virtqueue, checks their framing, translates
 * the guest memory that they name and hands them to libkagemusha_device, which
 * holds everything with a decision in it. What the guest sees is specified in
 * docs/spec/device.md and proto/abi/vgpu_protocol.h of the Kagemusha project.
 *
 * Threads and locking
 *
 *   main    the main loop or a vCPU, with the BQL: realize, start, stop, reset,
 *           properties.
 *   io      the IOThread, without the BQL: requests, completions, records.
 *
 * The library belongs to one thread at a time. Between virtio_vgpu_start() and
 * virtio_vgpu_stop() that is io; main changes nothing of io's state then, and
 * stop() returns only after io has let go.
 * A checkpoint's pause does not wait until io has run: all that io does for a
 * guest it does under the gate, which main needs for a moment to shut it. io's
 * handlers stay, and do nothing then.
 * On a standby the library belongs to io all the time: what it executes comes
 * from the primary, whatever its own VM does. That ends when it takes over.
 */
#ifndef HW_VGPU_VIRTIO_VGPU_H
#define HW_VGPU_VIRTIO_VGPU_H

#include "block/aio.h"
#include "block/replication.h"
#include "exec/memory.h"
#include "hw/virtio/virtio.h"
#include "qemu/lockable.h"
#include "qemu/units.h"
#include "qom/object.h"
#include "system/iothread.h"
#include "system/runstate.h"

#include "kagemusha/device.h"
#include "proto/abi/vgpu_protocol.h"

#define TYPE_VIRTIO_VGPU "virtio-vgpu-device"
OBJECT_DECLARE_SIMPLE_TYPE(VirtIOVGPU, VIRTIO_VGPU)

/*
 * A chain of descriptors may not be longer than its queue. The largest request
 * (stream, payload table, segment table: about 3.4 MiB) lies in up to 870
 * scattered pages, so the request queue has the largest size that QEMU allows.
 * (QEMU 10.0.13 and later make every queue that large; we don't rely on it.)
 */
#define VIRTIO_VGPU_REQUEST_QUEUE_SIZE VIRTQUEUE_MAX_SIZE
#define VIRTIO_VGPU_EVENT_QUEUE_SIZE 64

/* Blocks of guest RAM (the machine's, NUMA nodes', DIMMs') and the window. */
#define VIRTIO_VGPU_MAX_REGIONS 64
#define VIRTIO_VGPU_REGION_WINDOW 1

/* What the library has to say in a checkpoint; beyond it something is wrong. */
#define VIRTIO_VGPU_MAX_STATE_BYTES (64 * MiB)

/* How long a reset waits for workers that may still write guest memory. */
#define VIRTIO_VGPU_RESET_WAIT_MS 5000

/* Requests taken in one go, before completions get their turn. */
#define VIRTIO_VGPU_REQUEST_BATCH 256

typedef struct VirtIOVGPURequest {
    VirtQueueElement elem; /* first: virtqueue_pop() allocates the whole */
    uint64_t token; /* 0: not tracked yet; else, before that: it is resumed */
} VirtIOVGPURequest;

/* Memory that segments can name. Index in the array = number of the region. */
typedef struct VirtIOVGPURegion {
    MemoryRegion *mr; /* NULL: free. We hold a reference: it can't go away */
    uint8_t *base;
    uint64_t bytes;
} VirtIOVGPURegion;

typedef enum VirtIOVGPUSpanResult {
    VIRTIO_VGPU_SPAN_OK,
    VIRTIO_VGPU_SPAN_BAD_ADDRESS,
    VIRTIO_VGPU_SPAN_TOO_MANY,
} VirtIOVGPUSpanResult;

/* A request in flight, as it is in a checkpoint. */
typedef struct VirtIOVGPUInFlight {
    uint64_t token;
    uint32_t head; /* VirtQueueElement.index */
} VirtIOVGPUInFlight;

/*
 * The vmstate beside virtio's. A primary fills it in to be saved; a standby
 * keeps what was loaded last until it takes over.
 */
typedef struct VirtIOVGPUCheckpoint {
    uint64_t generation;
    bool opened;
    bool event_starved;
    uint32_t n_in_flight;
    VirtIOVGPUInFlight in_flight[VIRTIO_VGPU_REQUEST_QUEUE_SIZE];
    uint32_t state_bytes;
    uint8_t *state; /* the library's */
    /* not saved */
    bool loaded;       /* standby: since the VM was reset */
    bool fits;         /* standby: and was committed to the library */
    bool closing;      /* primary: from checkpoint() to pre_save() */
    Error *not_closed; /* primary: until somebody waits for the epoch */
    uint64_t committed; /* checkpoints, ever */
} VirtIOVGPUCheckpoint;

/* Threads that wait in the library, and keep it from being destroyed */
typedef struct VirtIOVGPUWaiting {
    QemuMutex lock;
    QemuCond none;
    uint32_t threads;
    bool ended;
} VirtIOVGPUWaiting;

/* Which pages of the window the guest's processors have stored into. */
typedef struct VirtIOVGPULog {
    bool on;
    unsigned long *unasked; /* a bit for each group of pages, since it is on */
} VirtIOVGPULog;

/* Of a question for copies: pages from `first` on, those before `end` */
typedef void VirtIOVGPUCopyPart(void *opaque, uint32_t first, uint32_t end);
typedef struct VirtIOVGPUCopyThreads VirtIOVGPUCopyThreads;
typedef struct VirtIOVGPUCopier VirtIOVGPUCopier;

#define VIRTIO_VGPU_COPY_THREADS_AUTO UINT32_MAX

/* What this device counts itself; the library has the rest. */
typedef struct VirtIOVGPUCounters {
    uint64_t malformed;          /* elements that broke a rule of the framing */
    uint64_t bad_addresses;      /* of those: not guest RAM */
    uint64_t records;
    uint64_t event_buffers;      /* filled and given back */
    uint64_t event_starvations;  /* times that no event buffer was there */
    uint64_t resumed;            /* requests in flight at a takeover */
} VirtIOVGPUCounters;

struct VirtIOVGPU {
    VirtIODevice parent_obj;

    /* properties; constant after realize */
    char *backend;
    char *gpu;
    char *options;
    char *worker;
    char *sandbox;
    bool in_process;
    uint64_t window_bytes;
    IOThread *iothread;
    kagemusha_device_config config; /* the numeric limits are properties */
    char *vm_id;
    char *replicate_to; /* main: also set at run time */
    char *standby_listen;
    char *tls_dir;
    bool replicable;
    bool compression;
    bool ship_differences;
    char *ship_kernels;
    bool hold_failures;
    uint32_t checkpoint_wait_ms;
    uint32_t copy_threads;

    /* constant between realize and unrealize */
    VirtQueue *request_vq;
    VirtQueue *event_vq;
    AioContext *ctx;
    IOThread *own_iothread; /* if no iothread was given */
    QEMUBH *kick_bh;        /* in ctx: look at the queues */
    struct {
        QEMUBH *bh;         /* in ctx: there is nothing else to do */
        int64_t most_ns;    /* 0: it sleeps at once */
        int64_t look_ns, came_ns, until_ns; /* the IOThread's */
    } awake;
    kagemusha_device *device;
    kagemusha_device_limits limits;
    int poll_fd;
    bool replicated; /* a primary, now or later, or a standby */
    char *name; /* for log lines and the names of workers */
    MemoryRegion window;
    MemoryRegion *window_container; /* the BAR; set by the transport */
    Error *migration_blocker;
    Notifier exit_notifier;
    NotifierWithReturn migration_notifier;
    VMChangeStateEntry *vm_change;
    ReplicationState *replication_hooks;

    VirtIOVGPUWaiting waiting; /* any thread, under its lock */

    /* main */
    bool started;
    bool standby; /* io dispatches the library, until it takes over */
    bool take_over_due;
    VirtIOVGPUCheckpoint checkpoint;
    VirtIOVGPULog log;
    VirtIOVGPUCopyThreads *copiers; /* NULL until they are needed */
    VirtIOVGPUCopier *copier;       /* NULL: nothing is under way */
    bool host_notifiers; /* kicks reach io directly; else through kick_bh */
    bool paused; /* not started, but all is there to go on at once */

    /* under the gate */
    QemuMutex gate;
    bool running;
    bool deaf; /* io listens to the library no more until it is resumed */
    bool kicked; /* paused: somebody wants io to look at the queues */

    /* io; main while stopped */
    bool discarding; /* reset or end: nothing goes to the guest any more */
    uint32_t writers; /* workers that outlived the last reset */
    bool opened;     /* a file was opened: no more regions */
    bool resume;     /* taken over: requests in flight come first */
    bool report_failures; /* asked for while the device was stopped */
    bool notify_requests;
    bool notify_events;
    bool event_starved; /* the library waits for event buffers */
    VirtIOVGPURegion regions[VIRTIO_VGPU_MAX_REGIONS];
    VirtIOVGPURequest *in_flight[VIRTIO_VGPU_REQUEST_QUEUE_SIZE];
    uint16_t free_slots[VIRTIO_VGPU_REQUEST_QUEUE_SIZE];
    uint32_t n_free_slots;
    uint64_t generation; /* of tokens */
    void *scratch; /* the copy of the request at hand: stream and tables */
    size_t scratch_bytes;
    kagemusha_payload *payloads; /* VGPU_MAX_PAYLOADS */
    GArray *segments; /* kagemusha_segment */
    VirtQueueElement *event_elem; /* the event buffer at hand, if any */
    size_t event_room;
    uint32_t event_bytes; /* records in event_buffer */
    uint32_t event_count;
    uint8_t *event_buffer;
    int64_t error_window_ms; /* rate limit of virtio_vgpu_guest_error() */
    uint32_t error_lines;

    /* written by io, read by main: each a single aligned word */
    VirtIOVGPUCounters counters;
};

#define virtio_vgpu_count(s, counter) \
    qatomic_set_u64(&(s)->counters.counter, (s)->counters.counter + 1)

/* virtio-vgpu-memory.c */
bool virtio_vgpu_check_ram(VirtIOVGPU *s, Error **errp);
bool virtio_vgpu_add_regions(VirtIOVGPU *s, Error **errp);
bool virtio_vgpu_create_window(VirtIOVGPU *s, Error **errp);
void virtio_vgpu_remove_window(VirtIOVGPU *s);
void virtio_vgpu_put_regions(VirtIOVGPU *s);
VirtIOVGPUSpanResult virtio_vgpu_translate(VirtIOVGPU *s,
                                           const struct vgpu_payload *payloads,
                                           uint32_t n_payloads,
                                           const struct vgpu_segment *segments);
void virtio_vgpu_memory_written(void *opaque, const kagemusha_segment *ranges,
                                size_t count);

/* virtio-vgpu-log.c */
void virtio_vgpu_ask_log(VirtIOVGPU *s);
void virtio_vgpu_end_log(VirtIOVGPU *s);

/* virtio-vgpu-copy.c */
void virtio_vgpu_ask_copies(VirtIOVGPU *s);
void virtio_vgpu_finish_copies(VirtIOVGPU *s);

/* virtio-vgpu-copy-threads.c */
bool virtio_vgpu_count_copy_threads(VirtIOVGPU *s, Error **errp);
bool virtio_vgpu_copy_has_parts(const VirtIOVGPU *s, uint32_t pages);
void virtio_vgpu_copy_begin(VirtIOVGPU *s, VirtIOVGPUCopyPart *part,
                            void *opaque, uint32_t pages);
void virtio_vgpu_copy_wait(VirtIOVGPU *s);
void virtio_vgpu_end_copy_threads(VirtIOVGPU *s);

/* virtio-vgpu-queue.c */
void virtio_vgpu_queue_init(VirtIOVGPU *s);
void virtio_vgpu_queue_cleanup(VirtIOVGPU *s);
void virtio_vgpu_handle_output(VirtIODevice *vdev, VirtQueue *vq);
void virtio_vgpu_kick_bh(void *opaque);
void virtio_vgpu_dispatch(void *opaque);
void virtio_vgpu_awake_init(VirtIOVGPU *s);
void virtio_vgpu_awake_cleanup(VirtIOVGPU *s);
void virtio_vgpu_flush(VirtIOVGPU *s);
void virtio_vgpu_resume_requests(VirtIOVGPU *s);
void virtio_vgpu_request_done(void *opaque, uint64_t token,
                              const struct vgpu_response *response);
int virtio_vgpu_record(void *opaque, const void *record, size_t bytes);

/* virtio-vgpu-checkpoint.c */
extern const VMStateDescription vmstate_virtio_vgpu;
void virtio_vgpu_checkpoint_init(VirtIOVGPU *s);
void virtio_vgpu_checkpoint_cleanup(VirtIOVGPU *s);
void virtio_vgpu_forget_checkpoint(VirtIOVGPU *s);
void virtio_vgpu_end_waits(VirtIOVGPU *s);
void virtio_vgpu_epoch_wanted(void *opaque);

/* virtio-vgpu-replication.c */
void virtio_vgpu_watch_migrations(VirtIOVGPU *s);
void virtio_vgpu_configure_replication(VirtIOVGPU *s);
void virtio_vgpu_start_standby(VirtIOVGPU *s);
void virtio_vgpu_stop_standby(VirtIOVGPU *s);
void virtio_vgpu_serve_without_driver(VirtIOVGPU *s, bool on);
void virtio_vgpu_replication_class_init(ObjectClass *klass);

/* virtio-vgpu-stats.c */
void virtio_vgpu_stats_class_init(ObjectClass *klass);

#endif /* HW_VGPU_VIRTIO_VGPU_H */
