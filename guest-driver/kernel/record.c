// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Records of one file: event credits, the queue between event_work and read(2), poll and eventfd.
 *
 * The queue is bounded and still never loses a completion: SUBMIT takes a credit for each
 * completion that it asks for and makes the node that will hold it; read(2) gives the credit back.
 * Text and queue errors have bounds of their own, and what does not fit is counted and told
 * (VGPU_RECORD_TEXT_DROPPED, VGPU_RECORD_OVERFLOW).
 */
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kvg.h"

struct kvg_node {
	struct list_head link;
	union {
		struct vgpu_record record;
		struct vgpu_record_completion completion;
		DECLARE_FLEX_ARRAY(u8, bytes);
	};
};

/* file->lock is held. */
static void tell(struct kvg_file *file)
{
	if (file->eventfd)
		kvg_eventfd_signal(file->eventfd);
	wake_up_interruptible_poll(&file->read_wait, EPOLLIN | EPOLLRDNORM);
}

/* ---- credits ---- */

static int credits_try(struct kvg_file *file, u32 count, u32 *missing_nodes)
{
	const u32 limit = file->dev->limits.events;
	int ret = 0;

	spin_lock(&file->lock);
	if (file->dead) {
		ret = -ENODEV;
	} else if (count > limit - file->credits_used) {
		ret = -EAGAIN;
	} else {
		file->credits_used += count;
		file->expected += count;
		*missing_nodes = 0;
		if (file->credits_used > file->node_count) {
			*missing_nodes = file->credits_used - file->node_count;
			file->node_count = file->credits_used;
		}
	}
	spin_unlock(&file->lock);
	return ret;
}

/*
 * Nodes counted in node_count but not made yet are never more than the credits of those who are
 * still making them and have not submitted, so there is a node for every completion that can come.
 */
static int nodes_make(struct kvg_file *file, u32 count)
{
	struct kvg_node *node, *next;
	LIST_HEAD(made);
	u32 i;

	for (i = 0; i < count; i++) {
		node = kmalloc(sizeof(*node), GFP_KERNEL_ACCOUNT);
		if (!node)
			goto fail;
		list_add(&node->link, &made);
	}
	spin_lock(&file->lock);
	list_splice(&made, &file->spare_nodes);
	spin_unlock(&file->lock);
	return 0;
fail:
	list_for_each_entry_safe(node, next, &made, link)
		kfree(node);
	spin_lock(&file->lock);
	file->node_count -= count;
	spin_unlock(&file->lock);
	return -ENOMEM;
}

int kvg_credits_take(struct kvg_file *file, u32 count, bool nonblock)
{
	u32 missing = 0;
	int killed = 0;
	int ret;

	if (!count)
		return 0;
	ret = credits_try(file, count, &missing);
	if (ret == -EAGAIN && !nonblock)
		killed = wait_event_killable(file->credit_wait,
					     (ret = credits_try(file, count, &missing)) != -EAGAIN);
	if (killed || ret)
		return killed ? -EINTR : ret;
	if (missing && nodes_make(file, missing)) {
		kvg_credits_return(file, count);
		return -ENOMEM;
	}
	return 0;
}

/* Completions that will not come. */
void kvg_credits_return(struct kvg_file *file, u32 count)
{
	if (!count)
		return;
	spin_lock(&file->lock);
	/*
	 * less than `count` only if the device sent completions for what it said it did not execute
	 */
	count = min(count, file->expected);
	file->expected -= count;
	file->credits_used -= count;
	spin_unlock(&file->lock);
	wake_up_all(&file->credit_wait);
}

/* ---- in ---- */

void kvg_file_overflow(struct kvg_file *file)
{
	spin_lock(&file->lock);
	file->overflow = true;
	tell(file);
	spin_unlock(&file->lock);
}

/* file->lock is held; `count` bytes of text or one queue error go into a node made now. */
static bool queue_copy(struct kvg_file *file, const struct vgpu_record *record,
		       struct kvg_node *node)
{
	if (!node)
		return false;
	memcpy(node->bytes, record, record->bytes);
	list_add_tail(&node->link, &file->records);
	return true;
}

static bool queue_completion(struct kvg_file *file, const struct vgpu_record *record)
{
	struct kvg_node *node = list_first_entry_or_null(&file->spare_nodes, struct kvg_node, link);

	if (!file->expected || !node)
		return false;
	list_del(&node->link);
	file->expected--;
	return queue_copy(file, record, node);
}

/* `record` was checked by event_work and is its private copy. */
void kvg_record_queue(struct kvg_file *file, const struct vgpu_record *record)
{
	struct kvg_node *node = NULL;
	const char *wrong = NULL;

	switch (record->type) {
	case VGPU_RECORD_TEXT:
	case VGPU_RECORD_QUEUE_ERROR:
	case VGPU_RECORD_LOST:
		node = kmalloc(struct_size(node, bytes, record->bytes), GFP_KERNEL);
		break;
	case VGPU_RECORD_COMPLETION: /* has its node already */
	case VGPU_RECORD_TEXT_DROPPED: /* is only counted */
		break;
	default:
		return;
	}

	spin_lock(&file->lock);
	if (file->ended) {
		wrong = "a record came after the file's last one";
		goto out;
	}
	switch (record->type) {
	case VGPU_RECORD_COMPLETION:
		if (!queue_completion(file, record)) {
			wrong = "a completion came that nobody asked for";
			file->overflow = true;
		}
		break;
	case VGPU_RECORD_TEXT:
		if (record->bytes > KVG_MAX_TEXT_BYTES - file->text_bytes ||
		    !queue_copy(file, record, node)) {
			file->text_dropped += ((const struct vgpu_record_text *)record)->text_bytes;
			break;
		}
		file->text_bytes += record->bytes;
		node = NULL;
		break;
	case VGPU_RECORD_QUEUE_ERROR:
		if (file->queue_errors == KVG_MAX_QUEUE_ERRORS || !queue_copy(file, record, node)) {
			file->overflow = true;
			break;
		}
		file->queue_errors++;
		node = NULL;
		break;
	case VGPU_RECORD_TEXT_DROPPED:
		file->text_dropped +=
			((const struct vgpu_record_text_dropped *)record)->dropped_bytes;
		break;
	case VGPU_RECORD_LOST:
		if (!queue_copy(file, record, node))
			file->overflow = true; /* the end itself is told by `ended` */
		else
			node = NULL;
		break;
	}
	tell(file);
out:
	spin_unlock(&file->lock);
	kfree(node);
	if (wrong)
		kvg_warn(file->dev, "file %u: %s\n", record->file, wrong);
	if (record->type == VGPU_RECORD_LOST)
		kvg_file_end(file);
}

/* No more requests reach the device. */
void kvg_file_dead(struct kvg_file *file)
{
	spin_lock(&file->lock);
	WRITE_ONCE(file->dead, true);
	spin_unlock(&file->lock);
	wake_up_all(&file->credit_wait);
	wake_up_all(&file->dev->room_wait);
}

/* Nor does a record come from it. */
void kvg_file_end(struct kvg_file *file)
{
	kvg_file_dead(file);
	spin_lock(&file->lock);
	file->ended = true;
	tell(file);
	spin_unlock(&file->lock);
	wake_up_interruptible_poll(&file->read_wait, EPOLLERR);
}

/* ---- out ---- */

/* What read(2) gives next: a record made here, or the head of the queue. */
struct next_record {
	const struct vgpu_record *record;
	struct kvg_node *node;
	union {
		struct vgpu_record overflow;
		struct vgpu_record_text_dropped dropped;
	};
};

/* read_mutex is held, so the node stays. */
static bool next_get(struct kvg_file *file, struct next_record *next)
{
	memset(next, 0, sizeof(*next));
	spin_lock(&file->lock);
	if (file->text_dropped) {
		next->dropped.record.type = VGPU_RECORD_TEXT_DROPPED;
		next->dropped.record.bytes = sizeof(next->dropped);
		next->dropped.record.file = file->id;
		next->dropped.dropped_bytes = file->text_dropped;
		next->record = &next->dropped.record;
	} else if (file->overflow) {
		next->overflow.type = VGPU_RECORD_OVERFLOW;
		next->overflow.bytes = sizeof(next->overflow);
		next->overflow.file = file->id;
		next->record = &next->overflow;
	} else if (!list_empty(&file->records)) {
		next->node = list_first_entry(&file->records, struct kvg_node, link);
		next->record = &next->node->record;
	}
	spin_unlock(&file->lock);
	return next->record;
}

/* It has reached user space. */
static void next_done(struct kvg_file *file, struct next_record *next)
{
	struct kvg_node *node = next->node;
	u32 credits;

	spin_lock(&file->lock);
	credits = file->credits_used;
	switch (next->record->type) {
	case VGPU_RECORD_TEXT_DROPPED:
		file->text_dropped -= next->dropped.dropped_bytes;
		break;
	case VGPU_RECORD_OVERFLOW:
		file->overflow = false;
		break;
	case VGPU_RECORD_COMPLETION:
		list_move(&node->link, &file->spare_nodes);
		file->credits_used--;
		node = NULL;
		break;
	case VGPU_RECORD_TEXT:
		file->text_bytes -= next->record->bytes;
		list_del(&node->link);
		break;
	case VGPU_RECORD_QUEUE_ERROR:
		file->queue_errors--;
		list_del(&node->link);
		break;
	default:
		list_del(&node->link);
		break;
	}
	credits -= file->credits_used;
	spin_unlock(&file->lock);
	kfree(node);
	if (credits)
		wake_up_all(&file->credit_wait);
}

static ssize_t read_some(struct kvg_file *file, char __user *buffer, size_t bytes)
{
	struct next_record next;
	size_t done = 0;

	while (next_get(file, &next)) {
		if (next.record->bytes > bytes - done)
			return done ? done : -EINVAL;
		if (copy_to_user(buffer + done, next.record, next.record->bytes))
			return done ? done : -EFAULT;
		done += next.record->bytes;
		next_done(file, &next);
	}
	return done;
}

/* file->lock is held. */
static bool records_pending(const struct kvg_file *file)
{
	return file->text_dropped || file->overflow || !list_empty(&file->records);
}

static bool read_ready(struct kvg_file *file)
{
	bool ready;

	spin_lock(&file->lock);
	ready = records_pending(file) || file->ended;
	spin_unlock(&file->lock);
	return ready;
}

ssize_t kvg_records_read(struct kvg_file *file, char __user *buffer, size_t bytes, bool nonblock)
{
	ssize_t ret;

	if (!bytes)
		return 0;
	for (;;) {
		bool ended;

		if (mutex_lock_interruptible(&file->read_mutex))
			return -ERESTARTSYS;
		/* before the queue: what was queued before the end is read before it */
		spin_lock(&file->lock);
		ended = file->ended;
		spin_unlock(&file->lock);
		ret = read_some(file, buffer, bytes);
		mutex_unlock(&file->read_mutex);
		if (ret)
			return ret;
		if (ended)
			return -ENODEV;
		if (nonblock)
			return -EAGAIN;
		if (wait_event_interruptible(file->read_wait, read_ready(file)))
			return -ERESTARTSYS;
	}
}

__poll_t kvg_records_poll(struct kvg_file *file, struct file *filp, struct poll_table_struct *wait)
{
	__poll_t mask = 0;

	poll_wait(filp, &file->read_wait, wait);
	spin_lock(&file->lock);
	if (records_pending(file))
		mask = EPOLLIN | EPOLLRDNORM;
	else if (file->ended)
		mask = EPOLLERR;
	spin_unlock(&file->lock);
	return mask;
}

int kvg_set_eventfd(struct kvg_file *file, void *data)
{
	const struct kagemusha_vgpu_set_eventfd *args = data;
	struct eventfd_ctx *context = NULL;

	if (args->pad || args->fd < -1)
		return -EINVAL;
	if (args->fd >= 0) {
		context = eventfd_ctx_fdget(args->fd);
		if (IS_ERR(context))
			return PTR_ERR(context);
	}
	spin_lock(&file->lock);
	swap(file->eventfd, context);
	/* what came before it was set would otherwise wait for the next record */
	if (file->eventfd && (records_pending(file) || file->ended))
		kvg_eventfd_signal(file->eventfd);
	spin_unlock(&file->lock);
	if (context)
		eventfd_ctx_put(context);
	return 0;
}

void kvg_records_free(struct kvg_file *file)
{
	struct kvg_node *node, *next;

	list_splice_init(&file->spare_nodes, &file->records);
	list_for_each_entry_safe(node, next, &file->records, link)
		kfree(node);
	if (file->eventfd)
		eventfd_ctx_put(file->eventfd);
}
