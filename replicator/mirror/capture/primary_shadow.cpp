// SPDX-License-Identifier: GPL-2.0-or-later
// Map of this file: when a mode changes; one file; the public methods in the order of the header.
#include "mirror/capture/primary_shadow_impl.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "codec/cl_numbers.hpp"

namespace kagemusha::mirror {

namespace {

// How often is looked whether a state transfer, or what an agent has begun, can go on, if nothing else
// happens.
constexpr std::uint32_t busy_tick_ms = 5;

} // namespace

void primary_shadow::impl::release(file& f, const reported_in_order::released& r) {
    for (const std::uint64_t token : r.answers)
        device.release_answer(f.number, token);
    if (r.records && !f.content.holds_records())
        device.release_records(f.number);
}

void primary_shadow::impl::set_tick() {
    const bool busy = std::any_of(files.begin(), files.end(), [](const auto& f) {
        return f.second.agent && (f.second.digest_due || !f.second.agent->idle());
    });
    std::uint32_t tick_ms = 0;
    if (busy || mode == mirror_mode::syncing)
        tick_ms = busy_tick_ms;
    else if (mode == mirror_mode::on && options.digest_interval_ms != 0)
        tick_ms = std::clamp<std::uint32_t>(options.digest_interval_ms / 4, 10, 250);
    if (tick_ms != tick_wanted_ms) {
        tick_wanted_ms = tick_ms;
        device.set_tick_period(tick_ms);
    }
}

void primary_shadow::impl::turn_off() {
    built.stop();
    for (auto& [number, f] : files) {
        f.mode = mirror_mode::off;
        f.calls.clear();
        f.late.give_up();
        f.read_in_hand = false;
        f.build_in_hand = 0;
        release(f, f.told.release_all());
        f.digest_due = f.digest_everything = false;
        if (f.agent)
            f.agent->stop();
    }
    file_of_comparison.clear();
    failure.clear();
    set_mode(mirror_mode::off);
}

void primary_shadow::impl::settle(file* changed) {
    if (mode == mirror_mode::off) {
        failure.clear();
        return;
    }
    if (failure.empty() && mode == mirror_mode::syncing) {
        if (changed)
            finish_if_ready(*changed);
        else
            for (auto& [number, f] : files)
                finish_if_ready(f);
        const bool complete = std::all_of(files.begin(), files.end(),
                                          [](const auto& f) { return f.second.mode == mirror_mode::on; });
        if (failure.empty() && complete) {
            set_mode(mirror_mode::on);
            log.synced(last);
        }
    }
    if (!failure.empty()) {
        const std::string why = std::exchange(failure, {});
        turn_off();
        log.failed(why);
    }
}

void primary_shadow::impl::end_work(file& f) {
    built.end_file(f.number);
    if (f.agent) {
        f.agent->on_lost();
        add(of_closed_files, f.agent->counters());
        f.agent.reset();
    }
    const auto late = f.late.give_up();
    if (mode != mirror_mode::off) {
        for (const auto& [token, entry] : f.calls)
            log.cancel(entry);
        for (std::size_t i = 0; i < late.size(); ++i)
            if (i == 0 || late[i].entry != late[i - 1].entry) // once, also with several payloads
                log.cancel(late[i].entry);
    }
    f.calls.clear();
    f.content.release_all(log);
    f.told = {}; // the device answers what was held
    f.read_in_hand = false;
    f.build_in_hand = 0;
    f.state = new_state(f.number);
}

void primary_shadow::impl::add(agent_counters& to, const agent_counters& c) {
    to.digests += c.digests;
    to.chunks_compared += c.chunks_compared;
    to.chunks_different += c.chunks_different;
    to.chunks_repaired += c.chunks_repaired;
    to.memory_shipped += c.memory_shipped;
    to.content_bytes += c.content_bytes;
    to.final_round_ns = std::max(to.final_round_ns, c.final_round_ns);
}

primary_shadow::primary_shadow(core::mirror_port& device, log_sink& log, agent_factory agents,
                               const std::vector<region_address>& regions,
                               const primary_shadow_options& options)
    : impl_(std::make_unique<impl>(device, log, std::move(agents), regions, options)) {}
primary_shadow::~primary_shadow() = default;

void primary_shadow::start_sync(bool built) {
    impl_->start_sync(built);
}

void primary_shadow::stop() {
    if (impl_->mode != mirror_mode::off)
        impl_->turn_off();
}

void primary_shadow::on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) {
    const auto at = impl_->file_of_comparison.find(entry);
    if (at == impl_->file_of_comparison.end())
        return; // its file was closed, or a peer that invents entries
    impl::file* f = impl_->find(at->second);
    impl_->file_of_comparison.erase(at);
    if (f && f->agent) {
        f->agent->on_digest_result(entry, different);
        impl_->settle(f);
    }
}

void primary_shadow::on_content_released(log_sequence entry) {
    for (auto& [number, f] : impl_->files) {
        const content_in_use::released r = f.content.on_released(entry);
        if (r.answer && f.told.on_done(r.token))
            impl_->device.release_answer(number, r.token);
        impl_->release(f, f.told.take_released());
        if (r.records && !f.told.holds_records())
            impl_->device.release_records(number);
        if (r.requests)
            impl_->device.release_requests(number);
        if (r.found)
            return;
    }
}

void primary_shadow::request_digest(bool everything) {
    impl_->digests_are_due(everything);
    impl_->settle(nullptr);
    impl_->set_tick();
}

bool primary_shadow::guest_knows_nothing_of(std::uint32_t number, core::log_range entries) const {
    const impl::file* f = impl_->find(number);
    return f && f->told.knows_nothing_of(entries);
}

mirror_mode primary_shadow::mode() const {
    return impl_->mode;
}

std::string primary_shadow::waiting() const {
    for (const auto& [number, f] : impl_->files)
        if (std::string why = f.agent ? f.agent->waiting() : std::string(); !why.empty())
            return why;
    return {};
}

agent_counters primary_shadow::counters() const {
    agent_counters sum = impl_->of_closed_files;
    for (const auto& [number, f] : impl_->files)
        if (f.agent)
            impl::add(sum, f.agent->counters());
    return sum;
}

std::vector<std::string> primary_shadow::take_notes() {
    return std::exchange(impl_->notes, {});
}

std::uint64_t primary_shadow::registry_bytes() const {
    return impl_->budget.used;
}

void primary_shadow::on_open(std::uint32_t number) {
    impl::file& f = impl_->files.try_emplace(number, *impl_, number).first->second;
    if (impl_->mode != mirror_mode::off) {
        // Nothing of it has to be transferred, so it is mirrored at once, also while others are synced.
        impl_->append(number, entry_kind::open_file);
        f.mode = mirror_mode::on;
    }
}

void primary_shadow::on_close(std::uint32_t number) {
    impl::file* f = impl_->find(number);
    assert(f);
    impl_->end_work(*f);
    impl_->files.erase(number);
    if (impl_->mode != mirror_mode::off)
        impl_->append(number, entry_kind::close_file);
    impl_->settle(nullptr);
}

void primary_shadow::on_lost(std::uint32_t number) {
    impl::file* f = impl_->find(number);
    assert(f);
    impl_->end_work(*f);
    f->lost = true;
    if (impl_->mode != mirror_mode::off) {
        impl_->append(number, entry_kind::lose_session);
        f->mode = mirror_mode::on;
    }
    impl_->settle(nullptr);
}

void primary_shadow::on_reset() {
    for (auto& [number, f] : impl_->files)
        impl_->end_work(f);
    impl_->files.clear();
    impl_->file_of_comparison.clear();
    if (impl_->mode != mirror_mode::off)
        impl_->append(0, entry_kind::reset);
    impl_->settle(nullptr);
}

core::log_range primary_shadow::on_submit(std::uint32_t number, const worker::request_view& request,
                                          core::launch_runs repeats, const core::object_table& objects) {
    impl::file* f = impl_->find(number);
    assert(f);
    if (f->agent)
        f->agent->before_submit();
    const log_sequence after = impl_->last;
    impl_->submit(*f, request, repeats, objects);
    const core::log_range entries =
        f->mode == mirror_mode::off ? core::log_range{} : core::log_range{after, impl_->last};
    // An unset user event may hold anything up until the guest, which may wait for an answer, sets it.
    if (f->mode == mirror_mode::on && objects.unset_user_events() == 0) {
        const bool ships = f->agent && f->agent->ships();
        f->told.submitted(request.token, entries, ships);
        f->read_in_hand = ships && impl::reads(request);
    }
    return entries;
}

void primary_shadow::on_forwarded(std::uint32_t number) {
    if (impl_->mode == mirror_mode::off)
        return;
    impl::file* f = impl_->find(number);
    if (const std::uint64_t token = std::exchange(f->build_in_hand, 0))
        impl_->built.on_build(number, token);
    if (f->agent && f->mode == mirror_mode::on) {
        if (std::exchange(f->read_in_hand, false))
            f->agent->after_read();
        f->agent->after_submit();
        if (impl_->tick_wanted_ms != busy_tick_ms && !f->agent->idle())
            impl_->set_tick();
    }
    if (impl_->mode == mirror_mode::syncing || !impl_->failure.empty())
        impl_->settle(f);
    impl_->log.tell();
}

bool primary_shadow::on_done(std::uint32_t number, std::uint64_t token, const vgpu_response& response) {
    impl::file* f = impl_->find(number);
    assert(f);
    const std::int32_t result =
        response.status == VGPU_STATUS_OK ? response.result : codec::cl_out_of_host_memory;
    f->state->on_done(token, result);
    if (!f->calls.empty()) {
        if (const auto call = f->calls.extract(token)) {
            if (!impl_->built.hold_outcome(number, token, call.mapped(), result))
                impl_->log.outcome(call.mapped(), result);
            if (result == 0)
                impl_->prepare(*f);
        }
    }
    f->late.on_done(token, [this](const late_writes::write& w) { impl_->give(w); });
    const bool answer =
        (f->content.empty() || f->content.on_done(token, impl_->log)) && f->told.on_done(token);
    impl_->release(*f, f->told.take_released());
    if (impl_->mode == mirror_mode::syncing)
        impl_->settle(f);
    return answer;
}

bool primary_shadow::on_completion(std::uint32_t number, guest_id event, bool failed) {
    impl::file* f = impl_->find(number);
    assert(f);
    f->state->on_completion(event, failed);
    f->late.on_completion(event, [this](const late_writes::write& w) { impl_->give(w); });
    const bool in_turn = f->told.on_completion();
    return (f->content.empty() || f->content.on_completion(event, impl_->log)) && in_turn;
}

void primary_shadow::on_agent_done(std::uint32_t number, std::uint64_t token, const vgpu_response& response) {
    if (impl_->built.on_done(number, token, response))
        return;
    if (impl::file* f = impl_->find(number); f && f->agent) {
        f->agent->on_done(token, response);
        impl_->settle(f);
    }
}

void primary_shadow::on_agent_record(std::uint32_t number, std::span<const std::byte> record) {
    if (impl::file* f = impl_->find(number); f && f->agent) {
        f->agent->on_record(record);
        impl_->settle(f);
    }
}

void primary_shadow::on_tick(std::uint64_t now_ms) {
    if (impl_->mode == mirror_mode::on) {
        const std::uint32_t interval_ms = impl_->options.digest_interval_ms;
        if (interval_ms != 0 && now_ms - impl_->last_digest_ms >= interval_ms) {
            impl_->last_digest_ms = now_ms;
            impl_->digests_are_due(false);
        } else {
            impl_->take_digests(); // what could not be taken when it was asked for
        }
    }
    for (auto& [n, f] : impl_->files)
        if (f.agent)
            f.agent->on_tick();
    impl_->lose_who_waits_too_long(now_ms);
    impl_->settle(nullptr);
    impl_->set_tick();
}

} // namespace kagemusha::mirror
