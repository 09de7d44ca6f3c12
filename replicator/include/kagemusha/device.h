/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The C interface between the QEMU device and the C++ library that holds everything with a decision in it.
 *
 * Threads: a device belongs to one thread at a time (QEMU: the device's IOThread). Every function below is
 * called by that thread, and every callback is called on it, from inside kagemusha_device_dispatch(),
 * _submit(), _close_file(), _reset() or _tell_failures(); never from another thread. A callback must not call
 * back into the library. Only kagemusha_device_get_stats(), kagemusha_device_get_replication_status() and
 * kagemusha_device_failure() may be called from any thread. Replication has a thread of its own inside the
 * library; it calls nothing outside.
 *
 * Errors: int results are 0 or a negative errno. Functions that take `error` write a sentence for a person
 * there (always terminated). No C++ exception crosses this interface; a programmer's error (NULL where none
 * is allowed, an unknown file in add_region …) aborts.
 *
 * Memory: pointers given to a function are only read during the call unless said otherwise. The library never
 * writes guest memory by itself in worker mode: the worker process does, through the regions, where no dirty
 * log of the caller's sees it; the callback `memory_written` reports what it wrote. A device that is
 * replicated reads the payloads that the GPU reads, to send them to the standby, until request_done or the
 * completion of the command.
 */
#ifndef KAGEMUSHA_DEVICE_H
#define KAGEMUSHA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KAGEMUSHA_DEVICE_API_VERSION 5

#if defined(__GNUC__)
#define KAGEMUSHA_EXPORT __attribute__((visibility("default")))
#else
#define KAGEMUSHA_EXPORT
#endif

struct vgpu_response;
struct kagemusha_segment;

typedef struct kagemusha_device kagemusha_device;

enum kagemusha_log_level {
    KAGEMUSHA_LOG_ERROR = 0,
    KAGEMUSHA_LOG_WARNING = 1,
    KAGEMUSHA_LOG_INFO = 2,
    KAGEMUSHA_LOG_DEBUG = 3
};

typedef struct kagemusha_callbacks {
    /* The answer of the request that was submitted (or closed) with `token`; exactly once for each. From here
     * on nothing touches its segments. */
    void (*request_done)(void* user_data, uint64_t token, const struct vgpu_response* response);
    /*
     * A record for the guest (struct vgpu_record and its body, `bytes` long). Returns 0 when taken, -EAGAIN
     * when there is no room: the library then keeps it (bounded) and offers it again after
     * kagemusha_device_event_space().
     */
    int (*record)(void* user_data, const void* record, size_t bytes);
    /* One line without a newline; already rate-limited where a guest can cause it. */
    void (*log)(void* user_data, int level, const char* message);
    /* Replication: kagemusha_device_congested() is 0 again. May be NULL. */
    void (*room)(void* user_data);
    /* Checkpoints: the standby can't hold much more of this epoch, so a checkpoint is wanted soon; else the
     * guest will be held back. From any thread. May be NULL. */
    void (*epoch_wanted)(void* user_data);
    /*
     * A worker has written, or may have written, these ranges of guest memory; the caller marks them dirty
     * before it returns. Called before the guest can know: before the record of any command that comes after
     * the write, and before the answer of its request. So a checkpoint that is taken between two calls of the
     * library has all memory that the guest was told of, and nothing need be marked for the checkpoint
     * itself. At most as many bytes per request as there is guest memory. May be NULL.
     */
    void (*memory_written)(void* user_data, const struct kagemusha_segment* ranges, size_t count);
} kagemusha_callbacks;

typedef struct kagemusha_device_config {
    uint32_t api_version;  /* KAGEMUSHA_DEVICE_API_VERSION */
    uint32_t struct_bytes; /* sizeof(kagemusha_device_config) */
    const char* name;      /* of the VM or device, for log lines and process names */
    const char* backend;   /* "opencl", "null" or "faulty" */
    const char* gpu; /* which device of the backend: "" the default, "N" or "P.D" by number, else a part of
                        its name; as `kage gpus` lists them */
    const char* options; /* backend options "key=value,key=value" (faulty: the fault script), "" for none */
    const char* worker_path; /* the worker's executable; NULL: the installed one, or $KAGEMUSHA_WORKER */
    uint32_t in_process; /* 1: run the backend inside this process, only for null and faulty, for tests and
                            benchmarks */
    uint32_t sandbox;    /* 0: required (refuse to start without), 1: best effort, 2: off (debugging) */
    /* limits; 0 means the library's default, see core/limits.hpp */
    uint32_t max_files;
    uint32_t max_requests_per_file;
    uint32_t max_events_per_file; /* commands with an event in flight */
    uint32_t max_objects_per_file;
    uint64_t max_memory_bytes;      /* GPU memory of all files together */
    uint64_t max_file_memory_bytes; /* GPU memory of one file */
    uint64_t max_worker_bytes;      /* host memory of one worker beside guest RAM and window */
    uint32_t hang_timeout_ms; /* a worker with work that shows no progress for so long is killed; 0: never */
    uint32_t window_reserved; /* 0 */
    kagemusha_callbacks callbacks;
    void* user_data;
    /*
     * Replication. A device is a primary (`replicate_to`, or `replicable` for later), a standby
     * (`standby_listen`), or neither; texts may be NULL. 0 means the library's default
     * (mirror/log/limits.hpp), except for digest_interval_ms and max_behind_ms.
     */
    const char* vm_id;          /* of the protected VM: both ends must say the same */
    const char* replicate_to;   /* the standby: "HOST:PORT", "[V6]:PORT" or "unix:PATH" */
    const char* standby_listen; /* where this standby listens: the same, PORT 0 for any */
    const char* tls_directory;  /* HOST/vm/VM_ID/qemu as `kage keys --vm` makes it; the peer must have a
                                   certificate for the other role of the same VM. Without one only unix:
                                   addresses are allowed */
    uint32_t replicable;  /* 1: kagemusha_device_replicate_to() may be called; costs a record of the live
                             objects */
    uint32_t compression; /* 1: content is compressed if both ends want it; for slow links */
    uint32_t epoch_ms;
    uint32_t heartbeat_ms;
    uint32_t heartbeat_budget_ms; /* silence for so long means that the other end is gone */
    uint32_t digest_interval_ms;  /* how often primary and standby compare what was written; 0: on request */
    uint64_t log_bytes;           /* primary: what is logged and not received by the standby; beyond it
                                     kagemusha_device_congested() is 1 */
    uint64_t hold_bytes;          /* standby: what it holds and has not executed */
    /* Primary: kagemusha_device_congested() is 1 while the standby's GPU is behind this one by more
     * (status.behind_ms); 0: never. */
    uint32_t max_behind_ms;
    uint32_t differences; /* primary: enum kagemusha_differences */
    /* primary: kernels whose results are treated as with KAGEMUSHA_DIFFERENCES_SHIP from their first launch
     * on: names, with commas between them; NULL or "": none */
    const char* ship_kernels;
    /* Limits, 0: the library's default. So many workers are started at once for files of the guest, then so
     * many per second; a file beyond that waits for its start, and its requests with it. Not in_process. */
    uint32_t worker_start_burst;
    uint32_t worker_starts_per_second;
    /* A worker that says that it makes progress, but ends nothing of its work for so long is killed, too;
     * 0: never. Longer than whatever a program enqueues without an event. */
    uint32_t end_timeout_ms;
    /* Primary: a program whose user event is not set holds the transfer of the state to a new standby up;
     * after so long it is lost, and gets errors. 0: never, the VM has no standby. */
    uint32_t transfer_wait_ms;
} kagemusha_device_config;

/*
 * What is promised of kernels whose results differ on the standby (docs/spec/replication.md, "Kernels that
 * give something else each time").
 */
enum kagemusha_differences {
    KAGEMUSHA_DIFFERENCES_REPAIR = 0, /* found by comparisons, and sent again; shipped when they repeat */
    KAGEMUSHA_DIFFERENCES_SHIP = 1    /* whatever kernels wrote is shipped before the guest knows of it */
};

/* Fills in a config with the defaults of this version. */
KAGEMUSHA_EXPORT void kagemusha_device_config_init(kagemusha_device_config* config);

/*
 * Creates a device. Probes that the backend and GPU exist (in a worker, not here) and fails with a sentence
 * that says what to install or which GPUs there are. On success the caller owns *device.
 */
KAGEMUSHA_EXPORT int kagemusha_device_create(const kagemusha_device_config* config, kagemusha_device** device,
                                             char* error, size_t error_bytes);

/* Ends every worker, answers every request in flight with CANCELED, frees everything. */
KAGEMUSHA_EXPORT void kagemusha_device_destroy(kagemusha_device* device);

/*
 * Memory that segments refer to. `fd` is a shared mapping's file (memfd) that workers map, duplicated by the
 * library; -1 is allowed in-process. `base` is where this process has it mapped (may be NULL unless
 * in-process or replicated). Called before the first file is opened; a region number is never used twice.
 */
KAGEMUSHA_EXPORT int kagemusha_device_add_region(kagemusha_device* device, uint32_t region, int fd,
                                                 uint64_t file_offset, uint64_t bytes, void* base,
                                                 char* error, size_t error_bytes);

typedef struct kagemusha_segment {
    uint64_t offset; /* into the region */
    uint64_t bytes;
    uint32_t region;
    uint32_t pad;
} kagemusha_segment;

typedef struct kagemusha_payload {
    uint64_t bytes;
    uint32_t first_segment;
    uint32_t segment_count;
    uint32_t writable; /* the GPU writes into it */
    uint32_t pad;
} kagemusha_payload;

typedef struct kagemusha_request {
    uint64_t token; /* the caller's; comes back in request_done */
    uint32_t file;
    uint32_t completion_count;
    const void* stream; /* 8-byte aligned private copy: the guest can't change it any more */
    uint32_t stream_bytes;
    uint32_t payload_count;
    const kagemusha_payload* payloads;
    const kagemusha_segment* segments; /* the caller has checked them against guest memory; the library checks
                                          them against the regions again */
    uint32_t segment_count;
    uint32_t pad;
} kagemusha_request;

/*
 * The three requests. Each is answered by exactly one request_done with its token, perhaps before the
 * function returns. What is wrong with a request is told in the answer, so there is no result.
 */
KAGEMUSHA_EXPORT void kagemusha_device_open_file(kagemusha_device* device, uint32_t file, uint64_t token);
KAGEMUSHA_EXPORT void kagemusha_device_close_file(kagemusha_device* device, uint32_t file, uint64_t token);
KAGEMUSHA_EXPORT void kagemusha_device_submit(kagemusha_device* device, const kagemusha_request* request);

/* Becomes readable when there is something to dispatch (an epoll descriptor: workers' completions, deaths,
 * timers). Owned by the library. */
KAGEMUSHA_EXPORT int kagemusha_device_poll_fd(kagemusha_device* device);
KAGEMUSHA_EXPORT void kagemusha_device_dispatch(kagemusha_device* device);

/* There is room for records again. */
KAGEMUSHA_EXPORT void kagemusha_device_event_space(kagemusha_device* device);

/*
 * Closes every file at once and answers every request with CANCELED before it returns. Does not wait for
 * workers that were killed and are not gone yet, and returns how many of them may still write guest memory
 * for a request that was in flight (0: none). Until kagemusha_device_writers() is 0 nobody may use that
 * memory. The device can be used again at once.
 */
KAGEMUSHA_EXPORT uint32_t kagemusha_device_reset(kagemusha_device* device);
KAGEMUSHA_EXPORT uint32_t kagemusha_device_writers(kagemusha_device* device);

/* The limits in force (defaults applied), for the virtio configuration space. */
typedef struct kagemusha_device_limits {
    uint32_t max_files;
    uint32_t max_requests_per_file;
    uint32_t max_events_per_file;
    uint32_t max_stream_bytes;
    uint32_t max_segments;
    uint32_t pad;
} kagemusha_device_limits;
KAGEMUSHA_EXPORT void kagemusha_device_get_limits(kagemusha_device* device, kagemusha_device_limits* limits);

typedef struct kagemusha_device_stats {
    uint64_t struct_bytes; /* in: sizeof, so that the structure can grow */
    uint64_t files_open, files_total;
    uint64_t requests, requests_in_flight, requests_refused;
    uint64_t commands, launches, calls;
    uint64_t bytes_to_gpu, bytes_from_gpu;
    uint64_t events_completed, events_failed;
    uint64_t objects, memory_bytes;
    uint64_t workers_started, workers_lost, workers_killed_hung;
    uint64_t text_bytes, text_dropped_bytes;
    uint64_t doorbells;       /* wake-ups of workers */
    uint64_t workers_ending;  /* now: killed and not gone, because the GPU's driver has not let go of them */
    uint64_t workers_delayed; /* whose start had to wait (worker_starts_per_second) */
    uint64_t workers_waiting; /* now: for their start */
} kagemusha_device_stats;
KAGEMUSHA_EXPORT void kagemusha_device_get_stats(kagemusha_device* device, kagemusha_device_stats* stats);

/*
 * Replication.
 *
 * A primary: every request that it executes is also executed by the standby. When the standby can't keep up
 * and the log is full, kagemusha_device_congested() is 1: the caller then leaves requests in the guest's ring
 * until the callback `room`. (What is submitted all the same is executed and logged.)
 *
 * A standby: has no guest of its own. It is dispatched from the start, whether its VM runs or not; requests
 * are refused, a reset leaves it alone. Memory regions are not given to its workers.
 */
enum kagemusha_replication_role {
    KAGEMUSHA_ROLE_NONE = 0,
    KAGEMUSHA_ROLE_PRIMARY = 1,
    KAGEMUSHA_ROLE_STANDBY = 2
};

enum kagemusha_replication_state {
    KAGEMUSHA_REPLICATION_OFF = 0,
    /* primary */
    KAGEMUSHA_REPLICATION_DISCONNECTED = 1,
    KAGEMUSHA_REPLICATION_GREETING = 2,
    KAGEMUSHA_REPLICATION_SYNCING = 3, /* the standby gets the whole state while the guest computes */
    KAGEMUSHA_REPLICATION_PROTECTING = 4,
    /* standby */
    KAGEMUSHA_REPLICATION_LISTENING = 5,
    KAGEMUSHA_REPLICATION_FOLLOWING = 6, /* has no complete copy yet */
    KAGEMUSHA_REPLICATION_READY = 7,
    KAGEMUSHA_REPLICATION_TAKEN_OVER = 8,
    KAGEMUSHA_REPLICATION_ENDED = 9
};

typedef struct kagemusha_replication_status {
    uint64_t struct_bytes; /* in: sizeof, so that the structure can grow */
    uint32_t role;         /* enum kagemusha_replication_role */
    uint32_t state;        /* enum kagemusha_replication_state */
    uint64_t epoch, committed_epoch;
    uint64_t appended, sent, received, executed; /* numbers of the last entry of the log that is so */
    uint64_t lag_entries;                        /* primary: appended and not executed by the standby */
    uint64_t lag_bytes;                          /* primary: logged and not received by the standby */
    uint64_t lag_ms;                             /* primary: age of the oldest entry that is not received */
    uint64_t sent_bytes, received_bytes;
    uint64_t digests_compared, digests_different, digests_repaired; /* chunks of GPU memory, ever */
    uint64_t
        memory_shipped;  /* primary: memory objects that differed repeatedly and are sent after each launch */
    uint64_t held_bytes; /* standby: received and not executed */
    uint64_t registry_bytes;    /* primary: record of the live objects */
    uint64_t transferred_bytes; /* primary: content of state transfers, ever */
    uint64_t held_back_ns; /* primary: longest time that guest commands were held back by a state transfer */
    uint64_t connections;  /* of the link, ever */
    uint64_t faults;       /* standby: entries that failed here and not on the primary */
    uint64_t round_trip_ms;
    uint64_t checkpoint_epoch;   /* the last one that a checkpoint closed (primary) or committed (standby) */
    uint64_t checkpoint_wait_ns; /* primary: how long the last close_epoch() waited */
    uint64_t takeovers;          /* by this device */
    char degraded[512]; /* why the VM is not protected, for a person; "": it is, or no replication was asked
                           for */
    char peer_gpu[128];
    uint64_t compression_saved_bytes; /* primary: of the content, ever; sent_bytes are without them */
    /* When, in ns of CLOCK_BOOTTIME; 0: not yet. The last checkpoint that this standby committed; its
     * takeover; the first command of the guest's that its GPU completed after that. */
    uint64_t committed_at_ns, took_over_at_ns, first_completion_at_ns;
    /* 1: a standby's GPU had a copy and has none any more, or a takeover found none; `degraded` says why. */
    uint64_t copy_lost;
    /* Primary: for how long the standby's GPU has not done what this one has done; 0: it is not behind, or
     * nobody looks (digest_interval_ms). */
    uint64_t behind_ms;
    uint64_t unexecuted_ms; /* primary: for how long the standby could have executed what it has not */
    /* Built programs of the primary's compiler, ever, in packs: sent (primary) or given to workers (standby);
     * their bytes; packs that were left out. */
    uint64_t built_packs, built_bytes, built_dropped;
} kagemusha_replication_status;

KAGEMUSHA_EXPORT void kagemusha_device_get_replication_status(kagemusha_device* device,
                                                              kagemusha_replication_status* status);
KAGEMUSHA_EXPORT int kagemusha_device_congested(kagemusha_device* device);
/*
 * A failure of the GPU (a worker that died, hung or lost its device) while a standby protects the guest: 1:
 * the guest is not told, because it may go on at the standby as it was at its last checkpoint. Then
 * _failure() is 1, with a sentence for a person, and _congested() too. Whoever looks after the VM ends it,
 * for the standby to take over, or lets _tell_failures() tell the guest, as without a standby. 0, the
 * default: the guest is told at once. -ENOTSUP: the device was made without replication.
 *
 * A standby with 1 keeps a copy that a checkpoint of the VM belongs to: another state transfer is refused,
 * because until somebody says otherwise a takeover needs that copy. Whoever looks after the VM sees that the
 * primary is not protected any more, and begins the standby anew. With 0 the next transfer replaces it.
 */
KAGEMUSHA_EXPORT int kagemusha_device_hold_failures(kagemusha_device* device, int on);
KAGEMUSHA_EXPORT int kagemusha_device_failure(kagemusha_device* device, char* text, size_t text_bytes);
KAGEMUSHA_EXPORT void kagemusha_device_report_failures(kagemusha_device* device);
/* Primary: names the standby, once, if replicate_to was "". */
KAGEMUSHA_EXPORT int kagemusha_device_replicate_to(kagemusha_device* device, const char* address, char* error,
                                                   size_t error_bytes);
/* Primary: compares now what was written since the last comparison; `everything`: all of GPU memory. The
 * status tells what was found. -ENOTCONN unless there is a standby that has a complete copy. */
KAGEMUSHA_EXPORT int kagemusha_device_request_digest(kagemusha_device* device, int everything);

/*
 * Checkpoints of the VM (docs/spec/replication.md, "Epochs of a VM"). The VM's state is the authority: what a
 * standby executes of the log is what belongs to checkpoints that its VM has applied, and a takeover goes on
 * from the last one. Every function below is called while the VM is stopped, except for wait_epoch() and
 * end_waits().
 *
 * Primary, for each checkpoint, after the last request was submitted:
 *   begin_close_epoch()  optional: close_epoch() waits for another thread, which begins now. The caller can do
 *                   something else meanwhile, but nothing with this device
 *   close_epoch()   the log up to here is the epoch's
 *   save_state()    what belongs into the VM's state; the device's caller adds which element of the ring each
 *                   token of a request in flight is
 *   wait_epoch()    when the VM runs again: the standby holds all of the epoch, and may have the VM's state
 * Standby, for each checkpoint that has arrived as a whole:
 *   check_state()   whether it can be committed
 *   commit_state()  its VM has this state now: the log up to the epoch's end runs, except what the guest has
 *                   not been answered yet
 * and when the primary is dead:
 *   take_over()     this device is the VM's from here on. At once, before anything else, the caller submits
 *                   the requests that were in flight at the checkpoint, with the tokens that they had, in the
 *                   order of kagemusha_device_submit() on the primary, congested or not. They are answered as
 *                   if nothing had happened; a completion that the guest has been told is not told again.
 */

/* Primary: from now on (1) checkpoints close epochs, or (0) time does. -ENOTCONN while no standby has a
 * complete copy. */
KAGEMUSHA_EXPORT int kagemusha_device_use_checkpoints(kagemusha_device* device, int on, char* error,
                                                      size_t error_bytes);
/* Each begun one is for the next close_epoch(); who gives the checkpoint up before that begins again next time. */
KAGEMUSHA_EXPORT int kagemusha_device_begin_close_epoch(kagemusha_device* device, char* error,
                                                        size_t error_bytes);
/* 0: the standby holds everything. Else the checkpoint must be given up, and the VM goes on: -ETIMEDOUT after
 * wait_ms, -ENOTCONN: there is no complete copy, -EPROTO: checkpoints are not in use. */
KAGEMUSHA_EXPORT int kagemusha_device_close_epoch(kagemusha_device* device, uint32_t wait_ms, char* error,
                                                  size_t error_bytes);
/* For a caller that gives wait_ms 0 there, lets the VM go on, and only then waits: before it lets the standby
 * apply the checkpoint. Results as above, and -ECANCELED after end_waits(). Any thread, but it must have
 * returned before the device is destroyed. */
KAGEMUSHA_EXPORT int kagemusha_device_wait_epoch(kagemusha_device* device, uint32_t wait_ms, char* error,
                                                 size_t error_bytes);
/* The device is about to be destroyed: nobody waits any more. Any thread. */
KAGEMUSHA_EXPORT void kagemusha_device_end_waits(kagemusha_device* device);
/* The state of the epoch closed last; of a device without checkpoints: one that no standby can go on from.
 * Valid until the next call. */
KAGEMUSHA_EXPORT void kagemusha_device_save_state(kagemusha_device* device, const void** state,
                                                  size_t* bytes);

/* Standby. `state` is a peer's: whatever it says, the result is 0 or an error. -EPROTO: it does not belong to
 * the log that this standby has. The VM may have that state all the same (QEMU loads it before it asks), so
 * from here a takeover is one without the GPU's state, unless a later one is committed. */
KAGEMUSHA_EXPORT int kagemusha_device_check_state(kagemusha_device* device, const void* state, size_t bytes,
                                                  char* error, size_t error_bytes);
KAGEMUSHA_EXPORT int kagemusha_device_commit_state(kagemusha_device* device, const void* state, size_t bytes,
                                                   char* error, size_t error_bytes);
/*
 * 0: the GPU's state is that of the last committed epoch, or will be as soon as the rest of it has run;
 * kagemusha_device_congested() is 1 until then. -ENODATA, with the reason: there is no such state. The device
 * is the VM's even so, but everything on the GPU is lost: each open file of the guest is told, and its
 * requests are answered with LOST.
 */
KAGEMUSHA_EXPORT int kagemusha_device_take_over(kagemusha_device* device, char* error, size_t error_bytes);

/* Where a standby listens, with the real port; "" for others. Valid as long as the device. */
KAGEMUSHA_EXPORT const char* kagemusha_device_standby_address(kagemusha_device* device);

/*
 * Functions that programs of the guest called and that its driver does not have, for a person: "cuA 2, cuB 1",
 * at most 64 names and none of the guest's that C has not, cut off where there is no room. Any thread.
 */
KAGEMUSHA_EXPORT void kagemusha_device_unsupported(kagemusha_device* device, char* text, size_t bytes);

/* Name of the GPU in use, for a person; valid as long as the device. */
KAGEMUSHA_EXPORT const char* kagemusha_device_gpu_name(kagemusha_device* device);

#ifdef __cplusplus
}
#endif
#endif
