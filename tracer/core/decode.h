/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What one instruction stores: where, which bytes, and what else it changes, so that it can be
 * carried out in its place.
 *
 * The instruction's bytes come from the program that runs it and may have changed since it faulted.
 * So nothing here is believed about *where*: the caller compares `address` with the address that
 * faulted and writes only inside the page it means. What is wrong can then only be the program's
 * own bytes.
 *
 * Not everything can be carried out (see decode.c): the rest is KVT_OPEN, "let the processor do
 * it".
 */
#ifndef TRACER_CORE_DECODE_H
#define TRACER_CORE_DECODE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_MAX_INSTRUCTION_BYTES 15u
#define KVT_MAX_STORE_BYTES 64u

/* In the order of the processor's register numbers: rax rcx rdx rbx rsp rbp rsi rdi r8 … r15. */
struct kvt_cpu {
	u64 gpr[16];
	u64 ip;
	u64 flags;
	bool is_64_bit; /* else a 32-bit program */
};

enum kvt_class {
	KVT_OPEN,   /* not ours: let the processor do it */
	KVT_STORE,  /* `data`, `bytes` long */
	KVT_FILL,   /* `count` times `data`, each `bytes` long, upwards (STOS) */
	/* `count` * `bytes` bytes from `source`, upwards, element by element (MOVS) */
	KVT_COPY,
};

/* Why it is KVT_OPEN. */
enum kvt_reason {
	KVT_REASON_NONE,
	KVT_REASON_UNDECODED,	 /* no instruction, or not all of its bytes */
	KVT_REASON_NO_STORE,	 /* stores nothing to memory, or in several places */
	KVT_REASON_INSTRUCTION, /* none of those that we carry out */
	KVT_REASON_OPERAND,	 /* segment, address size, mask or register that we do not handle */
	KVT_REASON_ACCESS,	 /* a register or the memory could not be read */
	KVT_REASON_COUNT
};

struct kvt_plan {
	enum kvt_class what;
	enum kvt_reason reason;
	u32 length;  /* of the instruction */
	u64 address; /* of the first byte */
	u32 bytes;
	u8 data[KVT_MAX_STORE_BYTES];
	u64 count;  /* FILL and COPY: all iterations that are left */
	u64 source; /* COPY */
	bool repeats; /* has REP: rcx counts */
	/* STORE: what the processor holds afterwards. FILL and COPY: see kvt_plan_advance. */
	struct kvt_cpu after;
};

/*
 * How the decoder asks for what is not in kvt_cpu. False: it can't be had, and the plan becomes
 * KVT_OPEN.
 */
struct kvt_access {
	void *context;
	/* the low `bytes` (4 … 64) of vector register `index` (0 … 31) */
	bool (*read_vector)(void *context, u32 index, u32 bytes, u8 *to);
	/* what the destination holds: `bytes` at most 8, not across the end of a page */
	bool (*read_destination)(void *context, u64 address, u32 bytes, u8 *to);
};

/* Scratch memory of one decoding, about 1.2 KiB: too much for a kernel stack. */
size_t kvt_scratch_bytes(void);

/*
 * Decodes `code` (as many bytes as could be read, at most KVT_MAX_INSTRUCTION_BYTES) as executed
 * by `cpu`. Always fills `plan`.
 */
void kvt_decode(void *scratch, const u8 *code, u32 code_bytes, const struct kvt_cpu *cpu,
		const struct kvt_access *access, struct kvt_plan *plan);

/*
 * FILL and COPY: `done` iterations were carried out (at least 1); `after` is what the processor
 * holds then.
 */
void kvt_plan_advance(struct kvt_plan *plan, const struct kvt_cpu *cpu, u64 done);

#ifdef __cplusplus
}
#endif

#endif
