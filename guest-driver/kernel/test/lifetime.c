// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ends: closing with work in flight, kill -9 at every kind of wait, storms of opens, and the device
 * taken away.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uapi_test.h"

#define HELD_BYTES (1u << 20)

/*
 * A write and a read of HELD_BYTES that the shut gate holds back; the waitable sequence of the
 * read.
 */
static uint64_t hold_work(int fd, uint8_t *memory)
{
	struct stream stream;
	uint64_t sequence;

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, HELD_BYTES, 0), HELD_BYTES);
	MUST(submit(fd, &stream, 0, NULL) == 0);
	stream_reset(&stream);
	add_transfer(&stream, true, QUEUE, FIRST_EVENT, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, HELD_BYTES, KAGEMUSHA_VGPU_PAYLOAD_WRITE),
		     HELD_BYTES);
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0);
	stream_free(&stream);
	return sequence;
}

void test_close_with_work(void)
{
	int64_t pins = kernel_pins();
	uint8_t *memory = calloc(1, HELD_BYTES);
	int fd = open_with_queue(0, HELD_BYTES);

	MUST(memory);
	hold_work(fd, memory);
	CHECK(counter("pinned_pages") >= 2 * HELD_BYTES / 4096);
	CHECK_EQUAL(counter("requests_in_flight"), 2);
	CHECK_EQUAL(close(fd), 0);
	check_idle(0);
	CHECK(kernel_pins_become(pins));
	free(memory);
}

/* What a child does before it blocks or waits to be killed. */
enum child_kind { HOLDS_WORK, IN_WAIT, IN_READ, IN_CREDITS, IN_ROOM };

static void run_child(enum child_kind kind, int ready)
{
	struct kagemusha_vgpu_wait answer;
	uint8_t *memory = calloc(1, HELD_BYTES);
	struct vgpu_record_completion record;
	struct stream stream;
	uint64_t sequence;
	int fd = open_with_queue(0, HELD_BYTES);

	MUST(memory);
	sequence = hold_work(fd, memory);
	MUST(write(ready, "x", 1) == 1);
	stream_init(&stream);
	switch (kind) {
	case HOLDS_WORK:
		break;
	case IN_WAIT:
		wait_answer(fd, sequence, NO_LIMIT, &answer);
		break;
	case IN_READ:
		if (read(fd, &record, sizeof(record)) > 0)
			_exit(2);
		break;
	case IN_CREDITS:
		/* one is used already: the last does not fit */
		for (uint64_t i = 1; i <= limits.events; i++) {
			add_marker(&stream, QUEUE, FIRST_EVENT + i, 0);
			if (i % 1000 == 0 || i == limits.events) {
				submit(fd, &stream, 0, NULL);
				stream_reset(&stream);
			}
		}
		break;
	case IN_ROOM:
		add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
			     stream_payload(&stream, memory, 4096, 0), 4096);
		for (;;)
			submit(fd, &stream, 0, NULL);
	}
	for (;;)
		pause();
}

static void kill_child(enum child_kind kind)
{
	int64_t pins = kernel_pins();
	int ready[2];
	int status = 0;
	char byte;
	pid_t child;

	MUST(pipe(ready) == 0);
	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (child == 0) {
		close(ready[0]);
		run_child(kind, ready[1]);
		_exit(3);
	}
	close(ready[1]);
	MUST(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	CHECK(counter("pinned_pages") >= 2 * HELD_BYTES / 4096);
	CHECK(kernel_pins() > pins);
	if (kind != HOLDS_WORK)
		usleep(300000); /* it probably blocks by now; the test holds either way */
	MUST(kill(child, SIGKILL) == 0);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	check_idle(0);
	CHECK(kernel_pins_become(pins));
}

void test_kill_with_work(void)
{
	for (unsigned i = 0; i < 5; i++)
		kill_child(HOLDS_WORK);
}

void test_kill_waiters(void)
{
	kill_child(IN_WAIT);
	kill_child(IN_READ);
	kill_child(IN_CREDITS);
	kill_child(IN_ROOM);
}

static void storm(unsigned seed)
{
	uint8_t *memory = calloc(1, HELD_BYTES);
	struct stream stream;
	char name[128];

	stream_init(&stream);
	for (unsigned i = 0; i < 20; i++) {
		int fd;

		switch ((seed + i) % 4) {
		case 0: /* not even looked at */
			close(open_node(0));
			break;
		case 1: /* closed before the answer */
			fd = open_node(0);
			stream_reset(&stream);
			add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, name, sizeof(name));
			MUST(submit(fd, &stream, 0, NULL) == 0);
			close(fd);
			break;
		case 2: /* closed with work that never ends by itself */
			fd = open_with_queue(0, HELD_BYTES);
			hold_work(fd, memory);
			close(fd);
			break;
		case 3: /* dropped by exit, with answers untaken */
			fd = open_node(0);
			stream_reset(&stream);
			add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, name, sizeof(name));
			MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, NULL) == 0);
			if (i < 18)
				close(fd);
			break;
		}
	}
	_exit(0);
}

void test_open_storm(void)
{
	int64_t pins = kernel_pins();
	pid_t children[4];

	fflush(stdout);
	for (unsigned i = 0; i < 4; i++) {
		children[i] = fork();
		MUST(children[i] >= 0);
		if (!children[i])
			storm(i);
	}
	for (unsigned i = 0; i < 4; i++) {
		int status = -1;

		MUST(waitpid(children[i], &status, 0) == children[i]);
		CHECK_EQUAL(status, 0);
	}
	check_idle(0);
	CHECK(kernel_pins_become(pins));
}

/* ---- the device goes while it is used ---- */

struct victim {
	pthread_t thread;
	int fd;
	uint64_t sequence;
	int result;
	int error;
	uint32_t status;
};

static void *wait_for_answer(void *argument)
{
	struct kagemusha_vgpu_wait answer;
	struct victim *victim = argument;

	victim->result = wait_answer(victim->fd, victim->sequence, NO_LIMIT, &answer);
	victim->error = errno;
	victim->status = answer.status;
	return NULL;
}

/* Sleeps until the end; what comes before it can only be told of the write that was canceled. */
static void *wait_for_record(void *argument)
{
	uint64_t buffer[VGPU_MAX_RECORD_BYTES / 8];
	const struct vgpu_record *record = (const void *)buffer;
	struct victim *victim = argument;

	while ((victim->result = (int)read(victim->fd, buffer, sizeof(buffer))) > 0)
		CHECK_EQUAL(record->type, VGPU_RECORD_OVERFLOW);
	victim->error = errno;
	return NULL;
}

static void write_driver_file(const char *file, const char *device)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/virtio/drivers/kagemusha_vgpu/%s", file);
	fd = open(path, O_WRONLY);
	MUST(fd >= 0);
	MUST(write(fd, device, strlen(device)) == (ssize_t)strlen(device));
	close(fd);
}

static void check_dead(int fd)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	uint64_t buffer[VGPU_MAX_RECORD_BYTES / 8];
	struct stream stream;

	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, NULL, 0);
	CHECK_ERROR(submit(fd, &stream, 0, NULL), ENODEV);
	CHECK_ERROR(read(fd, buffer, sizeof(buffer)), ENODEV);
	CHECK_EQUAL(poll(&wait, 1, 60000), 1);
	CHECK_EQUAL(wait.revents, POLLERR);
	stream_free(&stream);
}

void test_unbind(void)
{
	struct victim waiter = { 0 }, reader = { 0 };
	int64_t pins = kernel_pins();
	uint8_t *memory = calloc(1, HELD_BYTES);
	char link[128], target[256] = "";
	const char *device;
	int fd, idle, rounds;

	snprintf(link, sizeof(link), "/sys/class/misc/%s/device", strrchr(node, '/') + 1);
	MUST(readlink(link, target, sizeof(target) - 1) > 0);
	device = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;

	for (rounds = 0; rounds < 3; rounds++) {
		struct stat status;

		fd = open_with_queue(0, HELD_BYTES);
		idle = open_node(0);
		waiter = (struct victim){ .fd = fd, .sequence = hold_work(fd, memory) };
		reader = (struct victim){ .fd = fd };
		MUST(!pthread_create(&waiter.thread, NULL, wait_for_answer, &waiter));
		MUST(!pthread_create(&reader.thread, NULL, wait_for_record, &reader));
		usleep(rounds * 50000u); /* with and without both of them asleep */
		CHECK(kernel_pins() > pins);
		write_driver_file("unbind", device);
		pthread_join(waiter.thread, NULL);
		pthread_join(reader.thread, NULL);
		CHECK_EQUAL(waiter.result, 0);
		CHECK_EQUAL(waiter.status, VGPU_STATUS_CANCELED);
		CHECK_EQUAL(reader.result, -1);
		CHECK_EQUAL(reader.error, ENODEV);
		CHECK(kernel_pins_become(pins));
		check_dead(fd);
		check_dead(idle);
		CHECK(stat(node, &status) != 0);
		write_driver_file("bind", device);
		CHECK_EQUAL(stat(node, &status), 0);
		check_dead(fd); /* a file does not come back with the device */
		close(open_with_queue(0, 0));
		CHECK_EQUAL(close(fd), 0);
		CHECK_EQUAL(close(idle), 0);
	}
	free(memory);
}

static void *submit_until_gone(void *argument)
{
	struct victim *victim = argument;
	struct kagemusha_vgpu_wait answer;
	struct stream stream;
	uint64_t sequence;
	char name[128];

	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, name, sizeof(name));
	while (submit(victim->fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0) {
		victim->result++;
		if (wait_answer(victim->fd, sequence, NO_LIMIT, &answer) != 0)
			break;
		if (answer.status != VGPU_STATUS_OK)
			CHECK_EQUAL(answer.status, VGPU_STATUS_CANCELED);
	}
	victim->error = errno;
	stream_free(&stream);
	return NULL;
}

/* The device goes in the middle of submits, answers and first opens, not between them. */
void test_unbind_under_load(void)
{
	int64_t pins = kernel_pins();
	char link[128], target[256] = "";
	const char *device;

	snprintf(link, sizeof(link), "/sys/class/misc/%s/device", strrchr(node, '/') + 1);
	MUST(readlink(link, target, sizeof(target) - 1) > 0);
	device = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
	for (unsigned int round = 0; round < 5; round++) {
		struct victim victims[4];
		int shared = open_node(0);

		for (unsigned int i = 0; i < 4; i++) {
			victims[i] = (struct victim){ .fd = i < 2 ? shared : open_node(0) };
			MUST(!pthread_create(&victims[i].thread, NULL, submit_until_gone,
					     &victims[i]));
		}
		usleep(round * 30000u);
		write_driver_file("unbind", device);
		for (unsigned int i = 0; i < 4; i++) {
			pthread_join(victims[i].thread, NULL);
			CHECK_EQUAL(victims[i].error, ENODEV);
			check_dead(victims[i].fd);
		}
		CHECK(kernel_pins_become(pins));
		write_driver_file("bind", device);
		for (unsigned int i = 1; i < 4; i++)
			close(victims[i].fd);
	}
}

/* What is on the GPU would not come back, so the driver says no, and goes on. */
void test_suspend(void)
{
	int fd = open_with_queue(0, 0);
	int power = open("/sys/power/state", O_WRONLY);

	if (power < 0) {
		skip_test("this kernel cannot suspend at all");
	} else {
		CHECK(write(power, "freeze", 6) == -1);
		close(power);
	}
	open_gate(fd);
	close(fd);
}
