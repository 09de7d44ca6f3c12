// SPDX-License-Identifier: GPL-2.0-or-later
// executor_completion: a command has finished. Runs on threads of the GPU's runtime, or inside enqueue() when
// a command finishes at once.
#include <CL/cl.h>

#include "gpu/executor_impl.hpp"

namespace kagemusha::gpu {

void completion_state::report_lost(std::int32_t status) {
    if (!lost.exchange(true))
        sink.on_gpu_lost(static_cast<std::uint32_t>(-status));
}

void completion_state::report_record(const void* record, std::size_t bytes) {
    sink.on_record({static_cast<const std::byte*>(record), bytes});
}

void request_state::end_use(std::optional<std::uint32_t> written) {
    // Only who is the last one knows that it is: then the answer says the same.
    if (written && uses_.load(std::memory_order_acquire) != 1)
        shared_->sink.on_written(token_, *written);
    if (uses_.fetch_sub(1, std::memory_order_acq_rel) != 1)
        return;
    if (!shared_->gate.enter())
        return;
    shared_->sink.on_done(token_, response);
    shared_->gate.leave();
}

void pending_command::report(std::int32_t status, const event_timing& timing) const {
    if (event_id != 0) {
        const vgpu_record_completion record{
            .record = {.type = VGPU_RECORD_COMPLETION, .bytes = sizeof(record), .file = 0, .pad = 0},
            .event = event_id,
            .status = status,
            .pad = 0,
            .queued_ns = timing.queued_ns,
            .submit_ns = timing.submit_ns,
            .start_ns = timing.start_ns,
            .end_ns = timing.end_ns};
        shared->report_record(&record, sizeof(record));
    } else if (status < 0) {
        const vgpu_record_queue_error record{
            .record = {.type = VGPU_RECORD_QUEUE_ERROR, .bytes = sizeof(record), .file = 0, .pad = 0},
            .queue = queue_id,
            .error = status,
            .opcode = opcode};
        shared->report_record(&record, sizeof(record));
    }
}

void pending_command::finished(void* pending, std::int32_t status) {
    const std::unique_ptr<pending_command> self(static_cast<pending_command*>(pending));
    completion_state& shared = *self->shared;
    if (status > 0)
        status = 0; // CL_COMPLETE is 0; a runtime that reports an earlier state here means that it got there
    event_timing timing;
    if (self->profiles && status == 0)
        self->event->native->timing(timing);

    shared.progress.fetch_add(1, std::memory_order_relaxed);
    const bool open = shared.gate.enter();
    if (open) {
        // First: who is told of a lost device may want to keep from the guest what comes of it.
        if (shared.device->means_lost(status))
            shared.report_lost(status);
        if (shared.may_print.load(std::memory_order_relaxed))
            shared.sink.before_completion();
        // The guest must not hear that a command has ended before the VM's dirty log has what it wrote; and
        // the answer that lets the guest's kernel unpin goes before the record that wakes the program.
        if (self->request)
            self->request->end_use(self->payload->written_as());
    }
    // From here on commands that name this event do not wait for it, so they may be told of before it is.
    self->event->status.store(status, std::memory_order_release);
    if (open) {
        self->report(status, timing);
        shared.gate.leave();
    }
}

} // namespace kagemusha::gpu
