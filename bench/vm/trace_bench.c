// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What it costs to trace stores into mapped VRAM, in a guest, as root: every workload in every
 * mode, in turns within one run. One line of JSON for each. docs/tracer.md says what the modes are,
 * docs/results/tracer.md what was measured.
 *
 *	kagemusha_trace_bench [rounds [workload,… [mode,…]]]
 *
 * stores_ns: the program's own time; flush_ns: until the device has taken everything, `flushes`
 * times a round. best_stores_ns and best_flush_ns are those of the round that took least, which a
 * busy machine disturbs least. In mode `off` a flush writes the whole range, as unmapping it does; in `copy`,
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
	if (run->traced) {
		struct kagemusha_vgpu_window_flush args = { .queue = QUEUE, .group = CONTEXT };

		MUST(ioctl(run->fd, KAGEMUSHA_VGPU_WINDOW_FLUSH, &args) == 0);
		add_marker(&stream, QUEUE, 0, 0);
	} else if (run->copy) {
		copy_words(run->copy, run->map, BYTES);
		add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, run->copy, BYTES, 0), BYTES);
	} else {
		add_transfer(&stream, false, QUEUE, 0, 0, BUFFER, 0,
			     stream_payload(&stream, (void *)(uintptr_t)run->offset, BYTES,
					    KAGEMUSHA_VGPU_PAYLOAD_WINDOW),
			     BYTES);
	}
	MUST(call(run->fd, &stream, NULL) == VGPU_STATUS_OK);
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

static const struct {
	const char *name;
	void (*do_round)(struct run *run, unsigned round);
} workloads[] = {
	{ "byte_per_page", byte_per_page },   { "dense_fill", dense_fill },
	{ "random_words", random_words },     { "ring_with_doorbell", ring_with_doorbell },
	{ "same_small_block", same_small_block }, { "read_mostly", read_mostly },
	{ "four_threads", four_threads },     { "wide_copy", wide_copy },
	{ "bit_changes", bit_changes },
};

/* ---- counters: debugfs ---- */

static uint64_t trace_counter(const char *wanted)
{
	unsigned long long value, found = 0;
	char path[128], name[64];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/tracer", strrchr(node, '/') + 1);
	file = fopen(path, "r");
	if (!file)
		return 0;
	(void)!fscanf(file, "%*[^\n]"); /* the columns' names */
	while (fscanf(file, "%63s %llu %*[^\n]", name, &value) == 2)
		if (!strcmp(name, wanted))
			found = value;
	fclose(file);
	return found;
}

static void measure(unsigned workload, uint32_t mode, unsigned rounds)
{
	struct run run = { .fd = open_with_queue(0, BYTES),
			   .traced = mode != KAGEMUSHA_VGPU_TRACE_OFF && mode != MODE_COPY };
	struct kagemusha_vgpu_window_alloc range = { .bytes = BYTES };
	struct kagemusha_vgpu_window_trace trace = {
		.bytes = BYTES, .memory = BUFFER, .group = CONTEXT,
		.mode = mode == MODE_COPY ? KAGEMUSHA_VGPU_TRACE_OFF : mode
	};
	uint64_t faults, data, stream, emulated, opened, kept;
	uint64_t best_stores_ns = 0, best_flush_ns = 0;

	MUST(ioctl(run.fd, KAGEMUSHA_VGPU_WINDOW_ALLOC, &range) == 0);
	run.offset = trace.offset = range.offset;
	run.map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, run.fd,
		       (off_t)range.offset);
	MUST(run.map != MAP_FAILED);
	MUST(ioctl(run.fd, KAGEMUSHA_VGPU_WINDOW_TRACE, &trace) == 0);
	run.before = calloc(1, BYTES);
	MUST(run.before);
	if (mode == MODE_COPY) {
		run.copy = calloc(1, BYTES);
		MUST(run.copy);
	}
	/* page tables and the worker are there before anything is measured */
	workloads[workload].do_round(&run, 0);
	run.stores = run.stores_ns = run.flush_ns = run.flushes = run.changed_bytes = 0;
	faults = trace_counter("faults");
	data = trace_counter("bytes_data");
	stream = trace_counter("bytes_stream");
	emulated = trace_counter("emulated");
	opened = trace_counter("opened");
	kept = trace_counter("kept_open");
	for (unsigned round = 1; round <= rounds; round++) {
		const uint64_t stores_ns = run.stores_ns, flush_ns = run.flush_ns;

		workloads[workload].do_round(&run, round);
		if (run.stores_ns - stores_ns + run.flush_ns - flush_ns <
		    best_stores_ns + best_flush_ns || round == 1) {
			best_stores_ns = run.stores_ns - stores_ns;
			best_flush_ns = run.flush_ns - flush_ns;
		}
	}
	printf("{\"workload\": \"%s\", \"mode\": \"%s\", \"rounds\": %u, \"stores\": %llu, \"stores_ns\": %llu, \"flush_ns\": %llu, \"best_stores_ns\": %llu, \"best_flush_ns\": %llu, \"flushes\": %llu, \"changed_bytes\": %llu, \"bytes_data\": %llu, \"bytes_stream\": %llu, \"faults\": %llu, \"emulated\": %llu, \"opened\": %llu, \"kept_open\": %llu}\n",
	       workloads[workload].name, mode_names[mode], rounds, (unsigned long long)run.stores,
	       (unsigned long long)run.stores_ns, (unsigned long long)run.flush_ns,
	       (unsigned long long)best_stores_ns, (unsigned long long)best_flush_ns,
	       (unsigned long long)run.flushes, (unsigned long long)run.changed_bytes,
	       (unsigned long long)(run.traced ? trace_counter("bytes_data") - data :
						 BYTES * run.flushes),
	       (unsigned long long)(run.traced ? trace_counter("bytes_stream") - stream :
						 BYTES * run.flushes),
	       (unsigned long long)(trace_counter("faults") - faults),
	       (unsigned long long)(trace_counter("emulated") - emulated),
	       (unsigned long long)(trace_counter("opened") - opened),
	       (unsigned long long)(trace_counter("kept_open") - kept));
	fflush(stdout);
	munmap(run.map, BYTES);
	free(run.before);
	free(run.copy);
	close(run.fd);
}

int main(int count, char **arguments)
{
	const unsigned rounds = count > 1 ? (unsigned)atoi(arguments[1]) : 3;

	for (unsigned i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
		if (count > 2 && !strstr(arguments[2], workloads[i].name))
			continue;
		for (uint32_t mode = 1; mode < MODE_COUNT; mode++)
			if (count <= 3 || strstr(arguments[3], mode_names[mode]))
				measure(i, mode, rounds);
	}
	return 0;
}
