// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A file with a buffer and a traced range that shows it, and what its tests do with them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace_test.h"

const struct trace_mode modes[MODE_COUNT] = {
	{ KAGEMUSHA_VGPU_TRACE_PAGE, "page" },
	{ KAGEMUSHA_VGPU_TRACE_EMULATE, "emulate" },
	{ KAGEMUSHA_VGPU_TRACE_ADAPTIVE, "adaptive" },
	{ KAGEMUSHA_VGPU_TRACE_STEP, "step" },
	{ KAGEMUSHA_VGPU_TRACE_HOST, "host" },
};

const char *mode_name;

static uint32_t random_state = 1;

uint32_t next_random(void)
{
	random_state = random_state * 1664525u + 1013904223u;
	return random_state >> 8;
}

int trace_range(int fd, uint64_t offset, uint64_t bytes, uint64_t memory, uint32_t mode)
{
	struct kagemusha_vgpu_window_trace args = {
		.offset = offset,
		.bytes = bytes,
		.memory = memory,
		.group = CONTEXT,
		.mode = mode,
	};

	return ioctl(fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &args);
}

int flush_traced(int fd, uint64_t *flushed_bytes)
{
	struct kagemusha_vgpu_window_flush args = { .queue = QUEUE, .group = CONTEXT };
	int ret = ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &args);

	if (flushed_bytes)
		*flushed_bytes = args.flushed_bytes;
	return ret;
}

uint64_t alloc_window(int fd, uint64_t bytes)
{
	struct kagemusha_vgpu_window_alloc args = { .bytes = bytes };

	MUST(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &args) == 0);
	return args.offset;
}

/* The buffer begins as zeroes, as the window does. */
void write_zeroes(int fd)
{
	static const uint8_t zeroes[BYTES];
	struct stream stream;

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
		     stream_payload(&stream, zeroes, BYTES, 0), BYTES);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
}

struct traced begin_traced(uint32_t mode)
{
	struct traced t = { .fd = open_with_queue(0, BYTES) };

	t.offset = alloc_window(t.fd, BYTES);
	t.map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t.fd, (off_t)t.offset);
	MUST(t.map != MAP_FAILED);
	t.expected = calloc(1, BYTES);
	MUST(t.expected);
	write_zeroes(t.fd);
	MUST(trace_range(t.fd, t.offset, BYTES, BUFFER, mode) == 0);
	return t;
}

void end_traced(struct traced *t)
{
	munmap(t->map, BYTES);
	close(t->fd);
	free(t->expected);
}

static void read_buffer(int fd, uint8_t *to)
{
	struct stream stream;

	stream_init(&stream);
	add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, 0,
		     stream_payload(&stream, to, BYTES, KAGEMUSHA_VGPU_PAYLOAD_WRITE), BYTES);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
}

/* The buffer as it is, without another flush. */
void check_buffer(const struct traced *t, const char *what)
{
	uint8_t *found = malloc(BYTES);

	MUST(found);
	read_buffer(t->fd, found);
	if (check_contents) {
		for (unsigned i = 0; i < BYTES; i++) {
			if (found[i] == t->expected[i])
				continue;
			check_failed(__FILE__, __LINE__, "%s, %s: byte %u is %#x, stored was %#x",
				     mode_name, what, i, found[i], t->expected[i]);
			break;
		}
	}
	free(found);
}

void flush_and_check(const struct traced *t, const char *what)
{
	CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
	check_buffer(t, what);
}

void store_byte(struct traced *t, unsigned at, uint8_t value)
{
	((volatile uint8_t *)t->map)[at] = value;
	t->expected[at] = value;
}

bool no_window(void)
{
	if (!limits.window_bytes)
		skip_test("the device has no window");
	return !limits.window_bytes;
}

static void run_mode(uint32_t mode, void (*test)(struct traced *t))
{
	struct traced t = begin_traced(mode);

	memset(t.map, 0, BYTES);
	test(&t);
	end_traced(&t);
}

void in_every_mode(void (*test)(struct traced *t))
{
	if (no_window())
		return;
	for (unsigned i = 0; i < MODE_COUNT; i++) {
		mode_name = modes[i].name;
		run_mode(modes[i].mode, test);
	}
}
