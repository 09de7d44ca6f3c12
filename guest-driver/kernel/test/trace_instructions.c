// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Traced ranges, stored into by several threads, by instructions of every kind, in the middle of
 * signals and under a debugger.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "trace_test.h"

/* ---- several threads ---- */

struct writer {
	pthread_t thread;
	struct traced *t;
	unsigned index;
	uint64_t stores;
};

#define WRITERS 4u
static unsigned thread_rounds = 8;
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

/* Where each store faults, so many take days. */
static uint64_t least_stores_here(void)
{
	if (!strcmp(mode_name, "emulate"))
		return least_stores / 100;
	if (!strcmp(mode_name, "step"))
		return least_stores / 10000;
	return least_stores;
}

static void threads_on_one_page(struct traced *t)
{
	struct writer writers[WRITERS];
	const uint64_t least = least_stores_here();
	uint64_t stores = 0;

	for (unsigned round = 0; round < thread_rounds || stores < least; round++) {
		atomic_store(&stop_writers, false);
		for (unsigned i = 0; i < WRITERS; i++) {
			writers[i] = (struct writer){ .t = t, .index = i };
			MUST(pthread_create(&writers[i].thread, NULL, write_all_the_time,
					    &writers[i]) == 0);
		}
		for (unsigned i = 0; i < (least ? 100 : 20); i++) {
			CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
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
			store_byte(t, 50 * PAGE + 8 + i, (uint8_t)(round + i));
		if (round % 64 == 0)
			CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
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
			CHECK_EQUAL(flush_traced(counting->t->fd, NULL), 0);
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
			CHECK_EQUAL(flush_traced(t->fd, NULL), 0);
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
			place = begin_traced(mode).map;
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
		if (count > 1 &&
		    (ptrace(PTRACE_PEEKTEXT, child, regs.rip - 1, NULL) & 0xff) == 0xcc)
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
	for (unsigned i = 0; i < MODE_COUNT; i++) {
		mode_name = modes[i].name;
		CHECK_EQUAL(steps_of(modes[i].mode, steps), count);
		CHECK(!memcmp(steps, expected, count * sizeof(steps[0])));
	}
}

void test_trace_instructions(void)
{
	in_every_mode(wide_instructions);
	in_every_mode(locked_instructions);
	in_every_mode(code_that_changes);
}

/* ---- without what usually works ---- */

/* debugfs, of the device under test */
static FILE *open_statistics(const char *name, const char *how)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", strrchr(node, '/') + 1, name);
	return fopen(path, how);
}

static uint64_t counted(const char *wanted)
{
	FILE *file = open_statistics("tracer", "r");
	unsigned long long value, found = 0;
	char name[64];

	MUST(file);
	(void)!fscanf(file, "%*[^\n]"); /* the columns' names */
	while (fscanf(file, "%63s %llu %*[^\n]", name, &value) == 2)
		if (!strcmp(name, wanted))
			found = value;
	fclose(file);
	return found;
}

static void do_without(unsigned what)
{
	FILE *file = open_statistics("tracer_without", "w");

	MUST(file);
	MUST(fprintf(file, "%u\n", what) > 0);
	MUST(fclose(file) == 0);
}

/*
 * A copy of the buffer, by a command that comes behind the flush, whether in its request or not.
 * What the copy is afterwards is that of the stores before.
 */
static void copy_behind_stores(struct traced *t, unsigned round)
{
	enum { COPY = 50, EVENT = FIRST_EVENT };
	struct vgpu_cmd_copy_buffer *copy;
	uint8_t *found = malloc(BYTES);
	struct stream stream;
	uint64_t sequence = 0;

	MUST(found);
	stream_init(&stream);
	if (!round) {
		add_create_buffer(&stream, COPY, CONTEXT, BYTES);
		call_ok(t->fd, &stream);
		stream_reset(&stream);
	}
	copy = add_copy(&stream, QUEUE, EVENT + round);
	copy->source = BUFFER;
	copy->destination = COPY;
	copy->bytes = BYTES;
	MUST(submit_behind_stores(t->fd, &stream, 0, &sequence) == 0);
	CHECK(sequence > 0);
	memset(t->map, 0xee, BYTES / 2);
	CHECK_EQUAL(read_completions(t->fd, 1), 1);
	stream_reset(&stream);
	add_destroy(&stream, VGPU_OBJECT_EVENT, EVENT + round);
	add_transfer(&stream, true, QUEUE, 0, 0, COPY, 0,
		     stream_payload(&stream, found, BYTES, KAGEMUSHA_VGPU_PAYLOAD_WRITE), BYTES);
	CHECK_EQUAL(call(t->fd, &stream, NULL), VGPU_STATUS_OK);
	if (check_contents)
		CHECK(!memcmp(found, t->expected, BYTES));
	memcpy(t->map, t->expected, BYTES / 2);
	stream_free(&stream);
	free(found);
}

static void every_way(struct traced *t)
{
	for (unsigned round = 0; round < 6; round++) { /* pages become hot */
		for (unsigned i = 0; i < 8 * PAGE / 8; i++)
			((volatile uint64_t *)t->map)[i] = (round + 1) * 0x0101010101010101ull;
		for (unsigned i = 0; i < 200; i++)
			t->map[16 * PAGE + next_random() % (16 * PAGE)] = (uint8_t)next_random();
		memcpy(t->expected, t->map, BYTES);
		if (round % 2)
			copy_behind_stores(t, round / 2);
		flush_and_check(t, "dense and scattered stores");
	}
	threads_on_one_page(t);
}

/*
 * Each thing that may fail is made to, in turn and all together; every mode ends in the same bytes.
 */
void test_trace_fallbacks(void)
{
	/* enum kvt_without: what counts what is left out */
	static const struct {
		unsigned what;
		const char *name, *counter;
	} ways[] = {
		{ 1, "emulation", "emulated" }, { 2, "steps", "stepped" },
		{ 4, "lending", "pages_lent" }, { 8, "snapshots", "kept_open" },
		{ 16, "opening ahead", "opened_ahead" },
		{ 32, "the hypervisor's log", "log_reads" },
		{ 64, "the device's copies", "pages_copied" },
		{ 128, "kept snapshots", "snapshots_kept" }, { 256, "followers", "followed" },
		{ 511, "all of them", NULL },
	};
	const unsigned way_count = sizeof(ways) / sizeof(ways[0]) - 1;
	uint64_t counts[sizeof(ways) / sizeof(ways[0])];

	if (no_window())
		return;
	if (mount("none", "/sys/kernel/debug", "debugfs", 0, NULL) && errno != EBUSY) {
		skip_test("there is no debugfs");
		return;
	}
	thread_rounds = 1;
	for (unsigned i = 0; i < way_count; i++)
		counts[i] = counted(ways[i].counter);
	in_every_mode(every_way);
	for (unsigned i = 0; i < way_count; i++)
		CHECK(counted(ways[i].counter) > counts[i]); /* it is used when it works */
	for (unsigned way = 0; way <= way_count; way++) {
		printf("# without %s\n", ways[way].name);
		do_without(ways[way].what);
		for (unsigned i = 0; i < way_count; i++)
			counts[i] = counted(ways[i].counter);
		in_every_mode(every_way);
		for (unsigned i = 0; i < way_count; i++)
			if (ways[way].what & ways[i].what)
				CHECK_EQUAL(counted(ways[i].counter), counts[i]);
	}
	do_without(0);
	thread_rounds = 8;
}

void test_trace_threads(void)
{
	in_every_mode(threads_on_one_page);
	in_every_mode(signals_in_the_middle);
}
