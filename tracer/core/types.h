/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The integer types of the tracer's core. The core is compiled from the same files in the guest's
 * kernel module and in user space, where it is tested; this header is all that differs.
 */
#ifndef TRACER_CORE_TYPES_H
#define TRACER_CORE_TYPES_H

#ifdef __KERNEL__
#include <linux/string.h>
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

#endif
