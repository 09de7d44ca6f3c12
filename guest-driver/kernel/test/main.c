// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * kagemusha_vgpu_uapi_test: the driver's user interface against a real device, in a guest, as root.
 *
 *	kagemusha_vgpu_uapi_test [--contents] [--stores N] [--node /dev/kagemusha-vgpuN] [name…]
 *
 * --contents: the backend stores what is written (any but `null`), so read it back and compare.
 * --stores: so many of several threads at once are checked in the tracer's modes page and adaptive,
 * a hundredth in emulate, a ten-thousandth in step. With names only these tests run. Prints TAP;
 * the exit status is 0 if every test passed. Nothing else may use the device meanwhile: the tests
 * compare its counters.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "uapi_test.h"

const char *current_test;
int failed_tests;
uint64_t least_stores;
static bool test_failed;
static const char *skipped;

void check_failed(const char *file, int line, const char *format, ...)
{
	const char *name = strrchr(file, '/');
	va_list arguments;

	printf("# %s:%d: ", name ? name + 1 : file, line);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	__atomic_store_n(&test_failed, true, __ATOMIC_RELAXED);
}

void skip_test(const char *why)
{
	skipped = why;
}

void bail_out(void)
{
	printf("not ok - %s\nBail out!\n", current_test ? current_test : "set-up");
	fflush(stdout);
	_exit(1);
}

#define TEST(name)                 \
	{                          \
#name, test_##name \
	}
static const struct test {
	const char *name;
	void (*run)(void);
} tests[] = {
	TEST(parameters),
	TEST(ioctl_numbers),
	TEST(submit_rejections),
	TEST(wait_rejections),
	TEST(eventfd_rejections),
	TEST(lazy_open),
	TEST(info),
	TEST(malformed),
	TEST(contents),
	TEST(large_payload),
	TEST(threads),
	TEST(fork),
	TEST(records),
	TEST(poll_and_eventfd),
	TEST(blocking_read),
	TEST(credits),
	TEST(payload_bound),
	TEST(pinned_bound),
	TEST(untaken_answers),
	TEST(users_share_transfers),
	TEST(users_share_files),
	TEST(users_share_window),
	TEST(close_with_work),
	TEST(kill_with_work),
	TEST(kill_waiters),
	TEST(open_storm),
	TEST(window_ranges),
	TEST(window_mapping),
	TEST(window_payload),
	TEST(short_submit),
	TEST(trace_rejections),
	TEST(trace_stores),
	TEST(trace_device_writes),
	TEST(trace_kernel_stores),
	TEST(trace_mappings),
	TEST(trace_instructions),
	TEST(trace_debugger),
	TEST(trace_threads),
	TEST(trace_fallbacks),
	TEST(trace_end),
	TEST(suspend),
	TEST(unbind),
	TEST(unbind_under_load),
};
#define TEST_COUNT (sizeof(tests) / sizeof(tests[0]))

static uint64_t parameter(int fd, uint32_t which)
{
	struct kagemusha_vgpu_get_param args = { .param = which };

	MUST(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, &args) == 0);
	return args.value;
}

static bool chosen(const char *name, char **names, int count)
{
	for (int i = 0; i < count; i++) {
		if (!strcmp(name, names[i]))
			return true;
	}
	return count == 0;
}

int main(int argc, char **argv)
{
	int first = 1;
	int number = 0;
	int fd;

	for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
		if (!strcmp(argv[first], "--contents")) {
			check_contents = true;
		} else if (!strcmp(argv[first], "--stores") && first + 1 < argc) {
			least_stores = strtoull(argv[++first], NULL, 10);
		} else if (!strcmp(argv[first], "--node") && first + 1 < argc) {
			node = argv[++first];
		} else {
			fprintf(stderr, "usage: %s [--contents] [--stores NUMBER] [--node FILE] [test…]\n", argv[0]);
			return 2;
		}
	}
	fd = open_node(0);
	limits.stream_bytes = parameter(fd, KAGEMUSHA_VGPU_PARAM_MAX_STREAM_BYTES);
	limits.payload_bytes = parameter(fd, KAGEMUSHA_VGPU_PARAM_MAX_PAYLOAD_BYTES);
	limits.events = parameter(fd, KAGEMUSHA_VGPU_PARAM_MAX_EVENTS);
	limits.requests = parameter(fd, KAGEMUSHA_VGPU_PARAM_MAX_REQUESTS);
	limits.window_bytes = parameter(fd, KAGEMUSHA_VGPU_PARAM_WINDOW_BYTES);
	close(fd);
	printf("# stream %llu bytes, payload %llu bytes, %llu events, %llu requests, window %llu bytes\n",
	       (unsigned long long)limits.stream_bytes, (unsigned long long)limits.payload_bytes,
	       (unsigned long long)limits.events, (unsigned long long)limits.requests,
	       (unsigned long long)limits.window_bytes);

	for (size_t i = 0; i < TEST_COUNT; i++) {
		if (!chosen(tests[i].name, argv + first, argc - first))
			continue;
		current_test = tests[i].name;
		test_failed = false;
		skipped = NULL;
		tests[i].run();
		check_idle(0);
		number++;
		failed_tests += test_failed;
		printf("%s %d - %s%s%s\n", test_failed ? "not ok" : "ok", number, tests[i].name,
		       skipped ? " # SKIP " : "", skipped ? skipped : "");
		fflush(stdout);
	}
	printf("1..%d\n", number);
	if (!number) {
		fprintf(stderr, "no test has such a name\n");
		return 2;
	}
	return failed_tests ? 1 : 0;
}
