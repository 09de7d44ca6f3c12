// SPDX-License-Identifier: GPL-2.0-or-later
// Checkpoints and the takeover, on the device's thread: from the VM's last commit to a device that is the
// guest's. How the log gets here is in standby_driver.cpp.
#include <cstring>
#include <future>
#include <optional>

#include "pair/standby_driver_impl.hpp"

namespace kagemusha::pair {

namespace {

std::optional<vgpu_record_completion> completion_in(std::span<const std::byte> record) {
    vgpu_record_completion c;
    if (record.size() != sizeof(c))
        return {};
    std::memcpy(&c, record.data(), sizeof(c));
    return c.record.type == VGPU_RECORD_COMPLETION ? std::optional(c) : std::nullopt;
}

} // namespace

standby_driver::record_owner threaded_standby::on_record(std::span<const std::byte> record) {
    vgpu_record head;
    std::memcpy(&head, record.data(), sizeof(head));
    if (given_up_)
        return record_owner::guest;
    if (!taken_over_) {
        runner_.on_record(record);
        return record_owner::side;
    }
    if (const auto c = completion_in(record)) {
        if ((c->event & VGPU_HOST_ID_BIT) != 0) {
            runner_.on_record(record);
            return record_owner::side;
        }
        if (!completions_.tells(head.file, c->event)) {
            completions_.over(head.file, c->event);
            return record_owner::nobody;
        }
    } else if (head.type == VGPU_RECORD_QUEUE_ERROR) {
        vgpu_record_queue_error e;
        std::memcpy(&e, record.data(), sizeof(e));
        if ((e.queue & VGPU_HOST_ID_BIT) != 0)
            return record_owner::nobody;
    } else if (head.type == VGPU_RECORD_LOST) {
        runner_.on_record(record); // nothing of its log is waited for any more
        completions_.forget(head.file);
    }
    return record_owner::guest;
}

void threaded_standby::told(std::span<const std::byte> record) {
    if (!records_.empty() && record.data() == records_.front().data()) {
        records_.pop_front();
        return;
    }
    if (const auto c = completion_in(record))
        completions_.over(c->record.file, c->event);
}

std::string threaded_standby::check(const mirror::vm_state& state) const {
    const mirror::standby_status s = status();
    if (state.epoch == 0)
        return "the primary says that nobody can go on from this checkpoint";
    if (state.instance != s.primary_instance)
        return "the checkpoint belongs to another log than the one that this standby has";
    if (state.epoch > s.complete_checkpoint) {
        return "the checkpoint is of epoch " + std::to_string(state.epoch) +
               ", and this standby has the log up to epoch " + std::to_string(s.complete_checkpoint);
    }
    if (state.epoch <= s.committed_epoch) {
        return "the checkpoint is of epoch " + std::to_string(state.epoch) + ", and epoch " +
               std::to_string(s.committed_epoch) + " was committed already";
    }
    for (const core::file_checkpoint& f : state.files) {
        for (const auto& r : f.requests) {
            if (r.entries.last > s.received) {
                return "an in-flight request of the checkpoint ends at entry " +
                       std::to_string(r.entries.last) + ", and this standby has the log up to entry " +
                       std::to_string(s.received);
            }
        }
    }
    return {};
}

void threaded_standby::misfit() {
    misfit_ = state_.epoch != 0;
    state_ = {};
}

void threaded_standby::commit(mirror::vm_state state) {
    misfit_ = false;
    state_ = std::move(state);
    loop_.post(
        [this, open = mirror::open_requests(state_), epoch = state_.epoch, instance = state_.instance] {
            step([&](std::uint64_t now_ms) {
                // A new primary may have come since it was checked; then a takeover is refused.
                const mirror::standby_status s = fsm_.status(now_ms);
                if (s.primary_instance == instance && epoch <= s.complete_checkpoint)
                    fsm_.commit(epoch, now_ms, open);
            });
        });
}

void threaded_standby::keep_copy(bool on) {
    loop_.post([this, on] { fsm_.keep_copy(on); });
}

std::string threaded_standby::take_over(core::device& device) {
    std::promise<mirror::standby_status> decided;
    loop_.post([this, &decided] {
        step([this](std::uint64_t now_ms) {
            if (state_.epoch != 0)
                fsm_.takeover(now_ms, state_.epoch);
            else
                fsm_.on_shutdown(now_ms);
        });
        decided.set_value(status());
        // It is nobody's standby any more: the address is free for the next one. After the answer, because the
        // door's thread has to end.
        listener_.reset();
    });
    const mirror::standby_status s = decided.get_future().get();
    if (s.state != mirror::standby_state::taken_over) {
        given_up_ = true;
        runner_.forget_all(device);
        return misfit_             ? "the VM's last checkpoint does not fit the copy of the GPU"
               : state_.epoch == 0 ? "no checkpoint of the VM was ever committed with the GPU's state"
               : s.why.empty()     ? "this standby has ended"
                                   : s.why;
    }
    taken_over_ = true;
    for (const core::file_checkpoint& f : state_.files) {
        for (const auto& r : f.requests)
            open_progress_.emplace(r.token, r.progress);
        completions_.waited_for(f.file, f.unreported);
        for (const auto& e : f.refused)
            device.add_refused(f.file, e);
        for (std::size_t at = 0; at < f.records.size();) { // checked when they were decoded
            const auto record = std::span(f.records).subspan(at);
            vgpu_record head;
            std::memcpy(&head, record.data(), sizeof(head));
            records_.emplace_back(record.begin(), record.begin() + head.bytes);
            at += head.bytes;
        }
    }
    for (const core::file_checkpoint& f : device.checkpoint()) {
        device.objects(f.file)->for_each([&](codec::guest_id id, const core::object& o) {
            if (o.kind == VGPU_OBJECT_EVENT && o.event == core::event_state::pending)
                completions_.executed_before(f.file, id);
        });
    }
    runner_.watch([this](std::uint32_t file, std::span<const std::byte> stream) {
        completions_.executed_before(file, stream);
    });
    report_completed(device, false);
    return {};
}

void threaded_standby::report_completed(core::device& device, bool everything) {
    for (const core::file_checkpoint& f : state_.files) {
        for (const auto& done : completions_.completed(f.file, device.objects(f.file), everything)) {
            vgpu_record_completion c{};
            c.record = {VGPU_RECORD_COMPLETION, sizeof(c), done.file, 0};
            c.event = done.event;
            c.status = done.status;
            const auto bytes = std::as_bytes(std::span(&c, 1));
            records_.emplace_back(bytes.begin(), bytes.end());
        }
    }
}

bool threaded_standby::resume(const kagemusha_request& request) {
    const auto open = live_ ? decltype(open_progress_)::node_type() : open_progress_.extract(request.token);
    if (!open)
        return false;
    open_[request.token] = std::make_unique<mirror::resumed_request>(request, open.mapped());
    return true;
}

void threaded_standby::resume_now(core::device& device, std::uint64_t token,
                                  std::unique_ptr<held_entry> request, std::uint64_t now_ms) {
    auto of_guest = open_.extract(token);
    if (of_guest.empty())
        return; // the VM's device does not know of it
    request->guest = std::move(of_guest.mapped());
    runner_.resume(device, std::move(request), now_ms);
}

void threaded_standby::become_live(core::device& device, std::uint64_t now_ms) {
    for (const core::file_checkpoint& f : state_.files)
        if (f.lost)
            device.add_lost_file(f.file, false);
    while (!open_.empty()) // of files that the log does not have
        resume_now(device, open_.begin()->first, std::make_unique<held_entry>(), now_ms);
    runner_.watch({});
    report_completed(device, true);
    runner_.destroy_agents_objects(device, now_ms);
    for (const core::file_checkpoint& f : state_.files)
        device.await_events(f.file, completions_.known(f.file));
    live_ = true;
    if (options_.live)
        options_.live();
}

std::span<const std::byte> threaded_standby::first_record() const {
    return records_.empty() ? std::span<const std::byte>() : std::span<const std::byte>(records_.front());
}

void threaded_standby::amend(std::vector<core::file_checkpoint>& files) const {
    for (core::file_checkpoint& f : files) {
        std::erase_if(f.unreported, [&](codec::guest_id id) { return !completions_.tells(f.file, id); });
        std::vector<std::byte> first; // before those that the device has
        for (const std::vector<std::byte>& record : records_) {
            vgpu_record head;
            std::memcpy(&head, record.data(), sizeof(head));
            if (head.file != f.file)
                continue;
            if (const auto c = completion_in(record))
                f.unreported.push_back(c->event);
            else
                first.insert(first.end(), record.begin(), record.end());
        }
        f.records.insert(f.records.begin(), first.begin(), first.end());
    }
}

std::vector<std::uint64_t> threaded_standby::forget_guest() {
    std::vector<std::uint64_t> tokens = runner_.forget_waiting_guest();
    for (const auto& [token, request] : std::exchange(open_, {}))
        tokens.push_back(token);
    completions_.clear();
    records_.clear();
    return tokens;
}

} // namespace kagemusha::pair
