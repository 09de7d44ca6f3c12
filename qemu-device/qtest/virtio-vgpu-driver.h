// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A small driver of virtio-vgpu on libqos, for the device's qtests.
 */
#ifndef TESTS_VIRTIO_VGPU_DRIVER_H
#define TESTS_VIRTIO_VGPU_DRIVER_H

#include "libqos/malloc-pc.h"
#include "libqos/pci-pc.h"
#include "libqos/virtio-pci.h"
#include "libqos/virtio.h"
#include "libqtest.h"
#include "proto/abi/vgpu_page_copy.h"

#define SLOT 4
#define TIMEOUT_US (60 * 1000 * 1000) /* how long until a test has failed */
#define RAM "-machine pc,memory-backend=ram -m 64M " \
            "-object memory-backend-memfd,id=ram,size=64M,share=on "
#define RAM_BYTES (64 * 1024 * 1024)
/* Of the devices that are told so, and a place for it */
#define WINDOW_BYTES (16 * 1024 * 1024)
#define WINDOW_ADDRESS (8ULL << 30)
/* Of both devices of a pair */
#define REPLICATION ",vm-id=a-vm,heartbeat-budget-ms=100000"
#define VGPU "virtio-vgpu-pci,id=vgpu0,addr=04.0,backend=null,x-in-process=on"

enum { CONTEXT = 1, QUEUE = 2, BUFFER = 3, USER_EVENT = 4 };

typedef struct Driver {
    QTestState *qts;
    QPCIBus *bus;
    QGuestAllocator alloc;
    QVirtioPCIDevice *dev;
    QVirtQueue *requests;
    QVirtQueue *events;
} Driver;

/* The body of a SUBMIT. */
typedef struct Stream {
    uint8_t bytes[4096];
    uint32_t used;
    uint32_t completions;
    struct vgpu_payload payload[4];
    struct vgpu_segment segment[8];
    uint32_t payloads;
    uint32_t segments;
} Stream;

/* A request in the ring. */
typedef struct Pending {
    uint32_t head;
    uint64_t readable;
    uint64_t response;
} Pending;

/* What a driver does after an error: everything again from the reset on. */
void driver_restart_device(Driver *d);
void driver_free_queues(Driver *d);
void driver_find_device(Driver *d);
/* driver_free() ends QEMU, and the test if QEMU did not end well. */
Driver *driver_new_without_device(const char *arguments);
Driver *driver_new(const char *properties);
void driver_forget_device(Driver *d);
void driver_free(Driver *d);
uint64_t driver_stat(Driver *d, const char *name);
void driver_wait_stat(Driver *d, const char *name, uint64_t value);
void *stream_add(Stream *s, uint16_t opcode, uint32_t bytes);
/* A payload of the last `segments` segments. */
void stream_payload(Stream *s, uint32_t flags, uint64_t bytes,
                    uint32_t segments);
void stream_segment(Stream *s, uint64_t address, uint64_t bytes,
                    uint32_t flags);
/* Asks for the GPU's name; the result goes into payload 0, `bytes` long. */
void stream_device_name(Stream *s, uint64_t bytes);
/* The whole SUBMIT, in host memory; returns its length. */
uint32_t stream_request(const Stream *s, uint32_t file, uint8_t *bytes,
                        uint32_t room);
/* An element of the request queue; with a part of 0 bytes left out. */
Pending driver_put(Driver *d, const void *readable, uint32_t bytes,
                   uint32_t writable_bytes);
Pending driver_put_stream(Driver *d, uint32_t file, const Stream *s);
/* Waits for the next answer of the ring; it must be that of `p`. */
uint32_t driver_wait_len(Driver *d, const Pending *p);
struct vgpu_response driver_wait(Driver *d, const Pending *p);
/* OPEN or CLOSE; returns the status. */
uint32_t driver_simple(Driver *d, uint32_t type, uint32_t file);
/* A call or silent command: it must be taken and succeed. */
struct vgpu_response driver_call(Driver *d, uint32_t file, Stream *s);
void driver_open(Driver *d, uint32_t file);
void driver_close(Driver *d, uint32_t file);
/* CONTEXT, QUEUE, BUFFER (4096 bytes) and USER_EVENT */
void driver_make_objects(Driver *d, uint32_t file);
/* A read into `address` that stays in flight until USER_EVENT is set. */
Pending driver_put_waiting_read(Driver *d, uint32_t file,
                                uint64_t address, uint64_t event);
void driver_set_user_event(Driver *d, uint32_t file, Pending *set);
/* Two answers whose order is open. */
void driver_wait_both(Driver *d, const Pending *a, const Pending *b);
uint64_t driver_post_event_buffer(Driver *d, uint32_t bytes);
uint32_t driver_wait_event_buffer(Driver *d);
/* What the guest sees at `address` from now on is the window. */
void driver_put_window(Driver *d, uint64_t address);
/* Asks the log of stores; the bits go to `address`. Returns the result. */
uint32_t driver_ask_log(Driver *d, uint64_t offset, uint32_t pages,
                        uint64_t address);
/* With VGPU_COPIES_BEGIN in `pages`, it may return before they are made. */
void driver_begin_copies(Driver *d, uint64_t address, uint32_t pages);
/* Asks for copies of the list at `address`. Returns the result. */
uint32_t driver_ask_copies(Driver *d, uint64_t address, uint32_t pages);
/* How many threads of the host take part in large questions */
uint32_t driver_copy_threads(Driver *d);
/* The guest goes on in another QEMU, which has its memory and devices. */
void driver_continue_in(Driver *d, QTestState *qts);

/* For standby-listen: a Unix socket, another one with each call. */
char *standby_address_new(void);
/* What the property `replication` says; a string or a number as text. */
char *replication(QTestState *qts, const char *name);
void wait_replication(QTestState *qts, const char *name, const char *wanted);
/* From now on, to wherever it listens. */
void replicate_to(QTestState *primary, QTestState *standby);
void replicate_to_address(QTestState *primary, const char *address);

/* The answer is an error whose description contains the sentence. */
void expect_error(QDict *answer, const char *sentence);

#endif
