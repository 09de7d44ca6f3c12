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

#include "uapi_test.h"

#define PAGE 4096u
#define PAGES 64u
#define BYTES (PAGES * PAGE)

static const struct {
	uint32_t mode;
	const char *name;
} modes[] = {
	{ KAGEMUSHA_VGPU_TRACE_PAGE, "page" },
	{ KAGEMUSHA_VGPU_TRACE_EMULATE, "emulate" },
	{ KAGEMUSHA_VGPU_TRACE_ADAPTIVE, "adaptive" },
	{ KAGEMUSHA_VGPU_TRACE_STEP, "step" },
};

static const char *mode_name;

/* A file with a buffer, and a traced range that shows it. */
struct traced {
	int fd;
	uint64_t offset;
	uint8_t *map;
	uint8_t *expected; /* what the buffer must hold after a flush */
};

static uint32_t random_state = 1;

static uint32_t next_random(void)
{
	random_state = random_state * 1664525u + 1013904223u;
	return random_state >> 8;
}

static int trace(int fd, uint64_t offset, uint64_t bytes, uint64_t memory, uint32_t mode)
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

static int flush(int fd, uint64_t *flushed_bytes)
{
	struct kagemusha_vgpu_window_flush args = { .queue = QUEUE, .group = CONTEXT };
	int ret = ioctl(fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &args);

	if (flushed_bytes)
		*flushed_bytes = args.flushed_bytes;
	return ret;
}

static uint64_t alloc_window(int fd, uint64_t bytes)
{
	struct kagemusha_vgpu_window_alloc args = { .bytes = bytes };

	MUST(ioctl(fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &args) == 0);
	return args.offset;
}

/* The buffer begins as zeroes, as the window does. */
static void write_zeroes(int fd)
{
	static const uint8_t zeroes[BYTES];
	struct stream stream;

	stream_init(&stream);
	add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
		     stream_payload(&stream, zeroes, BYTES, 0), BYTES);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
}

static struct traced begin(uint32_t mode)
{
	struct traced t = { .fd = open_with_queue(0, BYTES) };

	t.offset = alloc_window(t.fd, BYTES);
	t.map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t.fd, (off_t)t.offset);
	MUST(t.map != MAP_FAILED);
	t.expected = calloc(1, BYTES);
	MUST(t.expected);
	write_zeroes(t.fd);
	MUST(trace(t.fd, t.offset, BYTES, BUFFER, mode) == 0);
	return t;
}

static void end(struct traced *t)
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
static void check_buffer(const struct traced *t, const char *what)
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

static void flush_and_check(const struct traced *t, const char *what)
{
	CHECK_EQUAL(flush(t->fd, NULL), 0);
	check_buffer(t, what);
}

static void store(struct traced *t, unsigned at, uint8_t value)
{
	((volatile uint8_t *)t->map)[at] = value;
	t->expected[at] = value;
}

static bool no_window(void)
{
	if (!limits.window_bytes)
		skip_test("the device has no window");
	return !limits.window_bytes;
}

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

	CHECK_ERROR(trace(stranger, offset, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace(fd, offset, 0, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace(fd, offset, 2 * PAGE + 1, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace(fd, offset + PAGE, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace(fd, limits.window_bytes, PAGE, BUFFER, 0), EINVAL);
	CHECK_ERROR(trace(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_MODE_COUNT), EINVAL);
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
	CHECK_ERROR(trace(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_PAGE), EBUSY);
	CHECK_ERROR(trace(fd, offset, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_OFF), EBUSY);
	CHECK_EQUAL(trace(fd, other, PAGE, BUFFER, KAGEMUSHA_VGPU_TRACE_OFF), 0);

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
		_IOC(_IOC_READ | _IOC_WRITE, KAGEMUSHA_VGPU_IOCTL_BASE, _IOC_NR(KAGEMUSHA_VGPU_SUBMIT),
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
		store(t, next_random() % BYTES, (uint8_t)next_random());
	flush_and_check(t, "scattered bytes");

	memset(t->map, 0x5a, BYTES);
	memset(t->expected, 0x5a, BYTES);
	flush_and_check(t, "all of it");

	CHECK_EQUAL(flush(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 0); /* nothing was stored since */
	t->map[7] = t->map[7];
	CHECK_EQUAL(flush(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 0); /* nothing changed */

	store(t, 5 * PAGE + 11, 1);
	CHECK_EQUAL(flush(t->fd, &sent), 0);
	CHECK_EQUAL(sent, 1);
	check_buffer(t, "one byte");

	/* across a page's end, and next to it */
	for (unsigned i = 0; i < 16; i++)
		store(t, 9 * PAGE - 8 + i, (uint8_t)(i + 1));
	*(volatile uint64_t *)(t->map + 12 * PAGE - 3) = 0x1122334455667788;
	*(uint64_t *)(t->expected + 12 * PAGE - 3) = 0x1122334455667788;
	flush_and_check(t, "across pages");
}

/* A request's own flush comes before its commands. */
static void flush_in_submit(struct traced *t)
{
	uint8_t *found = calloc(1, BYTES);
	struct stream stream;

	MUST(found);
	stream_init(&stream);
	for (unsigned round = 1; round < 20; round++) {
		struct kagemusha_vgpu_submit args;
		struct kagemusha_vgpu_wait answer;

		store(t, 3 * PAGE + round, (uint8_t)round);
		store(t, round * PAGE, (uint8_t)(round + 100));
		stream_reset(&stream);
		add_transfer(&stream, true, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, found, BYTES, KAGEMUSHA_VGPU_PAYLOAD_WRITE),
			     BYTES);
		args = (struct kagemusha_vgpu_submit){
			.stream = (uint64_t)(uintptr_t)stream.bytes,
			.stream_bytes = stream.used,
			.flags = KAGEMUSHA_VGPU_SUBMIT_WAITABLE,
			.payloads = (uint64_t)(uintptr_t)stream.payloads,
			.payload_count = stream.payload_count,
			.flush_queue = QUEUE,
			.flush_group = CONTEXT,
		};
		MUST(ioctl(t->fd, KAGEMUSHA_VGPU_SUBMIT, &args) == 0);
		CHECK(args.flushed_bytes >= 2);
		MUST(wait_answer(t->fd, args.sequence, NO_LIMIT, &answer) == 0);
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
	CHECK_EQUAL(flush(t->fd, &sent), 0);
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
	store(t, 100, 1);
	CHECK_EQUAL(mprotect(t->map, BYTES, PROT_READ), 0);
	CHECK_EQUAL(mprotect(t->map, BYTES, PROT_READ | PROT_WRITE), 0);
	flush_and_check(t, "mprotect");
	store(t, 101, 2);
	flush_and_check(t, "after mprotect");

	/* moved while pages of it are open */
	store(t, 102, 3);
	moved = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(moved != MAP_FAILED);
	moved = mremap(t->map, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, moved);
	MUST(moved != MAP_FAILED);
	t->map = moved;
	store(t, 103, 4);
	flush_and_check(t, "mremap");
	store(t, 104, 5);
	flush_and_check(t, "after mremap");

	/* two mappings of one range: both are traced, and both are closed */
	second = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, (off_t)t->offset);
	MUST(second != MAP_FAILED);
	store(t, 105, 6);
	((volatile uint8_t *)second)[106] = t->expected[106] = 7;
	flush_and_check(t, "two mappings");
	((volatile uint8_t *)second)[107] = t->expected[107] = 8;
	store(t, 108, 9);
	/* unmapped before the flush */
	CHECK_EQUAL(munmap(second, BYTES), 0);
	flush_and_check(t, "munmap");
}

/* ---- several threads ---- */

struct writer {
	pthread_t thread;
	struct traced *t;
	unsigned index;
	uint64_t stores;
};

#define WRITERS 4u
static atomic_bool stop_writers;

/* Each its own 8 bytes of every page, so all of them on each page at once. */
static void *write_all_the_time(void *argument)
{
	struct writer *writer = argument;
	uint64_t value = 0;

	while (!atomic_load_explicit(&stop_writers, memory_order_relaxed)) {
		value++;
		for (unsigned page = 0; page < 4; page++) {
			volatile uint64_t *place =
				(volatile uint64_t *)(writer->t->map + page * PAGE + 1024);

			place[writer->index] = value;
			writer->stores++;
		}
	}
	return NULL;
}

static void threads_on_one_page(struct traced *t)
{
	struct writer writers[WRITERS];
	uint64_t stores = 0;

	for (unsigned round = 0; round < 8; round++) {
		atomic_store(&stop_writers, false);
		for (unsigned i = 0; i < WRITERS; i++) {
			writers[i] = (struct writer){ .t = t, .index = i };
			MUST(pthread_create(&writers[i].thread, NULL, write_all_the_time,
					    &writers[i]) == 0);
		}
		for (unsigned i = 0; i < 20; i++) {
			CHECK_EQUAL(flush(t->fd, NULL), 0);
			usleep(500);
		}
		atomic_store(&stop_writers, true);
		for (unsigned i = 0; i < WRITERS; i++) {
			MUST(pthread_join(writers[i].thread, NULL) == 0);
			stores += writers[i].stores;
		}
		memcpy(t->expected, t->map, BYTES);
		flush_and_check(t, "four threads on one page");
	}
	printf("# %s: %llu stores of four threads checked\n", mode_name,
	       (unsigned long long)stores);
}

/* A signal handler stores too, in the middle of the program's stores. */
static struct traced *signal_target;
static volatile uint32_t signals;

static void on_alarm(int number)
{
	(void)number;
	signals++;
	*(volatile uint32_t *)(signal_target->map + 50 * PAGE) = signals;
	*(volatile uint32_t *)(signal_target->map + 51 * PAGE + (signals % 256) * 4) = signals;
}

static void signals_in_the_middle(struct traced *t)
{
	struct sigaction action = { .sa_handler = on_alarm }, old;
	const struct itimerspec often = { { 0, 500000 }, { 0, 500000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	timer_t timer;

	signal_target = t;
	signals = 0;
	MUST(sigaction(SIGALRM, &action, &old) == 0);
	MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	MUST(timer_settime(timer, 0, &often, NULL) == 0);
	for (unsigned round = 0; signals < 200 && round < 200000; round++) {
		for (unsigned i = 0; i < 64; i++)
			store(t, 50 * PAGE + 8 + i, (uint8_t)(round + i));
		if (round % 64 == 0)
			CHECK_EQUAL(flush(t->fd, NULL), 0);
	}
	timer_delete(timer);
	sigaction(SIGALRM, &old, NULL);
	memcpy(t->expected + 50 * PAGE, t->map + 50 * PAGE, 2 * PAGE);
	CHECK(*(uint32_t *)(t->map + 50 * PAGE) == signals);
	flush_and_check(t, "signals");
}

/* ---- instructions ---- */

struct counting {
	pthread_t thread;
	struct traced *t;
	uint64_t seen; /* the sum of what XADD gave back */
};

#define COUNTS 1000u

/* Read-modify-write from all threads at once: what one of them adds is not lost to another. */
static void *count_up(void *argument)
{
	struct counting *counting = argument;
	uint8_t *map = counting->t->map;

	for (unsigned i = 0; i < COUNTS; i++) {
		uint64_t one = 1;

		asm volatile("lock incq %0" : "+m"(*(uint64_t *)(map + PAGE)));
		asm volatile("lock xaddq %0, %1"
			     : "+r"(one), "+m"(*(uint64_t *)(map + PAGE + 64)));
		counting->seen += one;
		asm volatile("lock addl $3, %0" : "+m"(*(uint32_t *)(map + 2 * PAGE)));
		for (;;) { /* as a compare-and-swap loop is written */
			uint64_t old = *(volatile uint64_t *)(map + PAGE + 128);
			uint64_t expected = old, wanted = old + 7;

			asm volatile("lock cmpxchgq %2, %1"
				     : "+a"(expected), "+m"(*(uint64_t *)(map + PAGE + 128))
				     : "r"(wanted));
			if (expected == old)
				break;
		}
		if (i % 200 == 0)
			CHECK_EQUAL(flush(counting->t->fd, NULL), 0);
	}
	return NULL;
}

static void locked_instructions(struct traced *t)
{
	struct counting counting[WRITERS];
	const uint64_t all = (uint64_t)WRITERS * COUNTS;
	uint64_t seen = 0;

	for (unsigned i = 0; i < WRITERS; i++) {
		counting[i] = (struct counting){ .t = t };
		MUST(pthread_create(&counting[i].thread, NULL, count_up, &counting[i]) == 0);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		MUST(pthread_join(counting[i].thread, NULL) == 0);
		seen += counting[i].seen;
	}
	CHECK_EQUAL(*(uint64_t *)(t->map + PAGE), all);
	CHECK_EQUAL(*(uint64_t *)(t->map + PAGE + 64), all);
	CHECK_EQUAL(*(uint32_t *)(t->map + 2 * PAGE), 3 * all);
	CHECK_EQUAL(*(uint64_t *)(t->map + PAGE + 128), 7 * all);
	CHECK_EQUAL(seen, all * (all - 1) / 2);
	memcpy(t->expected, t->map, BYTES);
	flush_and_check(t, "locked instructions");
}

static void wide_instructions(struct traced *t)
{
	uint8_t source[3 * PAGE] __attribute__((aligned(64)));
	uint64_t count, from, to;

	for (unsigned i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)next_random();

	asm volatile("movdqu 0(%0), %%xmm1\n\tmovaps %%xmm1, 0(%1)\n\t"
		     "movdqu 16(%0), %%xmm9\n\tmovdqu %%xmm9, 19(%1)\n\t"
		     "movntdq %%xmm9, 48(%1)\n\tmovq %%xmm1, 66(%1)\n\tmovhps %%xmm1, 75(%1)\n\t"
		     "movnti %2, 96(%1)"
		     :
		     : "r"(source), "r"(t->map), "r"(0x1234567890abcdefull)
		     : "xmm1", "xmm9", "memory");
	memcpy(t->expected, source, 16);
	memcpy(t->expected + 19, source + 16, 16);
	memcpy(t->expected + 48, source + 16, 16);
	memcpy(t->expected + 66, source, 8);
	memcpy(t->expected + 75, source + 8, 8);
	memcpy(t->expected + 96, &(uint64_t){ 0x1234567890abcdefull }, 8);
	flush_and_check(t, "SSE");

	if (__builtin_cpu_supports("avx")) {
		asm volatile("vmovdqu 32(%0), %%ymm3\n\tvmovups %%ymm3, 4099(%1)\n\t"
			     "vmovaps %%ymm3, 4160(%1)\n\tvzeroupper"
			     :
			     : "r"(source), "r"(t->map)
			     : "xmm3", "memory");
		memcpy(t->expected + 4099, source + 32, 32);
		memcpy(t->expected + 4160, source + 32, 32);
		flush_and_check(t, "AVX");
	}

	/* over several pages, from and to odd places */
	count = 2 * PAGE + 100;
	to = (uint64_t)(uintptr_t)t->map + 5 * PAGE + 33;
	asm volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0xa5) : "memory");
	CHECK_EQUAL(count, 0);
	CHECK_EQUAL(to, (uint64_t)(uintptr_t)t->map + 7 * PAGE + 133);
	memset(t->expected + 5 * PAGE + 33, 0xa5, 2 * PAGE + 100);
	count = 300;
	to = (uint64_t)(uintptr_t)t->map + 9 * PAGE - 12;
	asm volatile("rep stosl" : "+D"(to), "+c"(count) : "a"(0x01020304) : "memory");
	for (unsigned i = 0; i < 300; i++)
		memcpy(t->expected + 9 * PAGE - 12 + 4 * i, &(uint32_t){ 0x01020304 }, 4);
	count = sizeof(source) / 8;
	from = (uint64_t)(uintptr_t)source;
	to = (uint64_t)(uintptr_t)t->map + 20 * PAGE + 5;
	asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
	CHECK_EQUAL(from, (uint64_t)(uintptr_t)source + sizeof(source));
	memcpy(t->expected + 20 * PAGE + 5, source, sizeof(source));
	flush_and_check(t, "string instructions");

	/* a copy that reads what it has stored repeats it */
	memcpy(t->map + 30 * PAGE, "abc", 3);
	count = 1000;
	from = (uint64_t)(uintptr_t)t->map + 30 * PAGE;
	to = from + 3;
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
	for (unsigned i = 0; i < 1003; i++)
		t->expected[30 * PAGE + i] = (uint8_t)"abc"[i % 3];
	/* what nobody carries out but the processor */
	asm volatile("shlq $3, %0\n\tbtsq $5, %0" : "+m"(*(uint64_t *)(t->map + 40 * PAGE)));
	asm volatile("xchgb %%ah, %0" : "+m"(t->map[41 * PAGE]) : "a"(0x7700));
	t->expected[40 * PAGE] = 1 << 5;
	t->expected[41 * PAGE] = 0x77;
	flush_and_check(t, "other instructions");
}

/*
 * Code that another thread changes while it faults: nothing but the mapping may be written for it,
 * and the kernel goes on.
 */
static uint8_t *changing_code;

static void *change_code(void *unused)
{
	/* the ModRM byte: al to [rdi], [rsi], [rdx] */
	static const uint8_t choices[] = { 0x07, 0x06, 0x02 };

	(void)unused;
	for (unsigned i = 0; !atomic_load(&stop_writers); i++)
		((volatile uint8_t *)changing_code)[1] = choices[i % 3];
	return NULL;
}

static void code_that_changes(struct traced *t)
{
	uint8_t guard[3 * PAGE];
	pthread_t changer;

	memset(guard, 0xee, sizeof(guard));
	changing_code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(changing_code != MAP_FAILED);
	memcpy(changing_code, "\x88\x07\xc3", 3); /* mov [rdi], al; ret */
	atomic_store(&stop_writers, false);
	MUST(pthread_create(&changer, NULL, change_code, NULL) == 0);
	for (unsigned i = 0; i < 1000; i++) {
		uint8_t *inside = t->map + (i % PAGES) * PAGE + i % PAGE;
		uint8_t *also_inside = t->map + (i * 7 % PAGES) * PAGE + i % 100;

		asm volatile("call *%0"
			     :
			     : "r"(changing_code), "D"(inside), "S"(guard + PAGE + i % PAGE),
			       "d"(also_inside), "a"(i)
			     : "memory");
		if (i % 50 == 0)
			CHECK_EQUAL(flush(t->fd, NULL), 0);
	}
	atomic_store(&stop_writers, true);
	pthread_join(changer, NULL);
	for (unsigned i = 0; i < PAGE; i++) /* only where the code may store */
		CHECK(guard[i] == 0xee && guard[2 * PAGE + i] == 0xee);
	munmap(changing_code, PAGE);
	memcpy(t->expected, t->map, BYTES);
	flush_and_check(t, "code that changes");
}

/* ---- a debugger ---- */

/* Between two breakpoints: stores to some pages. */
static void __attribute__((noinline)) stepped_stores(uint8_t *place)
{
	asm volatile("int3\n\t"
		     "movb $1, (%0)\n\t"
		     "movq $2, 8(%0)\n\t"
		     "lock incl 16(%0)\n\t"
		     "mov $5, %%ecx\n\t"
		     "lea 4096(%0), %%rdi\n\t"
		     "mov $0x33, %%al\n\t"
		     "rep stosb\n\t"
		     "movdqu %%xmm0, 8192(%0)\n\t"
		     "nop\n\t"
		     "int3"
		     :
		     : "r"(place)
		     : "rax", "rcx", "rdi", "memory");
}

#define MAX_STEPS 64u

/* The instructions at which a debugger sees the child, as it steps; 0 if something went wrong. */
static unsigned steps_of(uint32_t mode, uint64_t *steps)
{
	struct user_regs_struct regs;
	unsigned count = 0;
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	MUST(child >= 0);
	if (!child) {
		uint8_t *place;

		if (mode == KAGEMUSHA_VGPU_TRACE_DEFAULT) {
			place = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		} else {
			place = begin(mode).map;
		}
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		stepped_stores(place);
		_exit(place[0] == 1 && place[8] == 2 && place[16] == 1 && place[PAGE + 4] == 0x33 &&
				      place[PAGE + 5] == 0 ?
			      0 :
			      1);
	}
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	while (count < MAX_STEPS) {
		MUST(ptrace(PTRACE_GETREGS, child, NULL, &regs) == 0);
		steps[count++] = regs.rip;
		/* behind the second int3 */
		if (count > 1 && (ptrace(PTRACE_PEEKTEXT, child, regs.rip - 1, NULL) & 0xff) == 0xcc)
			break;
		MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
		MUST(waitpid(child, &status, 0) == child);
		CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	}
	MUST(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return count;
}

void test_trace_debugger(void)
{
	uint64_t expected[MAX_STEPS], steps[MAX_STEPS];
	unsigned count;

	if (!limits.window_bytes) {
		skip_test("the device has no window");
		return;
	}
	mode_name = "ordinary memory";
	count = steps_of(KAGEMUSHA_VGPU_TRACE_DEFAULT, expected);
	CHECK(count > 10 && count < MAX_STEPS);
	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		mode_name = modes[i].name;
		CHECK_EQUAL(steps_of(modes[i].mode, steps), count);
		CHECK(!memcmp(steps, expected, count * sizeof(steps[0])));
	}
}

static void run_mode(uint32_t mode, void (*test)(struct traced *t))
{
	struct traced t = begin(mode);

	memset(t.map, 0, BYTES);
	test(&t);
	end(&t);
}

static void in_every_mode(void (*test)(struct traced *t))
{
	if (no_window())
		return;
	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		mode_name = modes[i].name;
		run_mode(modes[i].mode, test);
	}
}

void test_trace_stores(void)
{
	in_every_mode(stores_of_every_kind);
	in_every_mode(flush_in_submit);
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

void test_trace_instructions(void)
{
	in_every_mode(wide_instructions);
	in_every_mode(locked_instructions);
	in_every_mode(code_that_changes);
}

void test_trace_threads(void)
{
	in_every_mode(threads_on_one_page);
	in_every_mode(signals_in_the_middle);
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
	t = begin(KAGEMUSHA_VGPU_TRACE_PAGE);
	memset(t.map, 1, BYTES);
	args.offset = t.offset;
	CHECK_EQUAL(ioctl(t.fd, KAGEMUSHA_VGPU_WINDOW_FREE, &args), 0);
	stream_init(&stream);
	add_destroy(&stream, VGPU_OBJECT_MEMORY, BUFFER);
	call_ok(t.fd, &stream);
	CHECK_EQUAL(flush(t.fd, NULL), 0);
	stream_reset(&stream);
	add_marker(&stream, QUEUE, 0, 0);
	CHECK_EQUAL(call(t.fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
	end(&t);

	fflush(NULL);
	child = fork();
	MUST(child >= 0);
	if (!child) {
		t = begin(KAGEMUSHA_VGPU_TRACE_PAGE);
		for (;;) {
			memset(t.map, next_random(), BYTES);
			flush(t.fd, NULL);
		}
	}
	usleep(300000);
	CHECK_EQUAL(kill(child, SIGKILL), 0);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
}
