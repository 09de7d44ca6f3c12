// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Traced ranges of the window: what is stored into them is in the GPU's buffer after the next
 * flush, in every mode, however it got there; and nothing else is.
 */
#define _GNU_SOURCE /* mremap */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "trace_test.h"

void test_trace_rejections(void)
{
	struct kagemusha_vgpu_window_trace args;
	struct kagemusha_vgpu_window_flush flush_args = { .queue = QUEUE };
	struct kagemusha_vgpu_window_discard discard;
	uint64_t offset, other;
	int fd, stranger;

	if (no_window())
		return;
	fd = open_with_queue(0, BYTES);
	stranger = open_node(0);
	offset = alloc_window(fd, 2 * PAGE);
	other = alloc_window(fd, PAGE);

	CHECK_ERROR(trace_range(stranger, offset, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace_range(fd, offset, 0, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace_range(fd, offset, 2 * PAGE + 1, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace_range(fd, offset + PAGE, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace_range(fd, limits.window_bytes, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace_range(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_MODE_COUNT), EINVAL);
	args = (struct kagemusha_vgpu_window_trace){ .offset = offset, .bytes = PAGE, .pad = 1 };
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &args), EINVAL);
	args.pad = 0;
	args.memory_offset = UINT64_MAX;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &args), EINVAL);

	/* which mode the default is, is told */
	args = (struct kagemusha_vgpu_window_trace){
		.offset = offset, .bytes = PAGE, .memory = BUFFER, .group = CONTEXT
	};
	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &args), 0);
	CHECK(args.mode > KAGEMUSHA_VGPU_TRACE_DEFAULT &&
	      args.mode < KAGEMUSHA_VGPU_TRACE_MODE_COUNT);
	CHECK_ERROR(trace_range(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_PAGE), EBUSY);
	CHECK_ERROR(trace_range(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_OFF), EBUSY);
	CHECK_EQUAL(trace_range(fd, other, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_OFF), 0);

	flush_args.flags = KAGEMUSHA_VGPU_SUBMIT_WAITABLE;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &flush_args), EINVAL);
	flush_args.flags = 0;
	flush_args.pad = 1;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &flush_args), EINVAL);
	flush_args.pad = 0;
	flush_args.queue = 0;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &flush_args), EINVAL);
	discard = (struct kagemusha_vgpu_window_discard){ .offset = offset };
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_DISCARD, &discard), EINVAL);
	discard.bytes = 3 * PAGE;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_DISCARD, &discard), EINVAL);
	close(stranger);
	close(fd);
}

/* A program that was built before there were flushes: its SUBMIT is shorter. */
void test_short_submit(void)
{
	const unsigned long shorter =
		_IOC(_IOC_READ | _IOC_WRITE, KAGEMUSHA_VGPU_IOCTL_BASE,
		     _IOC_NR(KAGEMUSHA_VGPU_SUBMIT),
		     offsetof(struct kagemusha_vgpu_submit, flush_queue));
	struct kagemusha_vgpu_submit args;
	struct stream stream;
	int fd = open_with_queue(0, 0);

	stream_init(&stream);
	add_marker(&stream, QUEUE, 0, 0);
	memset(&args, 0xff, sizeof(args));
	memset(&args, 0, offsetof(struct kagemusha_vgpu_submit, flush_queue));
	args.stream = (uint64_t)(uintptr_t)stream.bytes;
	args.stream_bytes = stream.used;
	CHECK_EQUAL(ioctl(fd, shorter, &args), 0);
	CHECK(args.sequence > 0);
	CHECK(args.flush_queue == UINT64_MAX && args.flushed_bytes == UINT64_MAX); /* not ours */
	CHECK_ERROR(ioctl(fd, shorter - (8ul << _IOC_SIZESHIFT), &args), EINVAL);
	stream_free(&stream);
	close(fd);
}

static void stores_of_every_kind(struct traced *t)
{
	uint64_t sent = 0;

	for (unsigned i = 0; i < 2000; i++)
		store_byte(t, next_random() % BYTES, (uint8_t)next_random());
	flush_and_check(t, "scattered bytes");

	memset(t->map, 0x5a, BYTES);
	memset(t->expected, 0x5a, BYTES);
	flush_and_check(t, "all of it");

	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 0); /* nothing was stored since */
	t->map[7] = t->map[7];
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 0); /* nothing changed */

	store_byte(t, 5 * PAGE + 11, 1);
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 1);
	check_buffer(t, "one byte");

	/* across a page's end, and next to it */
	for (unsigned i = 0; i < 16; i++)
		store_byte(t, 9 * PAGE - 8 + i, (uint8_t)(i + 1));
	*(volatile uint64_t *)(t->map + 12 * PAGE - 3) = 0x1122334455667788;
	*(uint64_t *)(t->expected + 12 * PAGE - 3) = 0x1122334455667788;
	flush_and_check(t, "across pages");
}

/* More places than one command can hold, and more bytes than one can. */
static void stores_everywhere(struct traced *t)
{
	for (unsigned at = next_random() % 8; at < 16 * PAGE; at += 4 + next_random() % 8)
		store_byte(t, at, (uint8_t)(t->expected[at] + 1 + next_random() % 255));
	flush_and_check(t, "a byte in every few");
	for (unsigned at = 3; at < 17 * PAGE; at += 16)
		store_byte(t, at, (uint8_t)(t->expected[at] + 1));
	flush_and_check(t, "each sixteenth byte");
	for (unsigned at = 0; at < 6 * PAGE; at++)
		store_byte(t, at, (uint8_t)(t->expected[at] ^ (at % 5 ? 0x33 : 0)));
	flush_and_check(t, "all but each fifth byte");
}

/* A request's own flush comes before its commands. */
static void flush_in_submit(struct traced *t)
{
	uint8_t *found = calloc(1, BYTES);
	struct stream stream;

	MUST(found);
	stream_init(&stream);
	for (unsigned round = 1; round < 20; round++) {
		struct kagemusha_vgpu_wait answer;
		uint64_t sequence;

		store_byte(t, 3 * PAGE + round, (uint8_t)round);
		store_byte(t, round * PAGE, (uint8_t)(round + 100));
		stream_reset(&stream);
		add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, found, BYTES, KAGEMUSHA_VGPU_PAYLOAD_WRITE),
			     BYTES);
		MUST(submit_behind_stores(t->fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE,
					  &sequence) == 0);
		MUST(wait_answer(t->fd, sequence, NO_LIMIT, &answer) == 0);
		CHECK_EQUAL(answer.status, VGPU_STATUS_OK);
		if (check_contents)
			CHECK(!memcmp(found, t->expected, BYTES));
	}
	stream_free(&stream);
	free(found);
}

/* The kernel copies into the mapping; a debugger stores into it. */
static void stores_of_the_kernel(struct traced *t)
{
	uint8_t data[3 * PAGE];
	uint8_t one = 0x77;
	int pipes[2];
	int memory;

	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)next_random();
	MUST(pipe(pipes) == 0);
	MUST(write(pipes[1], data, sizeof(data)) == (ssize_t)sizeof(data));
	CHECK_EQUAL(read(pipes[0], t->map + 20 * PAGE + 100, sizeof(data)), sizeof(data));
	memcpy(t->expected + 20 * PAGE + 100, data, sizeof(data));
	close(pipes[0]);
	close(pipes[1]);
	flush_and_check(t, "read(2)");

	memory = open("/proc/self/mem", O_RDWR);
	MUST(memory >= 0);
	CHECK_EQUAL(pwrite(memory, &one, 1, (off_t)(uintptr_t)(t->map + 30 * PAGE + 5)), 1);
	t->expected[30 * PAGE + 5] = one;
	close(memory);
	flush_and_check(t, "a debugger's store");
}

static void discarded_regions(struct traced *t)
{
	struct kagemusha_vgpu_window_discard args = { .bytes = 2 * PAGE };
	uint64_t sent = 0;

	/* the buffer is not what the window holds */
	write_zeroes(t->fd);
	memset(t->expected, 0, BYTES);
	args.offset = t->offset + 40 * PAGE + 1000;
	CHECK_EQUAL(ioctl(t->fd, KAGEMUSHA_VGPU_WINDOW_DISCARD, &args), 0);
	memcpy(t->expected + 40 * PAGE + 1000, t->map + 40 * PAGE + 1000, 2 * PAGE);
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 2 * PAGE);
	check_buffer(t, "a discarded region");
	/* and as before again */
	memcpy(t->expected, t->map, BYTES);
	args.offset = t->offset;
	args.bytes = BYTES;
	CHECK_EQUAL(ioctl(t->fd, KAGEMUSHA_VGPU_WINDOW_DISCARD, &args), 0);
	flush_and_check(t, "all discarded");
}

static void changes_of_the_mapping(struct traced *t)
{
	uint8_t *moved, *second;

	/* read-only for a while */
	store_byte(t, 100, 1);
	CHECK_EQUAL(mprotect(t->map, BYTES, PROT_READ), 0);
	CHECK_EQUAL(mprotect(t->map, BYTES, PROT_READ | PROT_WRITE), 0);
	flush_and_check(t, "mprotect");
	store_byte(t, 101, 2);
	flush_and_check(t, "after mprotect");

	/* moved while pages of it are open */
	store_byte(t, 102, 3);
	moved = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(moved != MAP_FAILED);
	moved = mremap(t->map, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, moved);
	MUST(moved != MAP_FAILED);
	t->map = moved;
	store_byte(t, 103, 4);
	flush_and_check(t, "mremap");
	store_byte(t, 104, 5);
	flush_and_check(t, "after mremap");

	/* two mappings of one range: both are traced, and both are closed */
	second = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, (off_t)t->offset);
	MUST(second != MAP_FAILED);
	store_byte(t, 105, 6);
	((volatile uint8_t *)second)[106] = t->expected[106] = 7;
	flush_and_check(t, "two mappings");
	((volatile uint8_t *)second)[107] = t->expected[107] = 8;
	store_byte(t, 108, 9);
	/* unmapped before the flush */
	CHECK_EQUAL(munmap(second, BYTES), 0);
	flush_and_check(t, "munmap");
}

#define HELD_ROUNDS 8u

/* A queue that is held up reads flushed bytes late: each flush's are still those of its moment. */
static void flushes_of_a_held_queue(struct traced *t)
{
	uint8_t *found = calloc(HELD_ROUNDS, BYTES);
	struct stream stream;

	MUST(found);
	stream_init(&stream);
	add_marker(&stream, QUEUE, 0, GATE);
	MUST(submit(t->fd, &stream, 0, NULL) == 0);
	for (unsigned round = 0; round < HELD_ROUNDS; round++) {
		memset(t->map, (int)round + 1, BYTES);
		CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
		stream_reset(&stream);
		add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, found + (uint64_t)round * BYTES, BYTES,
					    KAGEMUSHA_VGPU_PAYLOAD_WRITE),
			     BYTES);
		MUST(submit(t->fd, &stream, 0, NULL) == 0);
	}
	memset(t->map, 0xff, BYTES);
	open_gate(t->fd);
	memset(t->expected, 0xff, BYTES);
	flush_and_check(t, "after the queue was held up");
	for (unsigned i = 0; check_contents && i < HELD_ROUNDS * BYTES; i++) {
		if (found[i] == i / BYTES + 1)
			continue;
		check_failed(__FILE__, __LINE__, "%s, a held queue: byte %u is %#x after flush %u",
			     mode_name, i % BYTES, found[i], i / BYTES + 1);
		break;
	}
	stream_free(&stream);
	free(found);
}

static void make_hot(struct traced *t)
{
	for (unsigned round = 1; round < 6; round++) {
		memset(t->map, (int)round, BYTES);
		CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
	}
}

/* `other` becomes the buffer's content. */
static void write_other(struct stream *stream, uint8_t *other)
{
	add_transfer(stream, false, QUEUE, 0, 0, BUFFER, 0, stream_payload(stream, other, BYTES, 0),
		     BYTES);
}

/* The device reads the buffer into the traced range. */
static void read_into_window(struct traced *t, struct stream *stream)
{
	add_transfer(stream, true, QUEUE, 0, 0, BUFFER, 0,
		     stream_payload(stream, (void *)(uintptr_t)t->offset, BYTES,
				    KAGEMUSHA_VGPU_PAYLOAD_WRITE | KAGEMUSHA_VGPU_PAYLOAD_WINDOW),
		     BYTES);
}

/*
 * What the device writes into the window is no store and is not sent back, whether its pages are
 * open or not.
 */
static void writes_of_the_device(struct traced *t)
{
	uint8_t *other = malloc(BYTES);
	struct stream stream;
	uint64_t sent = 1;

	MUST(other);
	memset(other, 0x99, BYTES);
	make_hot(t);
	stream_init(&stream);
	write_other(&stream, other);
	read_into_window(t, &stream);
	CHECK_EQUAL(call(t->fd, &stream, NULL), VGPU_STATUS_OK);
	write_zeroes(t->fd); /* the GPU goes on */
	memset(t->expected, 0, BYTES);
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 0);
	check_buffer(t, "what the device has written");
	if (check_contents)
		CHECK(!memcmp(t->map, other, BYTES));
	for (unsigned page = 0; page < PAGES; page += 3)
		store_byte(t, page * PAGE + page, 0x55);
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	CHECK_EQUAL(sent, (PAGES + 2) / 3);
	check_buffer(t, "stores into what the device has written");
	stream_free(&stream);
	free(other);
}

/* Nor is it where a flush comes between the command and what the device writes. */
static void late_writes_of_the_device(struct traced *t)
{
	uint8_t *other = malloc(BYTES);
	struct stream stream;
	uint64_t sent = 0;

	MUST(other);
	memset(other, 0x99, BYTES);
	make_hot(t);
	stream_init(&stream);
	write_other(&stream, other);
	CHECK_EQUAL(call(t->fd, &stream, NULL), VGPU_STATUS_OK);
	stream_reset(&stream);
	add_marker(&stream, QUEUE, 0, GATE);
	read_into_window(t, &stream);
	MUST(submit(t->fd, &stream, 0, NULL) == 0);
	memcpy(t->expected, other, BYTES);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned page = 0; page < PAGES; page++)
			store_byte(t, page * PAGE + round, 0x77);
		CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
	}
	open_gate(t->fd);
	check_buffer(t, "stores before the device has written");
	if (check_contents)
		CHECK(!memcmp(t->map, other, BYTES));
	write_zeroes(t->fd); /* the GPU goes on */
	memset(t->expected, 0, BYTES);
	for (unsigned page = 0; page < PAGES; page++)
		store_byte(t, page * PAGE + page, 0x55);
	CHECK_EQUAL(flush_traced(t->fd, &sent), 0);
	if (check_contents)
		CHECK_EQUAL(sent, PAGES);
	check_buffer(t, "stores into what the device has written late");
	stream_free(&stream);
	free(other);
}

void test_trace_device_writes(void)
{
	in_every_mode(writes_of_the_device);
	in_every_mode(late_writes_of_the_device);
}

void test_trace_stores(void)
{
	in_every_mode(stores_of_every_kind);
	in_every_mode(stores_everywhere);
	in_every_mode(flush_in_submit);
	in_every_mode(flushes_of_a_held_queue);
}

void test_trace_kernel_stores(void)
{
	in_every_mode(stores_of_the_kernel);
	in_every_mode(discarded_regions);
}

void test_trace_mappings(void)
{
	in_every_mode(changes_of_the_mapping);
}

/*
 * A range that goes while stores are waiting in it, and a program that dies: nothing is sent to
 * what is gone.
 */
void test_trace_end(void)
{
	struct kagemusha_vgpu_window_free args;
	struct stream stream;
	struct traced t;
	pid_t child;
	int status;

	if (no_window())
		return;
	mode_name = "page";
	t = begin_traced(KAGEMUSHA_VGPU_TRACE_PAGE);
	memset(t.map, 1, BYTES);
	args.offset = t.offset;
	CHECK_EQUAL(ioctl(t.fd, KAGEMUSHA_VGPU_WINDOW_FREE, &args), 0);
	stream_init(&stream);
	add_destroy(&stream, VGPU_OBJECT_MEMORY, BUFFER);
	call_ok(t.fd, &stream);
	CHECK_EQUAL(flush_traced(t.fd, NULL), 0);
	stream_reset(&stream);
	add_marker(&stream, QUEUE, 0, 0);
	CHECK_EQUAL(call(t.fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
	end_traced(&t);

	fflush(NULL);
	child = fork();
	MUST(child >= 0);
	if (!child) {
		t = begin_traced(KAGEMUSHA_VGPU_TRACE_PAGE);
		for (;;) {
			memset(t.map, next_random(), BYTES);
			flush_traced(t.fd, NULL);
		}
	}
	usleep(300000);
	CHECK_EQUAL(kill(child, SIGKILL), 0);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
}
