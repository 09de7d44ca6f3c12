/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * kagemusha_loop: the device loop, in OpenCL C and in CUDA C++. A program has one function:
 *
 *     LOOP_PROGRAM void loop_arrived(struct loop *l, const struct loop_event *e);
 *
 * In OpenCL C this file is put in front of the program. A program in CUDA C++ includes it and is compiled to PTX or an
 * image (NVRTC, nvcc, clang). LOOP_ words are what the two call differently: with them one text is a program of both,
 * as the examples are.
 *
 * A lane is a work-group. It runs this callback with all of its work-items for one event after the other,
 * and looks at its token in between. When the token has no callback left, or there is nothing to do, the
 * kernel ends; what the program wants to keep is in loop_state(), in global memory, for the next launch.
 *
 * All work-items of a lane call the functions below alike, with equal arguments, and decide alike. They run side
 * by side. So a callback does not change what it reads: it says by loop_store() and loop_copy() what is to be
 * written behind it, and needs no barrier. What no other work-item reads in this callback may be written at once.
 */
#ifndef KAGEMUSHA_LOOP_H
#define KAGEMUSHA_LOOP_H

#if defined(__CUDACC__) || defined(__CUDA__)
#include "loop_layout.h"
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long ulong;
#define LOOP_GLOBAL
#define LOOP_CONSTANT
#define LOOP_FUNCTION static __device__ inline
#define LOOP_PROGRAM extern "C" __device__
#define LOOP_KERNEL extern "C" __global__
#define LOOP_BARRIER() __syncthreads()
LOOP_FUNCTION uint loop_lane(void) { return blockIdx.x; }
LOOP_FUNCTION uint loop_lanes(void) { return gridDim.x; }
LOOP_FUNCTION uint loop_item(void) { return threadIdx.x; }
LOOP_FUNCTION uint loop_items(void) { return blockDim.x; }
LOOP_FUNCTION uint loop_least(uint a, uint b) { return a < b ? a : b; }
#else
#define LOOP_GLOBAL global
#define LOOP_CONSTANT constant
#define LOOP_FUNCTION inline
#define LOOP_PROGRAM
#define LOOP_KERNEL kernel
#define LOOP_BARRIER() barrier(CLK_GLOBAL_MEM_FENCE)
LOOP_FUNCTION uint loop_lane(void) { return get_group_id(0); }
LOOP_FUNCTION uint loop_lanes(void) { return get_num_groups(0); }
LOOP_FUNCTION uint loop_item(void) { return get_local_id(0); }
LOOP_FUNCTION uint loop_items(void) { return get_local_size(0); }
LOOP_FUNCTION uint loop_least(uint a, uint b) { return min(a, b); }
#endif

struct loop_pending { /* a store behind the callback */
	LOOP_GLOBAL uchar *to;
	LOOP_GLOBAL const uchar *from; /* 0: `value` */
	ulong value;
	uint bytes;
};

struct loop {
	LOOP_GLOBAL const uchar *data; /* of the event */
	LOOP_GLOBAL uchar *requests;
	LOOP_GLOBAL struct loop_lane_state *kept;
	uint used;        /* bytes of requests */
	uint count;       /* requests */
	uint allowance;   /* requests that this callback may still make */
	uint first, steps; /* that wait, in kept->cookies */
	uint stores;
	uint fault;
	struct loop_pending store[LOOP_MAX_STORES];
};

/* The program's own bytes of this lane, all 0 at first. */
LOOP_FUNCTION LOOP_GLOBAL uchar *loop_state(struct loop *l) { return (LOOP_GLOBAL uchar *)(l->kept + 1); }

/* The event's data, of e->bytes. */
LOOP_FUNCTION LOOP_GLOBAL const uchar *loop_data(struct loop *l) { return l->data; }

/* Where the data of the next request belongs: LOOP_DATA_BYTES. */
LOOP_FUNCTION LOOP_GLOBAL uchar *loop_out(struct loop *l)
{
	return l->requests + l->used + sizeof(struct loop_request);
}

LOOP_FUNCTION void loop_request(struct loop *l, uint kind, uint target, uint bytes, uint count, ulong cookie,
			 ulong value)
{
	if (!l->allowance || bytes > LOOP_DATA_BYTES) {
		l->fault = LOOP_FAULT_REQUESTS;
		return;
	}
	if (loop_item() == 0) {
		LOOP_GLOBAL struct loop_request *r = (LOOP_GLOBAL struct loop_request *)(l->requests + l->used);
		r->kind = kind;
		r->target = target;
		r->bytes = bytes;
		r->count = count;
		r->cookie = cookie;
		r->value = value;
	}
	l->used += sizeof(struct loop_request) + (bytes + 7) / 8 * 8;
	++l->count;
	--l->allowance;
}

/* `bytes` of loop_out() to a client. */
LOOP_FUNCTION void loop_send(struct loop *l, uint connection, uint bytes)
{
	loop_request(l, LOOP_SEND, connection, bytes, 0, 0, 0);
}

/* The same; LOOP_SENT with this cookie comes when there is room for more. */
LOOP_FUNCTION void loop_send_notify(struct loop *l, uint connection, uint bytes, ulong cookie)
{
	loop_request(l, LOOP_SEND, connection, bytes, 1, cookie, 0);
}

LOOP_FUNCTION void loop_close(struct loop *l, uint connection)
{
	loop_request(l, LOOP_CLOSE, connection, 0, 0, 0, 0);
}

/* The file whose path is in loop_out(); LOOP_OPENED comes. */
LOOP_FUNCTION void loop_open(struct loop *l, uint bytes, ulong cookie)
{
	loop_request(l, LOOP_OPEN, LOOP_NONE, bytes, 0, cookie, 0);
}

/* At most LOOP_DATA_BYTES; LOOP_READ comes, with less at the file's end. */
LOOP_FUNCTION void loop_read(struct loop *l, uint file, ulong offset, uint bytes, ulong cookie)
{
	loop_request(l, LOOP_FETCH, file, 0, bytes, cookie, offset);
}

LOOP_FUNCTION void loop_forget(struct loop *l, uint file)
{
	loop_request(l, LOOP_FORGET, file, 0, 0, 0, 0);
}

/* `bytes` of loop_out() to a lane, where LOOP_POSTED comes. */
LOOP_FUNCTION void loop_post(struct loop *l, uint lane, uint bytes, ulong cookie)
{
	loop_request(l, LOOP_POST, lane, bytes, 0, cookie, 0);
}

/* More to do without the host: LOOP_STEP with this cookie comes, in this launch or in a later one. */
LOOP_FUNCTION void loop_later(struct loop *l, ulong cookie)
{
	if (l->steps == LOOP_MAX_STEPS) {
		l->fault = LOOP_FAULT_STEPS;
		return;
	}
	if (loop_item() == 0)
		l->kept->cookies[(l->first + l->steps) % LOOP_MAX_STEPS] = cookie;
	++l->steps;
}

LOOP_FUNCTION void loop_pend(struct loop *l, LOOP_GLOBAL void *to, LOOP_GLOBAL const uchar *from, ulong value, uint bytes)
{
	if (l->stores == LOOP_MAX_STORES) {
		l->fault = LOOP_FAULT_STORES;
		return;
	}
	struct loop_pending *p = l->store + l->stores++;
	p->to = (LOOP_GLOBAL uchar *)to;
	p->from = from;
	p->value = value;
	p->bytes = bytes;
}

/* Behind this callback: the lowest `bytes` of `value`, at most 8. */
LOOP_FUNCTION void loop_store(struct loop *l, LOOP_GLOBAL void *to, ulong value, uint bytes)
{
	loop_pend(l, to, 0, value, loop_least(bytes, 8));
}

/* Behind this callback: from loop_data() or loop_state(). In their order; they must not overlap. */
LOOP_FUNCTION void loop_copy(struct loop *l, LOOP_GLOBAL void *to, LOOP_GLOBAL const uchar *from, uint bytes)
{
	loop_pend(l, to, from, 0, bytes);
}

LOOP_FUNCTION void loop_carry_out(struct loop *l)
{
	for (uint s = 0; s < l->stores; ++s) {
		const struct loop_pending *p = l->store + s;
		for (uint i = loop_item(); i < p->bytes; i += loop_items())
			p->to[i] = p->from ? p->from[i] : (uchar)(p->value >> 8 * i);
	}
	l->stores = 0;
}

LOOP_PROGRAM void loop_arrived(struct loop *l, const struct loop_event *e);

#define LOOP_OUT_ROOM (LOOP_OUTBOX_BYTES - sizeof(struct loop_lane_out))
/* With room for the data of a request too many, which is written before it is refused. */
#define LOOP_CALLBACK_ROOM ((LOOP_MAX_REQUESTS + 1) * (sizeof(struct loop_request) + LOOP_DATA_BYTES))

/* token: how many callbacks each lane may run. An argument, so that a look costs neither memory nor a register. */
LOOP_KERNEL void kagemusha_loop(LOOP_GLOBAL const uchar *inbox, LOOP_GLOBAL uchar *outbox, LOOP_GLOBAL uchar *state,
			   ulong state_bytes, uint token)
{
	const uint lane = loop_lane();
	LOOP_GLOBAL const struct loop_lane_in *in = (LOOP_GLOBAL const struct loop_lane_in *)inbox + lane;
	LOOP_GLOBAL struct loop_lane_out *out =
		(LOOP_GLOBAL struct loop_lane_out *)(outbox + (ulong)lane * LOOP_OUTBOX_BYTES);
	struct loop l;
	l.requests = (LOOP_GLOBAL uchar *)(out + 1);
	l.kept = (LOOP_GLOBAL struct loop_lane_state *)(state + lane * (sizeof(struct loop_lane_state) + state_bytes));
	l.used = l.count = l.stores = l.fault = 0;
	l.first = l.kept->first;
	l.steps = l.kept->steps;
	uint step_is_next = l.kept->step_is_next;
	LOOP_GLOBAL const uchar *next = inbox + in->offset;
	const uint events = in->events;
	uint consumed = 0, ran = 0;

	for (;;) {
		const bool step = l.steps && (step_is_next || consumed == events);
#ifdef KAGEMUSHA_LOOP_NEVER_LOOKS
		const bool may = true;
#else
		const bool may = ran < token;
#endif
		if ((!step && consumed == events) || l.used + LOOP_CALLBACK_ROOM > LOOP_OUT_ROOM || l.fault || !may)
			break;
		struct loop_event e;
		l.data = next + sizeof(struct loop_event);
		if (step) {
			e.kind = LOOP_STEP;
			e.source = lane;
			e.bytes = e.pad = 0;
			e.value = 0;
			e.cookie = l.kept->cookies[l.first % LOOP_MAX_STEPS];
			++l.first;
			--l.steps;
		} else {
			e = *(LOOP_GLOBAL const struct loop_event *)next;
			next += sizeof(struct loop_event) + (e.bytes + 7) / 8 * 8;
			++consumed;
		}
		step_is_next = !step;
		l.allowance = LOOP_MAX_REQUESTS;
		loop_arrived(&l, &e);
		++ran;
		LOOP_BARRIER(); /* everybody has read */
		loop_carry_out(&l);
		LOOP_BARRIER();
	}
	if (loop_item() == 0) {
		out->consumed = consumed;
		out->callbacks = ran;
		out->requests = l.count;
		out->bytes = l.used;
		out->steps = l.steps;
		out->fault = l.fault;
		out->pad = 0;
		l.kept->first = l.first % LOOP_MAX_STEPS;
		l.kept->steps = l.steps;
		l.kept->step_is_next = step_is_next;
	}
}

#endif
