// SPDX-License-Identifier: GPL-2.0-or-later
// device_loop: what both ends have in common; see device_loop.hpp.
#include "loop/host/device_loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "loop/core/mailbox.hpp"

namespace kagemusha::loop {
namespace {

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

} // namespace

device_loop::device_loop(const kagemusha_loop_options& options)
    : lanes_(options.lanes)
    , lane_state_bytes_(options.state_bytes)
    , outbox_bytes_(std::size_t{options.lanes} * LOOP_OUTBOX_BYTES) {
    ended_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ended_ < 0)
        throw failure(errno, "no eventfd");
}

device_loop::~device_loop() {
    close(ended_);
}

std::size_t device_loop::state_bytes() const {
    return lanes_ * (sizeof(loop_lane_state) + lane_state_bytes_);
}

void device_loop::report_end(void* ended) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written =
        write(static_cast<int>(reinterpret_cast<std::intptr_t>(ended)), &one, sizeof one);
}

void* device_loop::ended_pointer() const {
    return reinterpret_cast<void*>(std::intptr_t{ended_});
}

void device_loop::start(std::uint32_t callbacks, std::vector<std::byte> inbox) {
    inbox_bytes_ = std::move(inbox);
    started_ns_ = now_ns();
    enqueue(callbacks);
    runs_ = true;
}

device_loop::times device_loop::finish() {
    std::uint64_t number;
    [[maybe_unused]] const auto got = read(ended_, &number, sizeof number);
    times out;
    out.device_ns = wait();
    runs_ = false;
    out.elapsed_ns = now_ns() - started_ns_;
    return out;
}

std::span<const std::byte> device_loop::outbox(std::uint32_t lane) const {
    return std::span(outbox_bytes_).subspan(std::size_t{lane} * LOOP_OUTBOX_BYTES, LOOP_OUTBOX_BYTES);
}

std::unique_ptr<device_loop> make_device_loop(const kagemusha_loop_options& options) {
    return options.image != nullptr ? make_cuda_loop(options) : make_opencl_loop(options);
}

} // namespace kagemusha::loop
