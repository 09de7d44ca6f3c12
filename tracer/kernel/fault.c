// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Faults of traced mappings: loads get a page table entry that does not allow stores, a store does
 * what the mode says.
 */
#include <linux/bitmap.h>
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

/* The page is open until the next flush, as soon as it has an entry that allows stores. */
static bool begin_open(struct kvg_range *range, u32 index)
{
	struct kvt_trace *trace = range->trace;

	if (!kvt_mark_dirty(range, index))
		return false;
	kvt_heat_open(&trace->pages[index].heat, trace->interval);
	__set_bit(index, trace->open);
	return true;
}

/* As begin_open for each of so many pages that kept their snapshots. */
static void begin_open_kept(struct kvg_range *range, u32 index, u32 count)
{
	struct kvt_trace *trace = range->trace;
	u32 i;

	for (i = index; i < index + count; i++)
		kvt_heat_open(&trace->pages[i].heat, trace->interval);
	bitmap_clear(trace->kept, index, count);
	trace->kept_count -= count;
	trace->kept_used += count;
	bitmap_set(trace->dirty, index, count);
	atomic_add(count, &trace->dirty_count);
	bitmap_set(trace->open, index, count);
}

/* As begin_open for each of `count` pages, none of which is open. Returns how many are. */
static u32 begin_open_many(struct kvg_range *range, u32 index, u32 count)
{
	const u32 end = index + count;
	u32 at = index;

	while (at < end) {
		u32 kept = find_next_zero_bit(range->trace->kept, end, at) - at;

		if (kept)
			begin_open_kept(range, at, kept);
		else if (begin_open(range, at))
			kept = 1;
		else
			break;
		at += kept;
	}
	return at - index;
}

/* Entries for pages behind one that has its own. */
struct more_entries {
	struct mm_struct *mm;
	unsigned long pfn;
	pgprot_t prot;
	bool begun;
};

static int add_entry(pte_t *place, unsigned long address, void *data)
{
	struct more_entries *more = data;
	pte_t entry = *place;

	if (!more->begun) { /* the one that is there: flags, and the kind of memory that they say */
		if (!pte_present(entry) || !pte_write(entry))
			return -EAGAIN;
		more->prot = pte_pgprot(entry);
		more->pfn = pte_pfn(entry);
		more->begun = true;
		return 0;
	}
	more->pfn++;
	if (pte_none(entry))
		set_pte_at(more->mm, address, place,
			   pte_mkspecial(pfn_pte(more->pfn, more->prot)));
	return 0;
}

/*
 * The page at `address` has an entry; those behind it, which have none, get theirs in one walk.
 * What has no entry afterwards faults again.
 */
static void add_entries(struct vm_area_struct *vma, unsigned long address, u32 count)
{
	struct more_entries more = { .mm = vma->vm_mm };

	apply_to_page_range(vma->vm_mm, address, (unsigned long)count << PAGE_SHIFT, add_entry,
			    &more);
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
	count = kvt_ahead_open(&trace->ahead, index, limit);
	for (i = 1; i < count; i++)
		if (test_bit(index + i, trace->open))
			break;
	return i;
}

/*
 * The page that faulted, and some ahead for whoever stores into page after page. The entries are
 * made under the lock, so a flush comes before both the dirty bit and the entry, or after both.
 */
static vm_fault_t open_pages(struct vm_fault *vmf, struct kvg_range *range, u32 index, bool present)
{
	unsigned long address = vmf->address & PAGE_MASK;
	u32 count = pages_to_open(vmf, range, index);
	/* for another program, or another thread */
	bool open = test_bit(index, range->trace->open);
	vm_fault_t ret;

	/*
	 * entries that allow loads would stay; all at once, as each time costs every CPU an
	 * interrupt
	 */
	if (present || count > 1)
		zap_vma_ptes(vmf->vma, address, (unsigned long)count << PAGE_SHIFT);
	if (!begin_open(range, index))
		return VM_FAULT_OOM;
	ret = insert_page(vmf, range, true);
	if (ret != VM_FAULT_NOPAGE)
		return ret;
	count = 1 + begin_open_many(range, index + 1, count - 1);
	if (count > 1) {
		add_entries(vmf->vma, address, count);
		kvt_count(range, KVT_OPENED_AHEAD, count - 1);
	}
	kvt_count(range, KVT_OPENED, count - open);
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
		return !kvt_heat_store(&trace->pages[index].heat, &trace->habit,
				       trace->interval) &&
		       !kvt_ahead_follows(&trace->ahead, index);
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
		kvt_ahead_stored(&trace->ahead, index);
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
