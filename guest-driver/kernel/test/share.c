// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What several users of one guest share: one of them takes all it can get, and another one, who
 * comes later, still computes.
 */
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uapi_test.h"

enum { GREEDY = 1001, MODEST = 1002, BUFFER_BYTES = 65536, MOST_FILES = 256 };

/* A process of this user does `work`. → its process number */
static pid_t as_user(uid_t uid, void (*work)(int), int argument)
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child)
		return child;
	MUST(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
	work(argument);
	fflush(stdout);
	_exit(0);
}

static void tell(int pipe_end)
{
	MUST(write(pipe_end, "x", 1) == 1);
	pause(); /* until it is killed */
}

/* Until a new file gets no room either. */
static void take_payload_slots(int pipe_end)
{
	static uint8_t memory[BUFFER_BYTES];
	struct stream stream;
	bool full = false;

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, sizeof(memory), 0), sizeof(memory));
	for (int files = 0; files < 24 && !full; files++) {
		int fd = open_with_queue(O_NONBLOCK, BUFFER_BYTES);

		full = true;
		while (submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL) == 0)
			full = false;
		CHECK_EQUAL(errno, EAGAIN);
	}
	CHECK(full);
	tell(pipe_end);
}

static void take_files(int pipe_end)
{
	struct stream stream;
	int files = 0;

	stream_init(&stream);
	add_create_context(&stream, CONTEXT);
	while (files < MOST_FILES && submit(open_node(0), &stream, 0, NULL) == 0)
		files++;
	CHECK_EQUAL(errno, EMFILE);
	tell(pipe_end);
}

static void take_window(int pipe_end)
{
	int fd = open_node(0);

	for (uint64_t bytes = limits.window_bytes; bytes >= 4096; bytes /= 2) {
		struct kagemusha_vgpu_window_alloc args = { .bytes = bytes };

		while (ioctl(fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &args) == 0)
			;
		CHECK_EQUAL(errno, ENOSPC);
	}
	tell(pipe_end);
}

/* A context, a buffer, a transfer that waits, a range of the window. */
static void compute(int pipe_end)
{
	static uint8_t memory[BUFFER_BYTES];
	struct kagemusha_vgpu_window_alloc args = { .bytes = 4096 };
	int fd = open_with_queue(O_NONBLOCK, BUFFER_BYTES);
	struct stream stream;

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, memory, sizeof(memory), 0), sizeof(memory));
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_NONBLOCK, NULL) == 0);
	if (limits.window_bytes)
		MUST(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &args) == 0);
	MUST(write(pipe_end, "x", 1) == 1);
}

static void share(void (*take_all)(int))
{
	int ends[2], status;
	char letter;
	pid_t greedy, modest;

	MUST(pipe(ends) == 0);
	greedy = as_user(GREEDY, take_all, ends[1]);
	MUST(read(ends[0], &letter, 1) == 1);
	modest = as_user(MODEST, compute, ends[1]);
	MUST(waitpid(modest, &status, 0) == modest);
	CHECK_EQUAL(status, 0);
	MUST(kill(greedy, SIGKILL) == 0);
	MUST(waitpid(greedy, &status, 0) == greedy);
	close(ends[0]);
	close(ends[1]);
	check_idle(0);
}

void test_users_share_transfers(void)
{
	share(take_payload_slots);
}

void test_users_share_files(void)
{
	share(take_files);
}

void test_users_share_window(void)
{
	if (!limits.window_bytes) {
		skip_test("the device has no window");
		return;
	}
	share(take_window);
}
