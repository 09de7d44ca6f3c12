/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Arithmetic of read-modify-write instructions: result and flags, as the "Intel 64 and IA-32
 * Architectures Software Developer's Manual" describes them (volume 1, 3.4.3.1; volume 2, each
 * instruction).
 */
#ifndef TRACER_CORE_ALU_H
#define TRACER_CORE_ALU_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRACE_FLAG_CF 0x0001u
#define TRACE_FLAG_PF 0x0004u
#define TRACE_FLAG_AF 0x0010u
#define TRACE_FLAG_ZF 0x0040u
#define TRACE_FLAG_SF 0x0080u
#define TRACE_FLAG_TF 0x0100u
#define TRACE_FLAG_DF 0x0400u
#define TRACE_FLAG_OF 0x0800u

enum trace_alu {
	TRACE_ALU_ADD,
	TRACE_ALU_ADC,
	TRACE_ALU_SUB,
	TRACE_ALU_SBB,
	TRACE_ALU_AND,
	TRACE_ALU_OR,
	TRACE_ALU_XOR,
	TRACE_ALU_INC,
	TRACE_ALU_DEC,
	TRACE_ALU_NEG,
	TRACE_ALU_NOT,
};

bool trace_alu_has_source(enum trace_alu operation);

/*
 * `old OP source`, both `bytes` long. The flags that the operation changes are changed; AND, OR and
 * XOR clear AF, which the manual leaves undefined and processors clear.
 */
u64 trace_alu_do(enum trace_alu operation, u64 old, u64 source, u32 bytes, u64 *flags);

/* The condition of SETcc, Jcc and CMOVcc with this number (the low four bits of the opcode). */
bool trace_condition(u32 condition, u64 flags);

#ifdef __cplusplus
}
#endif

#endif
