// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A store that faulted is carried out by the kernel, through its own mapping of the window. The
 * page stays closed: no other CPU can slip a store in, and no store is lost. trace.h has the rules
 * of the pages, tracer/core/decode.h those of instructions.
 *
 * The program's code and registers may be anything, and its code may change between the fault and
 * here. So the place is taken from the fault, and the decoded address must name the same page; a
 * store never leaves that page of that range. Nothing here may fault on user memory with mmap_lock
 * held, so code and sources are read with faults disabled.
 */
#include <linux/mm.h>
#include <linux/ptrace.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <asm/fpu/api.h>

#include "kvg.h"
#include "tracer/core/alu.h"
#include "tracer/core/decode.h"

#define ARITHMETIC_FLAGS \
	(KVT_FLAG_CF | KVT_FLAG_PF | KVT_FLAG_AF | KVT_FLAG_ZF | KVT_FLAG_SF | \
	 KVT_FLAG_OF)

struct emulation {
	struct kvg_range *range;
	u8 *page;		/* of the window */
	unsigned long address;	/* the page's, in the program */
	struct kvt_cpu cpu;
	struct kvt_plan plan;
	u8 scratch[];
};

/* ---- the program's registers ---- */

static unsigned long *gpr_place(struct pt_regs *regs, u32 number)
{
	unsigned long *const places[16] = {
		&regs->ax, &regs->cx, &regs->dx,  &regs->bx,  &regs->sp,  &regs->bp,
		&regs->si, &regs->di, &regs->r8,  &regs->r9,  &regs->r10, &regs->r11,
		&regs->r12, &regs->r13, &regs->r14, &regs->r15,
	};

	return places[number];
}

static void load_cpu(struct kvt_cpu *cpu, struct pt_regs *regs)
{
	u32 i;

	for (i = 0; i < 16; i++)
		cpu->gpr[i] = *gpr_place(regs, i);
	cpu->ip = regs->ip;
	cpu->flags = regs->flags;
	cpu->is_64_bit = user_64bit_mode(regs);
}

static void store_cpu(const struct kvt_cpu *cpu, struct pt_regs *regs)
{
	u32 i;

	for (i = 0; i < 16; i++)
		*gpr_place(regs, i) = cpu->gpr[i];
	regs->ip = cpu->ip;
	/* as after any instruction: a breakpoint is not skipped any more */
	regs->flags = (regs->flags & ~(ARITHMETIC_FLAGS | X86_EFLAGS_RF)) |
		      (cpu->flags & ARITHMETIC_FLAGS);
}

#define READ_XMM(n)                                                              \
	case n:                                                                  \
		asm volatile("movdqu %%xmm" #n ", %0" : "=m"(*(u8(*)[16])to)); \
		break
#define READ_YMM(n)                                                               \
	case n:                                                                   \
		asm volatile("vmovdqu %%ymm" #n ", %0" : "=m"(*(u8(*)[32])to)); \
		break
#define FOR_16(one)                                                               \
	one(0); one(1); one(2); one(3); one(4); one(5); one(6); one(7);           \
	one(8); one(9); one(10); one(11); one(12); one(13); one(14); one(15)

/* AVX-512's registers are left to the processor: nothing that we test on has them. */
static bool read_vector(void *context, u32 index, u32 bytes, u8 *to)
{
	if (index > 15 || bytes > 32 || (bytes == 32 && !boot_cpu_has(X86_FEATURE_AVX)))
		return false;
	fpregs_lock();
	/* the program's registers may be in memory since the last switch */
	if (test_thread_flag(TIF_NEED_FPU_LOAD))
		switch_fpu_return();
	if (bytes == 32) {
		switch (index) {
			FOR_16(READ_YMM);
		}
	} else {
		switch (index) {
			FOR_16(READ_XMM);
		}
	}
	fpregs_unlock();
	return true;
}

static bool is_in_page(const struct emulation *e, u64 address, u64 bytes)
{
	return address >= e->address && bytes <= PAGE_SIZE &&
	       address - e->address <= PAGE_SIZE - bytes;
}

static bool read_destination(void *context, u64 address, u32 bytes, u8 *to)
{
	struct emulation *e = context;

	if (!is_in_page(e, address, bytes))
		return false;
	memcpy(to, e->page + (address - e->address), bytes);
	return true;
}

/* ---- the store ---- */

static u32 fetch_code(const struct kvt_cpu *cpu, u8 *code)
{
	u32 rest = PAGE_SIZE - offset_in_page(cpu->ip);
	const void __user *from = (const void __user *)cpu->ip;

	if (!copy_from_user_nofault(code, from, KVT_MAX_INSTRUCTION_BYTES))
		return KVT_MAX_INSTRUCTION_BYTES;
	/* the next page may not be there */
	if (rest < KVT_MAX_INSTRUCTION_BYTES && !copy_from_user_nofault(code, from, rest))
		return rest;
	return 0;
}

/* Whoever reads the window meanwhile sees a store as one, as the processor does it. */
static void store_bytes(u8 *to, const u8 *data, u32 bytes)
{
	if (!IS_ALIGNED((unsigned long)to, bytes)) {
		memcpy(to, data, bytes);
		return;
	}
	switch (bytes) {
	case 2:
		WRITE_ONCE(*(u16 *)to, *(const u16 *)data);
		break;
	case 4:
		WRITE_ONCE(*(u32 *)to, *(const u32 *)data);
		break;
	case 8:
		WRITE_ONCE(*(u64 *)to, *(const u64 *)data);
		break;
	default:
		memcpy(to, data, bytes);
		break;
	}
}

/* The iterations of a string instruction that stay in the page; 0: not even one. */
static u64 iterations_here(const struct kvt_plan *plan)
{
	u64 room = (PAGE_SIZE - offset_in_page(plan->address)) / plan->bytes;
	u64 count = min(plan->count, room);
	u64 distance = plan->address - plan->source;

	/* copied in one piece, which is only the same if no iteration reads what another stored */
	if (plan->what == KVT_COPY && distance < count * plan->bytes)
		count = min_t(u64, count, 1);
	return count;
}

static bool carry_out(struct emulation *e)
{
	struct kvt_plan *plan = &e->plan;
	u8 *to = e->page + (plan->address - e->address);
	u64 count, i;

	if (plan->what == KVT_STORE) {
		store_bytes(to, plan->data, plan->bytes);
		return true;
	}
	count = iterations_here(plan);
	if (!count)
		return false;
	if (plan->what == KVT_COPY) {
		if (copy_from_user_nofault(to, (const void __user *)plan->source,
					   count * plan->bytes))
			return false;
	} else if (plan->bytes == 1) {
		memset(to, plan->data[0], count);
	} else {
		for (i = 0; i < count; i++)
			store_bytes(to + i * plan->bytes, plan->data, plan->bytes);
	}
	kvt_plan_advance(plan, &e->cpu, count);
	return true;
}

static const struct kvt_access access_template = {
	.read_vector = read_vector,
	.read_destination = read_destination,
};

/*
 * The store that faulted at vmf->real_address, in a page that is closed. Returns false if it is to
 * be left to the processor; the page is then to be opened. The trace's lock and window_rwsem are
 * held.
 */
bool kvt_emulate(struct vm_fault *vmf, struct kvg_range *range, u32 index)
{
	struct pt_regs *regs = current_pt_regs();
	struct kvt_access access = access_template;
	u8 code[KVT_MAX_INSTRUCTION_BYTES];
	struct kvg_device *dev = range->dev;
	struct emulation *e;
	bool done = false;
	u64 bytes;

	/* A fault of the kernel has other registers; who is single-stepped is to see each step. */
	if (!(vmf->flags & FAULT_FLAG_USER) || (regs->flags & X86_EFLAGS_TF) ||
	    kvt_without(range, KVT_WITHOUT_EMULATION))
		return false;
	e = kmalloc(sizeof(*e) + kvt_scratch_bytes(), GFP_KERNEL);
	if (!e)
		return false;
	e->range = range;
	e->page = dev->window_memory + range->offset + ((u64)index << PAGE_SHIFT);
	e->address = vmf->address & PAGE_MASK;
	access.context = e;
	load_cpu(&e->cpu, regs);
	kvt_decode(e->scratch, code, fetch_code(&e->cpu, code), &e->cpu, &access, &e->plan);
	kvt_count(range, KVT_REASONS + e->plan.reason, 1);
	if (e->plan.what == KVT_OPEN)
		goto out;
	/* A repeated instruction would trap after each iteration: only these are not stepped. */
	if (range->trace->mode == KAGEMUSHA_VGPU_TRACE_STEP && !e->plan.repeats)
		goto out;
	bytes = e->plan.what == KVT_STORE ? e->plan.bytes : 1;
	if (!is_in_page(e, e->plan.address, bytes) || e->plan.address > vmf->real_address) {
		kvt_count(range, KVT_ELSEWHERE, 1);
		goto out;
	}
	if (!kvt_mark_dirty(range, index))
		goto out;
	done = carry_out(e);
	if (done) {
		store_cpu(&e->plan.after, regs);
		kvt_count(range, KVT_EMULATED, 1);
	}
out:
	kfree(e);
	return done;
}
