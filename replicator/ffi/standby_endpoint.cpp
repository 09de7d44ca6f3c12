// SPDX-License-Identifier: GPL-2.0-or-later
// The standby's role: what comes over the link is executed by this device, and nothing else, until a
// takeover. From then on the guest's requests are, and the primary in it does what a primary does.
#include <deque>
#include <optional>

#include "core/limits.hpp"
#include "ffi/roles.hpp"
#include "messages/vm_state.hpp"
#include "mirror/standby/resumed_request.hpp"
#include "pair/standby_driver.hpp"

namespace kagemusha::ffi {

namespace {

// What the log may use: as much of workers and GPU memory as the guest is allowed here, and what the
// primary's agents add. Bookkeeping has the hard bounds: the log may have more requests, events and objects
// in flight than the guest ever had at a time, because what had ended on the primary may not have ended here.
core::device_limits limits_of_log(const core::device_limits& of_guest) {
    core::device_limits l = of_guest;
    l.file.max_requests = core::hard_max_requests_per_file;
    l.file.max_events = core::hard_max_events_per_file;
    l.file.max_objects = core::hard_max_objects_per_file;
    // Sums stay within 64 bits whatever was configured.
    const auto plus = [](std::uint64_t a, std::uint64_t b) { return std::min(a, UINT64_MAX - b) + b; };
    l.file.max_memory_bytes = plus(l.file.max_memory_bytes, mirror::max_agent_bytes_per_file);
    l.max_memory_bytes = plus(l.max_memory_bytes, l.max_files * mirror::max_agent_bytes_per_file);
    return l;
}

class standby_endpoint final : public with_descriptor {
public:
    static std::unique_ptr<replication> create(const kagemusha_device_config& c, kagemusha_device& device,
                                               core::device_config& core, std::string& error) {
        auto made = std::make_unique<standby_endpoint>(device, c.callbacks, c.user_data);
        kagemusha_device_config later = c;
        later.replicate_to = later.standby_listen = nullptr;
        made->next_ = primary_endpoint::create(later, device, core, error);
        if (!made->next_)
            return nullptr;
        pair::standby_driver::options o;
        configure(o.fsm, c, device, core);
        o.fsm.hold_bytes = or_default(c.hold_bytes, mirror::default_hold_bytes);
        o.listen = link_options(c, text_of(c.standby_listen));
        o.listen.lanes = mirror::max_lanes; // the primary knows how many are of use
        o.log = logger(c);
        o.live = [self = made.get()] { self->on_live(); };
        made->log_ = logger(c);
        made->next_->set_amend(
            [self = made.get()](std::vector<core::file_checkpoint>& files) { self->side_->amend(files); });
        made->side_ = pair::standby_driver::create(std::move(o), error);
        if (!made->side_)
            return nullptr;
        pair::arena& memory = made->side_->memory();
        device.add_worker_region(pair::standby_region, memory.fd(), memory.capacity(), memory.base());

        core.of_log = limits_of_log(core);
        core.user_data = made.get();
        core.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* response) {
            static_cast<standby_endpoint*>(self)->on_request_done(token, *response);
        };
        core.callbacks.record = [](void* self, const void* record, std::size_t bytes) {
            return static_cast<standby_endpoint*>(self)->on_record(
                {static_cast<const std::byte*>(record), bytes});
        };
        core.callbacks.memory_written = [](void* self, const kagemusha_segment* ranges, std::size_t count) {
            const auto* role = static_cast<standby_endpoint*>(self);
            if (role->guest_.memory_written)
                role->guest_.memory_written(role->user_data_, ranges, count);
        };
        core.callbacks.log = [](void* self, int level, const char* line) {
            const auto* role = static_cast<standby_endpoint*>(self);
            if (role->guest_.log)
                role->guest_.log(role->user_data_, level, line);
        };
        return made;
    }

    standby_endpoint(kagemusha_device& device, const kagemusha_callbacks& guest, void* user_data)
        : device_(device), guest_(guest), user_data_(user_data) {}

    std::string attach() override {
        pair::arena& memory = side_->memory();
        device_.core->add_region(pair::standby_region, memory.capacity());
        device_.core->set_memory_keeper([this](std::uint64_t token) { return side_->memory_of(token); });
        next_->add_region(pair::standby_region, memory.base(), memory.capacity());
        next_->attach_tap();
        return watch({device_.core->poll_fd(), side_->event_fd(), next_->event_fd()});
    }
    bool standby() const override { return !taken_over_; }
    bool reserved(std::uint32_t region) const override {
        return region == pair::standby_region || next_->reserved(region);
    }
    void add_region(std::uint32_t region, void* base, std::uint64_t bytes) override {
        next_->add_region(region, base, bytes);
    }
    void dispatch(std::uint64_t now_ms) override {
        side_->dispatch(*device_.core, now_ms);
        next_->dispatch(now_ms);
        if (taken_over_)
            report_first_records();
    }

    // ---- the guest
    void refuse_guest(std::uint64_t token) override { answer(token, VGPU_STATUS_LIMIT); }
    bool take_request(const kagemusha_request& request) override {
        next_->take_request(request);
        if (!taken_over_ || live_)
            return false;
        if (!side_->resume(request))
            early_.emplace_back(request);
        return true;
    }
    bool event_space() override { return !taken_over_ || report_first_records(); }
    void reset() override {
        if (!taken_over_)
            return; // what a standby has is the primary's, not its own guest's
        for (const std::uint64_t token : side_->forget_guest())
            answer(token, VGPU_STATUS_CANCELED);
        for (const mirror::resumed_request& r : std::exchange(early_, {}))
            answer(r.request().token, VGPU_STATUS_CANCELED);
        next_->reset();
    }
    bool congested() const override { return taken_over_ && (!live_ || next_->congested()); }
    bool protects() const override { return taken_over_ && live_ && next_->protects(); }

    void keep_copy(bool on) override {
        if (!taken_over_)
            side_->keep_copy(on);
    }

    // ---- for people
    int replicate_to(const std::string& address, std::string& error) override {
        if (taken_over_)
            return next_->replicate_to(address, error);
        error = "this device is a standby";
        return -ENOTSUP;
    }
    int request_digest(bool everything) override {
        return taken_over_ ? next_->request_digest(everything) : -ENOTCONN;
    }
    void status(kagemusha_replication_status& out) const override;
    const char* standby_address() const override { return side_->address().c_str(); }

    // ---- checkpoints
    int use_checkpoints(bool on, std::string& error) override {
        return taken_over_ ? next_->use_checkpoints(on, error) : is_standby(error);
    }
    int begin_close_epoch(std::string& error) override {
        return taken_over_ ? next_->begin_close_epoch(error) : is_standby(error);
    }
    int close_epoch(std::uint32_t wait_ms, std::string& error) override {
        if (!taken_over_)
            return is_standby(error);
        if (live_)
            return next_->close_epoch(wait_ms, error);
        // Requests that wait for that are in no checkpoint of the device.
        error =
            "the log of the primary before is still being given to the GPU; it will be protected when that "
            "has ended";
        return -EPROTO;
    }
    int wait_epoch(std::uint32_t wait_ms, std::string& error) override {
        return taken_over_ ? next_->wait_epoch(wait_ms, error) : is_standby(error);
    }
    void end_waits() override {
        if (taken_over_)
            next_->end_waits();
    }
    std::span<const std::byte> save_state() override { return next_->save_state(); }
    int check_state(std::span<const std::byte> bytes, std::string& error) override {
        mirror::vm_state state;
        error = messages::decode(bytes, state);
        if (error.empty()) {
            error = taken_over_ ? "this device is no standby any more" : side_->check(state);
            seen_ = std::move(state);
        }
        if (!error.empty() && !taken_over_)
            side_->misfit();
        return error.empty() ? 0 : -EPROTO;
    }
    int commit_state(std::span<const std::byte> bytes, std::string& error) override {
        const int result = check_state(bytes, error);
        if (result == 0) {
            side_->commit(seen_);
            committed_ = seen_.epoch;
            committed_at_ns_ = boot_ns();
        }
        return result;
    }
    int take_over(std::string& error) override;

private:
    static int is_standby(std::string& error) {
        error = "this device is a standby";
        return -ENOTSUP;
    }
    void answer(std::uint64_t token, vgpu_status status) {
        vgpu_response response{};
        response.status = status;
        guest_.request_done(user_data_, token, &response);
    }
    void on_request_done(std::uint64_t token, const vgpu_response& response);
    int on_record(std::span<const std::byte> record);
    void note_completion(std::span<const std::byte> record);
    bool report_first_records();
    void on_live();

    kagemusha_device& device_;
    const kagemusha_callbacks guest_;
    void* const user_data_;
    std::function<void(kagemusha_log_level, const std::string&)> log_;
    std::unique_ptr<primary_endpoint> next_; // ends after the side, whose entries it has heard of
    std::unique_ptr<pair::standby_driver> side_;
    mirror::vm_state seen_;                     // the VM's, as it was loaded last
    std::deque<mirror::resumed_request> early_; // of the guest, before it was live
    bool live_ = false;
    std::uint64_t left_ = 0; // entries that were held when it took over
    std::string lost_;       // by the takeover: why the guest's files have no state
    std::atomic<bool> taken_over_ = false;
    std::atomic<std::uint64_t> committed_ = 0;
    // See kagemusha_replication_status.
    std::atomic<std::uint64_t> committed_at_ns_ = 0, took_over_at_ns_ = 0, first_completion_at_ns_ = 0;
};

void standby_endpoint::on_request_done(std::uint64_t token, const vgpu_response& response) {
    side_->on_request_done(token, response);
    if ((token & pair::standby_token_bit) == 0)
        guest_.request_done(user_data_, token, &response);
}

int standby_endpoint::on_record(std::span<const std::byte> record) {
    if (taken_over_ && !side_->first_record().empty())
        return -EAGAIN; // event_space() follows
    switch (side_->on_record(record)) {
    case pair::standby_driver::record_owner::side:
    case pair::standby_driver::record_owner::nobody:
        return 0;
    case pair::standby_driver::record_owner::guest:
        break;
    }
    const int result = guest_.record(user_data_, record.data(), record.size());
    if (result == 0) {
        side_->told(record);
        note_completion(record);
    }
    return result;
}

// What was completed for the log and is told late (report_first_records) does not count: the GPU did it before.
void standby_endpoint::note_completion(std::span<const std::byte> record) {
    vgpu_record head{};
    if (!taken_over_ || first_completion_at_ns_ != 0 || record.size() < sizeof head)
        return;
    std::memcpy(&head, record.data(), sizeof head);
    if (head.type == VGPU_RECORD_COMPLETION)
        first_completion_at_ns_ = boot_ns();
}

// False: the guest has no room.
bool standby_endpoint::report_first_records() {
    bool any = false;
    for (auto record = side_->first_record(); !record.empty(); record = side_->first_record()) {
        if (guest_.record(user_data_, record.data(), record.size()) != 0)
            return false;
        side_->told(record);
        any = true;
    }
    if (any)
        device_.core->event_space();
    return true;
}

void standby_endpoint::on_live() {
    live_ = true;
    while (!early_.empty()) {
        device_.core->submit(early_.front().request(), now_ms());
        early_.pop_front();
    }
    const std::uint64_t ms = took_over_at_ns_ == 0 ? 0 : (boot_ns() - took_over_at_ns_) / 1'000'000;
    log_(KAGEMUSHA_LOG_INFO, "replication: took over; the guest's requests are executed here, " +
                                 std::to_string(ms) + " ms later: up to " + std::to_string(left_) +
                                 " entries of the log came first");
    if (guest_.room)
        guest_.room(user_data_);
}

int standby_endpoint::take_over(std::string& error) {
    if (taken_over_) {
        error = "this device has taken over already";
        return -EALREADY;
    }
    left_ = side_->status().held_entries;
    error = side_->take_over(*device_.core);
    lost_ = error; // before taken_over_, which other threads look at first
    taken_over_ = true;
    took_over_at_ns_ = boot_ns();
    if (error.empty())
        return 0;
    log_(KAGEMUSHA_LOG_ERROR,
         "replication: the state of the GPU is lost, its guest processes get errors: " + error);
    for (const core::file_checkpoint& f : seen_.files)
        device_.core->add_lost_file(f.file, true);
    live_ = true;
    return -ENODATA;
}

void standby_endpoint::status(kagemusha_replication_status& out) const {
    if (taken_over_)
        next_->status(out);
    out.committed_at_ns = committed_at_ns_;
    out.took_over_at_ns = took_over_at_ns_;
    out.first_completion_at_ns = first_completion_at_ns_;
    if (taken_over_) {
        out.takeovers = 1;
        out.copy_lost = lost_.empty() ? 0 : 1;
        if (out.state == KAGEMUSHA_REPLICATION_OFF) {
            put(out.degraded, lost_.empty() ? "this VM was taken over and has no standby yet"
                                            : "this VM was taken over without the state of its GPU, and its "
                                              "programs get errors: " +
                                                  lost_);
        }
        return;
    }
    const mirror::standby_status s = side_->status();
    out.role = KAGEMUSHA_ROLE_STANDBY;
    using enum mirror::standby_state;
    out.state = s.state == listening    ? KAGEMUSHA_REPLICATION_LISTENING
                : s.state == greeting   ? KAGEMUSHA_REPLICATION_GREETING
                : s.state == following  ? KAGEMUSHA_REPLICATION_FOLLOWING
                : s.state == ready      ? KAGEMUSHA_REPLICATION_READY
                : s.state == taken_over ? KAGEMUSHA_REPLICATION_TAKEN_OVER
                                        : KAGEMUSHA_REPLICATION_ENDED;
    out.epoch = s.epoch;
    out.checkpoint_epoch = committed_;
    out.committed_epoch = s.committed_epoch;
    out.received = s.received;
    out.executed = s.executed;
    out.lag_entries = s.held_entries;
    out.built_packs = s.built_stored;
    out.built_bytes = s.built_bytes;
    out.built_dropped = s.built_dropped;
    out.received_bytes = s.received_bytes;
    out.digests_compared = s.digests_compared;
    out.digests_different = s.digests_different;
    out.held_bytes = s.held_bytes;
    out.faults = s.faults;
    out.copy_lost = s.fault.empty() ? 0 : 1;
    put(out.degraded, !s.fault.empty()                            ? s.fault
                      : s.state == ready || s.state == taken_over ? std::string()
                                                                  : s.why);
    put(out.peer_gpu, s.primary_gpu);
}

} // namespace

std::unique_ptr<replication> make_standby_endpoint(const kagemusha_device_config& c, kagemusha_device& device,
                                                   core::device_config& core, std::string& error) {
    return standby_endpoint::create(c, device, core, error);
}

} // namespace kagemusha::ffi
