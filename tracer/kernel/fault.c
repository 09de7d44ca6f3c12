// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Faults of traced mappings: loads get a page table entry that does not allow stores, a store does what the
 * mode says.
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
 * The page stays open until the next flush. The entry is made under the lock, so a flush comes before both
 * the dirty bit and the entry, or after both.
 */
static vm_fault_t open_page(struct vm_fault *vmf, struct kvg_range *range, u32 index, bool present)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	u8 *spare = NULL;

	if (!READ_ONCE(trace->pages[index].shadow))
		spare = (u8 *)__get_free_page(GFP_KERNEL_ACCOUNT);
	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (!is_there(range))
		goto out;
	if (!kvt_mark_dirty(range, index, &spare)) {
		ret = VM_FAULT_OOM;
		goto out;
	}
	if (!__test_and_set_bit(index, trace->open))
		kvt_count(dev, KVT_OPENED, 1);
	/* an entry that allows loads would stay */
	if (present)
		zap_vma_ptes(vmf->vma, vmf->address & PAGE_MASK, PAGE_SIZE);
	ret = insert_page(vmf, range, true);
out:
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	free_page((unsigned long)spare);
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
	kvt_count(range->dev, KVT_FAULTS, 1);
	if (!(vmf->flags & FAULT_FLAG_USER))
		kvt_count(range->dev, KVT_FAULTS_KERNEL, 1);
	return open_page(vmf, range, index, present);
}

/* A debugger stores into the mapping, past the page tables. The number of bytes, or a negative errno. */
int kvt_ptrace_store(struct kvg_range *range, u64 offset, const void *data, int bytes)
{
	struct kvt_trace *trace = range->trace;
	struct kvg_device *dev = range->dev;
	u64 within = offset - range->offset;
	u32 index = within >> PAGE_SHIFT;
	u8 *spare = (u8 *)__get_free_page(GFP_KERNEL_ACCOUNT);
	int ret = -EIO;

	mutex_lock(&trace->lock);
	down_read(&dev->window_rwsem);
	if (is_there(range) &&
	    (index >= trace->page_count || kvt_mark_dirty(range, index, &spare))) {
		memcpy(dev->window_memory + offset, data, bytes);
		kvt_count(dev, KVT_PTRACE_STORES, 1);
		ret = bytes;
	}
	up_read(&dev->window_rwsem);
	mutex_unlock(&trace->lock);
	free_page((unsigned long)spare);
	return ret;
}
