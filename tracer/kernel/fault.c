// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Faults of traced mappings: loads get a page table entry that does not allow stores, a store does
 * what the mode says.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "kvg.h"

bool kvt_traced(const struct kvg_range *range)
{
	/* Pairs with the release in kvt_window_trace. */
	const struct kvt_trace *trace = smp_load_acquire(&range->trace);

	return trace;
}

/* window_rwsem is held; an entry that is there already stays as it is. */
static vm_fault_t insert_page(struct vm_fault *vmf, struct kvg_range *range, bool writable)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long flags = writable ? vma->vm_flags : vma->vm_flags & ~VM_SHARED;
	phys_addr_t address = range->dev->window_start + ((u64)vmf->pgoff << PAGE_SHIFT);

	return vmf_insert_pfn_prot(vma, vmf->address, PHYS_PFN(address), vm_get_page_prot(flags));
}

static bool is_there(const struct kvg_range *range)
{
	return !range->dead && !range->dev->window_gone;
}

/* A load, or a store to a page that lies behind what is traced. */
static vm_fault_t fault_untraced(struct vm_fault *vmf, struct kvg_range *range, bool writable)
{
	struct kvg_device *dev = range->dev;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&dev->window_rwsem);
	if (is_there(range))
		ret = insert_page(vmf, range, writable);
	up_read(&dev->window_rwsem);
	return ret;
}

/*
 * Opens one page until the next flush. The entry is made under the lock, so a flush comes before
 * both the dirty bit and the entry, or after both.
 */
static vm_fault_t open_page(struct vm_area_struct *vma, unsigned long address,
			    struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	u64 offset = range->offset + ((u64)index << PAGE_SHIFT);

	if (!kvt_mark_dirty(range, index))
		return VM_FAULT_OOM;
	trace_heat_open(&trace->pages[index].heat, trace->interval);
	if (!__test_and_set_bit(index, trace->open))
		kvt_count(range, KVT_OPENED, 1);
	return vmf_insert_pfn_prot(vma, address, PHYS_PFN(dev->window_start + offset),
				   vm_get_page_prot(vma->vm_flags));
}

/* How many pages from the one that faulted on are to be opened. */
static u32 pages_to_open(const struct vm_fault *vmf, struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;
	u32 limit = min_t(unsigned long, trace->page_count - index,
			  (vmf->vma->vm_end - (vmf->address & PAGE_MASK)) >> PAGE_SHIFT);
	u32 count, i;

	if (trace->mode == KAGEMUSHA_VGPU_TRACE_EMULATE ||
	    trace->mode == KAGEMUSHA_VGPU_TRACE_STEP || kvt_without(range, KVT_WITHOUT_AHEAD))
		return 1;
	count = trace_ahead_open(&trace->ahead, index, limit);
	for (i = 1; i < count; i++)
		if (test_bit(index + i, trace->open))
			break;
	return i;
}

/* The page that faulted, and some ahead for whoever stores into page after page. */
static vm_fault_t open_pages(struct vm_fault *vmf, struct kvg_range *range, u32 index, bool present)
{
	unsigned long address = vmf->address & PAGE_MASK;
	u32 count = pages_to_open(vmf, range, index);
	vm_fault_t ret;
	u32 i;

	/* entries that allow loads would stay; all at once, as each time costs every CPU an interrupt */
	if (present || count > 1)
		zap_vma_ptes(vmf->vma, address, (unsigned long)count << PAGE_SHIFT);
	ret = open_page(vmf->vma, address, range, index);
	for (i = 1; i < count && ret == VM_FAULT_NOPAGE; i++) {
		/* what can't be opened ahead is not missed */
		if (open_page(vmf->vma, address + i * PAGE_SIZE, range, index + i) !=
		    VM_FAULT_NOPAGE)
			break;
		kvt_count(range, KVT_OPENED_AHEAD, 1);
	}
	return ret;
}

/* Whether the mode wants the kernel to carry the store out. */
static bool wants_emulation(struct kvt_trace *trace, u32 index)
{
	switch (trace->mode) {
	case KAGEMUSHA_VGPU_TRACE_EMULATE:
	case KAGEMUSHA_VGPU_TRACE_STEP: /* decodes each, and carries out those with REP */
		return true;
	case KAGEMUSHA_VGPU_TRACE_ADAPTIVE:
		return !trace_heat_store(&trace->pages[index].heat, &trace->habit,
					 trace->interval) &&
		       !trace_ahead_follows(&trace->ahead, index);
	default:
		return false;
	}
}

static vm_fault_t store_fault(struct vm_fault *vmf, struct kvg_range *range, u32 index,
			      bool present)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (!is_there(range))
		goto out;
	/*
	 * An open page may be stored into at any time, so a store that reads first can't be carried
	 * out.
	 */
	if (!test_bit(index, trace->open) && wants_emulation(trace, index) &&
	    kvt_emulate(vmf, range, index)) {
		trace_ahead_stored(&trace->ahead, index);
		ret = VM_FAULT_NOPAGE;
		goto out;
	}
	ret = open_pages(vmf, range, index, present);
	if (ret == VM_FAULT_NOPAGE && trace->mode == KAGEMUSHA_VGPU_TRACE_STEP &&
	    (vmf->flags & FAULT_FLAG_USER))
		kvt_step_begin(range, index);
out:
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	return ret;
}

/* mmap_lock is held for reading: nothing here may touch user memory in a way that faults. */
vm_fault_t kvt_fault(struct vm_fault *vmf, struct kvg_range *range, bool present)
{
	struct kvt_trace *trace = range->trace;
	u64 index = vmf->pgoff - PHYS_PFN(range->offset);

	if (!(vmf->flags & FAULT_FLAG_WRITE))
		return fault_untraced(vmf, range, false);
	if (index >= trace->page_count) {
		if (present)
			zap_vma_ptes(vmf->vma, vmf->address & PAGE_MASK, PAGE_SIZE);
		return fault_untraced(vmf, range, true);
	}
	kvt_count(range, KVT_FAULTS, 1);
	if (!(vmf->flags & FAULT_FLAG_USER))
		kvt_count(range, KVT_FAULTS_KERNEL, 1);
	return store_fault(vmf, range, index, present);
}

/*
 * A debugger stores into the mapping, past the page tables. The number of bytes, or a negative
 * errno.
 */
int kvt_ptrace_store(struct kvg_range *range, u64 offset, const void *data, int bytes)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	u64 within = offset - range->offset;
	u32 index = within >> PAGE_SHIFT;
	int ret = -EIO;

	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (is_there(range) &&
	    (index >= trace->page_count || kvt_mark_dirty(range, index))) {
		memcpy(dev->window_memory + offset, data, bytes);
		kvt_count(range, KVT_PTRACE_STORES, 1);
		ret = bytes;
	}
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	return ret;
}
