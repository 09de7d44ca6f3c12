// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Records: completions, poll, eventfd, blocking reads, event credits; and the bounds on what is in
 * flight.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "uapi_test.h"

void test_records(void)
{
	uint64_t buffer[2 * VGPU_MAX_RECORD_BYTES / 8];
	const struct vgpu_record_completion *records = (const void *)buffer;
	struct stream stream;
	void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open_with_queue(O_NONBLOCK, 0);

	stream_init(&stream);
	add_marker(&stream, QUEUE, FIRST_EVENT, GATE);
	add_marker(&stream, QUEUE, FIRST_EVENT + 1, 0);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	CHECK_ERROR(read(fd, buffer, sizeof(buffer)), EAGAIN);
	open_gate(fd);

	while (read(fd, buffer, 8) < 0 && errno == EAGAIN)
		usleep(1000);
	CHECK_ERROR(read(fd, buffer, 8), EINVAL); /* smaller than the next record, which stays */
	CHECK_ERROR(read(fd, buffer, sizeof(*records) - 1), EINVAL);
	CHECK_ERROR(read(fd, nowhere, 4096), EFAULT);
	CHECK_EQUAL(read(fd, buffer, 0), 0);
	for (uint64_t i = 0; i < 2; i++) {
		ssize_t bytes;

		/* one at a time: a second whole record does not fit */
		while ((bytes = read(fd, buffer, 2 * sizeof(*records) - 1)) < 0 && errno == EAGAIN)
			usleep(1000);
		CHECK_EQUAL(bytes, sizeof(*records));
		CHECK_EQUAL(records->record.type, VGPU_RECORD_COMPLETION);
		CHECK_EQUAL(records->record.bytes, sizeof(*records));
		CHECK_EQUAL(records->event, FIRST_EVENT + i); /* an in-order queue */
		CHECK_EQUAL(records->status, 0);
	}
	CHECK_ERROR(read(fd, buffer, sizeof(buffer)), EAGAIN);
	munmap(nowhere, 4096);
	stream_free(&stream);
	close(fd);
}

void test_poll_and_eventfd(void)
{
	struct kagemusha_vgpu_set_eventfd set = { .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	struct stream stream;
	uint64_t count = 0;
	int fd = open_with_queue(O_NONBLOCK, 0);
	struct pollfd wait[2] = { { .fd = fd, .events = POLLIN },
				  { .fd = set.fd, .events = POLLIN } };

	MUST(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &set) == 0);
	CHECK_EQUAL(poll(wait, 2, 0), 0);
	stream_init(&stream);
	add_marker(&stream, QUEUE, FIRST_EVENT, GATE);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	CHECK_EQUAL(poll(wait, 2, 0), 0);
	open_gate(fd);
	CHECK_EQUAL(poll(wait, 1, 60000), 1);
	CHECK_EQUAL(wait[0].revents, POLLIN);
	CHECK_EQUAL(poll(wait + 1, 1, 60000), 1);
	CHECK_EQUAL(read(set.fd, &count, sizeof(count)), sizeof(count));
	CHECK_EQUAL(count, 1);

	/* set while a record waits: told at once; taken away: told nothing */
	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &set), 0);
	CHECK_EQUAL(read(set.fd, &count, sizeof(count)), sizeof(count));
	CHECK_EQUAL(read_completions(fd, 1), 1);
	set.fd = -1;
	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &set), 0);
	stream_reset(&stream);
	add_marker(&stream, QUEUE, FIRST_EVENT + 1, 0);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	CHECK_EQUAL(read_completions(fd, 1), 1);
	CHECK_ERROR(read(wait[1].fd, &count, sizeof(count)), EAGAIN);
	stream_free(&stream);
	close(wait[1].fd);
	close(fd);
}

struct reader {
	pthread_t thread;
	int fd;
	unsigned wanted;
	unsigned seen;
	int done;
};

static void *read_one(void *argument)
{
	struct vgpu_record_completion record;
	struct reader *reader = argument;

	while (reader->seen < reader->wanted &&
	       read(reader->fd, &record, sizeof(record)) == sizeof(record))
		reader->seen++;
	return NULL;
}

/* Two readers that sleep are woken, and each record goes to one of them. */
void test_blocking_read(void)
{
	struct reader readers[2];
	struct stream stream;
	int fd = open_with_queue(0, 0);

	for (unsigned i = 0; i < 2; i++) {
		readers[i] = (struct reader){ .fd = fd, .wanted = 1 };
		MUST(!pthread_create(&readers[i].thread, NULL, read_one, &readers[i]));
	}
	usleep(20000); /* so that they probably sleep by now; the test holds either way */
	stream_init(&stream);
	add_marker(&stream, QUEUE, FIRST_EVENT, 0);
	add_marker(&stream, QUEUE, FIRST_EVENT + 1, 0);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(readers[i].thread, NULL);
		CHECK_EQUAL(readers[i].seen, 1);
	}
	stream_free(&stream);
	close(fd);
}

static void *submit_blocking(void *argument)
{
	struct reader *self = argument;
	struct stream stream;

	stream_init(&stream);
	add_marker(&stream, QUEUE, FIRST_EVENT - 1, 0);
	CHECK_EQUAL(submit(self->fd, &stream, 0, NULL), 0);
	__atomic_store_n(&self->done, 1, __ATOMIC_RELEASE);
	stream_free(&stream);
	return NULL;
}

/* No completion is lost, because no more of them can be under way than the file has credits. */
void test_credits(void)
{
	struct reader blocked = { 0 };
	uint64_t submitted = 0;
	struct stream stream;
	int fd = open_with_queue(O_NONBLOCK, 0);

	stream_init(&stream);
	for (uint32_t batch = 2048; batch;) {
		stream_reset(&stream);
		for (uint32_t i = 0; i < batch; i++)
			add_marker(&stream, QUEUE, FIRST_EVENT + submitted + i,
				   submitted + i ? 0 : GATE);
		if (submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL) == 0) {
			submitted += batch;
		} else if (errno == EAGAIN && counter("requests_in_flight")) {
			usleep(1000); /* the ring, perhaps, not the credits */
		} else {
			CHECK_EQUAL(errno, EAGAIN);
			batch /= 2;
		}
	}
	CHECK_EQUAL(submitted, limits.events);

	blocked.fd = fd;
	MUST(!pthread_create(&blocked.thread, NULL, submit_blocking, &blocked));
	usleep(50000);
	CHECK(!__atomic_load_n(&blocked.done, __ATOMIC_ACQUIRE)); /* there is no credit for it */
	open_gate(fd); /* needs none */
	CHECK_EQUAL(read_completions(fd, (unsigned)submitted + 1), submitted + 1);
	pthread_join(blocked.thread, NULL);
	stream_free(&stream);
	close(fd);
}

/* Requests whose payload the GPU holds back leave room for the stream that lets them go. */
void test_payload_bound(void)
{
	uint8_t *memory = calloc(1, 65536);
	struct stream stream;
	unsigned submitted = 0;
	int fd = open_with_queue(O_NONBLOCK, 65536);

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, 65536, 0), 65536);
	while (submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL) == 0)
		submitted++;
	CHECK_EQUAL(errno, EAGAIN);
	CHECK(submitted >= 1 && submitted <= limits.requests);
	CHECK(counter("pinned_pages") >= 16ull * submitted);
	CHECK_EQUAL(counter("requests_in_flight"), submitted);
	open_gate(fd);
	CHECK(counter_becomes("requests_in_flight", 0));
	CHECK(counter_becomes("pinned_pages", 0));
	CHECK_EQUAL(submit(fd, &stream, 0, NULL), 0);
	stream_free(&stream);
	close(fd);
	CHECK(counter_becomes("requests_in_flight", 0));
	free(memory);
}

/* One file pins at most half of what all may pin; another one still gets its part. */
void test_pinned_bound(void)
{
	uint64_t limit = counter("pinned_limit_pages") / 2;
	uint64_t bytes = limits.payload_bytes / 3;
	uint8_t *memory = calloc(1, bytes);
	struct stream stream;
	uint64_t submitted = 0;
	int fd = open_with_queue(0, bytes);
	int other = open_with_queue(0, bytes);

	MUST(memory);
	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, bytes, 0), bytes);
	while (submitted < limits.requests &&
	       submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL) == 0)
		submitted++;
	CHECK_EQUAL(errno, EAGAIN);
	CHECK(submitted >= 1);
	CHECK(counter("pinned_pages") >= submitted * (bytes / 4096));
	CHECK(counter("pinned_pages") <= limit);
	CHECK_EQUAL(submit(other, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL), 0);
	stream_free(&stream);
	close(fd);
	close(other);
	check_idle(0);
	free(memory);
}

void test_untaken_answers(void)
{
	struct kagemusha_vgpu_wait answer;
	struct stream stream;
	uint64_t first, sequence;
	unsigned count = 1;
	int fd = open_node(0);

	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, NULL, 0);
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &first) == 0);
	while (submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0 &&
	       count < 1000000)
		count++;
	CHECK_EQUAL(errno, EBUSY);
	CHECK(count >= limits.requests);
	CHECK_EQUAL(wait_answer(fd, first, NO_LIMIT, &answer), 0);
	CHECK_EQUAL(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence), 0);
	stream_free(&stream);
	close(fd);
}
