// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The device node: open, release, ioctl dispatch and the checks that every ioctl shares.
 *
 * A descriptor that is shared by fork or passed to another process is one file: the last close
 * counts.
 */
#include <linux/capability.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kvg.h"

void kvg_file_get(struct kvg_file *file)
{
	kref_get(&file->refs);
}

static void file_free(struct kref *refs)
{
	struct kvg_file *file = container_of(refs, struct kvg_file, refs);

	kvg_records_free(file);
	xa_destroy(&file->answers);
	kvg_user_put(file->dev, file->user);
	kvg_device_put(file->dev);
	kvfree(file->flush_runs);
	kvfree(file->flush_lent);
	kvt_copies_free(file);
	kfree(file);
}

void kvg_file_put(struct kvg_file *file)
{
	kref_put(&file->refs, file_free);
}

struct kvg_file *kvg_file_find(struct kvg_device *dev, u32 id)
{
	struct kvg_file *file;

	xa_lock(&dev->ids);
	file = xa_load(&dev->ids, id);
	if (file)
		kvg_file_get(file); /* has at least CLOSE's or the open file's reference */
	xa_unlock(&dev->ids);
	return file;
}

/* The device is gone: nobody waits any longer for what will not come. */
void kvg_files_end(struct kvg_device *dev)
{
	struct kvg_file *file;

	spin_lock(&dev->files_lock);
	list_for_each_entry(file, &dev->files, link)
		kvg_file_end(file);
	spin_unlock(&dev->files_lock);
}

static int kvg_open(struct inode *inode, struct file *filp)
{
	struct kvg_device *dev = container_of(filp->private_data, struct kvg_device, misc);
	struct kvg_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	bool gone;

	if (!file)
		return -ENOMEM;
	file->user = kvg_user_get(dev);
	if (!file->user) {
		kfree(file);
		return -ENOMEM;
	}
	file->unbound = capable(CAP_SYS_RESOURCE);
	kref_init(&file->refs);
	kvg_device_get(dev);
	file->dev = dev;
	mutex_init(&file->open_mutex);
	mutex_init(&file->submit_mutex);
	mutex_init(&file->read_mutex);
	mutex_init(&file->flush_mutex);
	file->next_sequence = 1;
	xa_init(&file->answers);
	init_waitqueue_head(&file->read_wait);
	init_waitqueue_head(&file->credit_wait);
	spin_lock_init(&file->lock);
	INIT_LIST_HEAD(&file->ranges);
	INIT_LIST_HEAD(&file->records);
	INIT_LIST_HEAD(&file->spare_nodes);

	spin_lock(&dev->files_lock);
	list_add_tail(&file->link, &dev->files);
	dev->file_count++;
	spin_unlock(&dev->files_lock);

	/*
	 * A failed device keeps its node until it is unbound. Checked after the file is listed: one
	 * of both sees the other.
	 */
	spin_lock_irq(&dev->request_lock);
	gone = dev->gone;
	spin_unlock_irq(&dev->request_lock);
	if (gone)
		kvg_file_end(file);

	filp->private_data = file;
	filp->f_mapping = dev->inode->i_mapping;
	return stream_open(inode, filp);
}

static int kvg_release(struct inode *inode, struct file *filp)
{
	struct kvg_file *file = filp->private_data;
	struct kvg_device *dev = file->dev;
	struct kvg_request *request;
	unsigned long sequence;

	xa_for_each(&file->answers, sequence, request) {
		xa_erase(&file->answers, sequence);
		kvg_request_put(request);
	}
	kvt_steps_prune();
	kvg_window_release_file(file);
	kvg_file_close(file);

	spin_lock(&dev->files_lock);
	list_del(&file->link);
	dev->file_count--;
	spin_unlock(&dev->files_lock);
	kvg_file_put(file);
	return 0;
}

static int get_param(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_get_param *args = data;
	const struct kvg_limits *limits = &file->dev->limits;

	if (args->pad)
		return -EINVAL;
	switch (args->param) {
	case KAGEMUSHA_VGPU_PARAM_ABI_VERSION:
		args->value = VGPU_ABI_VERSION;
		break;
	case KAGEMUSHA_VGPU_PARAM_WINDOW_BYTES:
		args->value = limits->window_bytes;
		break;
	case KAGEMUSHA_VGPU_PARAM_MAX_STREAM_BYTES:
		args->value = limits->stream_bytes;
		break;
	case KAGEMUSHA_VGPU_PARAM_MAX_PAYLOAD_BYTES:
		args->value = limits->payload_bytes;
		break;
	case KAGEMUSHA_VGPU_PARAM_MAX_EVENTS:
		args->value = limits->events;
		break;
	case KAGEMUSHA_VGPU_PARAM_MAX_REQUESTS:
		args->value = limits->requests;
		break;
	default:
		return -EINVAL;
	}
	return 0;
}

static int window_flush(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_window_flush *args = data;
	const u32 known =
		KAGEMUSHA_VGPU_SUBMIT_NONBLOCK | KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER;
	struct kvt_target target = {
		.queue = args->queue,
		.group = args->group,
		.barrier = args->flags & KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER,
		.nonblock = args->flags & KAGEMUSHA_VGPU_SUBMIT_NONBLOCK,
	};

	if ((args->flags & ~known) || args->pad || !args->queue)
		return -EINVAL;
	return kvt_flush(file, &target, &args->flushed_bytes);
}

/* Room for the largest structure. */
#define MAX_IOCTL_BYTES 64

struct kvg_ioctl {
	unsigned int command;
	u32 first_size; /* of its structure in the first version that had it */
	int (*handle)(struct kvg_file *file, void *data);
};

#define IOCTL_SINCE(command, bytes, handle) \
	[_IOC_NR(command)] = { command, bytes, handle }
#define IOCTL(command, handle) \
	IOCTL_SINCE(command, _IOC_SIZE(command) + \
		    BUILD_BUG_ON_ZERO(_IOC_SIZE(command) > MAX_IOCTL_BYTES), handle)
#define FIRST_SUBMIT_BYTES offsetof(struct kagemusha_vgpu_submit, flush_queue)

static const struct kvg_ioctl ioctls[] = {
	IOCTL(KAGEMUSHA_VGPU_GET_PARAM, get_param),
	IOCTL_SINCE(KAGEMUSHA_VGPU_SUBMIT, FIRST_SUBMIT_BYTES, kvg_submit),
	IOCTL(KAGEMUSHA_VGPU_WAIT, kvg_wait),
	IOCTL(KAGEMUSHA_VGPU_WINDOW_ALLOC, kvg_window_alloc),
	IOCTL(KAGEMUSHA_VGPU_WINDOW_FREE, kvg_window_free),
	IOCTL(KAGEMUSHA_VGPU_SET_EVENTFD, kvg_set_eventfd),
	IOCTL(KAGEMUSHA_VGPU_WINDOW_TRACE, kvt_window_trace),
	IOCTL(KAGEMUSHA_VGPU_WINDOW_FLUSH, window_flush),
	IOCTL(KAGEMUSHA_VGPU_WINDOW_DISCARD, kvt_window_discard),
};

/*
 * The size in the ioctl's number may be larger than ours, if what lies beyond is 0, and smaller
 * (what is missing counts as 0), but never smaller than that of the first version.
 */
static long kvg_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	struct kvg_file *file = filp->private_data;
	void __user *user = (void __user *)argument;
	unsigned int number = _IOC_NR(command);
	u64 data[MAX_IOCTL_BYTES / sizeof(u64)] = {};
	const struct kvg_ioctl *known;
	size_t bytes;
	int ret;

	BUILD_BUG_ON(sizeof(struct kagemusha_vgpu_submit) > MAX_IOCTL_BYTES);
	if (_IOC_TYPE(command) != KAGEMUSHA_VGPU_IOCTL_BASE || number >= ARRAY_SIZE(ioctls))
		return -ENOTTY;
	known = &ioctls[number];
	if (_IOC_DIR(command) != _IOC_DIR(known->command))
		return -ENOTTY;
	if (_IOC_SIZE(command) < known->first_size)
		return -EINVAL;
	bytes = _IOC_SIZE(known->command);
	ret = copy_struct_from_user(data, bytes, user, _IOC_SIZE(command));
	if (ret)
		return ret;
	ret = known->handle(file, data);
	if (!ret && (_IOC_DIR(known->command) & _IOC_READ) &&
	    copy_to_user(user, data, min_t(size_t, _IOC_SIZE(command), bytes)))
		ret = -EFAULT;
	return ret;
}

static ssize_t kvg_read(struct file *filp, char __user *buffer, size_t bytes, loff_t *position)
{
	return kvg_records_read(filp->private_data, buffer, bytes, filp->f_flags & O_NONBLOCK);
}

static __poll_t kvg_poll(struct file *filp, struct poll_table_struct *wait)
{
	return kvg_records_poll(filp->private_data, filp, wait);
}

const struct file_operations kvg_file_operations = {
	.owner = THIS_MODULE,
	.open = kvg_open,
	.release = kvg_release,
	.read = kvg_read,
	.poll = kvg_poll,
	.mmap = kvg_window_mmap,
	.unlocked_ioctl = kvg_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};
