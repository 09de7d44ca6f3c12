// SPDX-License-Identifier: GPL-2.0-or-later
//
// ioctls of the kernel driver: guest-driver/kernel/uapi/linux/kagemusha_vgpu.h.
#include "transport_kernel.hpp"

#include "guest-driver/kernel/uapi/linux/kagemusha_vgpu.h"
#include "window_map.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace kagemusha::opencl {
namespace {

constexpr int max_nodes = 16;

template <class Argument>
int call(int file, unsigned long request, Argument& argument) {
    int result;
    do {
        result = ioctl(file, request, &argument);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : 0;
}

bool get_param(int file, kagemusha_vgpu_param param, std::uint64_t& value) {
    kagemusha_vgpu_get_param request{};
    request.param = param;
    if (call(file, KAGEMUSHA_VGPU_GET_PARAM, request) < 0)
        return false;
    value = request.value;
    return true;
}

class kernel_transport final : public transport {
public:
    kernel_transport(int file, int wake, const transport_limits& limits)
        : file_(file), wake_(wake), limits_(limits) {}

    ~kernel_transport() override { close_both(); }

    transport_limits limits() const override { return limits_; }

    int submit(const submission& request, std::uint64_t& sequence) override {
        // The usual request has a few payloads; only a large one needs memory.
        std::array<kagemusha_vgpu_payload, 16> few;
        std::unique_ptr<kagemusha_vgpu_payload[]> many;
        kagemusha_vgpu_payload* payloads = few.data();
        if (request.payloads.size() > few.size()) {
            many.reset(new (std::nothrow) kagemusha_vgpu_payload[request.payloads.size()]);
            if (!many)
                return -ENOMEM;
            payloads = many.get();
        }
        for (std::size_t i = 0; i < request.payloads.size(); ++i) {
            const payload& one = request.payloads[i];
            payloads[i] = {};
            payloads[i].address = reinterpret_cast<std::uintptr_t>(one.address);
            payloads[i].bytes = one.bytes;
            payloads[i].flags = one.device_writes ? KAGEMUSHA_VGPU_PAYLOAD_WRITE : 0;
            std::uint64_t offset = 0;
            if (windows_.offset_of(one.address, one.bytes, offset)) {
                payloads[i].address = offset;
                payloads[i].flags |= KAGEMUSHA_VGPU_PAYLOAD_WINDOW;
            }
        }
        kagemusha_vgpu_submit argument{};
        argument.stream = reinterpret_cast<std::uintptr_t>(request.stream.data());
        argument.stream_bytes = static_cast<__u32>(request.stream.size());
        argument.flags =
            KAGEMUSHA_VGPU_SUBMIT_NONBLOCK | (request.waitable ? KAGEMUSHA_VGPU_SUBMIT_WAITABLE : 0);
        argument.payloads = request.payloads.empty() ? 0 : reinterpret_cast<std::uintptr_t>(payloads);
        argument.payload_count = static_cast<__u32>(request.payloads.size());
        argument.completion_count = request.completion_count;
        argument.flush_queue = request.flush.queue;
        argument.flush_group = request.flush.context;
        if (request.flush.out_of_order)
            argument.flags |= KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER;
        const int result = call(file_, KAGEMUSHA_VGPU_SUBMIT, argument);
        sequence = argument.sequence;
        return result;
    }

    int wait(std::uint64_t sequence, vgpu_response& answer) override {
        kagemusha_vgpu_wait argument{};
        argument.sequence = sequence;
        argument.deadline_ns = ~__u64{0};
        const int result = call(file_, KAGEMUSHA_VGPU_WAIT, argument);
        if (result < 0)
            return result;
        answer = {};
        answer.status = argument.status;
        answer.result = argument.result;
        answer.failed_offset = argument.failed_offset;
        answer.result_bytes = argument.result_bytes;
        return 0;
    }

    std::ptrdiff_t read_records(std::span<std::byte> buffer, int timeout_ms) override {
        for (;;) {
            // Non-blocking: poll() waits for a record and for shut_down() at once.
            const ssize_t got = read(file_, buffer.data(), buffer.size());
            if (got >= 0)
                return got;
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                return errno == ENODEV ? 0 : -errno;
            std::array<pollfd, 2> waited{{{file_, POLLIN, 0}, {wake_, POLLIN, 0}}};
            const int ready = poll(waited.data(), waited.size(), timeout_ms);
            if (ready == 0)
                return -EAGAIN;
            if (ready < 0 && errno != EINTR)
                return -errno;
            if (waited[1].revents & POLLIN)
                return 0;
            // Lost, and the last record was read.
            if ((waited[0].revents & (POLLERR | POLLHUP | POLLNVAL)) && !(waited[0].revents & POLLIN))
                return 0;
        }
    }

    window_view map_window(const window_request& wanted) override { return windows_.map(file_, wanted); }

    void unmap_window(std::byte* address) noexcept override {
        if (file_ >= 0) // the child of a fork has neither file nor mapping
            windows_.unmap(file_, address);
    }

    int flush_window(const flush_target& target, std::uint64_t& flushed_bytes) override {
        kagemusha_vgpu_window_flush argument{};
        argument.queue = target.queue;
        argument.group = target.context;
        argument.flags = KAGEMUSHA_VGPU_SUBMIT_NONBLOCK;
        if (target.out_of_order)
            argument.flags |= KAGEMUSHA_VGPU_SUBMIT_FLUSH_BARRIER;
        const int result = call(file_, KAGEMUSHA_VGPU_WINDOW_FLUSH, argument);
        flushed_bytes = argument.flushed_bytes;
        return result;
    }

    void discard_window(const std::byte* address, std::uint64_t bytes) noexcept override {
        windows_.discard(file_, address, bytes);
    }

    void note_device_write(const void* address, std::uint64_t bytes) noexcept override {
        windows_.note_device_write(address, bytes);
    }

    bool wrote_window(const std::byte* address) const noexcept override { return windows_.wrote(address); }

    void shut_down() override {
        const std::uint64_t one = 1;
        // An eventfd takes a first increment always; there is nobody to tell if it did not.
        [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    }

    void abandon_after_fork() noexcept override { close_both(); }

private:
    void close_both() noexcept {
        if (file_ >= 0)
            close(file_);
        if (wake_ >= 0)
            close(wake_);
        file_ = wake_ = -1;
    }

    int file_;
    int wake_;
    const transport_limits limits_;
    window_map windows_;
};

// -1 with a sentence if the node cannot be used.
int open_node(const std::string& path, transport_limits& limits, std::string& error) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        error = path + ": " + std::strerror(errno);
        return -1;
    }
    std::uint64_t version = 0, stream = 0, payload = 0, events = 0, requests = 0;
    if (!get_param(file, KAGEMUSHA_VGPU_PARAM_ABI_VERSION, version) || version != VGPU_ABI_VERSION) {
        error = path + ": the device speaks version " + std::to_string(version) +
                " of the interface, this driver " + std::to_string(VGPU_ABI_VERSION) +
                "; install the driver that belongs to the host's version";
        close(file);
        return -1;
    }
    if (get_param(file, KAGEMUSHA_VGPU_PARAM_MAX_STREAM_BYTES, stream) && stream > 0)
        limits.max_stream_bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(stream, VGPU_MAX_STREAM_BYTES));
    if (get_param(file, KAGEMUSHA_VGPU_PARAM_MAX_PAYLOAD_BYTES, payload) && payload > 0)
        limits.max_payload_bytes = payload;
    if (get_param(file, KAGEMUSHA_VGPU_PARAM_MAX_EVENTS, events) && events > 0)
        limits.max_events = static_cast<std::uint32_t>(std::min<std::uint64_t>(events, UINT32_MAX));
    if (get_param(file, KAGEMUSHA_VGPU_PARAM_MAX_REQUESTS, requests) && requests > 0)
        limits.max_requests = static_cast<std::uint32_t>(std::min<std::uint64_t>(requests, UINT32_MAX));
    return file;
}

} // namespace

std::vector<std::string> kernel_device_names() {
    std::vector<std::string> names;
    if (const char* chosen = std::getenv("KAGEMUSHA_VGPU")) {
        std::string_view rest = chosen;
        while (!rest.empty()) {
            const std::size_t end = std::min(rest.find(':'), rest.size());
            if (end > 0)
                names.emplace_back(rest.substr(0, end));
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
        return names;
    }
    for (int i = 0; i < max_nodes; ++i) {
        std::string name = "/dev/kagemusha-vgpu" + std::to_string(i);
        if (access(name.c_str(), F_OK) == 0)
            names.push_back(std::move(name));
    }
    if (names.empty())
        names.emplace_back("/dev/kagemusha-vgpu0"); // opening it says what is wrong
    return names;
}

std::unique_ptr<transport> open_kernel_transport(const std::string& name, std::string& error) {
    transport_limits limits;
    const int file = open_node(name, limits, error);
    if (file < 0)
        return nullptr;
    const int wake = eventfd(0, EFD_CLOEXEC);
    if (wake < 0) {
        error = std::string("eventfd: ") + std::strerror(errno);
        close(file);
        return nullptr;
    }
    return std::make_unique<kernel_transport>(file, wake, limits);
}

} // namespace kagemusha::opencl
