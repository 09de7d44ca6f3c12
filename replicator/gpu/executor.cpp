// SPDX-License-Identifier: GPL-2.0-or-later
// executor: requests in, answers out; see executor.hpp for the contract and executor_impl.hpp for the map of
// files.
#include "gpu/executor.hpp"

#include <CL/cl.h>

#include <chrono>
#include <type_traits>

#include "gpu/executor_resolve.hpp"

namespace kagemusha::gpu {

namespace {

std::int64_t steady_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

} // namespace

executor::executor(std::shared_ptr<backend_device> device, std::span<const region_view> regions,
                   executor_sink& sink)
    : impl_(std::make_unique<impl>(std::move(device), regions, sink)) {}

executor::~executor() {
    // Silence first: nothing is reported, and no copy of ours begins, after this. Then let go of what waits
    // for us.
    impl_->shared->gate.close();
    impl_->shared->memory_gate->close();
    impl_->objects.for_each<event_object>([](codec::guest_id, event_object& e) {
        if (e.user && e.state->status.load(std::memory_order_acquire) == status_pending)
            e.state->native->set_status(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    });
    impl_->objects.clear();
}

void executor::set_gate(task_gate& gate) {
    impl_->gate = &gate;
}

std::uint64_t executor::progress() const {
    std::uint64_t progress = impl_->shared->progress.load(std::memory_order_relaxed);
    if (const std::int64_t began = impl_->build_began_s.load(std::memory_order_relaxed); began >= 0) {
        const auto elapsed = static_cast<std::uint64_t>(steady_seconds() - began);
        progress += elapsed < max_build_seconds ? elapsed : max_build_seconds;
    }
    return progress;
}

void executor::execute(const worker::request_view& request) {
    impl& self = *impl_;
    self.request = &request;
    self.pending_request.reset();
    self.task.reset();
    self.result_bytes = 0;
    self.malformed = false;

    vgpu_response response{};
    self.run_stream(response);

    // What the guest did not flush proceeds too: it may wait on the completion in another way than a flush.
    for (const codec::guest_id id : self.touched)
        if (auto* queue = self.objects.find<queue_object>(id)) {
            self.mark(id, *queue);
            self.check_lost(self.device().flush(*queue->native));
        }
    self.touched.clear();
    self.task.reset();
    self.request = nullptr;
    self.shared->progress.fetch_add(1, std::memory_order_relaxed);

    if (self.pending_request) {
        self.pending_request->response = response;
        self.pending_request->end_use();
        self.pending_request.reset();
    } else {
        self.shared->sink.on_done(request.token, response);
    }
}

void executor::impl::run_stream(vgpu_response& response) {
    codec::stream_decoder decoder(request->stream, {request->payloads});
    codec::op op;
    for (;;) {
        const codec::decode_status status = decoder.next(op);
        if (status == codec::decode_status::end)
            return;
        if (status == codec::decode_status::error) {
            response.status = VGPU_STATUS_MALFORMED;
            response.failed_offset = decoder.error().offset;
            return;
        }
        shared->progress.fetch_add(1, std::memory_order_relaxed);
        response.result = std::visit(
            [this](const auto& o) -> std::int32_t {
                if constexpr (std::is_void_v<decltype(run(o))>) {
                    run(o);
                    return CL_SUCCESS;
                } else {
                    return run(o);
                }
            },
            op);
        if (malformed) {
            response = {};
            response.status = VGPU_STATUS_MALFORMED;
            response.failed_offset = decoder.offset();
            return;
        }
        response.result_bytes = result_bytes;
        if (response.result != CL_SUCCESS)
            check_lost(response.result);
    }
}

void executor::impl::check_lost(std::int32_t status) {
    if (device().means_lost(status))
        shared->report_lost(status);
}

// The device has checked all of this; the ring in between is memory that others can write, so it is checked
// again where a mistake would become a wild access.
payload_ptr executor::impl::payload(const codec::payload_source& source, bool gpu_writes) {
    if (source.index == VGPU_PAYLOAD_NONE)
        return nullptr;
    auto payload = std::make_shared<guest_payload>(shared->memory_gate);
    if (source.index == VGPU_PAYLOAD_INLINE) {
        malformed = gpu_writes;
        payload->assign_copy(source.inline_bytes);
        return malformed ? nullptr : payload;
    }
    malformed = true;
    if (source.index >= request->payloads.size())
        return nullptr;
    const kagemusha_payload& entry = request->payloads[source.index];
    if (entry.bytes != source.bytes || (gpu_writes && !entry.writable) ||
        entry.first_segment > request->segments.size() ||
        entry.segment_count > request->segments.size() - entry.first_segment)
        return nullptr;
    for (const kagemusha_segment& s : request->segments.subspan(entry.first_segment, entry.segment_count)) {
        if (s.region >= regions.size())
            return nullptr;
        const region_view& region = regions[s.region];
        if (s.bytes == 0 || s.bytes > region.bytes || s.offset > region.bytes - s.bytes ||
            s.bytes > entry.bytes - payload->bytes())
            return nullptr;
        payload->append(region.base + s.offset, s.bytes);
    }
    if (payload->bytes() != entry.bytes || entry.bytes == 0)
        return nullptr;
    malformed = false;
    if (gpu_writes)
        payload->set_written_as(source.index);
    return payload;
}

} // namespace kagemusha::gpu
