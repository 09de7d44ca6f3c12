/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The C interface between the QEMU device and the C++ library that holds everything with a decision in it.
 *
 * Threads: a device belongs to one thread at a time (QEMU: the device's IOThread). Every function below is
 * called by that thread, and every callback is called on it, from inside kagemusha_device_dispatch(),
 * _submit(), _close_file() or _reset(); never from another thread. A callback must not call back into the
 * library except kagemusha_device_log_level(). kagemusha_device_stats() alone may be called from any thread.
 *
 * Errors: int results are 0 or a negative errno. Functions that take `error` write a sentence for a person
 * there (always terminated). No C++ exception crosses this interface; a programmer's error (NULL where none
 * is allowed, an unknown file in add_region …) aborts.
 *
 * Memory: pointers given to a function are only read during the call unless said otherwise. The library never
 * touches guest memory by itself in worker mode: the worker process does, through the regions; the caller
 * marks what was written as dirty when request_done tells so.
 */
#ifndef KAGEMUSHA_DEVICE_H
#define KAGEMUSHA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KAGEMUSHA_DEVICE_API_VERSION 1

#if defined(__GNUC__)
#define KAGEMUSHA_EXPORT __attribute__((visibility("default")))
#else
#define KAGEMUSHA_EXPORT
#endif

struct vgpu_response;

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
} kagemusha_device_config;

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
 * library; -1 is allowed in-process. `base` is where this process has it mapped (may be NULL when not
 * in-process). Called before the first file is opened; a region number is never used twice.
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
 * Closes every file at once and answers every request with CANCELED before it returns; when it returns no
 * worker is left that could touch guest memory. The device can be used again at once.
 */
KAGEMUSHA_EXPORT void kagemusha_device_reset(kagemusha_device* device);

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
    uint64_t doorbells; /* wake-ups of workers */
} kagemusha_device_stats;
KAGEMUSHA_EXPORT void kagemusha_device_get_stats(kagemusha_device* device, kagemusha_device_stats* stats);

/* Name of the GPU in use, for a person; valid as long as the device. */
KAGEMUSHA_EXPORT const char* kagemusha_device_gpu_name(kagemusha_device* device);

#ifdef __cplusplus
}
#endif
#endif
