// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Requests between the driver and the device: room, the ring, answers, and opening and closing a
 * file on the device. What SUBMIT and WAIT do around them is in submit.c.
 *
 * Room is a slot of the ring and a part of the bound on pinned pages. The answer interrupt takes
 * requests off the ring and gives their slots back; done_work gives back the rest.
 */
#include <linux/jiffies.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "kvg.h"

#define KVG_SMALL_SCATTER 8

struct kvg_request *kvg_request_new(struct kvg_file *file, u32 type, u32 capacity)
{
	struct kvg_request *request = kzalloc(sizeof(*request), GFP_KERNEL_ACCOUNT);

	if (!request)
		return NULL;
	if (kvg_blob_init(&request->blob, capacity, &file->dev->spare_chunks)) {
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

/* ---- room ---- */

/* A few slots are left to OPEN and CLOSE, which have no one to wait for them. */
static u32 submit_slots(const struct kvg_device *dev)
{
	return dev->slots - dev->slots / 8;
}

static int room_try(struct kvg_request *request)
{
	struct kvg_device *dev = request->dev;
	struct kvg_file *file = request->file;
	struct kvg_user *user = file->user;
	bool payload = request->payload_count;
	int ret = -EAGAIN;

	spin_lock_irq(&dev->request_lock);
	if (dev->gone || READ_ONCE(file->dead)) {
		ret = -ENODEV;
	} else if (file->in_flight < dev->limits.requests &&
		   kvg_share_left(submit_slots(dev), dev->slots_used, user->slots_used, 1,
				  file->unbound) &&
		   (!payload ||
		    (kvg_share_left(dev->slots / 2, dev->payload_slots_used,
				    user->payload_slots_used, 1, file->unbound) &&
		     /* one file alone cannot keep the others from transferring */
		     file->payload_in_flight < max(dev->slots / 8, 1u) &&
		     kvg_share_left(dev->pinned_limit, dev->pinned_pages, user->pinned_pages,
				    request->pages, file->unbound) &&
		     request->pages <= dev->pinned_limit / 2 - file->pinned_pages))) {
		dev->slots_used++;
		user->slots_used++;
		file->in_flight++;
		if (payload) {
			dev->payload_slots_used++;
			user->payload_slots_used++;
			file->payload_in_flight++;
			dev->pinned_pages += request->pages;
			user->pinned_pages += request->pages;
			file->pinned_pages += request->pages;
		}
		request->in_room = true;
		ret = 0;
	}
	spin_unlock_irq(&dev->request_lock);
	return ret;
}

int kvg_room_take(struct kvg_request *request, bool nonblock)
{
	int killed = 0;
	int ret = room_try(request);

	if (ret == -EAGAIN && !nonblock)
		killed = wait_event_killable(request->dev->room_wait,
					     (ret = room_try(request)) != -EAGAIN);
	return killed ? -EINTR : ret;
}

/* The request needs less than it took room for. */
void kvg_room_shrink(struct kvg_request *request, u32 payload_count, unsigned long pages)
{
	struct kvg_device *dev = request->dev;
	struct kvg_file *file = request->file;

	spin_lock_irq(&dev->request_lock);
	dev->pinned_pages -= request->pages - pages;
	file->user->pinned_pages -= request->pages - pages;
	file->pinned_pages -= request->pages - pages;
	if (request->payload_count && !payload_count) {
		dev->payload_slots_used--;
		file->user->payload_slots_used--;
		file->payload_in_flight--;
	}
	request->payload_count = payload_count;
	request->pages = pages;
	spin_unlock_irq(&dev->request_lock);
	wake_up_all(&dev->room_wait);
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
	file->user->slots_used--;
	file->in_flight--;
	if (request->payload_count) {
		dev->payload_slots_used--;
		file->user->payload_slots_used--;
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
		request->file->user->pinned_pages -= request->pages;
		request->file->pinned_pages -= request->pages;
	}
	request->in_room = false;
	spin_unlock_irq(&dev->request_lock);
	wake_up_all(&dev->room_wait);
}

/* A request that never reached the ring. */
void kvg_room_return(struct kvg_request *request)
{
	spin_lock_irq(&request->dev->request_lock);
	room_return_slot(request);
	spin_unlock_irq(&request->dev->request_lock);
	room_return_pages(request);
}

/* ---- the ring ---- */

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
int kvg_ring_submit(struct kvg_request *request)
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

/*
 * A process sends OPEN or CLOSE: now, or when an answer makes room. Takes over the caller's
 * reference.
 */
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
	/* Pairs with the acquire in kvg_request_is_answered: `answer` is complete. */
	smp_store_release(&request->answered, true);
	wake_up_all(&request->wait);
}

bool kvg_request_is_answered(struct kvg_request *request)
{
	/* Pairs with the release in request_answered. */
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

/* ---- after the answer ---- */

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

/* The device does not know the file any more, or was never told of it. */
static void file_leave(struct kvg_file *file)
{
	xa_erase(&file->dev->ids, file->id);
	kvg_user_return_file(file);
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
		if (status != VGPU_STATUS_OK && status != VGPU_STATUS_NO_FILE &&
		    status != VGPU_STATUS_CANCELED)
			kvg_warn(dev, "closing file %u was answered with status %u\n", file->id,
				 status);
		file_leave(file);
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

/*
 * The device was reset and touches no memory any more: everything it held is answered in its place.
 */
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

/* ---- opening and closing on the device ---- */

static struct kvg_request *control_new(struct kvg_file *file, u32 type)
{
	struct vgpu_request header = { .type = type, .file = file->id };
	struct kvg_request *request = kvg_request_new(file, type, sizeof(header));

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

	ret = kvg_user_take_file(file);
	if (ret)
		return ret;
	ret = xa_alloc_cyclic(&dev->ids, &file->id, file, XA_LIMIT(1, INT_MAX), &dev->next_id,
			      GFP_KERNEL);
	if (ret < 0) {
		kvg_user_return_file(file);
		return ret;
	}
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
	file_leave(file);
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
	file_leave(file);
	file->id = 0;
}

static int open_finish(struct kvg_file *file)
{
	u32 status;

	if (wait_event_killable(file->open_request->wait,
				kvg_request_is_answered(file->open_request)))
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
 * The file is opened on the device by its first SUBMIT, not by open(2): programs open the node only
 * to look at it, and then cost the host nothing.
 */
int kvg_file_ensure_open(struct kvg_file *file)
{
	int ret = 0;

	/* Pairs with the release in open_finish. */
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
 * The last descriptor is gone. Whatever is in flight is released when the device answers it; CLOSE
 * makes it do so. The bounded wait only serves the program that opens and closes in a loop: when
 * the device is slow, closing is slow.
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
		file_leave(file); /* the device was reset and has forgotten it */
	else
		wait_event_timeout(close->wait, kvg_request_is_answered(close),
				   msecs_to_jiffies(KVG_CLOSE_WAIT_MS));
	kvg_request_put(close);
}
