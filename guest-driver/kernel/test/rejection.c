// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What the driver must refuse, with which error, and that nothing stays behind.
 */
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "uapi_test.h"

void test_parameters(void)
{
	struct stat status;
	int fd = open_node(0);
	struct kagemusha_vgpu_get_param args = { .param = KAGEMUSHA_VGPU_PARAM_ABI_VERSION };

	CHECK_EQUAL(stat(node, &status), 0);
	CHECK_EQUAL(status.st_mode & 0777, 0666);
	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, &args), 0);
	CHECK_EQUAL(args.value, VGPU_ABI_VERSION);
	CHECK(limits.stream_bytes >= 4096 && limits.stream_bytes <= VGPU_MAX_STREAM_BYTES);
	CHECK(limits.payload_bytes >= 1u << 20);
	CHECK(limits.events >= 1 && limits.requests >= 1);

	args.param = 0;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, &args), EINVAL);
	args.param = 1000;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, &args), EINVAL);
	args.param = KAGEMUSHA_VGPU_PARAM_ABI_VERSION;
	args.pad = 1;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, &args), EINVAL);
	close(fd);
}

void test_ioctl_numbers(void)
{
	struct {
		struct kagemusha_vgpu_get_param args;
		uint64_t more[4];
	} longer = { .args.param = KAGEMUSHA_VGPU_PARAM_ABI_VERSION };
	const unsigned long known = KAGEMUSHA_VGPU_GET_PARAM;
	int fd = open_node(0);

	CHECK_ERROR(ioctl(fd, _IOWR(KAGEMUSHA_VGPU_IOCTL_BASE, 0x3f, longer.args), &longer),
		    ENOTTY);
	CHECK_ERROR(ioctl(fd, _IOWR(KAGEMUSHA_VGPU_IOCTL_BASE + 1, 0x00, longer.args), &longer),
		    ENOTTY);
	CHECK_ERROR(ioctl(fd, _IOW(KAGEMUSHA_VGPU_IOCTL_BASE, 0x00, longer.args), &longer), ENOTTY);
	CHECK_ERROR(ioctl(fd,
			  _IOWR(KAGEMUSHA_VGPU_IOCTL_BASE, 0x05, struct kagemusha_vgpu_set_eventfd),
			  &longer),
		    ENOTTY);
	CHECK_ERROR(ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, _IOC_TYPE(known), _IOC_NR(known), 8),
			  &longer),
		    EINVAL);
	/* a longer structure from newer user space: taken if what we do not know is 0 */
	CHECK_EQUAL(ioctl(fd,
			  _IOC(_IOC_READ | _IOC_WRITE, _IOC_TYPE(known), _IOC_NR(known),
			       sizeof(longer)),
			  &longer),
		    0);
	CHECK_EQUAL(longer.args.value, VGPU_ABI_VERSION);
	longer.more[3] = 1;
	CHECK_ERROR(ioctl(fd,
			  _IOC(_IOC_READ | _IOC_WRITE, _IOC_TYPE(known), _IOC_NR(known),
			       sizeof(longer)),
			  &longer),
		    E2BIG);
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, (void *)8), EFAULT);
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_GET_PARAM, NULL), EFAULT);
	CHECK_ERROR(write(fd, &longer, sizeof(longer)), EINVAL);
	close(fd);
}

static struct kagemusha_vgpu_submit valid_submit(const struct stream *stream)
{
	return (struct kagemusha_vgpu_submit){
		.stream = (uint64_t)(uintptr_t)stream->bytes,
		.stream_bytes = stream->used,
		.payloads = (uint64_t)(uintptr_t)stream->payloads,
		.payload_count = stream->payload_count,
	};
}

#define REFUSED(field, value, error)                                          \
	do {                                                                  \
		struct kagemusha_vgpu_submit args_ = valid_submit(&stream);   \
		args_.field = (value);                                        \
		CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_SUBMIT, &args_), error); \
	} while (0)

#define PAYLOAD_REFUSED(field, value, error)                                                   \
	do {                                                                                   \
		struct kagemusha_vgpu_payload saved_ = stream.payloads[1];                     \
		stream.payloads[1].field = (value);                                            \
		CHECK_ERROR(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, NULL), error); \
		stream.payloads[1] = saved_;                                                   \
	} while (0)

void test_submit_rejections(void)
{
	const size_t page = 4096;
	int64_t pins = kernel_pins();
	struct stream stream;
	/* Low in the address space: a TiB from there is refused for its size, with four levels of
	 * page tables, too, and not because the address space ends before it does. */
	uint8_t *memory = mmap((void *)(1ull << 44), 16 * page, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open_node(0);

	MUST(memory != MAP_FAILED);
	MUST(mprotect(memory + 8 * page, page, PROT_READ) == 0);
	MUST(munmap(memory + 12 * page, page) == 0);
	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, memory, 64);
	stream_payload(&stream, memory + page, page, 0);

	REFUSED(flags, 8, EINVAL);
	REFUSED(stream_bytes, 0, EINVAL);
	REFUSED(stream_bytes, 12, EINVAL);
	REFUSED(stream_bytes, limits.stream_bytes + 8, E2BIG);
	REFUSED(stream_bytes, 0xfffffff8u, E2BIG);
	REFUSED(stream, 0, EFAULT);
	REFUSED(stream, (uint64_t)(uintptr_t)memory + 12 * page, EFAULT);
	REFUSED(stream, 0xffff888000000000u, EFAULT);
	REFUSED(payloads, 8, EFAULT);
	REFUSED(payload_count, VGPU_MAX_PAYLOADS + 1, E2BIG);
	REFUSED(payload_count, 0xffffffffu, E2BIG);
	REFUSED(payload_count, 0, EINVAL); /* a table without a count */
	REFUSED(completion_count, 0xffffffffu, E2BIG);
	REFUSED(completion_count, 100, EINVAL); /* more than the stream has room for */

	PAYLOAD_REFUSED(flags, 4, EINVAL);
	PAYLOAD_REFUSED(pad, 1, EINVAL);
	PAYLOAD_REFUSED(bytes, 0, EINVAL);
	PAYLOAD_REFUSED(bytes, UINT64_MAX, EINVAL);
	PAYLOAD_REFUSED(bytes, 1ull << 40, E2BIG);
	PAYLOAD_REFUSED(address, UINT64_MAX - 100, EINVAL);
	PAYLOAD_REFUSED(address, 0xffff888000000000u, EFAULT);
	PAYLOAD_REFUSED(address, 0, EFAULT);
	PAYLOAD_REFUSED(bytes, 12 * page, EFAULT); /* begins well, ends in the hole */
	PAYLOAD_REFUSED(flags, KAGEMUSHA_VGPU_PAYLOAD_WINDOW,
			limits.window_bytes ? EINVAL : ENODEV);
	stream.payloads[1].flags = KAGEMUSHA_VGPU_PAYLOAD_WRITE;
	PAYLOAD_REFUSED(address, (uint64_t)(uintptr_t)memory + 8 * page, EFAULT); /* not writable */

	CHECK(counter_becomes("pinned_pages", 0));
	CHECK(counter_becomes("requests_in_flight", 0));
	CHECK(kernel_pins_become(pins));
	close(fd);
	stream_free(&stream);
	munmap(memory, 16 * page);
}

void test_wait_rejections(void)
{
	struct kagemusha_vgpu_wait args;
	struct stream stream;
	uint64_t sequence;
	char name[64];
	int fd = open_node(0);

	CHECK_ERROR(wait_answer(fd, 1, NO_LIMIT, &args), ENOENT);
	CHECK_ERROR(wait_answer(fd, 0, 0, &args), ENOENT);
	memset(&args, 0, sizeof(args));
	args.pad = 1;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WAIT, &args), EINVAL);
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_WAIT, NULL), EFAULT);

	stream_init(&stream);
	add_info(&stream, VGPU_INFO_PLATFORM, 0x0902, name, sizeof(name));
	MUST(submit(fd, &stream, 0, &sequence) == 0);
	CHECK_ERROR(wait_answer(fd, sequence, NO_LIMIT, &args), ENOENT); /* was not WAITABLE */
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0);
	CHECK_EQUAL(wait_answer(fd, sequence, NO_LIMIT, &args), 0);
	CHECK_ERROR(wait_answer(fd, sequence, NO_LIMIT, &args), ENOENT); /* was taken */
	close(fd);

	/* a gate that stays shut: the answer does not come */
	fd = open_with_queue(0, 4096);
	stream_reset(&stream);
	add_transfer(&stream, true, QUEUE, 0, GATE, BUFFER, 0,
		     stream_payload(&stream, name, sizeof(name), KAGEMUSHA_VGPU_PAYLOAD_WRITE),
		     sizeof(name));
	MUST(submit(fd, &stream, KAGEMUSHA_VGPU_SUBMIT_WAITABLE, &sequence) == 0);
	CHECK_ERROR(wait_answer(fd, sequence, 0, &args), ETIME);
	CHECK_ERROR(wait_answer(fd, sequence, 1, &args), ETIME);
	CHECK_ERROR(wait_answer(fd, sequence, now_ns() + 1000000, &args), ETIME);
	open_gate(fd);
	CHECK_EQUAL(wait_answer(fd, sequence, NO_LIMIT - 1, &args), 0);
	CHECK_EQUAL(args.status, VGPU_STATUS_OK);
	close(fd);
	stream_free(&stream);
}

void test_eventfd_rejections(void)
{
	struct kagemusha_vgpu_set_eventfd args = { .fd = -1 };
	int fd = open_node(0);

	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), 0);
	args.fd = -2;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), EINVAL);
	args.fd = 1000000;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), EBADF);
	args.fd = fd; /* not an eventfd */
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), EINVAL);
	args.fd = eventfd(0, EFD_CLOEXEC);
	args.pad = 1;
	CHECK_ERROR(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), EINVAL);
	args.pad = 0;
	CHECK_EQUAL(ioctl(fd, KAGEMUSHA_VGPU_SET_EVENTFD, &args), 0);
	close(args.fd);
	close(fd); /* gives back the one that is set */
}
