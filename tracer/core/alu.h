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

#define KVT_FLAG_CF 0x0001u
#define KVT_FLAG_PF 0x0004u
#define KVT_FLAG_AF 0x0010u
#define KVT_FLAG_ZF 0x0040u
#define KVT_FLAG_SF 0x0080u
#define KVT_FLAG_TF 0x0100u
#define KVT_FLAG_DF 0x0400u
#define KVT_FLAG_OF 0x0800u

enum kvt_alu {
	KVT_ALU_ADD,
	KVT_ALU_ADC,
	KVT_ALU_SUB,
	KVT_ALU_SBB,
	KVT_ALU_AND,
	KVT_ALU_OR,
	KVT_ALU_XOR,
	KVT_ALU_INC,
	KVT_ALU_DEC,
	KVT_ALU_NEG,
	KVT_ALU_NOT,
};

bool kvt_alu_has_source(enum kvt_alu operation);

/*
 * `old OP source`, both `bytes` long. The flags that the operation changes are changed; AND, OR and
 * XOR clear AF, which the manual leaves undefined and processors clear.
 */
u64 kvt_alu_do(enum kvt_alu operation, u64 old, u64 source, u32 bytes, u64 *flags);

/* The condition of SETcc, Jcc and CMOVcc with this number (the low four bits of the opcode). */
bool kvt_condition(u32 condition, u64 flags);

#ifdef __cplusplus
}
#endif

#endif
