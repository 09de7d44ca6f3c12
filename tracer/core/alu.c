// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Results and flags; alu.h names the source.
 */
#include "alu.h"

bool kvt_alu_has_source(enum kvt_alu operation)
{
	switch (operation) {
	case KVT_ALU_INC:
	case KVT_ALU_DEC:
	case KVT_ALU_NEG:
	case KVT_ALU_NOT:
		return false;
	default:
		return true;
	}
}

static u64 result_flags(u64 result, u64 sign)
{
	u64 flags = 0;

	if (!result)
		flags |= KVT_FLAG_ZF;
	if (result & sign)
		flags |= KVT_FLAG_SF;
	/* bit n of the constant: whether n, of four bits, has an even number of them set */
	if ((0x9669u >> ((result ^ (result >> 4)) & 0xf)) & 1)
		flags |= KVT_FLAG_PF;
	return flags;
}

#define ALL_FLAGS \
	(KVT_FLAG_CF | KVT_FLAG_PF | KVT_FLAG_AF | KVT_FLAG_ZF | KVT_FLAG_SF | \
	 KVT_FLAG_OF)

u64 kvt_alu_do(enum kvt_alu operation, u64 old, u64 source, u32 bytes, u64 *flags)
{
	const u64 mask = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
	const u64 sign = 1ull << (8 * bytes - 1);
	u64 changed = ALL_FLAGS;
	u64 carry = 0;
	u64 result, new_flags = 0;

	if (operation == KVT_ALU_ADC || operation == KVT_ALU_SBB)
		carry = *flags & KVT_FLAG_CF;
	if (operation == KVT_ALU_NEG) {
		source = old;
		old = 0;
	}
	switch (operation) {
	case KVT_ALU_NOT:
		return ~old & mask;
	case KVT_ALU_AND:
		result = old & source;
		break;
	case KVT_ALU_OR:
		result = old | source;
		break;
	case KVT_ALU_XOR:
		result = old ^ source;
		break;
	case KVT_ALU_INC:
		source = 1;
		changed &= ~(u64)KVT_FLAG_CF;
		__attribute__((__fallthrough__));
	case KVT_ALU_ADD:
	case KVT_ALU_ADC:
		result = (old + source + carry) & mask;
		if (result < old || (carry && result == old))
			new_flags |= KVT_FLAG_CF;
		if ((old ^ result) & (source ^ result) & sign)
			new_flags |= KVT_FLAG_OF;
		new_flags |= (old ^ source ^ result) & KVT_FLAG_AF;
		break;
	case KVT_ALU_DEC:
		source = 1;
		changed &= ~(u64)KVT_FLAG_CF;
		__attribute__((__fallthrough__));
	default: /* SUB, SBB, NEG */
		result = (old - source - carry) & mask;
		if (old < source || (carry && old == source))
			new_flags |= KVT_FLAG_CF;
		if ((old ^ source) & (old ^ result) & sign)
			new_flags |= KVT_FLAG_OF;
		new_flags |= (old ^ source ^ result) & KVT_FLAG_AF;
		break;
	}
	new_flags |= result_flags(result, sign);
	*flags = (*flags & ~changed) | (new_flags & changed);
	return result;
}

bool kvt_condition(u32 condition, u64 flags)
{
	const bool less = !(flags & KVT_FLAG_SF) != !(flags & KVT_FLAG_OF);
	bool holds;

	switch (condition >> 1) {
	case 0:
		holds = flags & KVT_FLAG_OF;
		break;
	case 1:
		holds = flags & KVT_FLAG_CF;
		break;
	case 2:
		holds = flags & KVT_FLAG_ZF;
		break;
	case 3:
		holds = flags & (KVT_FLAG_CF | KVT_FLAG_ZF);
		break;
	case 4:
		holds = flags & KVT_FLAG_SF;
		break;
	case 5:
		holds = flags & KVT_FLAG_PF;
		break;
	case 6:
		holds = less;
		break;
	default:
		holds = less || (flags & KVT_FLAG_ZF);
		break;
	}
	return holds != (condition & 1);
}
