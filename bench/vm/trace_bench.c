// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What it costs to trace stores into mapped VRAM, in a guest, as root: every workload in every
 * mode, whose rounds are done in turns. One line of JSON for each. docs/tracer.md says what the modes are,
 * docs/results/tracer.md what was measured.
 *
 *	kagemusha_trace_bench [rounds [workload,… [mode,…]]]
 *
 * A round's time is that of its stores, the program's own, and of its flushes, until the GPU has come to the command behind them: `flushes` of
 * all rounds together. Of the round that took least, which a busy machine disturbs least, and the
 * median of all. In mode `off` a flush writes the whole range, as unmapping it does; in `copy`,
 * which is none of the tracer's, it writes a copy of it: less a flush can't do that is to send the bytes of
 * its moment.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest-driver/kernel/test/uapi_test.h"

#define PAGE 4096u
#define PAGES 512u
#define BYTES ((uint64_t)PAGES * PAGE)
#define THREADS 4u

const char *current_test = "trace_bench";
int failed_tests;

void check_failed(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
}

void skip_test(const char *why)
{
	(void)why;
}

void bail_out(void)
{
	exit(1);
}

#define MODE_COPY KAGEMUSHA_VGPU_TRACE_MODE_COUNT
#define MODE_COUNT (MODE_COPY + 1)
static const char *const mode_names[MODE_COUNT] = {
	[KAGEMUSHA_VGPU_TRACE_OFF] = "off",
	[KAGEMUSHA_VGPU_TRACE_PAGE] = "page",
	[KAGEMUSHA_VGPU_TRACE_EMULATE] = "emulate",
	[KAGEMUSHA_VGPU_TRACE_ADAPTIVE] = "adaptive",
	[KAGEMUSHA_VGPU_TRACE_STEP] = "step",
	[KAGEMUSHA_VGPU_TRACE_HOST] = "host",
	[MODE_COPY] = "copy",
};

struct run {
	int fd;
	uint64_t offset;
	uint8_t *map;
	uint8_t *before; /* what the last flush left */
	uint8_t *copy;	 /* mode `copy` only */
	bool traced;
	uint64_t stores, stores_ns, flush_ns, flushes, changed_bytes, began_ns;
};

static uint32_t random_state = 1;

static uint32_t next_random(void)
{
	random_state = random_state * 1664525u + 1013904223u;
	return random_state >> 8;
}

/* Eight bytes of any value. */
static uint64_t next_word(void)
{
	uint64_t word = (uint64_t)next_random() << 40;

	word ^= (uint64_t)next_random() << 20;
	return word ^ next_random();
}

static void begin_stores(struct run *run)
{
	run->began_ns = now_ns();
}

static void end_stores(struct run *run, uint64_t count)
{
	run->stores_ns += now_ns() - run->began_ns;
	run->stores += count;
}

/* As wide as it is no slower with a processor that is emulated. */
static void copy_words(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		((volatile uint64_t *)to)[i] = ((const uint64_t *)from)[i];
}

/*
 * The program's next command: what was stored comes before it, in the same system call. Returns when the GPU
 * has come to it.
 */
static void next_command(struct run *run, struct stream *stream, bool stores)
{
	enum { EVENT = FIRST_EVENT };

	add_marker(stream, QUEUE, EVENT, 0);
	add_destroy(stream, VGPU_OBJECT_EVENT, EVENT);
	MUST((stores ? submit_behind_stores(run->fd, stream, 0, NULL) :
		       submit(run->fd, stream, 0, NULL)) == 0);
	MUST(read_completions(run->fd, 1) == 1);
}

/* Also counts what changed, outside the time that is measured. `from`: where to look for it. */
static void flush(struct run *run, uint64_t from, uint64_t bytes)
{
	static struct stream stream;
	uint64_t began;

	for (uint64_t i = from; i < from + bytes; i++)
		run->changed_bytes += run->map[i] != run->before[i];
	memcpy(run->before + from, run->map + from, bytes);

	if (!stream.bytes)
		stream_init(&stream);
	stream_reset(&stream);
	began = now_ns();
	if (run->copy) {
		copy_words(run->copy, run->map, BYTES);
		add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, run->copy, BYTES, 0), BYTES);
	} else if (!run->traced) {
		add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, (void *)(uintptr_t)run->offset, BYTES,
					    KAGEMUSHA_VGPU_PAYLOAD_WINDOW),
			     BYTES);
	}
	next_command(run, &stream, run->traced);
	run->flush_ns += now_ns() - began;
	run->flushes++;
}

/* ---- workloads ---- */

static void byte_per_page(struct run *run, unsigned round)
{
	begin_stores(run);
	for (unsigned i = 0; i < PAGES; i++)
		((volatile uint8_t *)run->map)[i * PAGE + 17] = (uint8_t)(round + 1);
	end_stores(run, PAGES);
	flush(run, 0, BYTES);
}

static void dense_fill(struct run *run, unsigned round)
{
	volatile uint64_t *words = (volatile uint64_t *)run->map;
	const uint64_t value = (round + 1) * 0x0101010101010101ull;

	begin_stores(run);
	for (uint64_t i = 0; i < BYTES / 8; i++)
		words[i] = value;
	end_stores(run, BYTES / 8);
	flush(run, 0, BYTES);
}

static void random_words(struct run *run, unsigned round)
{
	volatile uint64_t *words = (volatile uint64_t *)run->map;

	(void)round;
	begin_stores(run);
	for (unsigned i = 0; i < 1000; i++)
		words[next_random() % (BYTES / 8)] = next_word();
	end_stores(run, 1000);
	flush(run, 0, BYTES);
}

/* 64 bytes into a ring of 64 KiB, then its counter in another page. */
static void ring_with_doorbell(struct run *run, unsigned round)
{
	volatile uint64_t *words = (volatile uint64_t *)run->map;

	for (unsigned i = 0; i < 100; i++) {
		const unsigned slot = (round * 100 + i) % 1024;

		begin_stores(run);
		for (unsigned k = 0; k < 8; k++)
			words[512 + slot * 8 + k] = next_word();
		words[0] = round * 100 + i + 1;
		end_stores(run, 9);
		flush(run, 0, 17 * PAGE);
	}
}

static void same_small_block(struct run *run, unsigned round)
{
	volatile uint64_t *words = (volatile uint64_t *)run->map;

	for (unsigned i = 0; i < 100; i++) {
		begin_stores(run);
		for (unsigned k = 0; k < 32; k++)
			words[k] = (round * 100 + i + 1) * 0x0101010101010101ull;
		end_stores(run, 32);
		flush(run, 0, PAGE);
	}
}

static void read_mostly(struct run *run, unsigned round)
{
	volatile uint64_t *words = (volatile uint64_t *)run->map;

	begin_stores(run);
	for (uint64_t i = 0; i < BYTES / 8; i++)
		(void)words[i];
	for (unsigned i = 0; i < 16; i++)
		words[next_random() % (BYTES / 8)] = round * 100 + i + 1;
	end_stores(run, BYTES / 8 + 16);
	flush(run, 0, BYTES);
}

struct writer {
	pthread_t thread;
	volatile uint64_t *place;
	unsigned round;
};

static void *write_often(void *argument)
{
	struct writer *writer = argument;

	for (uint64_t i = 1; i <= 5000; i++)
		*writer->place = writer->round * 10000 + i;
	return NULL;
}

static void four_threads(struct run *run, unsigned round)
{
	struct writer writers[THREADS];

	begin_stores(run);
	for (unsigned i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){ .place = (volatile uint64_t *)run->map + i,
					      .round = round };
		MUST(pthread_create(&writers[i].thread, NULL, write_often, &writers[i]) == 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(writers[i].thread, NULL);
	end_stores(run, THREADS * 5000);
	flush(run, 0, PAGE);
}

/* 32 bytes at once where the processor can, else 16. */
static void wide_copy(struct run *run, unsigned round)
{
	static uint8_t source[BYTES] __attribute__((aligned(64)));
	const unsigned step = __builtin_cpu_supports("avx") ? 32 : 16;

	memset(source, (int)round + 1, BYTES);
	begin_stores(run);
	for (uint64_t i = 0; i < BYTES; i += step) {
		if (step == 32)
			asm volatile("vmovdqu %1, %%ymm0\n\tvmovdqu %%ymm0, %0"
				     : "=m"(*(uint8_t(*)[32])(run->map + i))
				     : "m"(*(uint8_t(*)[32])(source + i))
				     : "xmm0");
		else
			asm volatile("movdqu %1, %%xmm0\n\tmovdqu %%xmm0, %0"
				     : "=m"(*(uint8_t(*)[16])(run->map + i))
				     : "m"(*(uint8_t(*)[16])(source + i))
				     : "xmm0");
	}
	end_stores(run, BYTES / step);
	flush(run, 0, BYTES);
}

/* What nobody carries out but the processor, in 16 pages. */
static void bit_changes(struct run *run, unsigned round)
{
	uint64_t *words = (uint64_t *)run->map;

	(void)round;
	begin_stores(run);
	for (unsigned i = 0; i < 1000; i++)
		asm volatile("btcq $5, %0" : "+m"(words[i * 61 % (16 * PAGE / 8)]));
	end_stores(run, 1000);
	flush(run, 0, 16 * PAGE);
}

/*
 * A program that has mapped nothing that is traced: what it costs to ask all the same whether something was
 * stored, 100 commands a round. Mode `off` does not ask.
 */
static void nothing_mapped(struct run *run, unsigned round)
{
	static struct stream stream;

	(void)round;
	if (!stream.bytes)
		stream_init(&stream);
	begin_stores(run);
	for (unsigned i = 0; i < 100; i++) {
		stream_reset(&stream);
		next_command(run, &stream, run->traced);
	}
	end_stores(run, 100);
}

static const struct {
	const char *name;
	void (*do_round)(struct run *run, unsigned round);
} workloads[] = {
	{ "byte_per_page", byte_per_page },   { "dense_fill", dense_fill },
	{ "random_words", random_words },     { "ring_with_doorbell", ring_with_doorbell },
	{ "same_small_block", same_small_block }, { "read_mostly", read_mostly },
	{ "four_threads", four_threads },     { "wide_copy", wide_copy },
	{ "bit_changes", bit_changes },	      { "nothing_mapped", nothing_mapped },
};

/* ---- counters: debugfs ---- */

static const char *const counter_names[] = {
	"faults", "emulated", "opened", "kept_open", "bytes_data", "bytes_stream", "pages_copied", "snapshots_kept",
};
#define COUNTER_COUNT (sizeof(counter_names) / sizeof(counter_names[0]))
enum { BYTES_DATA = 4, BYTES_STREAM = 5 };

/* Those of one mode: each has a column of its own, and the first line names them. */
static void read_counters(const char *mode, uint64_t counters[COUNTER_COUNT])
{
	char path[128], line[512];
	int column = -1;
	FILE *file;

	memset(counters, 0, COUNTER_COUNT * sizeof(*counters));
	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/tracer", strrchr(node, '/') + 1);
	file = fopen(path, "r");
	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		char *rest = line, *name = strsep(&rest, " \n"), *word;
		int at = 0;

		while ((word = strsep(&rest, " \n"))) {
			if (!strcmp(name, "counter") && !strcmp(word, mode))
				column = at;
			for (unsigned i = 0; at == column && i < COUNTER_COUNT; i++)
				if (!strcmp(name, counter_names[i]))
					counters[i] = strtoull(word, NULL, 10);
			at++;
		}
	}
	fclose(file);
}

/* ---- one workload, all modes ---- */

/* A mode with so long a first round is measured in few of them: nobody would wait for more. */
#define SLOW_NS 60000000ull
#define SLOW_ROUNDS 3u

struct mode_run {
	struct run run;
	uint32_t mode;
	uint64_t counters[COUNTER_COUNT]; /* before the first round */
	unsigned rounds;
	bool slow;
	uint64_t *stores_ns, *flush_ns; /* of each round */
};

static void begin_mode(struct mode_run *m, unsigned workload, uint32_t mode, unsigned rounds)
{
	struct kagemusha_vgpu_window_alloc range = { .bytes = BYTES };
	struct kagemusha_vgpu_window_trace trace = {
		.bytes = BYTES, .memory = BUFFER, .group = CONTEXT,
		.mode = mode == MODE_COPY ? KAGEMUSHA_VGPU_TRACE_OFF : mode
	};
	struct run *run = &m->run;

	*m = (struct mode_run){ .mode = mode };
	m->stores_ns = calloc(rounds, sizeof(*m->stores_ns));
	m->flush_ns = calloc(rounds, sizeof(*m->flush_ns));
	run->fd = open_with_queue(0, BYTES);
	run->traced = mode != KAGEMUSHA_VGPU_TRACE_OFF && mode != MODE_COPY;
	MUST(ioctl(run->fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &range) == 0);
	run->offset = trace.offset = range.offset;
	run->map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, run->fd,
			(off_t)range.offset);
	MUST(run->map != MAP_FAILED);
	if (workloads[workload].do_round != nothing_mapped)
		MUST(ioctl(run->fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &trace) == 0);
	run->before = calloc(1, BYTES);
	run->copy = mode == MODE_COPY ? calloc(1, BYTES) : NULL;
	MUST(m->stores_ns && m->flush_ns && run->before && (run->copy || mode != MODE_COPY));
	/* page tables and the worker are there before anything is measured */
	workloads[workload].do_round(run, 0);
	run->stores = run->stores_ns = run->flush_ns = run->flushes = run->changed_bytes = 0;
	read_counters(mode_names[mode], m->counters);
}

static void do_round(struct mode_run *m, unsigned workload)
{
	const uint64_t stores_ns = m->run.stores_ns, flush_ns = m->run.flush_ns;

	workloads[workload].do_round(&m->run, m->rounds + 1);
	m->stores_ns[m->rounds] = m->run.stores_ns - stores_ns;
	m->flush_ns[m->rounds] = m->run.flush_ns - flush_ns;
	if (!m->rounds)
		m->slow = m->stores_ns[0] + m->flush_ns[0] > SLOW_NS;
	m->rounds++;
}

static int compare_ns(const void *a, const void *b)
{
	const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

	return (one > other) - (one < other);
}

static unsigned long long median(uint64_t *ns, unsigned count)
{
	qsort(ns, count, sizeof(*ns), compare_ns);
	return (ns[(count - 1) / 2] + ns[count / 2]) / 2;
}

static void end_mode(struct mode_run *m, unsigned workload)
{
	struct run *run = &m->run;
	uint64_t counters[COUNTER_COUNT];
	unsigned best = 0;

	read_counters(mode_names[m->mode], counters);
	for (unsigned i = 1; i < m->rounds; i++)
		if (m->stores_ns[i] + m->flush_ns[i] < m->stores_ns[best] + m->flush_ns[best])
			best = i;
	printf("{\"workload\": \"%s\", \"mode\": \"%s\", \"rounds\": %u, \"stores\": %llu, \"flushes\": %llu, \"changed_bytes\": %llu, \"best_stores_ns\": %llu, \"best_flush_ns\": %llu",
	       workloads[workload].name, mode_names[m->mode], m->rounds,
	       (unsigned long long)run->stores, (unsigned long long)run->flushes,
	       (unsigned long long)run->changed_bytes, (unsigned long long)m->stores_ns[best],
	       (unsigned long long)m->flush_ns[best]);
	for (unsigned i = 0; i < COUNTER_COUNT; i++) {
		uint64_t counted = counters[i] - m->counters[i];

		if (!run->traced && (i == BYTES_DATA || i == BYTES_STREAM))
			counted = BYTES * run->flushes;
		printf(", \"%s\": %llu", counter_names[i], (unsigned long long)counted);
	}
	/* of stores and flush together too: the round in the middle of one is not that of the other */
	for (unsigned i = 0; i < m->rounds; i++)
		m->flush_ns[i] += m->stores_ns[i];
	printf(", \"median_ns\": %llu", median(m->flush_ns, m->rounds));
	printf(", \"median_stores_ns\": %llu}\n", median(m->stores_ns, m->rounds));
	fflush(stdout);
	munmap(run->map, BYTES);
	free(run->before);
	free(run->copy);
	free(m->stores_ns);
	free(m->flush_ns);
	close(run->fd);
}

/* The modes' rounds in turns, so that what else the machine does meets all of them. */
static void measure(unsigned workload, const char *modes, unsigned rounds)
{
	static struct mode_run runs[MODE_COUNT];
	unsigned count = 0;

	for (uint32_t mode = 1; mode < MODE_COUNT; mode++)
		if (!modes || strstr(modes, mode_names[mode]))
			begin_mode(&runs[count++], workload, mode, rounds);
	for (unsigned round = 0; round < rounds; round++)
		for (unsigned i = 0; i < count; i++)
			if (!runs[i].slow || round < SLOW_ROUNDS)
				do_round(&runs[i], workload);
	for (unsigned i = 0; i < count; i++)
		end_mode(&runs[i], workload);
}

int main(int count, char **arguments)
{
	const unsigned rounds = count > 1 ? (unsigned)atoi(arguments[1]) : 3;

	if (!rounds)
		bail_out();
	for (unsigned i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++)
		if (count <= 2 || strstr(arguments[2], workloads[i].name))
			measure(i, count > 3 ? arguments[3] : NULL, rounds);
	return 0;
}
