// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Instructions that store, carried out on paper. decode.h has the contract.
 *
 * Zydis says what the operands are; this file says what the instruction does with them. Known are
 * the stores that compilers, memcpy and memset are made of: MOV and MOVNTI, the moves of vector
 * registers (SSE, AVX, AVX-512 without a mask), STOS and MOVS with and without REP, and
 * read-modify-write instructions with and without LOCK (alu.c). An instruction that is not here
 * costs a page opened until the next flush, and nothing is lost by it.
 */
#include "decode.h"

#include <Zydis/Decoder.h>

#include "alu.h"

struct scratch {
	ZydisDecoder decoder;
	ZydisDecodedInstruction instruction;
	ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};

struct decoding {
	const ZydisDecodedInstruction *instruction;
	const ZydisDecodedOperand *operands;
	const ZydisDecodedOperand *destination;
	const struct kvt_cpu *cpu;
	const struct kvt_access *access;
	struct kvt_plan *plan;
};

size_t kvt_scratch_bytes(void)
{
	return sizeof(struct scratch);
}

static bool refuse(struct kvt_plan *plan, enum kvt_reason reason)
{
	plan->what = KVT_OPEN;
	plan->reason = reason;
	return false;
}

/* ---- registers ---- */

/* A general register as Zydis names it: its number, and what part of it. */
struct gpr_part {
	u32 number;
	u32 bytes;
	u32 shift; /* 8 for AH … BH */
};

static bool find_gpr(ZydisRegister name, struct gpr_part *part)
{
	part->shift = 0;
	if (name >= ZYDIS_REGISTER_RAX && name <= ZYDIS_REGISTER_R15) {
		part->number = name - ZYDIS_REGISTER_RAX;
		part->bytes = 8;
	} else if (name >= ZYDIS_REGISTER_EAX && name <= ZYDIS_REGISTER_R15D) {
		part->number = name - ZYDIS_REGISTER_EAX;
		part->bytes = 4;
	} else if (name >= ZYDIS_REGISTER_AX && name <= ZYDIS_REGISTER_R15W) {
		part->number = name - ZYDIS_REGISTER_AX;
		part->bytes = 2;
	} else if (name >= ZYDIS_REGISTER_AL && name <= ZYDIS_REGISTER_BL) {
		part->number = name - ZYDIS_REGISTER_AL;
		part->bytes = 1;
	} else if (name >= ZYDIS_REGISTER_AH && name <= ZYDIS_REGISTER_BH) {
		part->number = name - ZYDIS_REGISTER_AH;
		part->bytes = 1;
		part->shift = 8;
	} else if (name >= ZYDIS_REGISTER_SPL && name <= ZYDIS_REGISTER_R15B) {
		part->number = 4 + (name - ZYDIS_REGISTER_SPL);
		part->bytes = 1;
	} else {
		return false;
	}
	return true;
}

static u64 low_bytes(u64 value, u32 bytes)
{
	return bytes >= 8 ? value : value & ((1ull << (8 * bytes)) - 1);
}

static bool read_gpr(const struct kvt_cpu *cpu, ZydisRegister name, u64 *value)
{
	struct gpr_part part;

	if (!find_gpr(name, &part))
		return false;
	*value = low_bytes(cpu->gpr[part.number] >> part.shift, part.bytes);
	return true;
}

/* As the processor does: 32 bits clear the upper half, 16 and 8 leave the rest alone. */
static void write_gpr(struct kvt_cpu *cpu, const struct gpr_part *part, u64 value)
{
	u64 *to = &cpu->gpr[part->number];

	if (part->bytes >= 4) {
		*to = low_bytes(value, part->bytes);
	} else {
		u64 mask = low_bytes(~0ull, part->bytes) << part->shift;

		*to = (*to & ~mask) | ((value << part->shift) & mask);
	}
}

/* ---- the destination ---- */

static bool effective_address(const struct decoding *d, const ZydisDecodedOperand *operand,
			      u64 *address)
{
	u64 sum = operand->mem.disp.has_displacement ? (u64)operand->mem.disp.value : 0;
	u64 value;

	/* the bases of the others are 0, in 64-bit mode and in every program that Linux starts */
	if (operand->mem.segment == ZYDIS_REGISTER_FS || operand->mem.segment == ZYDIS_REGISTER_GS)
		return false;
	if (operand->mem.base == ZYDIS_REGISTER_RIP || operand->mem.base == ZYDIS_REGISTER_EIP) {
		sum += d->cpu->ip + d->instruction->length;
	} else if (operand->mem.base != ZYDIS_REGISTER_NONE) {
		if (!read_gpr(d->cpu, operand->mem.base, &value))
			return false;
		sum += value;
	}
	if (operand->mem.index != ZYDIS_REGISTER_NONE) {
		if (!read_gpr(d->cpu, operand->mem.index, &value))
			return false; /* a vector of indices */
		sum += value * operand->mem.scale;
	}
	*address = d->instruction->address_width == 64 ? sum : low_bytes(sum, 4);
	return d->instruction->address_width >= 32;
}

static bool find_destination(struct decoding *d)
{
	u32 i;

	d->destination = NULL;
	for (i = 0; i < d->instruction->operand_count; i++) {
		const ZydisDecodedOperand *operand = &d->operands[i];

		if (operand->type != ZYDIS_OPERAND_TYPE_MEMORY ||
		    !(operand->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE))
			continue;
		if (d->destination)
			return refuse(d->plan, KVT_REASON_NO_STORE);
		d->destination = operand;
	}
	if (!d->destination)
		return refuse(d->plan, KVT_REASON_NO_STORE);
	d->plan->bytes = d->destination->size / 8;
	if (!d->plan->bytes || d->plan->bytes > KVT_MAX_STORE_BYTES || d->destination->size % 8)
		return refuse(d->plan, KVT_REASON_INSTRUCTION);
	if (!effective_address(d, d->destination, &d->plan->address))
		return refuse(d->plan, KVT_REASON_OPERAND);
	return true;
}

static bool store_value(struct decoding *d, u64 value)
{
	if (d->plan->bytes > 8)
		return refuse(d->plan, KVT_REASON_INSTRUCTION);
	memcpy(d->plan->data, &value, sizeof(value));
	d->plan->what = KVT_STORE;
	return true;
}

/* A general register or an immediate, already extended to the width of the store. */
static bool read_source(const struct decoding *d, const ZydisDecodedOperand *operand, u64 *value)
{
	if (operand->type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
		*value = operand->imm.value.u;
		return true;
	}
	return operand->type == ZYDIS_OPERAND_TYPE_REGISTER &&
	       read_gpr(d->cpu, operand->reg.value, value);
}

/* ---- kinds of instructions ---- */

static bool plain_move(struct decoding *d)
{
	u64 value;

	if (d->destination != &d->operands[0] || !read_source(d, &d->operands[1], &value))
		return refuse(d->plan, KVT_REASON_OPERAND);
	return store_value(d, value);
}

static bool find_vector(ZydisRegister name, u32 *index)
{
	if (name >= ZYDIS_REGISTER_XMM0 && name <= ZYDIS_REGISTER_XMM31)
		*index = name - ZYDIS_REGISTER_XMM0;
	else if (name >= ZYDIS_REGISTER_YMM0 && name <= ZYDIS_REGISTER_YMM31)
		*index = name - ZYDIS_REGISTER_YMM0;
	else if (name >= ZYDIS_REGISTER_ZMM0 && name <= ZYDIS_REGISTER_ZMM31)
		*index = name - ZYDIS_REGISTER_ZMM0;
	else
		return false;
	return true;
}

/* The store is the `bytes` of the register from `skip` on. */
static bool vector_move(struct decoding *d, u32 skip)
{
	const ZydisDecodedInstructionAvx *avx = &d->instruction->avx;
	const ZydisDecodedOperand *source;
	u8 content[KVT_MAX_STORE_BYTES];
	u32 bytes = d->plan->bytes + skip;
	u32 index;

	if (d->destination != &d->operands[0] || bytes < 4)
		return refuse(d->plan, KVT_REASON_OPERAND);
	if (avx->mask.mode != ZYDIS_MASK_MODE_INVALID && avx->mask.mode != ZYDIS_MASK_MODE_DISABLED)
		return refuse(d->plan, KVT_REASON_OPERAND);
	/* behind a mask register where there is one */
	if (d->instruction->operand_count_visible < 2)
		return refuse(d->plan, KVT_REASON_OPERAND);
	source = &d->operands[d->instruction->operand_count_visible - 1];
	if (!find_vector(source->reg.value, &index) || source->type != ZYDIS_OPERAND_TYPE_REGISTER)
		return refuse(d->plan, KVT_REASON_OPERAND);
	/* whole registers are read: 16, 32 or 64 bytes */
	if (!d->access->read_vector(d->access->context, index, bytes <= 16 ? 16 : bytes, content))
		return refuse(d->plan, KVT_REASON_ACCESS);
	memcpy(d->plan->data, content + skip, d->plan->bytes);
	d->plan->what = KVT_STORE;
	return true;
}

/* STOS and MOVS. */
static bool string_store(struct decoding *d, bool copies)
{
	const ZydisDecodedInstruction *instruction = d->instruction;
	const struct kvt_cpu *cpu = d->cpu;
	struct kvt_plan *plan = d->plan;

	/* downwards, and with registers cut to 32 bits in a 64-bit program: rare */
	if ((cpu->flags & KVT_FLAG_DF) ||
	    instruction->address_width != (cpu->is_64_bit ? 64 : 32))
		return refuse(plan, KVT_REASON_OPERAND);
	plan->repeats = instruction->attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE |
						   ZYDIS_ATTRIB_HAS_REPNE);
	plan->count = 1;
	if (plan->repeats)
		plan->count = cpu->is_64_bit ? cpu->gpr[1] : low_bytes(cpu->gpr[1], 4);
	if (!plan->count)
		return refuse(plan, KVT_REASON_NO_STORE);
	if (copies) {
		u32 i;

		for (i = 0; i < instruction->operand_count; i++) {
			const ZydisDecodedOperand *operand = &d->operands[i];

			if (operand != d->destination && operand->type == ZYDIS_OPERAND_TYPE_MEMORY)
				break;
		}
		if (i == instruction->operand_count ||
		    !effective_address(d, &d->operands[i], &plan->source))
			return refuse(plan, KVT_REASON_OPERAND);
		plan->what = KVT_COPY;
	} else {
		u64 value = low_bytes(cpu->gpr[0], plan->bytes);

		memcpy(plan->data, &value, sizeof(value));
		plan->what = KVT_FILL;
	}
	return true;
}

static bool read_old(const struct decoding *d, u64 *value)
{
	*value = 0;
	return d->plan->bytes <= 8 &&
	       d->access->read_destination(d->access->context, d->plan->address, d->plan->bytes,
					   (u8 *)value);
}

/* destination = destination OP source, with flags. */
static bool alu(struct decoding *d, enum kvt_alu operation)
{
	struct kvt_cpu *after = &d->plan->after;
	u64 old, source = 0;

	if (d->destination != &d->operands[0])
		return refuse(d->plan, KVT_REASON_OPERAND);
	if (kvt_alu_has_source(operation) && !read_source(d, &d->operands[1], &source))
		return refuse(d->plan, KVT_REASON_OPERAND);
	if (!read_old(d, &old))
		return refuse(d->plan, KVT_REASON_ACCESS);
	return store_value(d, kvt_alu_do(operation, old, low_bytes(source, d->plan->bytes),
					 d->plan->bytes, &after->flags));
}

/* XCHG and XADD: the register takes what was there. */
static bool exchange(struct decoding *d, bool adds)
{
	struct kvt_cpu *after = &d->plan->after;
	struct gpr_part part;
	const ZydisDecodedOperand *other =
		&d->operands[d->destination == &d->operands[0] ? 1 : 0];
	u64 old, mine;

	if (other->type != ZYDIS_OPERAND_TYPE_REGISTER || !find_gpr(other->reg.value, &part) ||
	    !read_gpr(d->cpu, other->reg.value, &mine))
		return refuse(d->plan, KVT_REASON_OPERAND);
	if (!read_old(d, &old))
		return refuse(d->plan, KVT_REASON_ACCESS);
	write_gpr(after, &part, old);
	if (adds)
		mine = kvt_alu_do(KVT_ALU_ADD, old, mine, d->plan->bytes, &after->flags);
	return store_value(d, mine);
}

/* Stores in any case: where the comparison fails, what was there. */
static bool compare_exchange(struct decoding *d)
{
	struct kvt_cpu *after = &d->plan->after;
	struct gpr_part rax = { .number = 0, .bytes = d->plan->bytes };
	u64 old, mine, expected;

	if (!read_gpr(d->cpu, d->operands[1].reg.value, &mine) ||
	    d->operands[1].type != ZYDIS_OPERAND_TYPE_REGISTER)
		return refuse(d->plan, KVT_REASON_OPERAND);
	if (!read_old(d, &old))
		return refuse(d->plan, KVT_REASON_ACCESS);
	expected = low_bytes(d->cpu->gpr[0], d->plan->bytes);
	kvt_alu_do(KVT_ALU_SUB, expected, old, d->plan->bytes, &after->flags);
	if (expected == old)
		return store_value(d, mine);
	write_gpr(after, &rax, old);
	return store_value(d, old);
}

static bool set_condition(struct decoding *d, u32 condition)
{
	return store_value(d, kvt_condition(condition, d->cpu->flags));
}

static bool carry_out(struct decoding *d)
{
	switch (d->instruction->mnemonic) {
	case ZYDIS_MNEMONIC_MOV:
	case ZYDIS_MNEMONIC_MOVNTI:
		return plain_move(d);
	case ZYDIS_MNEMONIC_MOVSD:
		if (d->instruction->meta.category == ZYDIS_CATEGORY_STRINGOP)
			return string_store(d, true);
		return vector_move(d, 0);
	case ZYDIS_MNEMONIC_MOVUPS:
	case ZYDIS_MNEMONIC_MOVUPD:
	case ZYDIS_MNEMONIC_MOVAPS:
	case ZYDIS_MNEMONIC_MOVAPD:
	case ZYDIS_MNEMONIC_MOVDQU:
	case ZYDIS_MNEMONIC_MOVDQA:
	case ZYDIS_MNEMONIC_MOVNTDQ:
	case ZYDIS_MNEMONIC_MOVNTPS:
	case ZYDIS_MNEMONIC_MOVNTPD:
	case ZYDIS_MNEMONIC_MOVQ:
	case ZYDIS_MNEMONIC_MOVD:
	case ZYDIS_MNEMONIC_MOVSS:
	case ZYDIS_MNEMONIC_MOVLPS:
	case ZYDIS_MNEMONIC_MOVLPD:
	case ZYDIS_MNEMONIC_VMOVUPS:
	case ZYDIS_MNEMONIC_VMOVUPD:
	case ZYDIS_MNEMONIC_VMOVAPS:
	case ZYDIS_MNEMONIC_VMOVAPD:
	case ZYDIS_MNEMONIC_VMOVDQU:
	case ZYDIS_MNEMONIC_VMOVDQA:
	case ZYDIS_MNEMONIC_VMOVDQU8:
	case ZYDIS_MNEMONIC_VMOVDQU16:
	case ZYDIS_MNEMONIC_VMOVDQU32:
	case ZYDIS_MNEMONIC_VMOVDQU64:
	case ZYDIS_MNEMONIC_VMOVDQA32:
	case ZYDIS_MNEMONIC_VMOVDQA64:
	case ZYDIS_MNEMONIC_VMOVNTDQ:
	case ZYDIS_MNEMONIC_VMOVNTPS:
	case ZYDIS_MNEMONIC_VMOVNTPD:
	case ZYDIS_MNEMONIC_VMOVQ:
	case ZYDIS_MNEMONIC_VMOVD:
	case ZYDIS_MNEMONIC_VMOVSS:
	case ZYDIS_MNEMONIC_VMOVSD:
	case ZYDIS_MNEMONIC_VMOVLPS:
	case ZYDIS_MNEMONIC_VMOVLPD:
		return vector_move(d, 0);
	case ZYDIS_MNEMONIC_MOVHPS:
	case ZYDIS_MNEMONIC_MOVHPD:
	case ZYDIS_MNEMONIC_VMOVHPS:
	case ZYDIS_MNEMONIC_VMOVHPD:
		return vector_move(d, 8);
	case ZYDIS_MNEMONIC_STOSB:
	case ZYDIS_MNEMONIC_STOSW:
	case ZYDIS_MNEMONIC_STOSD:
	case ZYDIS_MNEMONIC_STOSQ:
		return string_store(d, false);
	case ZYDIS_MNEMONIC_MOVSB:
	case ZYDIS_MNEMONIC_MOVSW:
	case ZYDIS_MNEMONIC_MOVSQ:
		return string_store(d, true);
	case ZYDIS_MNEMONIC_ADD:
		return alu(d, KVT_ALU_ADD);
	case ZYDIS_MNEMONIC_ADC:
		return alu(d, KVT_ALU_ADC);
	case ZYDIS_MNEMONIC_SUB:
		return alu(d, KVT_ALU_SUB);
	case ZYDIS_MNEMONIC_SBB:
		return alu(d, KVT_ALU_SBB);
	case ZYDIS_MNEMONIC_AND:
		return alu(d, KVT_ALU_AND);
	case ZYDIS_MNEMONIC_OR:
		return alu(d, KVT_ALU_OR);
	case ZYDIS_MNEMONIC_XOR:
		return alu(d, KVT_ALU_XOR);
	case ZYDIS_MNEMONIC_INC:
		return alu(d, KVT_ALU_INC);
	case ZYDIS_MNEMONIC_DEC:
		return alu(d, KVT_ALU_DEC);
	case ZYDIS_MNEMONIC_NEG:
		return alu(d, KVT_ALU_NEG);
	case ZYDIS_MNEMONIC_NOT:
		return alu(d, KVT_ALU_NOT);
	case ZYDIS_MNEMONIC_XCHG:
		return exchange(d, false);
	case ZYDIS_MNEMONIC_XADD:
		return exchange(d, true);
	case ZYDIS_MNEMONIC_CMPXCHG:
		return compare_exchange(d);
	case ZYDIS_MNEMONIC_SETO:
		return set_condition(d, 0x0);
	case ZYDIS_MNEMONIC_SETNO:
		return set_condition(d, 0x1);
	case ZYDIS_MNEMONIC_SETB:
		return set_condition(d, 0x2);
	case ZYDIS_MNEMONIC_SETNB:
		return set_condition(d, 0x3);
	case ZYDIS_MNEMONIC_SETZ:
		return set_condition(d, 0x4);
	case ZYDIS_MNEMONIC_SETNZ:
		return set_condition(d, 0x5);
	case ZYDIS_MNEMONIC_SETBE:
		return set_condition(d, 0x6);
	case ZYDIS_MNEMONIC_SETNBE:
		return set_condition(d, 0x7);
	case ZYDIS_MNEMONIC_SETS:
		return set_condition(d, 0x8);
	case ZYDIS_MNEMONIC_SETNS:
		return set_condition(d, 0x9);
	case ZYDIS_MNEMONIC_SETP:
		return set_condition(d, 0xa);
	case ZYDIS_MNEMONIC_SETNP:
		return set_condition(d, 0xb);
	case ZYDIS_MNEMONIC_SETL:
		return set_condition(d, 0xc);
	case ZYDIS_MNEMONIC_SETNL:
		return set_condition(d, 0xd);
	case ZYDIS_MNEMONIC_SETLE:
		return set_condition(d, 0xe);
	case ZYDIS_MNEMONIC_SETNLE:
		return set_condition(d, 0xf);
	default:
		return refuse(d->plan, KVT_REASON_INSTRUCTION);
	}
}

void kvt_decode(void *memory, const u8 *code, u32 code_bytes, const struct kvt_cpu *cpu,
		const struct kvt_access *access, struct kvt_plan *plan)
{
	struct scratch *scratch = memory;
	struct decoding d = {
		.instruction = &scratch->instruction,
		.operands = scratch->operands,
		.cpu = cpu,
		.access = access,
		.plan = plan,
	};

	memset(plan, 0, sizeof(*plan));
	plan->after = *cpu;
	ZydisDecoderInit(&scratch->decoder,
			 cpu->is_64_bit ? ZYDIS_MACHINE_MODE_LONG_64 :
					  ZYDIS_MACHINE_MODE_LONG_COMPAT_32,
			 cpu->is_64_bit ? ZYDIS_STACK_WIDTH_64 : ZYDIS_STACK_WIDTH_32);
	if (ZYAN_FAILED(ZydisDecoderDecodeFull(&scratch->decoder, code, code_bytes,
					       &scratch->instruction, scratch->operands))) {
		refuse(plan, KVT_REASON_UNDECODED);
		return;
	}
	plan->length = scratch->instruction.length;
	if (!find_destination(&d) || !carry_out(&d))
		return;
	if (plan->what == KVT_STORE) {
		plan->after.ip += plan->length;
		if (!cpu->is_64_bit)
			plan->after.ip = low_bytes(plan->after.ip, 4);
	}
}

void kvt_plan_advance(struct kvt_plan *plan, const struct kvt_cpu *cpu, u64 done)
{
	u32 width = cpu->is_64_bit ? 8 : 4;
	u64 *gpr = plan->after.gpr;

	plan->after = *cpu;
	gpr[7] = low_bytes(gpr[7] + done * plan->bytes, width);
	if (plan->what == KVT_COPY)
		gpr[6] = low_bytes(gpr[6] + done * plan->bytes, width);
	if (plan->repeats)
		gpr[1] = low_bytes(gpr[1] - done, width);
	/* the rest of the iterations faults again */
	if (done == plan->count)
		plan->after.ip = low_bytes(plan->after.ip + plan->length, width);
}
