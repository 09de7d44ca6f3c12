// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The VRAM window: whose range it is, what may be mapped, and that no file sees what another one
 * left.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uapi_test.h"

#define PAGE 4096u

static int window_alloc(int fd, uint64_t bytes, uint64_t *offset)
{
	struct kagemusha_vgpu_window_alloc args = { .bytes = bytes };
	int ret = ioctl(fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &args);

	*offset = args.offset;
	return ret;
}

static int window_free(int fd, uint64_t offset)
{
	struct kagemusha_vgpu_window_free args = { .offset = offset };

	return ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FREE, &args);
}

static bool no_window(int fd)
{
	uint64_t offset;

	if (limits.window_bytes)
		return false;
	CHECK_ERROR(window_alloc(fd, PAGE, &offset), ENODEV);
	CHECK_ERROR(window_free(fd, 0), ENODEV);
	CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0, ENODEV);
	skip_test("the device has no window");
	return true;
}

void test_window_ranges(void)
{
	uint64_t first, second, third;
	int fd = open_node(0);
	int other = open_node(0);

	if (no_window(fd))
		goto out;
	CHECK_ERROR(window_alloc(fd, 0, &first), EINVAL);
	CHECK_ERROR(window_alloc(fd, UINT64_MAX, &first), ENOSPC);
	CHECK_ERROR(window_alloc(fd, limits.window_bytes + 1, &first), ENOSPC);
	CHECK_EQUAL(window_alloc(fd, limits.window_bytes, &first), 0);
	CHECK_EQUAL(first, 0);
	CHECK_ERROR(window_alloc(fd, 1, &second), ENOSPC);
	CHECK_ERROR(window_alloc(other, 1, &second), ENOSPC);
	CHECK_ERROR(window_free(other, first), EINVAL); /* not theirs */
	CHECK_ERROR(window_free(fd, first + PAGE), EINVAL); /* not where it begins */
	CHECK_EQUAL(window_free(fd, first), 0);
	CHECK_ERROR(window_free(fd, first), EINVAL);
	CHECK_ERROR(window_free(fd, UINT64_MAX), EINVAL);

	CHECK_EQUAL(window_alloc(fd, 1, &first), 0);
	CHECK_EQUAL(window_alloc(other, PAGE + 1, &second), 0);
	CHECK_EQUAL(window_alloc(fd, 3 * PAGE, &third), 0);
	CHECK_EQUAL(counter("window_used_bytes"), 6 * PAGE);
	CHECK(first % PAGE == 0 && second % PAGE == 0 && third % PAGE == 0);
	CHECK(first != second && second != third && first != third);
	CHECK_EQUAL(window_free(other, second), 0);
	CHECK_EQUAL(window_alloc(other, 2 * PAGE, &second), 0);
out:
	close(fd); /* gives back what it had */
	close(other);
}

static sigjmp_buf fault_jump;

static void on_fault(int number)
{
	siglongjmp(fault_jump, number);
}

/* The signal that touching the byte gives, 0 if none. */
static int touch(volatile uint8_t *address)
{
	struct sigaction action = { .sa_handler = on_fault }, old_bus, old_segv;
	int got;

	sigaction(SIGBUS, &action, &old_bus);
	sigaction(SIGSEGV, &action, &old_segv);
	got = sigsetjmp(fault_jump, 1);
	if (!got)
		*address = *address;
	sigaction(SIGBUS, &old_bus, NULL);
	sigaction(SIGSEGV, &old_segv, NULL);
	return got;
}

void test_window_mapping(void)
{
	const int both = PROT_READ | PROT_WRITE;
	uint64_t offset, again;
	uint8_t *map, *half;
	int status = -1;
	int fd = open_node(0);
	int other = open_node(0);
	pid_t child;

	if (no_window(fd))
		goto out;
	MUST(window_alloc(fd, 4 * PAGE, &offset) == 0);
	CHECK_ERROR((long)mmap(NULL, PAGE, both, MAP_PRIVATE, fd, (off_t)offset), EINVAL);
	CHECK_ERROR((long)mmap(NULL, PAGE, both | PROT_EXEC, MAP_SHARED, fd, (off_t)offset), EPERM);
	CHECK_ERROR((long)mmap(NULL, 5 * PAGE, both, MAP_SHARED, fd, (off_t)offset), EINVAL);
	CHECK_ERROR((long)mmap(NULL, PAGE, both, MAP_SHARED, other, (off_t)offset), EINVAL);
	CHECK_ERROR((long)mmap(NULL, PAGE, both, MAP_SHARED, fd, (off_t)limits.window_bytes),
		    EINVAL);
	map = mmap(NULL, 4 * PAGE, both, MAP_SHARED, fd, (off_t)offset);
	MUST(map != MAP_FAILED);
	for (unsigned i = 0; i < 4 * PAGE; i++)
		CHECK(map[i] == 0);
	memset(map, 0x5a, 4 * PAGE);
	CHECK_ERROR(mprotect(map, PAGE, PROT_READ | PROT_EXEC), EACCES);

	/* a second mapping, of a part, shows the same bytes */
	half = mmap(NULL, 2 * PAGE, both, MAP_SHARED, fd, (off_t)(offset + 2 * PAGE));
	MUST(half != MAP_FAILED);
	CHECK_EQUAL(half[0], 0x5a);
	half[0] = 1;
	CHECK_EQUAL(map[2 * PAGE], 1);

	/* a child does not inherit it */
	fflush(NULL);
	child = fork();
	MUST(child >= 0);
	if (!child)
		_exit(touch(map) == SIGSEGV ? 0 : 1);
	MUST(waitpid(child, &status, 0) == child);
	CHECK_EQUAL(status, 0);

	/* freed while mapped: the pages go at once, the space only with the last mapping */
	CHECK_EQUAL(touch(map + PAGE), 0);
	CHECK_EQUAL(window_free(fd, offset), 0);
	CHECK_EQUAL(touch(map), SIGBUS);
	CHECK_EQUAL(touch(half), SIGBUS);
	CHECK_ERROR((long)mmap(NULL, PAGE, both, MAP_SHARED, fd, (off_t)offset), EINVAL);
	CHECK_EQUAL(counter("window_used_bytes"), 4 * PAGE);
	CHECK_EQUAL(munmap(map, 2 * PAGE), 0);
	CHECK_EQUAL(munmap(half, 2 * PAGE), 0);
	CHECK_EQUAL(counter("window_used_bytes"), 4 * PAGE);
	CHECK_EQUAL(munmap(map + 2 * PAGE, 2 * PAGE), 0);
	CHECK_EQUAL(counter("window_used_bytes"), 0);

	/* whoever gets it next sees zeroes */
	MUST(window_alloc(other, 4 * PAGE, &again) == 0);
	CHECK_EQUAL(again, offset); /* first fit: else this test shows nothing */
	map = mmap(NULL, 4 * PAGE, both, MAP_SHARED, other, (off_t)again);
	MUST(map != MAP_FAILED);
	for (unsigned i = 0; i < 4 * PAGE; i++)
		CHECK(map[i] == 0);

	/* a mapping outlives its descriptor, and keeps the file */
	close(other);
	other = -1;
	CHECK_EQUAL(counter("open_files"), 2);
	CHECK_EQUAL(touch(map), 0);
	CHECK_EQUAL(munmap(map, 4 * PAGE), 0);
out:
	close(fd);
	if (other >= 0)
		close(other);
}

void test_window_payload(void)
{
	uint8_t memory[PAGE];
	struct stream stream;
	uint64_t offset, foreign;
	uint8_t *map;
	int fd = open_with_queue(0, 65536);
	int other = open_node(0);

	if (no_window(fd))
		goto out;
	MUST(window_alloc(fd, 2 * PAGE, &offset) == 0);
	MUST(window_alloc(other, PAGE, &foreign) == 0);
	map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	MUST(map != MAP_FAILED);
	memset(map, 0x33, 2 * PAGE);

	stream_init(&stream);
	stream_payload(&stream, NULL, PAGE, KAGEMUSHA_VGPU_PAYLOAD_WINDOW);
	add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0, 0, PAGE);
	stream.payloads[0].address = foreign;
	CHECK_ERROR(submit(fd, &stream, 0, NULL), EINVAL); /* not ours */
	stream.payloads[0].address = offset + PAGE + 1;
	CHECK_ERROR(submit(fd, &stream, 0, NULL), EINVAL); /* beyond its end */
	stream.payloads[0].address = limits.window_bytes;
	CHECK_ERROR(submit(fd, &stream, 0, NULL), EINVAL);
	stream.payloads[0].address = offset + 8;
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);

	stream_reset(&stream);
	add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, 0,
		     stream_payload(&stream, memory, PAGE, KAGEMUSHA_VGPU_PAYLOAD_WRITE), PAGE);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	if (check_contents) {
		for (unsigned i = 0; i < PAGE; i++)
			CHECK(memory[i] == 0x33);
	}

	/* a range that a request uses is not given to anybody else before the answer */
	stream_reset(&stream);
	add_transfer(&stream, true, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, (void *)(uintptr_t)offset, PAGE,
				    KAGEMUSHA_VGPU_PAYLOAD_WRITE | KAGEMUSHA_VGPU_PAYLOAD_WINDOW),
		     PAGE);
	CHECK_EQUAL(submit(fd, &stream, 0, NULL), 0);
	CHECK_EQUAL(munmap(map, 2 * PAGE), 0);
	CHECK_EQUAL(window_free(fd, offset), 0);
	CHECK_EQUAL(counter("window_used_bytes"), 3 * PAGE);
	open_gate(fd);
	CHECK(counter_becomes("window_used_bytes", PAGE));
	stream_free(&stream);
out:
	close(fd);
	close(other);
}
