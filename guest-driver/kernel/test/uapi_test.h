/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of the driver's user interface share: TAP output, the ioctls, a builder of command
 * streams and the driver's counters.
 */
#ifndef UAPI_TEST_H
#define UAPI_TEST_H

#include <errno.h>
#include <linux/kagemusha_vgpu.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/abi/vgpu_protocol.h"

/* ---- TAP ---- */

extern const char *current_test;
extern int failed_tests;

void check_failed(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void skip_test(const char *why);

/* A failed check is shown and makes the test "not ok"; the test goes on. */
#define CHECK(condition)                                                    \
	do {                                                                \
		if (!(condition))                                           \
			check_failed(__FILE__, __LINE__, "%s", #condition); \
	} while (0)

#define CHECK_EQUAL(actual, expected)                                                      \
	do {                                                                               \
		long long a_ = (long long)(actual), e_ = (long long)(expected);            \
		if (a_ != e_)                                                              \
			check_failed(__FILE__, __LINE__, "%s is %lld, expected %s (%lld)", \
				     #actual, a_, #expected, e_);                          \
	} while (0)

/* `call` must fail with errno `error`. */
#define CHECK_ERROR(call, error)                                                                \
	do {                                                                                    \
		errno = 0;                                                                      \
		long long r_ = (long long)(call);                                               \
		int e_ = errno;                                                                 \
		if (r_ != -1 || e_ != (error))                                                  \
			check_failed(__FILE__, __LINE__,                                        \
				     "%s gave %lld, errno %d (%s), expected %s", #call, r_, e_, \
				     strerror(e_), #error);                                     \
	} while (0)

/* What a test cannot go on without. Ends the program: the rest would only repeat it. */
#define MUST(condition)                                                                       \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			check_failed(__FILE__, __LINE__, "%s (errno %d)", #condition, errno); \
			bail_out();                                                           \
		}                                                                             \
	} while (0)

void bail_out(void) __attribute__((noreturn));

/* ---- the device ---- */

extern const char *node; /* /dev/kagemusha-vgpu0 */
extern bool check_contents; /* the backend stores what is written (not `null`) */
extern uint64_t least_stores; /* of several threads, in modes page and adaptive; 0: a short test */

struct limits {
	uint64_t stream_bytes, payload_bytes, events, requests, window_bytes;
};
extern struct limits limits;

int open_node(int flags);
uint64_t counter(const char *name);
/* Waits (bounded) until the counter has the value; false if it never gets it. */
bool counter_becomes(const char *name, uint64_t value);
/* FOLL_PIN references that the kernel has not got back. */
int64_t kernel_pins(void);
bool kernel_pins_become(int64_t value);
void check_idle(int expected_open_files);

/* ---- streams ---- */

struct stream {
	uint8_t *bytes;
	uint32_t used;
	uint32_t room;
	uint32_t completions;
	struct kagemusha_vgpu_payload payloads[64];
	uint32_t payload_count;
};

void stream_init(struct stream *stream);
void stream_reset(struct stream *stream);
void stream_free(struct stream *stream);
uint32_t stream_payload(struct stream *stream, const void *address, uint64_t bytes, uint32_t flags);

void add_info(struct stream *stream, uint32_t subject, uint32_t name, void *result, uint64_t bytes);
void add_create_context(struct stream *stream, uint64_t id);
void add_create_queue(struct stream *stream, uint64_t id, uint64_t context, uint64_t properties);
void add_create_buffer(struct stream *stream, uint64_t id, uint64_t context, uint64_t bytes);
void add_create_user_event(struct stream *stream, uint64_t id, uint64_t context);
void add_set_user_event(struct stream *stream, uint64_t event, int32_t status);
void add_destroy(struct stream *stream, uint32_t kind, uint64_t id);
/* Of nothing yet. */
struct vgpu_cmd_copy_buffer *add_copy(struct stream *stream, uint64_t queue, uint64_t event);
void add_marker(struct stream *stream, uint64_t queue, uint64_t event, uint64_t wait_for);
void add_transfer(struct stream *stream, bool read, uint64_t queue, uint64_t event,
		  uint64_t wait_for, uint64_t buffer, uint64_t offset, uint32_t payload,
		  uint64_t bytes);

/* 0 or -1 with errno. */
int submit(int fd, const struct stream *stream, uint32_t flags, uint64_t *sequence);
/* The same, with a flush of what was stored into traced ranges of CONTEXT, to QUEUE. */
int submit_behind_stores(int fd, const struct stream *stream, uint32_t flags, uint64_t *sequence);
int wait_answer(int fd, uint64_t sequence, uint64_t deadline_ns,
		struct kagemusha_vgpu_wait *answer);
/*
 * Submits waitably and waits: the answer's status, and its result in *result. Bails out if the
 * ioctls fail.
 */
uint32_t call(int fd, const struct stream *stream, int32_t *result);
/* Submits what must be accepted, and waits for the answer. */
void call_ok(int fd, const struct stream *stream);

#define NO_LIMIT UINT64_MAX
uint64_t now_ns(void);

/* Objects that most tests begin with. */
enum { CONTEXT = 1, QUEUE = 2, GATE = 3, BUFFER = 4, FIRST_EVENT = 1000 };
#define OUT_OF_ORDER 1u /* CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE */

/* A context and an in-order queue; GATE is a user event that holds back what waits for it. */
int open_with_queue(int flags, uint64_t buffer_bytes);
void open_gate(int fd);

/* Reads records until `count` completions have come (or fails the test after a while). */
unsigned read_completions(int fd, unsigned count);

/* ---- the tests ---- */

void test_parameters(void);
void test_ioctl_numbers(void);
void test_submit_rejections(void);
void test_wait_rejections(void);
void test_eventfd_rejections(void);

void test_lazy_open(void);
void test_info(void);
void test_malformed(void);
void test_contents(void);
void test_large_payload(void);
void test_threads(void);
void test_fork(void);

void test_records(void);
void test_poll_and_eventfd(void);
void test_blocking_read(void);
void test_credits(void);
void test_payload_bound(void);
void test_pinned_bound(void);
void test_untaken_answers(void);

void test_users_share_transfers(void);
void test_users_share_files(void);
void test_users_share_window(void);

void test_close_with_work(void);
void test_kill_with_work(void);
void test_kill_waiters(void);
void test_open_storm(void);
void test_suspend(void);
void test_unbind(void);
void test_unbind_under_load(void);

void test_window_ranges(void);
void test_window_mapping(void);
void test_window_payload(void);

void test_short_submit(void);
void test_trace_rejections(void);
void test_trace_stores(void);
void test_trace_kernel_stores(void);
void test_trace_mappings(void);
void test_trace_instructions(void);
void test_trace_debugger(void);
void test_trace_threads(void);
void test_trace_fallbacks(void);
void test_trace_device_writes(void);
void test_trace_end(void);

#endif
