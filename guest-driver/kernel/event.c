// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The event queue: buffers that the device fills with records of any file.
 *
 * The device is trusted with the guest's memory but not with the kernel's control flow: what it
 * wrote is copied once and every length is checked on the copy. A device that breaks the format is
 * reset, because nobody could say any more which completions were lost.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "kvg.h"

static int post(struct kvg_device *dev, void *buffer)
{
	struct scatterlist list;

	sg_init_one(&list, buffer, VGPU_EVENT_BUFFER_BYTES);
	return virtqueue_add_inbuf(dev->event_vq, &list, 1, buffer, GFP_KERNEL);
}

/* The queue is empty and the device ready, or nearly so. */
int kvg_events_start(struct kvg_device *dev)
{
	u32 count = min(virtqueue_get_vring_size(dev->event_vq), KVG_EVENT_BUFFERS);
	u32 i;

	dev->event_scratch = kmalloc(VGPU_EVENT_BUFFER_BYTES, GFP_KERNEL);
	dev->event_buffers = kcalloc(count, sizeof(*dev->event_buffers), GFP_KERNEL);
	if (!dev->event_scratch || !dev->event_buffers)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		void *buffer = kzalloc(VGPU_EVENT_BUFFER_BYTES, GFP_KERNEL);
		int ret;

		if (!buffer)
			return -ENOMEM;
		dev->event_buffers[dev->event_buffer_count++] = buffer;
		ret = post(dev, buffer);
		if (ret)
			return ret;
	}
	return 0;
}

/* The device was reset or never started. */
void kvg_events_free(struct kvg_device *dev)
{
	u32 i;

	for (i = 0; i < dev->event_buffer_count; i++)
		kfree(dev->event_buffers[i]);
	kfree(dev->event_buffers);
	kfree(dev->event_scratch);
	dev->event_buffers = NULL;
	dev->event_scratch = NULL;
	dev->event_buffer_count = 0;
}

void kvg_event_interrupt(struct virtqueue *vq)
{
	struct kvg_device *dev = vq->vdev->priv;

	virtqueue_disable_cb(vq);
	queue_work(kvg_workqueue, &dev->event_work);
}

static const char *check_record(const struct vgpu_record *record, u32 room)
{
	const struct vgpu_record_text *text = (const void *)record;
	u32 exact;

	if (room < sizeof(*record) || record->bytes < sizeof(*record) || record->bytes % 8 ||
	    record->bytes > room || record->bytes > VGPU_MAX_RECORD_BYTES)
		return "the length of a record is wrong";
	switch (record->type) {
	case VGPU_RECORD_COMPLETION:
		exact = sizeof(struct vgpu_record_completion);
		break;
	case VGPU_RECORD_TEXT:
		if (record->bytes < sizeof(*text) ||
		    text->text_bytes > record->bytes - sizeof(*text))
			return "the length of a text record is wrong";
		return NULL;
	case VGPU_RECORD_QUEUE_ERROR:
		exact = sizeof(struct vgpu_record_queue_error);
		break;
	case VGPU_RECORD_LOST:
		exact = sizeof(struct vgpu_record_lost);
		break;
	case VGPU_RECORD_TEXT_DROPPED:
		exact = sizeof(struct vgpu_record_text_dropped);
		break;
	default:
		return NULL; /* of a newer device, to be passed over */
	}
	return record->bytes == exact ? NULL : "the length of a record does not fit its type";
}

/* `batch` is the private copy of `bytes` bytes that the device says it wrote. */
static const char *demultiplex(struct kvg_device *dev, const void *batch, u32 bytes)
{
	const struct vgpu_event_batch *header = batch;
	u32 offset = sizeof(*header);
	u32 count = 0;
	u32 end;

	if (bytes < sizeof(*header) || header->bytes > bytes - sizeof(*header))
		return "the length of an event batch is wrong";
	end = offset + header->bytes;
	while (offset < end) {
		const struct vgpu_record *record = batch + offset;
		const char *wrong = check_record(record, end - offset);
		struct kvg_file *file;

		if (wrong)
			return wrong;
		file = kvg_file_find(dev, record->file);
		if (file) { /* else it was closed meanwhile */
			kvg_record_queue(file, record);
			kvg_file_put(file);
		}
		offset += record->bytes;
		count++;
	}
	return count == header->count ? NULL : "the count of an event batch is wrong";
}

void kvg_event_work(struct work_struct *work)
{
	struct kvg_device *dev = container_of(work, struct kvg_device, event_work);
	struct virtqueue *vq = dev->event_vq;
	const char *wrong = NULL;
	unsigned int bytes;
	void *buffer;

	do {
		virtqueue_disable_cb(vq);
		while (!wrong && (buffer = virtqueue_get_buf(vq, &bytes))) {
			if (bytes > VGPU_EVENT_BUFFER_BYTES) {
				wrong = "an event buffer was overrun";
				break;
			}
			memcpy(dev->event_scratch, buffer, bytes);
			if (post(dev, buffer))
				wrong = "the event queue is broken";
			else
				wrong = demultiplex(dev, dev->event_scratch, bytes);
			cond_resched();
		}
		if (virtqueue_is_broken(vq))
			wrong = "the event queue is broken";
	} while (!wrong && !virtqueue_enable_cb(vq));

	if (wrong)
		kvg_device_fail(dev, wrong);
	else
		virtqueue_kick(vq);
}
