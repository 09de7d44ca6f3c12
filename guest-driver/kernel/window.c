// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The VRAM window: ranges of the device's shared-memory region that a file owns and maps.
 *
 * A range returns to the allocator only when its file has given it up, no mapping of it is left and
 * no request uses it. Mappings of a dead range stay as address space, but their pages are taken
 * away and faults give SIGBUS. A range is cleared when it is handed out, so no file sees what
 * another one left there.
 *
 * Page tables: `dead` and `window_gone` are set under window_rwsem for writing; a fault looks at
 * them and inserts its page under window_rwsem for reading. So after the writer has left, no page
 * of the range can appear any more, and zapping (which needs no lock of ours) is final.
 */
#include <linux/genalloc.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "kvg.h"

#define KVG_POOL_BASE PAGE_SIZE /* the pool's addresses begin here, as 0 is its "no" */

/* ---- ranges of the device: window_mutex ---- */

/* The range that `offset` lies in, dying ones too. */
static struct kvg_range *tree_find(struct kvg_device *dev, u64 offset)
{
	struct rb_node *node = dev->window_ranges.rb_node;

	while (node) {
		struct kvg_range *range = rb_entry(node, struct kvg_range, node);

		if (offset < range->offset)
			node = node->rb_left;
		else if (offset - range->offset >= range->bytes)
			node = node->rb_right;
		else
			return range;
	}
	return NULL;
}

static bool tree_less(struct rb_node *a, const struct rb_node *b)
{
	return rb_entry(a, struct kvg_range, node)->offset <
	       rb_entry(b, struct kvg_range, node)->offset;
}

static void range_free(struct kref *refs)
{
	struct kvg_range *range = container_of(refs, struct kvg_range, refs);
	struct kvg_device *dev = range->dev;

	mutex_lock(&dev->window_mutex);
	rb_erase(&range->node, &dev->window_ranges);
	gen_pool_free(dev->window_pool, range->offset + KVG_POOL_BASE, range->bytes);
	range->user->window_bytes -= range->bytes;
	atomic64_sub(range->bytes, &dev->window_used_bytes);
	mutex_unlock(&dev->window_mutex);
	kvg_user_put(dev, range->user);
	kvg_device_put(dev);
	kvt_trace_free(range->trace);
	kfree(range);
}

void kvg_range_put(struct kvg_range *range)
{
	kref_put(&range->refs, range_free);
}

/*
 * The range of this file that `offset` lies in. One that is still listed has its file's reference;
 * window_mutex is held.
 */
static struct kvg_range *owned_range(struct kvg_file *file, u64 offset)
{
	struct kvg_range *range = tree_find(file->dev, offset);

	return range && range->file == file && !list_empty(&range->link) ? range : NULL;
}

/* The range of this file in which all of [offset, offset + bytes) lies, with a reference. */
struct kvg_range *kvg_range_find(struct kvg_file *file, u64 offset, u64 bytes)
{
	struct kvg_device *dev = file->dev;
	struct kvg_range *range;

	if (!dev->limits.window_bytes)
		return ERR_PTR(-ENODEV);
	mutex_lock(&dev->window_mutex);
	range = owned_range(file, offset);
	if (range && bytes <= range->bytes - (offset - range->offset))
		kref_get(&range->refs);
	else
		range = ERR_PTR(-EINVAL);
	mutex_unlock(&dev->window_mutex);
	return range;
}

/*
 * The first traced range of this file and group at or behind `from`, with a reference; NULL: none.
 */
struct kvg_range *kvg_range_next_traced(struct kvg_file *file, u64 group, u64 from)
{
	struct kvg_device *dev = file->dev;
	struct kvg_range *range, *found = NULL;

	mutex_lock(&dev->window_mutex);
	list_for_each_entry(range, &file->ranges, link) {
		if (range->offset < from || !kvt_traced(range) || range->trace->group != group)
			continue;
		if (!found || range->offset < found->offset)
			found = range;
	}
	if (found)
		kref_get(&found->refs);
	mutex_unlock(&dev->window_mutex);
	return found;
}

/* ---- WINDOW_ALLOC and WINDOW_FREE ---- */

/* Returns false if the device is gone. */
static bool clear_range(struct kvg_device *dev, u64 offset, u64 bytes)
{
	const u64 step = 16u << 20;
	u64 done;

	for (done = 0; done < bytes; done += step) {
		down_read(&dev->window_rwsem);
		if (dev->window_gone) {
			up_read(&dev->window_rwsem);
			return false;
		}
		memset(dev->window_memory + offset + done, 0, min(step, bytes - done));
		up_read(&dev->window_rwsem);
		cond_resched();
	}
	return true;
}

int kvg_window_alloc(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_window_alloc *args = data;
	struct kvg_device *dev = file->dev;
	struct kvg_range *range;
	unsigned long address = 0;

	if (!dev->limits.window_bytes)
		return -ENODEV;
	if (!args->bytes)
		return -EINVAL;
	if (args->bytes > dev->limits.window_bytes)
		return -ENOSPC;
	range = kzalloc(sizeof(*range), GFP_KERNEL_ACCOUNT);
	if (!range)
		return -ENOMEM;
	kref_init(&range->refs);
	INIT_LIST_HEAD(&range->link);
	range->dev = dev;
	range->file = file;
	range->user = file->user;
	range->bytes = PAGE_ALIGN(args->bytes);

	mutex_lock(&dev->window_mutex);
	if (kvg_share_left(dev->limits.window_bytes, atomic64_read(&dev->window_used_bytes),
			   file->user->window_bytes, range->bytes, file->unbound))
		address = gen_pool_alloc(dev->window_pool, range->bytes);
	if (!address) {
		mutex_unlock(&dev->window_mutex);
		kfree(range);
		return -ENOSPC;
	}
	range->offset = address - KVG_POOL_BASE;
	rb_add(&range->node, &dev->window_ranges, tree_less);
	range->user->window_bytes += range->bytes;
	atomic64_add(range->bytes, &dev->window_used_bytes);
	mutex_unlock(&dev->window_mutex);
	kvg_user_hold(dev, range->user);
	kvg_device_get(dev);

	/* Not listed yet: nobody can map or free it while it is being cleared. */
	if (!clear_range(dev, range->offset, range->bytes)) {
		kvg_range_put(range);
		return -ENODEV;
	}
	mutex_lock(&dev->window_mutex);
	list_add_tail(&range->link, &file->ranges);
	mutex_unlock(&dev->window_mutex);
	args->offset = range->offset;
	return 0;
}

/* The range is off its file's list, whose reference the caller gives. */
static void range_retire(struct kvg_range *range)
{
	struct kvg_device *dev = range->dev;

	down_write(&dev->window_rwsem);
	range->dead = true;
	up_write(&dev->window_rwsem);
	unmap_mapping_range(dev->inode->i_mapping, range->offset, range->bytes, 1);
	kvg_range_put(range);
}

int kvg_window_free(struct kvg_file *file, void *data)
{
	const struct kagemusha_vgpu_window_free *args = data;
	struct kvg_device *dev = file->dev;
	struct kvg_range *range;

	if (!dev->limits.window_bytes)
		return -ENODEV;
	/* After this no flush writes into the range's buffer: the caller may destroy it. */
	if (mutex_lock_killable(&file->flush_mutex))
		return -EINTR;
	mutex_lock(&dev->window_mutex);
	range = owned_range(file, args->offset);
	if (!range || range->offset != args->offset) {
		mutex_unlock(&dev->window_mutex);
		mutex_unlock(&file->flush_mutex);
		return -EINVAL;
	}
	list_del_init(&range->link);
	mutex_unlock(&dev->window_mutex);
	if (kvt_traced(range))
		atomic_dec(&file->traced_ranges);
	mutex_unlock(&file->flush_mutex);
	range_retire(range);
	return 0;
}

/*
 * The last descriptor and the last mapping are gone; only requests in flight may still use the
 * ranges.
 */
void kvg_window_release_file(struct kvg_file *file)
{
	struct kvg_device *dev = file->dev;
	struct kvg_range *range, *next;
	LIST_HEAD(ranges);

	mutex_lock(&dev->window_mutex);
	list_for_each_entry_safe(range, next, &file->ranges, link) {
		list_del_init(&range->link);
		range->file = NULL;
		list_add(&range->link, &ranges);
	}
	mutex_unlock(&dev->window_mutex);
	list_for_each_entry_safe(range, next, &ranges, link) {
		list_del_init(&range->link);
		range_retire(range);
	}
}

/* ---- mappings ---- */

static void window_vma_open(struct vm_area_struct *vma)
{
	struct kvg_range *range = vma->vm_private_data;

	kref_get(&range->refs);
}

static void window_vma_close(struct vm_area_struct *vma)
{
	kvg_range_put(vma->vm_private_data);
}

/* `present`: there is an entry already, which allows no store. */
static vm_fault_t fault(struct vm_fault *vmf, bool present)
{
	struct kvg_range *range = vmf->vma->vm_private_data;
	struct kvg_device *dev = range->dev;
	u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	if (offset < range->offset || offset - range->offset >= range->bytes)
		return VM_FAULT_SIGBUS;
	if (kvt_traced(range))
		return kvt_fault(vmf, range, present);
	if (present)
		zap_vma_ptes(vmf->vma, vmf->address & PAGE_MASK, PAGE_SIZE);
	down_read(&dev->window_rwsem);
	if (!range->dead && !dev->window_gone)
		/* not vm_page_prot: that never allows stores where there is a pfn_mkwrite */
		ret = vmf_insert_pfn_prot(vmf->vma, vmf->address,
					  PHYS_PFN(dev->window_start + offset),
					  vm_get_page_prot(vmf->vma->vm_flags));
	up_read(&dev->window_rwsem);
	return ret;
}

static vm_fault_t window_fault(struct vm_fault *vmf)
{
	return fault(vmf, false);
}

static vm_fault_t window_pfn_mkwrite(struct vm_fault *vmf)
{
	return fault(vmf, true);
}

/* For debuggers: at most the rest of a page. */
static int window_access(struct vm_area_struct *vma, unsigned long address, void *buffer, int bytes,
			 int write)
{
	struct kvg_range *range = vma->vm_private_data;
	struct kvg_device *dev = range->dev;
	u64 offset = ((u64)vma->vm_pgoff << PAGE_SHIFT) + (address - vma->vm_start);
	int ret = -EIO;

	bytes = min_t(int, bytes, PAGE_SIZE - offset_in_page(offset));
	if (offset < range->offset || offset - range->offset >= range->bytes)
		return -EIO;
	if (write && kvt_traced(range))
		return kvt_ptrace_store(range, offset, buffer, bytes);
	down_read(&dev->window_rwsem);
	if (!range->dead && !dev->window_gone) {
		if (write)
			memcpy(dev->window_memory + offset, buffer, bytes);
		else
			memcpy(buffer, dev->window_memory + offset, bytes);
		ret = bytes;
	}
	up_read(&dev->window_rwsem);
	return ret;
}

static const struct vm_operations_struct window_vm_operations = {
	.open = window_vma_open,
	.close = window_vma_close,
	.fault = window_fault,
	.pfn_mkwrite = window_pfn_mkwrite,
	.access = window_access,
};

int kvg_window_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct kvg_file *file = filp->private_data;
	u64 bytes = vma->vm_end - vma->vm_start;
	struct kvg_range *range;
	u64 offset;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (check_shl_overflow(vma->vm_pgoff, PAGE_SHIFT, &offset))
		return -EINVAL;
	range = kvg_range_find(file, offset, bytes);
	if (IS_ERR(range))
		return PTR_ERR(range);
	vma->vm_private_data = range; /* takes over the reference */
	vma->vm_ops = &window_vm_operations;
	kvg_vm_flags_clear(vma, VM_MAYEXEC);
	/* DONTCOPY: a child would write into a window that its own descriptor does not own */
	kvg_vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	return 0;
}

/* ---- the device's side ---- */

/*
 * Without a window, or if it cannot be used, everything else works: the ioctls then give -ENODEV.
 */
void kvg_window_init(struct kvg_device *dev, u64 configured_bytes)
{
	struct device *parent = &dev->vdev->dev;
	struct virtio_shm_region region;
	u64 bytes;

	if (!configured_bytes || !virtio_get_shm_region(dev->vdev, &region, VGPU_SHM_WINDOW))
		return;
	bytes = min(configured_bytes, region.len) & PAGE_MASK;
	if (!bytes || !PAGE_ALIGNED(region.addr)) {
		dev_warn(parent, "the VRAM window is not made of pages and is not used\n");
		return;
	}
	if (!devm_request_mem_region(parent, region.addr, bytes, KBUILD_MODNAME)) {
		dev_warn(parent,
			 "the VRAM window at %#llx is taken by another driver and is not used\n",
			 region.addr);
		return;
	}
	/* x86 makes memory type ranges below 4 GiB uncached, whatever is asked for */
	if (region.addr < SZ_4G)
		dev_warn(parent,
			 "the VRAM window lies below 4 GiB and will be slow: give the BAR a 64-bit address\n");
	dev->window_memory = memremap(region.addr, bytes, MEMREMAP_WB);
	if (!dev->window_memory) {
		dev_warn(parent,
			 "the VRAM window cannot be mapped by the kernel and is not used\n");
		goto release;
	}
	dev->window_pool = gen_pool_create(PAGE_SHIFT, -1);
	if (!dev->window_pool || gen_pool_add(dev->window_pool, KVG_POOL_BASE, bytes, -1)) {
		dev_warn(parent, "no memory to manage the VRAM window, which is not used\n");
		goto unmap;
	}
	dev->window_start = region.addr;
	dev->limits.window_bytes = bytes;
	return;

unmap:
	kvg_window_free_memory(dev);
release:
	devm_release_mem_region(parent, region.addr, bytes);
}

void kvg_window_stop(struct kvg_device *dev)
{
	down_write(&dev->window_rwsem);
	dev->window_gone = true;
	up_write(&dev->window_rwsem);
	unmap_mapping_range(dev->inode->i_mapping, 0, 0, 1);
}

/* After kvg_window_stop. */
void kvg_window_free_memory(struct kvg_device *dev)
{
	if (dev->window_memory)
		memunmap(dev->window_memory);
	dev->window_memory = NULL;
}
