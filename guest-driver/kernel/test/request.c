// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Requests that succeed, or that the device refuses: answers, payload in place, threads, fork.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uapi_test.h"

#define CL_PLATFORM_NAME 0x0902
#define NO_SUCH_QUEUE (QUEUE + 12345)

/* Only the first SUBMIT makes the file on the device. */
void test_lazy_open(void)
{
	char name[256];
	struct stream stream;
	int fd = open_node(0);

	CHECK_EQUAL(counter("open_files"), 1);
	CHECK_EQUAL(counter("device_files"), 0);
	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, name, sizeof(name));
	call_ok(fd, &stream);
	CHECK_EQUAL(counter("device_files"), 1);
	CHECK_EQUAL(close(fd), 0);
	CHECK(counter_becomes("device_files", 0));
	stream_free(&stream);
}

void test_info(void)
{
	struct kagemusha_vgpu_wait answer;
	uint64_t first, second;
	char name[256];
	struct stream stream;
	int fd = open_node(0);

	memset(name, 0x7f, sizeof(name));
	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, name, sizeof(name));
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &first) == 0);
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &second) == 0);
	CHECK_EQUAL(second, first + 1);
	CHECK_EQUAL(wait_answer(fd, second, NO_LIMIT, &answer), 0);
	CHECK_EQUAL(answer.status, VGPU_STATUS_OK);
	CHECK_EQUAL(answer.result, 0);
	CHECK(answer.result_bytes > 1 && answer.result_bytes <= sizeof(name));
	CHECK_EQUAL(strnlen(name, sizeof(name)), answer.result_bytes - 1);
	CHECK_EQUAL(wait_answer(fd, first, NO_LIMIT, &answer), 0);

	/* only the size */
	stream_reset(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, NULL, 0);
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &first) == 0);
	CHECK_EQUAL(wait_answer(fd, first, NO_LIMIT, &answer), 0);
	CHECK_EQUAL(answer.result_bytes, strlen(name) + 1);
	stream_free(&stream);
	close(fd);
}

/* The driver forwards any stream; what the device says of it comes back, or shows as a record. */
void test_malformed(void)
{
	uint64_t buffer[VGPU_MAX_RECORD_BYTES / 8];
	const struct vgpu_record *record = (const void *)buffer;
	struct kagemusha_vgpu_wait answer;
	struct stream stream;
	uint64_t sequence;
	int fd = open_with_queue(O_NONBLOCK, 0);

	stream_init(&stream);
	memset(stream.bytes, 0xff, 64);
	stream.used = 64;
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0);
	CHECK_EQUAL(wait_answer(fd, sequence, NO_LIMIT, &answer), 0);
	CHECK_EQUAL(answer.status, VGPU_STATUS_MALFORMED);

	CHECK_ERROR(read(fd, buffer, sizeof(buffer)), EAGAIN);
	CHECK_EQUAL(submit(fd, &stream, 0, NULL), 0);
	CHECK(counter_becomes("requests_in_flight", 0));
	while (read(fd, buffer, sizeof(buffer)) < 0 && errno == EAGAIN)
		usleep(1000);
	CHECK_EQUAL(record->type, VGPU_RECORD_OVERFLOW);
	CHECK_EQUAL(record->bytes, sizeof(struct vgpu_record));
	CHECK_ERROR(read(fd, buffer, sizeof(buffer)), EAGAIN);

	/* A refused request gives its event credits back: ask for all of them more than once. */
	for (unsigned round = 0; round < 3; round++) {
		uint64_t left = limits.events;

		while (left) {
			uint32_t count = left < 1000 ? (uint32_t)left : 1000;

			stream_reset(&stream);
			for (uint32_t i = 0; i < count; i++)
				add_marker(&stream, NO_SUCH_QUEUE, FIRST_EVENT + i, 0);
			CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_MALFORMED);
			left -= count;
		}
	}
	stream_free(&stream);
	close(fd);
}

static void round_trip(int fd, uint64_t buffer_bytes, uint64_t offset, uint64_t bytes,
		       uint8_t *memory, uint32_t shift)
{
	struct stream stream;
	uint8_t *source = memory + shift;
	uint8_t *target = memory + bytes + 8192 + 2 * shift + 1;

	MUST(offset + bytes <= buffer_bytes);
	for (uint64_t i = 0; i < bytes; i++)
		source[i] = (uint8_t)((i * 2654435761u) >> 13);
	memset(target - 1, 0xee, bytes + 2);
	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, offset,
		     stream_payload(&stream, source, bytes, 0), bytes);
	add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, offset,
		     stream_payload(&stream, target, bytes, KAGEMUSHA_VGPU_PAYLOAD_WRITE), bytes);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	if (check_contents)
		CHECK(!memcmp(source, target, bytes));
	CHECK_EQUAL(target[-1], 0xee);
	CHECK_EQUAL(target[bytes], 0xee);
	stream_free(&stream);
}

void test_contents(void)
{
	static const uint64_t sizes[] = { 1, 7, 4095, 4096, 4097, 65536, 1000003 };
	const uint64_t buffer_bytes = 2u << 20;
	uint8_t *memory = malloc(8u << 20);
	int fd = open_with_queue(0, buffer_bytes);

	MUST(memory);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		round_trip(fd, buffer_bytes, 0, sizes[i], memory, 0);
		round_trip(fd, buffer_bytes, 13 * i, sizes[i], memory, 1 + 517 * (uint32_t)i);
	}
	close(fd);
	free(memory);
}

/* Pages as scattered as a program can make them: as many segments as one request may have. */
void test_large_payload(void)
{
	uint64_t bytes = 48u << 20;
	struct stream stream;
	uint8_t *memory;
	int fd;

	if (bytes > limits.payload_bytes / 2)
		bytes = (limits.payload_bytes / 2) & ~4095ull;
	fd = open_with_queue(0, bytes);
	memory = mmap(NULL, 2 * bytes + 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	MUST(memory != MAP_FAILED);
	madvise(memory, 2 * bytes + 65536, MADV_NOHUGEPAGE);
	/* touched in an order far from the addresses' */
	for (uint64_t page = 0; page < bytes / 4096; page++)
		memory[(page * 7919 % (bytes / 4096)) * 4096] = 1;
	round_trip(fd, bytes, 0, bytes, memory, 3);
	close(fd);

	/* the largest that the driver promises to take, and a page more than it can take */
	munmap(memory, 2 * bytes + 65536);
	fd = open_node(0);
	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, NULL, 0);
	stream_payload(&stream, (void *)4096, limits.payload_bytes, 0);
	CHECK_ERROR(submit(fd, &stream, 0, NULL), EFAULT); /* passed the limits, is not there */
	stream.payloads[0].bytes = limits.payload_bytes + 3ull * VGPU_MAX_PAYLOADS * 4096;
	CHECK_ERROR(submit(fd, &stream, 0, NULL), E2BIG);
	stream_free(&stream);
	close(fd);
}

struct worker {
	pthread_t thread;
	int fd;
	unsigned rounds;
};

static void *call_repeatedly(void *argument)
{
	struct worker *worker = argument;
	char name[300];
	struct stream stream;

	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, name, sizeof(name));
	for (unsigned i = 0; i < worker->rounds; i++) {
		memset(name, 0, sizeof(name));
		call_ok(worker->fd, &stream);
		CHECK(name[0]);
	}
	stream_free(&stream);
	return NULL;
}

/* One file, many threads; the first SUBMIT of all of them at once opens it. */
void test_threads(void)
{
	struct worker workers[8];
	int fd = open_node(0);

	for (unsigned i = 0; i < 8; i++) {
		workers[i].fd = fd;
		workers[i].rounds = 100;
		MUST(!pthread_create(&workers[i].thread, NULL, call_repeatedly, &workers[i]));
	}
	for (unsigned i = 0; i < 8; i++)
		pthread_join(workers[i].thread, NULL);
	CHECK_EQUAL(counter("device_files"), 1);
	close(fd);
}

/* A forked child uses the same file; the last of both to close ends it. */
void test_fork(void)
{
	struct worker worker = { .rounds = 3 };
	int status = -1;
	pid_t child;

	worker.fd = open_with_queue(0, 0);
	child = fork();
	MUST(child >= 0);
	if (child == 0) {
		call_repeatedly(&worker);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(counter("device_files"), 1);
	call_repeatedly(&worker);
	close(worker.fd);
}
