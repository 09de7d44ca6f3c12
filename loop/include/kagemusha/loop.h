/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kagemusha_loop: servers whose code runs on the GPU, which give it back between two callbacks. This is the
 * host's side, for programs in C and C++: it serves sockets and files, hands what happens to the program's
 * callback in OpenCL C (device/kagemusha_loop.h), and does what that asks for. It needs OpenCL 1.2 and
 * nothing of Kagemusha: it runs on any OpenCL device.
 *
 * Threads: one thread has a loop; kagemusha_loop_stop() may be called by any, also by a signal handler.
 * Errors: functions return 0 or a negative errno, with a sentence in `error` if there is room for one.
 * Memory: a loop owns what it makes; strings and descriptors of the options remain the caller's.
 */
#ifndef KAGEMUSHA_LOOP_HOST_H
#define KAGEMUSHA_LOOP_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kagemusha_loop;

enum kagemusha_loop_flags {
    /* What clients send is cut into lines, which arrive without their '\n'. */
    KAGEMUSHA_LOOP_LINES = 1u,
    /* The device loop does not look at its token. For measuring what that costs. */
    KAGEMUSHA_LOOP_NEVER_LOOKS = 2u,
};

struct kagemusha_loop_options {
    size_t size;   /* of this structure */
    void* context; /* a cl_context and one of its devices; both null: the first device that there is */
    void* device;
    const char* source;        /* OpenCL C with loop_arrived(); null where there is an image */
    const char* build_options; /* or null */
    uint32_t lanes;            /* work-groups, 1 to 64 */
    uint32_t items;            /* of a lane; 0: 1 on a processor, else 64 */
    uint64_t state_bytes;      /* of a lane, for the program; at most 1 GiB for all lanes */
    int listener;              /* a listening socket, or -1 */
    int root;                  /* a directory; files outside of it can't be opened; or -1: none can */
    uint32_t flags;            /* kagemusha_loop_flags */
    uint32_t callbacks;        /* of a lane in one launch; 0: as many as the time allows */
    const void* image;         /* for CUDA: PTX with its 0, or an image of the device loop with loop_arrived() */
    const char* driver;        /* of an image; null: libcuda.so.1 */
};

struct kagemusha_loop_figures {
    uint64_t launches, callbacks;
    uint64_t yields; /* launches that ended because their token did, with work left */
    uint64_t clients, bytes_in, bytes_out;
    uint64_t device_ns; /* of all launches, where the device tells */
    uint64_t shared;    /* launches that were kept short because others waited for the GPU */
};

int kagemusha_loop_create(const struct kagemusha_loop_options* options, struct kagemusha_loop** made,
                          char* error, size_t error_bytes);
/* Serves until kagemusha_loop_stop(). */
int kagemusha_loop_run(struct kagemusha_loop* loop, char* error, size_t error_bytes);
void kagemusha_loop_stop(struct kagemusha_loop* loop);
void kagemusha_loop_get_figures(const struct kagemusha_loop* loop, struct kagemusha_loop_figures* figures);
void kagemusha_loop_destroy(struct kagemusha_loop* loop);

#ifdef __cplusplus
}
#endif

#endif
