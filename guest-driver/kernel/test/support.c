// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Helpers of the tests: ioctls, streams and counters. See uapi_test.h.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "uapi_test.h"

const char *node = "/dev/kagemusha-vgpu0";
bool check_contents;
struct limits limits;

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int open_node(int flags)
{
	int fd = open(node, O_RDWR | O_CLOEXEC | flags);

	MUST(fd >= 0);
	return fd;
}

uint64_t counter(const char *name)
{
	char path[128];
	unsigned long long value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/misc/%s/%s", strrchr(node, '/') + 1, name);
	file = fopen(path, "r");
	MUST(file && fscanf(file, "%llu", &value) == 1);
	fclose(file);
	return value;
}

#define PATIENCE_NS 60000000000ull /* only how long a failing test takes */

bool counter_becomes(const char *name, uint64_t value)
{
	uint64_t end = now_ns() + PATIENCE_NS;

	while (counter(name) != value) {
		if (now_ns() > end) {
			printf("# %s stays at %llu\n", name, (unsigned long long)counter(name));
			return false;
		}
		usleep(1000);
	}
	return true;
}

int64_t kernel_pins(void)
{
	long long acquired = 0, released = 0, value;
	FILE *file;
	char name[64];
	int refresh = open("/proc/sys/vm/stat_refresh", O_WRONLY); /* sums what the CPUs hold back
								    */

	MUST(refresh >= 0 && write(refresh, "1", 1) == 1);
	close(refresh);
	file = fopen("/proc/vmstat", "r");
	MUST(file);
	while (fscanf(file, "%63s %lld", name, &value) == 2) {
		if (!strcmp(name, "nr_foll_pin_acquired"))
			acquired = value;
		if (!strcmp(name, "nr_foll_pin_released"))
			released = value;
	}
	fclose(file);
	return acquired - released;
}

bool kernel_pins_become(int64_t value)
{
	uint64_t end = now_ns() + PATIENCE_NS;

	while (kernel_pins() != value) {
		if (now_ns() > end) {
			printf("# %lld pages are pinned instead of %lld\n",
			       (long long)kernel_pins(), (long long)value);
			return false;
		}
		usleep(10000);
	}
	return true;
}

void check_idle(int expected_open_files)
{
	CHECK(counter_becomes("open_files", (uint64_t)expected_open_files));
	CHECK(counter_becomes("device_files", 0));
	CHECK(counter_becomes("requests_in_flight", 0));
	CHECK(counter_becomes("pinned_pages", 0));
	CHECK(counter_becomes("window_used_bytes", 0));
}

/* ---- streams ---- */

void stream_init(struct stream *stream)
{
	memset(stream, 0, sizeof(*stream));
	stream->room = VGPU_MAX_STREAM_BYTES;
	stream->bytes = calloc(1, stream->room);
	MUST(stream->bytes);
}

void stream_reset(struct stream *stream)
{
	memset(stream->bytes, 0, stream->used);
	stream->used = 0;
	stream->completions = 0;
	stream->payload_count = 0;
}

void stream_free(struct stream *stream)
{
	free(stream->bytes);
	memset(stream, 0, sizeof(*stream));
}

static void *add(struct stream *stream, uint16_t opcode, uint32_t bytes)
{
	struct vgpu_cmd *cmd = (struct vgpu_cmd *)(stream->bytes + stream->used);

	MUST(bytes % 8 == 0 && bytes <= stream->room - stream->used);
	cmd->opcode = opcode;
	cmd->bytes = bytes;
	stream->used += bytes;
	return cmd;
}

uint32_t stream_payload(struct stream *stream, const void *address, uint64_t bytes, uint32_t flags)
{
	MUST(stream->payload_count < 64);
	stream->payloads[stream->payload_count] = (struct kagemusha_vgpu_payload){
		.address = (uint64_t)(uintptr_t)address,
		.bytes = bytes,
		.flags = flags,
	};
	return stream->payload_count++;
}

void add_info(struct stream *stream, uint32_t subject, uint32_t name, void *result, uint64_t bytes)
{
	struct vgpu_cmd_info *cmd = add(stream, VGPU_CMD_INFO, sizeof(*cmd));

	cmd->subject = subject;
	cmd->name = name;
	cmd->result.index = VGPU_PAYLOAD_NONE;
	cmd->input.index = VGPU_PAYLOAD_NONE;
	if (result) {
		cmd->result.index =
			stream_payload(stream, result, bytes, KAGEMUSHA_VGPU_PAYLOAD_WRITE);
		cmd->result.bytes = bytes;
	}
}

void add_create_context(struct stream *stream, uint64_t id)
{
	struct vgpu_cmd_create_context *cmd = add(stream, VGPU_CMD_CREATE_CONTEXT, sizeof(*cmd));

	cmd->id = id;
}

void add_create_queue(struct stream *stream, uint64_t id, uint64_t context, uint64_t properties)
{
	struct vgpu_cmd_create_queue *cmd = add(stream, VGPU_CMD_CREATE_QUEUE, sizeof(*cmd));

	cmd->id = id;
	cmd->context = context;
	cmd->properties = properties;
}

void add_create_buffer(struct stream *stream, uint64_t id, uint64_t context, uint64_t bytes)
{
	struct vgpu_cmd_create_buffer *cmd = add(stream, VGPU_CMD_CREATE_BUFFER, sizeof(*cmd));

	cmd->id = id;
	cmd->context = context;
	cmd->flags = 1; /* CL_MEM_READ_WRITE */
	cmd->bytes = bytes;
	cmd->content.index = VGPU_PAYLOAD_NONE;
}

void add_create_user_event(struct stream *stream, uint64_t id, uint64_t context)
{
	struct vgpu_cmd_create_user_event *cmd =
		add(stream, VGPU_CMD_CREATE_USER_EVENT, sizeof(*cmd));

	cmd->id = id;
	cmd->context = context;
}

void add_set_user_event(struct stream *stream, uint64_t event, int32_t status)
{
	struct vgpu_cmd_set_user_event *cmd = add(stream, VGPU_CMD_SET_USER_EVENT, sizeof(*cmd));

	cmd->event = event;
	cmd->status = status;
}

void add_destroy(struct stream *stream, uint32_t kind, uint64_t id)
{
	struct vgpu_cmd_destroy *cmd = add(stream, VGPU_CMD_DESTROY, sizeof(*cmd));

	cmd->kind = kind;
	cmd->id = id;
}

/* Fills the enqueue part of a command whose fixed structure has `fixed` bytes. */
static void *add_enqueue(struct stream *stream, uint16_t opcode, uint32_t fixed, uint64_t queue,
			 uint64_t event, uint64_t wait_for)
{
	void *cmd = add(stream, opcode, fixed + (wait_for ? 8 : 0));
	struct vgpu_enqueue *enqueue =
		(struct vgpu_enqueue *)((uint8_t *)cmd + sizeof(struct vgpu_cmd));

	enqueue->queue = queue;
	enqueue->event = event;
	enqueue->wait_count = wait_for ? 1 : 0;
	if (wait_for)
		memcpy((uint8_t *)cmd + fixed, &wait_for, sizeof(wait_for));
	if (event)
		stream->completions++;
	return cmd;
}

void add_marker(struct stream *stream, uint64_t queue, uint64_t event, uint64_t wait_for)
{
	add_enqueue(stream, VGPU_CMD_MARKER, sizeof(struct vgpu_cmd_sync), queue, event, wait_for);
}

void add_transfer(struct stream *stream, bool read, uint64_t queue, uint64_t event,
		  uint64_t wait_for, uint64_t buffer, uint64_t offset, uint32_t payload,
		  uint64_t bytes)
{
	struct vgpu_cmd_transfer_buffer *cmd =
		add_enqueue(stream, read ? VGPU_CMD_READ_BUFFER : VGPU_CMD_WRITE_BUFFER,
			    sizeof(*cmd), queue, event, wait_for);

	cmd->buffer = buffer;
	cmd->offset = offset;
	cmd->data.index = payload;
	cmd->data.bytes = bytes;
}

struct vgpu_cmd_copy_buffer *add_copy(struct stream *stream, uint64_t queue, uint64_t event)
{
	return add_enqueue(stream, VGPU_CMD_COPY_BUFFER, sizeof(struct vgpu_cmd_copy_buffer), queue,
			   event, 0);
}

/* ---- ioctls ---- */

static int send_submit(int fd, const struct stream *stream, struct kagemusha_vgpu_submit *args)
{
	args->stream = (uint64_t)(uintptr_t)stream->bytes;
	args->stream_bytes = stream->used;
	args->payloads = stream->payload_count ? (uint64_t)(uintptr_t)stream->payloads : 0;
	args->payload_count = stream->payload_count;
	args->completion_count = stream->completions;
	return ioctl(fd, KAGEMUSHA_VGPU_SUBMIT, args);
}

int submit(int fd, const struct stream *stream, uint32_t flags, uint64_t *sequence)
{
	struct kagemusha_vgpu_submit args = { .flags = flags };
	int ret = send_submit(fd, stream, &args);

	if (!ret && sequence)
		*sequence = args.sequence;
	return ret;
}

int submit_behind_stores(int fd, const struct stream *stream, uint32_t flags, uint64_t *sequence)
{
	struct kagemusha_vgpu_submit args = { .flags = flags,
					      .flush_queue = QUEUE,
					      .flush_group = CONTEXT };
	int ret = send_submit(fd, stream, &args);

	if (!ret && sequence)
		*sequence = args.sequence;
	return ret;
}

int wait_answer(int fd, uint64_t sequence, uint64_t deadline_ns, struct kagemusha_vgpu_wait *answer)
{
	memset(answer, 0, sizeof(*answer));
	answer->sequence = sequence;
	answer->deadline_ns = deadline_ns;
	return ioctl(fd, KAGEMUSHA_VGPU_WAIT, answer);
}

uint32_t call(int fd, const struct stream *stream, int32_t *result)
{
	struct kagemusha_vgpu_wait answer;
	uint64_t sequence;

	MUST(submit(fd, stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0);
	MUST(wait_answer(fd, sequence, NO_LIMIT, &answer) == 0);
	if (result)
		*result = answer.result;
	return answer.status;
}

void call_ok(int fd, const struct stream *stream)
{
	int32_t result = 1;

	CHECK_EQUAL(call(fd, stream, &result), VGPU_STATUS_OK);
	CHECK_EQUAL(result, 0);
}

int open_with_queue(int flags, uint64_t buffer_bytes)
{
	int fd = open_node(flags);
	struct stream stream;

	stream_init(&stream);
	add_create_context(&stream, CONTEXT);
	call_ok(fd, &stream);
	stream_reset(&stream);
	add_create_queue(&stream, QUEUE, CONTEXT, 0);
	call_ok(fd, &stream);
	stream_reset(&stream);
	add_create_user_event(&stream, GATE, CONTEXT);
	call_ok(fd, &stream);
	if (buffer_bytes) {
		stream_reset(&stream);
		add_create_buffer(&stream, BUFFER, CONTEXT, buffer_bytes);
		call_ok(fd, &stream);
	}
	stream_free(&stream);
	return fd;
}

void open_gate(int fd)
{
	struct stream stream;

	stream_init(&stream);
	add_set_user_event(&stream, GATE, 0);
	CHECK_EQUAL(call(fd, &stream, NULL), VGPU_STATUS_OK);
	stream_free(&stream);
}

unsigned read_completions(int fd, unsigned count)
{
	static uint64_t buffer[64 * VGPU_MAX_RECORD_BYTES / 8];
	unsigned seen = 0;

	while (seen < count) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		ssize_t bytes;

		if (poll(&wait, 1, 60000) != 1 || !(wait.revents & POLLIN)) {
			CHECK(!"a completion came");
			break;
		}
		bytes = read(fd, buffer, sizeof(buffer));
		if (bytes < 0 && errno == EAGAIN)
			continue; /* another reader was faster */
		MUST(bytes > 0);
		for (ssize_t offset = 0; offset < bytes;) {
			const struct vgpu_record *record =
				(const void *)((const uint8_t *)buffer + offset);

			MUST(record->bytes >= sizeof(*record) && record->bytes <= bytes - offset);
			if (record->type == VGPU_RECORD_COMPLETION)
				seen++;
			else
				CHECK_EQUAL(record->type, VGPU_RECORD_COMPLETION);
			offset += record->bytes;
		}
	}
	return seen;
}
