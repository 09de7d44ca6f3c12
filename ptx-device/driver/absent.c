/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every name that a current driver exports. Programs that load functions one by one stop at the first that is missing,
 * whether they would call it or not; here a name without code answers CUDA_ERROR_NOT_SUPPORTED. One that is
 * implemented takes its place when the library is linked.
 */
#include "absent.h"

#include "proto/cuda/results.h"

enum {
	success,
#define NUMBER(name, number, text) error_##name = number,
	KVG_CUDA_RESULTS(NUMBER)
#undef NUMBER
};

static int not_supported(void)
{
	return error_NOT_SUPPORTED;
}

/* names.inc has NAME(cuInit) and so on, made from guest-driver/cuda/names.list. */
#define NAME(name) \
	__attribute__((visibility("default"))) extern int name(void) __attribute__((weak, alias("not_supported")));
#include "names.inc"
#undef NAME

const struct kagemusha_ptx_name kagemusha_ptx_names[] = {
#define NAME(name) {#name, (void *)name},
#include "names.inc"
#undef NAME
};
const unsigned long kagemusha_ptx_name_count = sizeof(kagemusha_ptx_names) / sizeof(kagemusha_ptx_names[0]);

int kagemusha_ptx_is_absent(const void *function)
{
	return function == (const void *)not_supported;
}
