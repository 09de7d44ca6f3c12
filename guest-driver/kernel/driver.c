// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The kagemusha_vgpu driver: a virtio device that computes, as the character device
 * /dev/kagemusha-vgpuN.
 *
 * This file binds to the virtio device, reads its limits, makes the node and stops everything when
 * the device goes. The life of requests, records and window ranges is in the files of these names;
 * kvg.h draws the lock lines.
 */
#include <linux/genalloc.h>
#include <linux/idr.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>

#include "kvg.h"
#include "proto/abi/vgpu_page_copy.h"

#define KVG_FILESYSTEM_MAGIC 0x4b564750 /* "KVGP"; the file system is never mounted by a user */

DEFINE_SRCU(kvg_srcu);
struct workqueue_struct *kvg_workqueue;

static struct vfsmount *kvg_mount;
static DEFINE_IDA(kvg_indices);

static unsigned int pinned_limit_mib;
module_param(pinned_limit_mib, uint, 0444);
MODULE_PARM_DESC(pinned_limit_mib,
		 "user memory pinned at once for a device, in MiB; a file gets half of it (0: half of the memory)");

/* ---- life of the device object ---- */

void kvg_device_get(struct kvg_device *dev)
{
	kref_get(&dev->refs);
}

static void device_free(struct kref *refs)
{
	struct kvg_device *dev = container_of(refs, struct kvg_device, refs);

	xa_destroy(&dev->ids);
	kvt_log_free(dev);
	kvg_spare_chunks_free(&dev->spare_chunks);
	if (dev->window_pool)
		gen_pool_destroy(dev->window_pool);
	if (dev->inode)
		iput(dev->inode);
	kfree(dev);
}

void kvg_device_put(struct kvg_device *dev)
{
	kref_put(&dev->refs, device_free);
}

/*
 * The device is reset, then everything that it held is given back: only now it certainly touches no
 * memory any more. Files stay open and get -ENODEV. Happens once, from remove or after the device
 * broke its protocol.
 */
static void device_stop(struct kvg_device *dev)
{
	mutex_lock(&dev->stop_mutex);
	if (dev->stopped)
		goto out;
	dev->stopped = true;
	spin_lock_irq(&dev->request_lock);
	dev->gone = true;
	spin_unlock_irq(&dev->request_lock);
	synchronize_srcu(&kvg_srcu); /* nobody uses the queues any more, except the interrupts */
	virtio_reset_device(dev->vdev); /* and now no interrupt comes */
	cancel_work_sync(&dev->event_work);
	kvg_requests_cancel(dev);
	flush_work(&dev->done_work);
	kvg_files_end(dev);
	wake_up_all(&dev->room_wait);
	kvg_window_stop(dev);
	while (virtqueue_detach_unused_buf(dev->event_vq))
		;
	kvg_events_free(dev);
out:
	mutex_unlock(&dev->stop_mutex);
}

static void fail_work(struct work_struct *work)
{
	device_stop(container_of(work, struct kvg_device, fail_work));
}

/* The device broke its protocol. Any context. */
void kvg_device_fail(struct kvg_device *dev, const char *why)
{
	if (!test_and_set_bit(KVG_FAILED, &dev->flags))
		pr_err("%s: %s; the device is stopped, bind the driver again to restart it\n",
		       dev->name, why);
	queue_work(kvg_workqueue, &dev->fail_work);
}

/* ---- statistics: /sys/class/misc/kagemusha-vgpuN/ ---- */

static struct kvg_device *from_sysfs(struct device *device)
{
	return container_of(dev_get_drvdata(device), struct kvg_device, misc);
}

static ssize_t open_files_show(struct device *device, struct device_attribute *attribute,
			       char *buffer)
{
	return sysfs_emit(buffer, "%u\n", READ_ONCE(from_sysfs(device)->file_count));
}
static DEVICE_ATTR_RO(open_files);

/* Files that the device knows: from the first SUBMIT until CLOSE is answered. */
static ssize_t device_files_show(struct device *device, struct device_attribute *attribute,
				 char *buffer)
{
	struct kvg_device *dev = from_sysfs(device);
	unsigned long id;
	u32 count = 0;
	void *file;

	xa_for_each(&dev->ids, id, file)
		count++;
	return sysfs_emit(buffer, "%u\n", count);
}
static DEVICE_ATTR_RO(device_files);

static ssize_t requests_in_flight_show(struct device *device, struct device_attribute *attribute,
				       char *buffer)
{
	return sysfs_emit(buffer, "%u\n", READ_ONCE(from_sysfs(device)->slots_used));
}
static DEVICE_ATTR_RO(requests_in_flight);

static ssize_t pinned_pages_show(struct device *device, struct device_attribute *attribute,
				 char *buffer)
{
	return sysfs_emit(buffer, "%lu\n", READ_ONCE(from_sysfs(device)->pinned_pages));
}
static DEVICE_ATTR_RO(pinned_pages);

static ssize_t pinned_limit_pages_show(struct device *device, struct device_attribute *attribute,
				       char *buffer)
{
	return sysfs_emit(buffer, "%lu\n", from_sysfs(device)->pinned_limit);
}
static DEVICE_ATTR_RO(pinned_limit_pages);

static ssize_t window_used_bytes_show(struct device *device, struct device_attribute *attribute,
				      char *buffer)
{
	return sysfs_emit(buffer, "%lld\n", atomic64_read(&from_sysfs(device)->window_used_bytes));
}
static DEVICE_ATTR_RO(window_used_bytes);

static struct attribute *kvg_attrs[] = {
	&dev_attr_open_files.attr,
	&dev_attr_device_files.attr,
	&dev_attr_requests_in_flight.attr,
	&dev_attr_pinned_pages.attr,
	&dev_attr_pinned_limit_pages.attr,
	&dev_attr_window_used_bytes.attr,
	NULL
};
ATTRIBUTE_GROUPS(kvg);

/* ---- probe and remove ---- */

/*
 * How many segments fit into an element of at most half the ring, beside the largest stream and
 * payload table.
 */
static u32 ring_segments(u32 ring, u32 stream_bytes)
{
	u32 chunks = ring / 2;
	u32 fixed = 2 /* the response, and a chunk that the parts share */ +
		    kvg_blob_max_chunks(sizeof(struct vgpu_request) + stream_bytes +
					VGPU_MAX_PAYLOADS * sizeof(struct vgpu_payload));

	if (chunks <= fixed)
		return 0;
	return (u64)(chunks - fixed) * KVG_BLOB_CHUNK_BYTES / sizeof(struct vgpu_segment);
}

static int read_limits(struct kvg_device *dev, struct vgpu_config *config)
{
	struct device *parent = &dev->vdev->dev;
	struct kvg_limits *limits = &dev->limits;
	u32 ring = virtqueue_get_vring_size(dev->request_vq);
	u32 segments;

	/* as one piece: its fields are little-endian, and so are we (see kvg_init) */
	virtio_cread_bytes(dev->vdev, 0, config, sizeof(*config));
	if (config->abi_version != VGPU_ABI_VERSION) {
		dev_err(parent,
			"the device speaks version %u, this driver %u: install the driver that came with the device\n",
			config->abi_version, VGPU_ABI_VERSION);
		return -EPROTONOSUPPORT;
	}
	limits->stream_bytes = round_down(min(config->max_stream_bytes, VGPU_MAX_STREAM_BYTES), 8);
	limits->requests = config->max_requests_per_file;
	limits->events = min(config->max_events_per_file, KVG_MAX_EVENTS);
	limits->files = config->max_files;

	dev->pinned_limit = totalram_pages() / 2;
	if (pinned_limit_mib)
		dev->pinned_limit = (unsigned long)pinned_limit_mib << (20 - PAGE_SHIFT);
	dev->pinned_limit = min(dev->pinned_limit, KVG_MAX_PINNED_PAGES);
	segments = min3(config->max_segments, VGPU_MAX_SEGMENTS,
			ring_segments(ring, limits->stream_bytes));
	limits->pages = min_t(unsigned long, segments, dev->pinned_limit / 2);
	/*
	 * a payload touches at most two pages more than its length has, so these bounds hold
	 * together at any alignment
	 */
	limits->payloads = min(limits->pages / 4, VGPU_MAX_PAYLOADS);
	limits->payload_bytes = (u64)(limits->pages - 2 * limits->payloads) << PAGE_SHIFT;
	/* window payloads pin nothing but need a segment each */
	limits->pages -= limits->payloads;
	limits->payload_bytes -= (u64)limits->payloads << PAGE_SHIFT;

	if (limits->stream_bytes < VGPU_EVENT_BUFFER_BYTES || !limits->payloads ||
	    !limits->requests || !limits->events) {
		dev_err(parent,
			"unusable limits: ring %u, stream %u bytes, %u segments, %u requests, %u events\n",
			ring, config->max_stream_bytes, config->max_segments,
			config->max_requests_per_file, config->max_events_per_file);
		return -EINVAL;
	}
	dev->slots = ring;
	return 0;
}

static int kvg_validate(struct virtio_device *vdev)
{
	if (!vdev->config->get || !virtio_has_feature(vdev, VIRTIO_F_VERSION_1)) {
		dev_err(&vdev->dev,
			"the device is not a modern virtio device with a configuration space\n");
		return -EINVAL;
	}
	if (!virtio_has_feature(vdev, VIRTIO_RING_F_INDIRECT_DESC)) {
		dev_err(&vdev->dev,
			"the device offers no indirect descriptors (indirect_desc=on), which requests need\n");
		return -EINVAL;
	}
	/*
	 * Segments carry guest-physical addresses; a device that insists on translated ones refuses
	 * us here.
	 */
	__virtio_clear_bit(vdev, VIRTIO_F_ACCESS_PLATFORM);
	return 0;
}

static struct kvg_device *device_new(struct virtio_device *vdev)
{
	struct kvg_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (!dev)
		return NULL;
	kref_init(&dev->refs);
	dev->vdev = vdev;
	spin_lock_init(&dev->request_lock);
	INIT_LIST_HEAD(&dev->backlog);
	INIT_LIST_HEAD(&dev->done);
	init_waitqueue_head(&dev->room_wait);
	INIT_WORK(&dev->done_work, kvg_request_done_work);
	INIT_WORK(&dev->event_work, kvg_event_work);
	INIT_WORK(&dev->fail_work, fail_work);
	mutex_init(&dev->stop_mutex);
	xa_init_flags(&dev->ids, XA_FLAGS_ALLOC1);
	spin_lock_init(&dev->files_lock);
	INIT_LIST_HEAD(&dev->files);
	INIT_LIST_HEAD(&dev->users);
	mutex_init(&dev->window_mutex);
	dev->window_ranges = RB_ROOT;
	init_rwsem(&dev->window_rwsem);
	mutex_init(&dev->log.lock);
	mutex_init(&dev->copies_mutex);
	return dev;
}

/* Also in an interrupt. It says what is worth while, so any number will do. */
static void read_copy_threads(struct kvg_device *dev)
{
	__le32 count = 0;

	if (dev->page_copies)
		dev->vdev->config->get(dev->vdev, VGPU_CONFIG_COPY_THREADS, &count, sizeof(count));
	WRITE_ONCE(dev->copy_threads, le32_to_cpu(count));
}

static int kvg_probe(struct virtio_device *vdev)
{
	struct virtqueue *queues[VGPU_QUEUE_COUNT];
	struct kvg_device *dev;
	struct vgpu_config config;
	int ret;

	dev = device_new(vdev);
	if (!dev)
		return -ENOMEM;
	ret = ida_alloc(&kvg_indices, GFP_KERNEL);
	if (ret < 0)
		goto fail_put;
	dev->index = ret;
	snprintf(dev->name, sizeof(dev->name), "kagemusha-vgpu%d", dev->index);
	dev->inode = alloc_anon_inode(kvg_mount->mnt_sb);
	if (IS_ERR(dev->inode)) {
		ret = PTR_ERR(dev->inode);
		dev->inode = NULL;
		goto fail_index;
	}
	vdev->priv = dev;
	ret = kvg_find_queues(vdev, queues, kvg_request_interrupt, "request", kvg_event_interrupt,
			      "event");
	if (ret)
		goto fail_index;
	dev->request_vq = queues[VGPU_QUEUE_REQUEST];
	dev->event_vq = queues[VGPU_QUEUE_EVENT];
	ret = read_limits(dev, &config);
	if (ret)
		goto fail_queues;
	dev->write_runs = virtio_has_feature(vdev, VGPU_F_WRITE_RUNS);
	dev->store_log = virtio_has_feature(vdev, VGPU_F_STORE_LOG);
	dev->page_copies = virtio_has_feature(vdev, VGPU_F_PAGE_COPY);
	read_copy_threads(dev);
	kvg_window_init(dev, config.window_bytes);
	ret = kvg_events_start(dev);
	if (ret)
		goto fail_stop;
	virtio_device_ready(vdev);
	virtqueue_kick(dev->event_vq);

	dev->misc.minor = MISC_DYNAMIC_MINOR;
	dev->misc.name = dev->name;
	dev->misc.fops = &kvg_file_operations;
	dev->misc.parent = &vdev->dev;
	dev->misc.groups = kvg_groups;
	/*
	 * as a render node: every user may compute, files are isolated from each other and bounded
	 * by the device
	 */
	dev->misc.mode = 0666;
	ret = misc_register(&dev->misc);
	if (ret)
		goto fail_stop;
	kvt_stats_add(dev);
	dev_info(&vdev->dev,
		 "%s: %u slots, %u events and %u requests per file, %llu MiB per request, window %llu MiB\n",
		 dev->name, dev->slots, dev->limits.events, dev->limits.requests,
		 dev->limits.payload_bytes >> 20, dev->limits.window_bytes >> 20);
	return 0;

fail_stop:
	device_stop(dev);
	cancel_work_sync(&dev->fail_work);
	kvg_window_free_memory(dev);
fail_queues:
	vdev->config->del_vqs(vdev);
fail_index:
	ida_free(&kvg_indices, dev->index);
fail_put:
	vdev->priv = NULL;
	kvg_device_put(dev);
	return ret;
}

static void kvg_remove(struct virtio_device *vdev)
{
	struct kvg_device *dev = vdev->priv;

	kvt_stats_remove(dev);
	misc_deregister(&dev->misc); /* no new files */
	device_stop(dev);
	cancel_work_sync(&dev->fail_work);
	vdev->config->del_vqs(vdev);
	kvg_window_free_memory(dev);
	ida_free(&kvg_indices, dev->index);
	vdev->priv = NULL;
	kvg_device_put(dev); /* open files have their own references */
}

static void kvg_config_changed(struct virtio_device *vdev)
{
	struct kvg_device *dev = vdev->priv;

	/* The limits never change while the driver is bound. */
	if (!dev)
		return;
	if (vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_NEEDS_RESET)
		kvg_device_fail(dev, "the device asks to be reset");
	read_copy_threads(dev);
}

#ifdef CONFIG_PM
/* The state on the GPU is not in the guest, so it would not come back after a hibernation. */
static int kvg_freeze(struct virtio_device *vdev)
{
	dev_err(&vdev->dev,
		"suspend and hibernation are not supported: unload kagemusha_vgpu first\n");
	return -EOPNOTSUPP;
}
#endif

static const struct virtio_device_id kvg_id_table[] = {
	{ VGPU_VIRTIO_ID, VIRTIO_DEV_ANY_ID },
	{ }
};
MODULE_DEVICE_TABLE(virtio, kvg_id_table);

static const unsigned int kvg_features[] = { VGPU_F_WRITE_RUNS, VGPU_F_STORE_LOG,
					    VGPU_F_PAGE_COPY };

static struct virtio_driver kvg_driver = {
	.feature_table = kvg_features,
	.feature_table_size = ARRAY_SIZE(kvg_features),
	.driver.name = KBUILD_MODNAME,
	.driver.owner = THIS_MODULE,
	.id_table = kvg_id_table,
	.validate = kvg_validate,
	.probe = kvg_probe,
	.remove = kvg_remove,
	.config_changed = kvg_config_changed,
#ifdef CONFIG_PM
	.freeze = kvg_freeze,
#endif
};

/* ---- module ---- */

static int kvg_init_fs_context(struct fs_context *context)
{
	return init_pseudo(context, KVG_FILESYSTEM_MAGIC) ? 0 : -ENOMEM;
}

/*
 * Only to have an inode for each device: a char device's own is one for each node that was made of
 * it. No .owner: the module's own mount would keep the module from being unloaded, and it is gone
 * before the module is.
 */
static struct file_system_type kvg_filesystem = {
	.name = KBUILD_MODNAME,
	.init_fs_context = kvg_init_fs_context,
	.kill_sb = kill_anon_super,
};

static int __init kvg_init(void)
{
	int ret;

	/* the wire format is little-endian and its addresses are 64 bits */
	BUILD_BUG_ON(IS_ENABLED(CONFIG_CPU_BIG_ENDIAN) || !IS_ENABLED(CONFIG_64BIT));

	kvg_workqueue = alloc_workqueue(KBUILD_MODNAME, WQ_HIGHPRI | WQ_UNBOUND, 0);
	if (!kvg_workqueue)
		return -ENOMEM;
	kvg_mount = kern_mount(&kvg_filesystem);
	if (IS_ERR(kvg_mount)) {
		ret = PTR_ERR(kvg_mount);
		goto fail_workqueue;
	}
	ret = kvt_steps_init();
	if (ret)
		goto fail_mount;
	ret = register_virtio_driver(&kvg_driver);
	if (ret)
		goto fail_steps;
	return 0;

fail_steps:
	kvt_steps_exit();
fail_mount:
	kern_unmount(kvg_mount);
fail_workqueue:
	destroy_workqueue(kvg_workqueue);
	return ret;
}

static void __exit kvg_exit(void)
{
	unregister_virtio_driver(&kvg_driver);
	kvt_steps_exit();
	kern_unmount(kvg_mount);
	destroy_workqueue(kvg_workqueue);
	ida_destroy(&kvg_indices);
}

module_init(kvg_init);
module_exit(kvg_exit);

MODULE_DESCRIPTION("Kagemusha paravirtual GPU");
MODULE_AUTHOR("The Kagemusha authors");
MODULE_LICENSE("GPL");
