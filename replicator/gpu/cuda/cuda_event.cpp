// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_event: see cuda_event.hpp.
#include "gpu/cuda/cuda_event.hpp"

#include <CL/cl.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "gpu/cuda/cuda_device.hpp"

namespace kagemusha::gpu {

namespace {

std::atomic<std::uint64_t> next_number = 1;

// A command that takes longer is asked about less often; between two questions others may use the processor.
constexpr auto first_pause = std::chrono::microseconds(5), longest_pause = std::chrono::microseconds(200);

} // namespace

bool cuda_copy_back::take(const guest_payload& from) {
    if (shape.row_bytes == 0)
        return from.read(0, bytes.data(), bytes.size());
    return from.read_box(shape, pitch, bytes.data(), {shape.row_bytes, shape.row_bytes * shape.rows});
}

bool cuda_copy_back::write_back() const {
    if (shape.row_bytes == 0)
        return to->write(0, bytes.data(), bytes.size());
    return to->write_box(shape, pitch, bytes.data(), {shape.row_bytes, shape.row_bytes * shape.rows});
}

cuda_event::cuda_event(std::shared_ptr<cuda_primary> primary, std::shared_ptr<cuda_poller> poller,
                       CUevent native, std::uint64_t lane, std::unique_ptr<cuda_copy_back> rest,
                       std::vector<std::uint64_t> waits)
    : primary_(std::move(primary))
    , poller_(std::move(poller))
    , native_(native)
    , lane_(lane)
    , number_(next_number.fetch_add(1, std::memory_order_relaxed))
    , rest_(std::move(rest))
    , waits_(std::move(waits)) {}

cuda_event::~cuda_event() {
    primary_->make_current();
    primary_->api.cuEventDestroy_v2(native_);
}

std::int32_t cuda_event::notify(callback fn, void* data) {
    callback_ = fn;
    callback_data_ = data;
    poller_->add(*this);
    return CL_SUCCESS;
}

std::int32_t cuda_event::poll() const {
    const CUresult result = primary_->api.cuEventQuery(native_);
    return result == CUDA_ERROR_NOT_READY ? 1 : cuda_error(result);
}

bool cuda_event::timing(event_timing& out) const {
    std::uint64_t ns = 0;
    if (!poller_->time_of(native_, ns))
        return false;
    out = {ns, ns, ns, ns}; // when everything before it was done: all that CUDA tells
    return true;
}

std::int32_t cuda_event::set_status(std::int32_t) {
    return CL_INVALID_EVENT;
}

void cuda_event::finish(std::int32_t status) {
    if (poller_->may_print())
        primary_->api.cuEventSynchronize(native_); // over long ago; what kernels printed comes out
    if (rest_ && rest_->to && status == CL_SUCCESS && !rest_->write_back())
        status = CL_OUT_OF_RESOURCES;
    rest_.reset();
    callback_(callback_data_, status); // may destroy this
}

std::int32_t cuda_user_event::notify(callback, void*) {
    return CL_INVALID_OPERATION;
}
std::int32_t cuda_user_event::set_status(std::int32_t status) {
    status_ = status;
    return CL_SUCCESS;
}

cuda_poller::cuda_poller(std::shared_ptr<cuda_primary> primary)
    : shared_(std::make_shared<shared>(std::move(primary))) {
    const cuda_primary& gpu = *shared_->primary;
    gpu.make_current();
    if (gpu.api.cuEventCreate(&base_, CU_EVENT_DEFAULT) == CUDA_SUCCESS)
        gpu.api.cuEventRecord(base_, nullptr);
    thread_ = std::thread([self = shared_] { self->run(); });
}

cuda_poller::~cuda_poller() {
    {
        const std::lock_guard held(shared_->mutex);
        shared_->closing = true;
    }
    shared_->wakes.notify_one();
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();
    else
        thread_.join();
    if (base_) {
        shared_->primary->make_current();
        shared_->primary->api.cuEventDestroy_v2(base_);
    }
}

void cuda_poller::add(cuda_event& event) {
    const std::lock_guard held(shared_->mutex);
    shared_->lanes[event.lane()].push_back(&event);
    shared_->unreported.insert(event.number());
    shared_->wakes.notify_one();
}

bool cuda_poller::time_of(CUevent event, std::uint64_t& ns) {
    float milliseconds = 0;
    if (!base_ || shared_->primary->api.cuEventElapsedTime(&milliseconds, base_, event) != CUDA_SUCCESS)
        return false;
    ns = static_cast<std::uint64_t>(static_cast<double>(milliseconds) * 1e6);
    return true;
}

std::vector<std::pair<cuda_event*, std::int32_t>> cuda_poller::shared::take_finished() {
    std::vector<std::pair<cuda_event*, std::int32_t>> finished;
    for (auto lane = lanes.begin(); lane != lanes.end();) {
        cuda_event* const oldest = lane->second.front();
        const bool reported_before =
            std::none_of(oldest->waits().begin(), oldest->waits().end(),
                         [&](std::uint64_t number) { return unreported.contains(number); });
        const std::int32_t state = reported_before ? oldest->poll() : 1;
        if (state <= 0) {
            finished.emplace_back(oldest, state);
            lane->second.pop_front();
        }
        lane = lane->second.empty() ? lanes.erase(lane) : std::next(lane);
    }
    return finished;
}

void cuda_poller::shared::run() {
    prctl(PR_SET_TIMERSLACK, 1); // else the kernel makes a pause of 5 µs one of 55
    primary->make_current();
    auto pause = first_pause;
    std::unique_lock held(mutex);
    while (!closing || !lanes.empty()) {
        if (lanes.empty()) {
            wakes.wait(held);
            continue;
        }
        const auto finished = take_finished();
        if (finished.empty()) {
            wakes.wait_for(held, pause);
            pause = std::min(pause * 2, longest_pause);
            continue;
        }
        pause = first_pause;
        for (const auto& [event, status] : finished) {
            const std::uint64_t number = event->number();
            held.unlock();
            event->finish(status);
            held.lock();
            unreported.erase(number);
        }
    }
}

} // namespace kagemusha::gpu
