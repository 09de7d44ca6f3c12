/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of traced ranges share (trace_support.c).
 */
#ifndef TRACE_TEST_H
#define TRACE_TEST_H

#include "uapi_test.h"

#define PAGE 4096u
#define PAGES 64u
#define BYTES (PAGES * PAGE)

/* A file with a buffer, and a traced range that shows it. */
struct traced {
	int fd;
	uint64_t offset;
	uint8_t *map;
	uint8_t *expected; /* what the buffer must hold after a flush */
};

/* The modes that trace, each with its name. */
struct trace_mode {
	uint32_t mode;
	const char *name;
};
#define MODE_COUNT 5u
extern const struct trace_mode modes[MODE_COUNT];

/* Of the test that runs, for messages. */
extern const char *mode_name;

uint32_t next_random(void);
bool no_window(void);
int trace_range(int fd, uint64_t offset, uint64_t bytes, uint64_t memory, uint32_t mode);
int flush_traced(int fd, uint64_t *flushed_bytes);
uint64_t alloc_window(int fd, uint64_t bytes);
/* The buffer begins as zeroes, as the window does. */
void write_zeroes(int fd);
struct traced begin_traced(uint32_t mode);
void end_traced(struct traced *t);
/* The buffer as it is, without another flush. */
void check_buffer(const struct traced *t, const char *what);
void flush_and_check(const struct traced *t, const char *what);
void store_byte(struct traced *t, unsigned at, uint8_t value);
void in_every_mode(void (*test)(struct traced *t));

#endif
