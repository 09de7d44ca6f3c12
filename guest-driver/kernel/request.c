// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Requests: from SUBMIT to the ring, and from the device's answer to WAIT.
 *
 * Life of a SUBMIT
 *	checked and copied -> event credits taken -> room taken (a slot of the ring, pages of the pinned bound)
 *	-> pages pinned -> sequence number, on the ring (one step, under submit_mutex)
 *	-> answered (interrupt: off the ring, slot back, waiters woken)
 *	-> released (done_work: pages unpinned, pages back, credits of what was not executed back)
 *
 * All waiting happens before pages are pinned, and no lock is held meanwhile: a file that waits for room for a payload
 * can still submit, from another thread, the small stream that makes the room.
 */
#include <linux/hrtimer.h>
#include <linux/jiffies.h>
#include <linux/scatterlist.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kvg.h"

#define KVG_SMALL_SCATTER 8

static struct kvg_request *request_new(struct kvg_file *file, u32 type, u32 capacity)
{
	struct kvg_request *request = kzalloc(sizeof(*request), GFP_KERNEL_ACCOUNT);

	if (!request)
		return NULL;
	if (kvg_blob_init(&request->blob, capacity)) {
		kfree(request);
		return NULL;
	}
	kref_init(&request->refs);
	init_waitqueue_head(&request->wait);
	INIT_LIST_HEAD(&request->link);
	kvg_file_get(file);
	request->file = file;
	request->dev = file->dev;
	request->type = type;
	return request;
}

static void request_free(struct kref *refs)
{
	struct kvg_request *request = container_of(refs, struct kvg_request, refs);

	WARN_ON_ONCE(request->segment_count || request->in_room);
	kvg_blob_free(&request->blob);
	kvg_file_put(request->file);
	kfree(request);
}

void kvg_request_put(struct kvg_request *request)
{
	kref_put(&request->refs, request_free);
}

/* ---- room ---------------------------------------------------------------------------------------------------- */

/* A few slots are left to OPEN and CLOSE, which have no one to wait for them. */
static u32 submit_slots(const struct kvg_device *dev)
{
	return dev->slots - dev->slots / 8;
}

static int room_try(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	struct kvg_file *file = request->file;
	bool payload = request->payload_count;
	int ret = -EAGAIN;

	spin_lock_irq(&dev->request_lock);
	if (dev->gone || READ_ONCE(file->dead)) {
		ret = -ENODEV;
	} else if (dev->slots_used < submit_slots(dev) && file->in_flight < dev->limits.requests &&
		   (!payload ||
		    (dev->payload_slots_used < dev->slots / 2 &&
		     /* one file alone cannot keep the others from transferring */
		     file->payload_in_flight < max(dev->slots / 8, 1u) &&
		     request->pages <= dev->pinned_limit - dev->pinned_pages &&
		     request->pages <= dev->pinned_limit / 2 - file->pinned_pages))) {
		dev->slots_used++;
		file->in_flight++;
		if (payload) {
			dev->payload_slots_used++;
			file->payload_in_flight++;
			dev->pinned_pages += request->pages;
			file->pinned_pages += request->pages;
		}
		request->in_room = true;
		ret = 0;
	}
	spin_unlock_irq(&dev->request_lock);
	return ret;
}

static int room_take(struct kvg_request *request, bool nonblock)
{
	int ret = room_try(request);

	if (ret != -EAGAIN || nonblock)
		return ret;
	if (wait_event_killable(request->dev->room_wait, (ret = room_try(request)) != -EAGAIN))
		return -EINTR;
	return ret;
}

/* The slot comes back when the device has answered. request_lock is held. */
static void room_return_slot(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	struct kvg_file *file = request->file;

	if (!request->in_room)
		return;
	dev->slots_used--;
	if (request->type != VGPU_REQUEST_SUBMIT)
		return;
	file->in_flight--;
	if (request->payload_count) {
		dev->payload_slots_used--;
		file->payload_in_flight--;
	}
}

/* The pages come back when they are unpinned. */
static void room_return_pages(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;

	spin_lock_irq(&dev->request_lock);
	if (request->in_room && request->payload_count) {
		dev->pinned_pages -= request->pages;
		request->file->pinned_pages -= request->pages;
	}
	request->in_room = false;
	spin_unlock_irq(&dev->request_lock);
	wake_up_all(&dev->room_wait);
}

/* ---- the ring ------------------------------------------------------------------------------------------------ */

/* request_lock is held. On success the ring holds a reference, which the caller gives. */
static int ring_add(struct kvg_request *request, struct scatterlist *out, gfp_t gfp)
{
	struct scatterlist in;
	struct scatterlist *lists[2] = { out, &in };

	sg_init_one(&in, &request->response, sizeof(request->response));
	return virtqueue_add_sgs(request->dev->request_vq, lists, 1, 1, request, gfp);
}

/* OPEN and CLOSE: one chunk. request_lock is held. */
static int ring_add_small(struct kvg_request *request)
{
	struct scatterlist out;
	int ret;

	kvg_blob_fill_scatter(&request->blob, &out);
	ret = ring_add(request, &out, GFP_ATOMIC);
	if (!ret) {
		request->dev->slots_used++;
		request->in_room = true;
	}
	return ret;
}

/* A process puts a SUBMIT on the ring, in room that it took before. */
static int ring_submit(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	struct scatterlist small[KVG_SMALL_SCATTER];
	struct scatterlist *out = small;
	bool kick = false;
	int ret, index;

	if (request->blob.chunk_count > KVG_SMALL_SCATTER) {
		out = kmalloc_array(request->blob.chunk_count, sizeof(*out), GFP_KERNEL);
		if (!out)
			return -ENOMEM;
	}
	kvg_blob_fill_scatter(&request->blob, out);

	kref_get(&request->refs); /* the ring's */
	index = srcu_read_lock(&kvg_srcu);
	spin_lock_irq(&dev->request_lock);
	if (dev->gone || READ_ONCE(request->file->dead))
		ret = -ENODEV;
	else
		ret = ring_add(request, out, GFP_ATOMIC);
	if (!ret)
		kick = virtqueue_kick_prepare(dev->request_vq);
	spin_unlock_irq(&dev->request_lock);
	if (kick && !virtqueue_notify(dev->request_vq))
		kvg_device_fail(dev, "the request queue cannot be notified");
	srcu_read_unlock(&kvg_srcu, index);

	if (ret)
		kvg_request_put(request);
	if (ret == -EIO) {
		kvg_device_fail(dev, "the request queue is broken");
		ret = -ENODEV;
	} else if (ret == -ENOSPC) {
		/* There is a slot for it: only its indirect descriptors could not be allocated. */
		ret = -ENOMEM;
	}
	if (out != small)
		kfree(out);
	return ret;
}

/* A process sends OPEN or CLOSE: now, or when an answer makes room. Takes over the caller's reference. */
static int ring_send(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	bool kick = false;
	int ret = 0;
	int index;

	index = srcu_read_lock(&kvg_srcu);
	spin_lock_irq(&dev->request_lock);
	if (dev->gone)
		ret = -ENODEV;
	else if (!list_empty(&dev->backlog) || ring_add_small(request))
		list_add_tail(&request->link, &dev->backlog);
	else
		kick = virtqueue_kick_prepare(dev->request_vq);
	spin_unlock_irq(&dev->request_lock);
	if (kick && !virtqueue_notify(dev->request_vq))
		kvg_device_fail(dev, "the request queue cannot be notified");
	srcu_read_unlock(&kvg_srcu, index);

	if (ret)
		kvg_request_put(request);
	return ret;
}

/* request_lock is held. */
static void request_answered(struct kvg_request *request, const struct vgpu_response *answer)
{
	room_return_slot(request);
	request->answer = *answer;
	list_add_tail(&request->link, &request->dev->done);
	/* Pairs with the acquire in request_is_answered: `answer` is complete. */
	smp_store_release(&request->answered, true);
	wake_up_all(&request->wait);
}

static bool request_is_answered(struct kvg_request *request)
{
	return smp_load_acquire(&request->answered);
}

void kvg_request_interrupt(struct virtqueue *vq)
{
	struct kvg_device *dev = vq->vdev->priv;
	struct kvg_request *request;
	const char *wrong = NULL;
	unsigned long flags;
	unsigned int bytes;
	bool kick = false;

	spin_lock_irqsave(&dev->request_lock, flags);
	do {
		virtqueue_disable_cb(vq);
		while ((request = virtqueue_get_buf(vq, &bytes))) {
			struct vgpu_response answer = request->response;

			if (bytes < sizeof(answer)) {
				wrong = "an answer is too short";
				memset(&answer, 0, sizeof(answer));
				answer.status = VGPU_STATUS_CANCELED;
			}
			request_answered(request, &answer);
		}
		if (virtqueue_is_broken(vq)) {
			wrong = "the request queue is broken";
			break;
		}
	} while (!virtqueue_enable_cb(vq));

	while (!wrong && !dev->gone && !list_empty(&dev->backlog)) {
		request = list_first_entry(&dev->backlog, struct kvg_request, link);
		if (ring_add_small(request))
			break;
		list_del_init(&request->link);
		kick = true;
	}
	if (kick && !virtqueue_kick(vq))
		wrong = "the request queue cannot be notified";
	spin_unlock_irqrestore(&dev->request_lock, flags);

	queue_work(kvg_workqueue, &dev->done_work);
	wake_up_all(&dev->room_wait);
	if (wrong)
		kvg_device_fail(dev, wrong);
}

/* ---- after the answer ---------------------------------------------------------------------------------------- */

/* How many of the request's completions will never come. */
static u32 completions_lost(const struct kvg_request *request)
{
	switch (request->answer.status) {
	case VGPU_STATUS_OK:
	case VGPU_STATUS_LOST:
	case VGPU_STATUS_CANCELED:
		return 0; /* all of them come, or the file is dead */
	default:
		return request->completion_count; /* nothing of the stream was executed */
	}
}

static void request_release(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	struct kvg_file *file = request->file;
	u32 status = request->answer.status;

	switch (request->type) {
	case VGPU_REQUEST_SUBMIT:
		kvg_payloads_release(request);
		kvg_credits_return(file, completions_lost(request));
		if (status == VGPU_STATUS_LOST)
			kvg_file_dead(file);
		if (status != VGPU_STATUS_OK && !request->waitable)
			kvg_file_overflow(file);
		kvg_blob_free(&request->blob);
		break;
	case VGPU_REQUEST_CLOSE:
		/* Nothing of the file touches memory any more, and its id may be used again. */
		if (status != VGPU_STATUS_OK && status != VGPU_STATUS_NO_FILE && status != VGPU_STATUS_CANCELED)
			kvg_warn(dev, "closing file %u was answered with status %u\n",
				 file->id, status);
		xa_erase(&dev->ids, file->id);
		break;
	}
	room_return_pages(request);
	kvg_request_put(request);
}

void kvg_request_done_work(struct work_struct *work)
{
	struct kvg_device *dev = container_of(work, struct kvg_device, done_work);
	struct kvg_request *request, *next;
	LIST_HEAD(done);

	spin_lock_irq(&dev->request_lock);
	list_splice_init(&dev->done, &done);
	spin_unlock_irq(&dev->request_lock);
	list_for_each_entry_safe(request, next, &done, link) {
		list_del_init(&request->link);
		request_release(request);
		cond_resched();
	}
}

/* The device was reset and touches no memory any more: everything it held is answered in its place. */
void kvg_requests_cancel(struct kvg_device *dev)
{
	const struct vgpu_response canceled = { .status = VGPU_STATUS_CANCELED };
	struct kvg_request *request;

	spin_lock_irq(&dev->request_lock);
	while ((request = virtqueue_detach_unused_buf(dev->request_vq)))
		request_answered(request, &canceled);
	while (!list_empty(&dev->backlog)) {
		request = list_first_entry(&dev->backlog, struct kvg_request, link);
		list_del_init(&request->link);
		request_answered(request, &canceled);
	}
	spin_unlock_irq(&dev->request_lock);
	queue_work(kvg_workqueue, &dev->done_work);
}

/* ---- opening and closing on the device ------------------------------------------------------------------------ */

static struct kvg_request *control_new(struct kvg_file *file, u32 type)
{
	struct vgpu_request header = { .type = type, .file = file->id };
	struct kvg_request *request = request_new(file, type, sizeof(header));

	if (!request)
		return NULL;
	if (kvg_blob_append(&request->blob, &header, sizeof(header))) {
		kvg_request_put(request);
		return NULL;
	}
	return request;
}

/* open_mutex is held. */
static int open_send(struct kvg_file *file)
{
	struct kvg_device *dev = file->dev;
	struct kvg_request *open, *close = NULL;
	int ret;

	ret = xa_alloc_cyclic(&dev->ids, &file->id, file, XA_LIMIT(1, INT_MAX), &dev->next_id, GFP_KERNEL);
	if (ret < 0)
		return ret;
	open = control_new(file, VGPU_REQUEST_OPEN);
	if (open)
		close = control_new(file, VGPU_REQUEST_CLOSE);
	if (!close) {
		ret = -ENOMEM;
		goto fail;
	}
	kref_get(&open->refs); /* the ring's */
	ret = ring_send(open);
	if (ret)
		goto fail;
	file->open_request = open;
	file->close_request = close;
	file->open_state = KVG_OPENING;
	return 0;
fail:
	if (close)
		kvg_request_put(close);
	if (open)
		kvg_request_put(open);
	xa_erase(&dev->ids, file->id);
	file->id = 0;
	return ret;
}

/* open_mutex is held and the device has refused: a later SUBMIT may try again. */
static void open_undo(struct kvg_file *file)
{
	kvg_request_put(file->open_request);
	kvg_request_put(file->close_request);
	file->open_request = NULL;
	file->close_request = NULL;
	file->open_state = KVG_NOT_OPEN;
	xa_erase(&file->dev->ids, file->id);
	file->id = 0;
}

static int open_finish(struct kvg_file *file)
{
	u32 status;

	if (wait_event_killable(file->open_request->wait, request_is_answered(file->open_request)))
		return -EINTR;
	status = file->open_request->answer.status;
	if (status == VGPU_STATUS_OK) {
		kvg_request_put(file->open_request);
		file->open_request = NULL;
		/* Pairs with the acquire in kvg_file_ensure_open: `id` is valid. */
		smp_store_release(&file->open_state, KVG_OPEN);
		return 0;
	}
	open_undo(file);
	switch (status) {
	case VGPU_STATUS_LIMIT:
		return -EMFILE;
	case VGPU_STATUS_NO_MEMORY:
		return -ENOMEM;
	default:
		return -ENODEV;
	}
}

/*
 * The file is opened on the device by its first SUBMIT, not by open(2): programs open the node only to look at it, and
 * then cost the host nothing.
 */
int kvg_file_ensure_open(struct kvg_file *file)
{
	int ret = 0;

	if (smp_load_acquire(&file->open_state) == KVG_OPEN)
		return 0;
	if (mutex_lock_killable(&file->open_mutex))
		return -EINTR;
	if (file->open_state == KVG_NOT_OPEN)
		ret = open_send(file);
	if (!ret && file->open_state == KVG_OPENING)
		ret = open_finish(file);
	mutex_unlock(&file->open_mutex);
	return ret;
}

/*
 * The last descriptor is gone. Whatever is in flight is released when the device answers it; CLOSE makes it do so.
 * The bounded wait only serves the program that opens and closes in a loop: when the device is slow, closing is slow.
 */
void kvg_file_close(struct kvg_file *file)
{
	struct kvg_request *close = file->close_request;

	if (file->open_request) {
		kvg_request_put(file->open_request);
		file->open_request = NULL;
	}
	if (!close)
		return;
	file->close_request = NULL;
	kref_get(&close->refs); /* the ring's */
	if (ring_send(close))
		xa_erase(&file->dev->ids, file->id); /* the device was reset and has forgotten it */
	else
		wait_event_timeout(close->wait, request_is_answered(close), msecs_to_jiffies(KVG_CLOSE_WAIT_MS));
	kvg_request_put(close);
}

/* ---- SUBMIT and WAIT ------------------------------------------------------------------------------------------ */

static int submit_check(const struct kvg_limits *limits, const struct kagemusha_vgpu_submit *args)
{
	const u32 known = KAGEMUSHA_VGPU_SUBMIT_WAITABLE | KAGEMUSHA_VGPU_SUBMIT_NONBLOCK;

	if (args->flags & ~known)
		return -EINVAL;
	if (!args->stream_bytes || args->stream_bytes % 8)
		return -EINVAL;
	if (args->stream_bytes > limits->stream_bytes || args->payload_count > limits->payloads ||
	    args->completion_count > limits->events)
		return -E2BIG;
	/* A command with an event is never smaller, so this cannot be the truth. */
	if (args->completion_count > args->stream_bytes / sizeof(struct vgpu_cmd_sync))
		return -EINVAL;
	if (!args->payload_count && args->payloads)
		return -EINVAL;
	return 0;
}

static struct kagemusha_vgpu_payload *copy_payload_table(const struct kagemusha_vgpu_submit *args)
{
	if (!args->payload_count)
		return NULL;
	return vmemdup_user(u64_to_user_ptr(args->payloads),
			    args->payload_count * sizeof(struct kagemusha_vgpu_payload));
}

static struct kvg_request *submit_prepare(struct kvg_file *file, const struct kagemusha_vgpu_submit *args,
					  const struct kagemusha_vgpu_payload *payloads)
{
	const struct kvg_limits *limits = &file->dev->limits;
	struct kvg_request *request;
	unsigned long pages;
	u64 capacity;
	int ret;

	ret = kvg_payloads_count_pages(limits, payloads, args->payload_count, &pages);
	if (ret)
		return ERR_PTR(ret);
	/* a segment for each page, and one for each payload in the window: fits in u32 by the limits */
	capacity = sizeof(struct vgpu_request) + args->stream_bytes +
		   (u64)args->payload_count * sizeof(struct vgpu_payload) +
		   (u64)(pages + args->payload_count) * sizeof(struct vgpu_segment);
	request = request_new(file, VGPU_REQUEST_SUBMIT, capacity);
	if (!request)
		return ERR_PTR(-ENOMEM);
	request->waitable = args->flags & KAGEMUSHA_VGPU_SUBMIT_WAITABLE;
	request->stream_bytes = args->stream_bytes;
	request->payload_count = args->payload_count;
	request->completion_count = args->completion_count;
	request->pages = pages;

	ret = kvg_blob_append(&request->blob, NULL, sizeof(struct vgpu_request));
	if (!ret)
		ret = kvg_blob_append_user(&request->blob, u64_to_user_ptr(args->stream), args->stream_bytes);
	if (!ret)
		ret = kvg_blob_append(&request->blob, NULL, args->payload_count * sizeof(struct vgpu_payload));
	if (ret) {
		kvg_request_put(request);
		return ERR_PTR(ret);
	}
	return request;
}

static int submit_commit(struct kvg_request *request, u64 *sequence)
{
	struct kvg_file *file = request->file;
	struct vgpu_request header = {
		.type = VGPU_REQUEST_SUBMIT,
		.file = file->id,
		.stream_bytes = request->stream_bytes,
		.payload_count = request->payload_count,
		.segment_count = request->segment_count,
		.completion_count = request->completion_count,
	};
	int ret = 0;

	mutex_lock(&file->submit_mutex);
	request->sequence = file->next_sequence;
	header.sequence = request->sequence;
	kvg_blob_write(&request->blob, 0, &header, sizeof(header));
	if (request->waitable) {
		kref_get(&request->refs);
		ret = xa_insert(&file->answers, request->sequence, request, GFP_KERNEL_ACCOUNT);
		if (ret)
			kvg_request_put(request);
	}
	if (!ret) {
		*sequence = request->sequence;
		ret = ring_submit(request);
		if (!ret) {
			file->next_sequence++;
		} else if (request->waitable) {
			xa_erase(&file->answers, request->sequence);
			kvg_request_put(request);
		}
	}
	mutex_unlock(&file->submit_mutex);
	return ret;
}

int kvg_submit(struct kvg_file *file, struct kagemusha_vgpu_submit *args)
{
	bool nonblock = args->flags & KAGEMUSHA_VGPU_SUBMIT_NONBLOCK;
	bool waitable = args->flags & KAGEMUSHA_VGPU_SUBMIT_WAITABLE;
	struct kagemusha_vgpu_payload *payloads;
	struct kvg_request *request;
	int ret;

	ret = submit_check(&file->dev->limits, args);
	if (ret)
		return ret;
	if (READ_ONCE(file->dead))
		return -ENODEV;
	payloads = copy_payload_table(args);
	if (IS_ERR(payloads))
		return PTR_ERR(payloads);
	request = submit_prepare(file, args, payloads);
	if (IS_ERR(request)) {
		ret = PTR_ERR(request);
		goto out_table;
	}
	ret = kvg_file_ensure_open(file);
	if (ret)
		goto out_request;
	if (waitable && atomic_inc_return(&file->answer_count) > KVG_MAX_ANSWERS) {
		ret = -EBUSY;
		goto out_answer;
	}
	ret = kvg_credits_take(file, request->completion_count, nonblock);
	if (ret)
		goto out_answer;
	ret = room_take(request, nonblock);
	if (ret)
		goto out_credits;
	ret = kvg_payloads_pin(request, payloads);
	if (!ret)
		ret = submit_commit(request, &args->sequence);
	if (!ret)
		goto out_request; /* the ring has its own reference */

	kvg_payloads_release(request);
	spin_lock_irq(&file->dev->request_lock);
	room_return_slot(request);
	spin_unlock_irq(&file->dev->request_lock);
	room_return_pages(request);
out_credits:
	kvg_credits_return(file, request->completion_count);
out_answer:
	if (waitable)
		atomic_dec(&file->answer_count);
out_request:
	kvg_request_put(request);
out_table:
	kvfree(payloads);
	return ret;
}

static struct kvg_request *answer_find(struct kvg_file *file, u64 sequence)
{
	struct kvg_request *request;

	xa_lock(&file->answers);
	request = xa_load(&file->answers, sequence);
	if (request)
		kref_get(&request->refs);
	xa_unlock(&file->answers);
	return request;
}

/* Killable, until an absolute time of CLOCK_MONOTONIC; NULL: no limit. */
static int answer_wait(struct kvg_request *request, ktime_t *deadline)
{
	DEFINE_WAIT(entry);
	int ret = 0;

	for (;;) {
		bool over;

		prepare_to_wait(&request->wait, &entry, TASK_KILLABLE);
		if (request_is_answered(request))
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		over = !schedule_hrtimeout(deadline, HRTIMER_MODE_ABS);
		if (over && !request_is_answered(request)) {
			ret = -ETIME;
			break;
		}
	}
	finish_wait(&request->wait, &entry);
	return ret;
}

int kvg_wait(struct kvg_file *file, struct kagemusha_vgpu_wait *args)
{
	struct kvg_request *request;
	ktime_t deadline;
	int ret = 0;

	if (args->pad)
		return -EINVAL;
	request = answer_find(file, args->sequence);
	if (!request)
		return -ENOENT;
	if (!args->deadline_ns) {
		ret = request_is_answered(request) ? 0 : -ETIME;
	} else {
		deadline = ns_to_ktime(min_t(u64, args->deadline_ns, KTIME_MAX));
		ret = answer_wait(request, args->deadline_ns >= KTIME_MAX ? NULL : &deadline);
	}
	if (ret)
		goto out;
	/* Of two waiters one takes it. */
	if (xa_cmpxchg(&file->answers, args->sequence, request, NULL, 0) != request) {
		ret = -ENOENT;
		goto out;
	}
	atomic_dec(&file->answer_count);
	args->status = request->answer.status;
	args->result = request->answer.result;
	args->failed_offset = request->answer.failed_offset;
	args->result_bytes = request->answer.result_bytes;
	kvg_request_put(request); /* the one of `answers` */
out:
	kvg_request_put(request);
	return ret;
}
