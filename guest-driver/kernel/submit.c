// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * SUBMIT and WAIT.
 *
 * Life of a SUBMIT
 *	checked and copied
 *	-> event credits taken
 *	-> traced pages flushed (tracer/kernel; the flush's request takes small ones along)
 *	-> room taken (a slot of the ring, pages of the pinned bound)
 *	-> pages pinned
 *	-> sequence number, on the ring (one step, submit_mutex)
 *	-> answered (interrupt: off the ring, slot back, waiters woken)
 *	-> released (done_work: pages unpinned, pages back, credits of what was not executed back)
 *
 * All waiting happens before pages are pinned, and no lock is held meanwhile: while one thread
 * waits for room for a payload, another one can submit the small stream that makes the room.
 */
#include <linux/hrtimer.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kvg.h"

static int submit_check(const struct kvg_limits *limits, const struct kagemusha_vgpu_submit *args)
{
	const u32 known = KAGEMUSHA_VGPU_SUBMIT_WAITABLE | KAGEMUSHA_VGPU_SUBMIT_NONBLOCK |
			  KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER;

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

static struct kvg_request *submit_prepare(struct kvg_file *file,
					  const struct kagemusha_vgpu_submit *args,
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
	/*
	 * a segment for each page, and one for each payload in the window: fits in u32 by the
	 * limits
	 */
	capacity = sizeof(struct vgpu_request) + args->stream_bytes +
		   (u64)args->payload_count * sizeof(struct vgpu_payload) +
		   (u64)(pages + args->payload_count) * sizeof(struct vgpu_segment);
	request = kvg_request_new(file, VGPU_REQUEST_SUBMIT, capacity);
	if (!request)
		return ERR_PTR(-ENOMEM);
	request->waitable = args->flags & KAGEMUSHA_VGPU_SUBMIT_WAITABLE;
	request->stream_bytes = args->stream_bytes;
	request->payload_count = args->payload_count;
	request->completion_count = args->completion_count;
	request->pages = pages;

	ret = kvg_blob_append(&request->blob, NULL, sizeof(struct vgpu_request));
	if (!ret)
		ret = kvg_blob_append_user(&request->blob, u64_to_user_ptr(args->stream),
					   args->stream_bytes);
	if (!ret)
		ret = kvg_blob_append(&request->blob, NULL,
				      args->payload_count * sizeof(struct vgpu_payload));
	if (ret) {
		kvg_request_put(request);
		return ERR_PTR(ret);
	}
	return request;
}

/* A SUBMIT in room that it has, on the ring with the next sequence number. */
int kvg_request_commit(struct kvg_request *request, u64 *sequence)
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
		ret = kvg_ring_submit(request);
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

int kvg_submit(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_submit *args = data;
	bool nonblock = args->flags & KAGEMUSHA_VGPU_SUBMIT_NONBLOCK;
	bool waitable = args->flags & KAGEMUSHA_VGPU_SUBMIT_WAITABLE;
	struct kvt_target target = {
		.queue = args->flush_queue,
		.group = args->flush_group,
		.barrier = args->flags & KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER,
		.nonblock = nonblock,
	};
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
	/*
	 * Not with a payload, whose room may be long in coming. Not if somebody waits for the
	 * answer: it would come when what was flushed has been read, which may be after what only
	 * the waiting program does.
	 */
	if (!waitable && !request->payload_count)
		target.follower = request;
	ret = kvt_flush(file, &target, &args->flushed_bytes);
	if (ret)
		goto out_credits;
	if (target.followed) {
		args->sequence = target.sequence;
		goto out_request;
	}
	ret = kvg_room_take(request, nonblock);
	if (ret)
		goto out_credits;
	ret = kvg_payloads_pin(request, payloads);
	if (!ret)
		ret = kvg_request_commit(request, &args->sequence);
	if (!ret)
		goto out_request; /* the ring has its own reference */

	kvg_payloads_release(request);
	kvg_room_return(request);
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
		if (kvg_request_is_answered(request))
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		over = !schedule_hrtimeout(deadline, HRTIMER_MODE_ABS);
		if (over && !kvg_request_is_answered(request)) {
			ret = -ETIME;
			break;
		}
	}
	finish_wait(&request->wait, &entry);
	return ret;
}

int kvg_wait(struct kvg_file *file, void *data)
{
	struct kagemusha_vgpu_wait *args = data;
	struct kvg_request *request;
	ktime_t deadline;
	int ret = 0;

	if (args->pad)
		return -EINVAL;
	request = answer_find(file, args->sequence);
	if (!request)
		return -ENOENT;
	if (!args->deadline_ns) {
		ret = kvg_request_is_answered(request) ? 0 : -ETIME;
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
