/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What differs between the kernels of Debian 12 (6.1) and Debian 13 (6.12), in one place.
 * Everything else in this folder compiles unchanged on both.
 */
#ifndef KVG_COMPAT_H
#define KVG_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "kagemusha_vgpu needs Linux 6.1 or newer"
#endif

static inline void kvg_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static inline void kvg_vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_clear(vma, flags);
#else
	vma->vm_flags &= ~flags;
#endif
}

static inline void kvg_eventfd_signal(struct eventfd_ctx *ctx)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(ctx);
#else
	eventfd_signal(ctx, 1);
#endif
}

/* Two queues, each with a callback. */
static inline int kvg_find_queues(struct virtio_device *vdev, struct virtqueue *queues[2],
				  vq_callback_t *first, const char *first_name,
				  vq_callback_t *second, const char *second_name)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	struct virtqueue_info infos[2] = {
		{ .name = first_name, .callback = first },
		{ .name = second_name, .callback = second },
	};

	return virtio_find_vqs(vdev, 2, queues, infos, NULL);
#else
	vq_callback_t *callbacks[2] = { first, second };
	const char * const names[2] = { first_name, second_name };

	return virtio_find_vqs(vdev, 2, queues, callbacks, names, NULL);
#endif
}

#endif
