/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * loop_layout: what the device loop and the host loop exchange in GPU memory. Read by OpenCL C and C++.
 *
 *   inbox   a loop_lane_in for each lane, then each lane's events (written before a launch)
 *   outbox  LOOP_OUTBOX_BYTES for each lane: loop_lane_out, then its requests (read after the launch)
 *   state   for each lane a loop_lane_state, then the program's own bytes (never leaves the GPU)
 *
 * Events and requests are a structure and their data, which is filled up to a multiple of 8 bytes.
 */
#ifndef KAGEMUSHA_LOOP_LAYOUT_H
#define KAGEMUSHA_LOOP_LAYOUT_H

#ifdef __OPENCL_VERSION__
typedef uint loop_u32;
typedef ulong loop_u64;
#else
#include <stdint.h>
typedef uint32_t loop_u32;
typedef uint64_t loop_u64;
#endif

#define LOOP_MAX_LANES 64u     /* work-groups of one launch */
#define LOOP_DATA_BYTES 4096u  /* data of one event or request */
#define LOOP_INBOX_BYTES 32768u  /* events of one lane in one launch */
#define LOOP_OUTBOX_BYTES 32768u /* loop_lane_out and requests of one lane in one launch */
#define LOOP_MAX_STEPS 64u     /* steps of one lane that wait */
#define LOOP_MAX_REQUESTS 3u   /* that one callback may make */
#define LOOP_MAX_STORES 12u    /* loop_store() and loop_copy() of one callback */
#define LOOP_NONE 0xffffffffu  /* no connection, no file */

struct loop_lane_in {
	loop_u32 offset; /* of the first event, from the inbox's begin */
	loop_u32 events;
};

/* source: a connection, a file or a lane. value: see each kind. cookie: the request's, or 0. */
enum loop_event_kind {
	LOOP_STARTED = 1,   /* once for each lane, first; value: lanes */
	LOOP_CONNECTED = 2, /* a client, source */
	LOOP_RECEIVED = 3,  /* data of the client `source` */
	LOOP_CLOSED = 4,    /* the client `source` sends no more: loop_close() it when it is answered */
	LOOP_SENT = 5,      /* what was to be sent to `source` is on its way; value 1: `source` is gone */
	LOOP_OPENED = 6,    /* source: the file, value: its size; source LOOP_NONE: an errno */
	LOOP_READ = 7,      /* data of the file `source`, value: its offset; source LOOP_NONE: an errno */
	LOOP_POSTED = 8,    /* data of the lane `source` */
	LOOP_STEP = 9       /* from loop_later(); never crosses */
};

struct loop_event {
	loop_u32 kind;
	loop_u32 source;
	loop_u32 bytes;
	loop_u32 pad;
	loop_u64 cookie;
	loop_u64 value;
};

enum loop_request_kind {
	LOOP_SEND = 1,  /* data to the client `target`; count 1: LOOP_SENT is wanted */
	LOOP_CLOSE = 2, /* the client `target`, when everything is sent */
	LOOP_OPEN = 3,  /* the file whose path is the data */
	LOOP_FETCH = 4, /* `count` bytes of the file `target` from `value` on */
	LOOP_FORGET = 5, /* the file `target` is not needed any more */
	LOOP_POST = 6   /* data to the lane `target` */
};

struct loop_request {
	loop_u32 kind;
	loop_u32 target;
	loop_u32 bytes;
	loop_u32 count;
	loop_u64 cookie;
	loop_u64 value;
};

enum loop_fault {
	LOOP_FAULT_REQUESTS = 1, /* a callback made more than LOOP_MAX_REQUESTS, or one with too much data */
	LOOP_FAULT_STEPS = 2,    /* more than LOOP_MAX_STEPS wait */
	LOOP_FAULT_STORES = 3    /* more than LOOP_MAX_STORES in one callback */
};

struct loop_lane_out {
	loop_u32 consumed;  /* events of the inbox */
	loop_u32 callbacks; /* that ran */
	loop_u32 requests;
	loop_u32 bytes; /* of the requests, with their data */
	loop_u32 steps; /* that wait */
	loop_u32 fault; /* loop_fault */
	loop_u64 pad;
};

struct loop_lane_state {
	loop_u32 first, steps; /* the steps that wait, in a ring */
	loop_u32 step_is_next; /* steps and events take turns */
	loop_u32 pad;
	loop_u64 cookies[LOOP_MAX_STEPS];
};

#endif
