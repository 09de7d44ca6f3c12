/* SPDX-License-Identifier: GPL-2.0-or-later */
/* absent: all names of the driver API, sorted, and which of them this library implements. */
#ifndef KAGEMUSHA_PTX_DRIVER_ABSENT_H
#define KAGEMUSHA_PTX_DRIVER_ABSENT_H

#ifdef __cplusplus
extern "C" {
#endif

struct kagemusha_ptx_name {
	const char *name;
	void *function;
};
extern const struct kagemusha_ptx_name kagemusha_ptx_names[];
extern const unsigned long kagemusha_ptx_name_count;

/* Whether it is the one that answers CUDA_ERROR_NOT_SUPPORTED. */
int kagemusha_ptx_is_absent(const void *function);

#ifdef __cplusplus
}
#endif

#endif
