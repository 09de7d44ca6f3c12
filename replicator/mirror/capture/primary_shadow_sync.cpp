// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow: state transfer to a standby that comes later, and digests.
#include "mirror/capture/primary_shadow_impl.hpp"

namespace kagemusha::mirror {

namespace {

constexpr const char* no_agent = "the guest has GPU memory whose content this host can't read for a standby; "
                                 "attach the standby before the guest uses the GPU";

} // namespace

void primary_shadow::impl::start_sync(bool with_built) {
    assert(mode == mirror_mode::off);
    set_mode(mirror_mode::syncing);
    built.start(with_built);
    append(0, entry_kind::reset);
    for (auto& [number, f] : files) {
        open(f);
        built.take_everything(number);
    }
    settle(nullptr);
}

void primary_shadow::impl::open(file& f) {
    append(f.number, entry_kind::open_file);
    f.mode = mirror_mode::on;
    if (f.lost) {
        append(f.number, entry_kind::lose_session);
        return;
    }
    const core::object_table* objects = device.objects(f.number);
    if (!objects)
        return;
    if (f.state->failure()) {
        note_failure(f.state->failure());
        return;
    }
    std::vector<restored_call> calls;
    entries.clear();
    f.state->restore(*objects, entries, calls);
    auto call = calls.begin();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const log_sequence sequence = append(f.number, std::move(entries[i]));
        if (call == calls.end() || call->entry != i)
            continue;
        if (call->pending)
            f.calls[call->token] = sequence;
        else
            log.outcome(sequence, call->result);
        ++call;
    }
    entries.clear();
    bool has_memory = f.state->memory_is_pending();
    f.state->for_each_memory([&](memory_info& m) {
        m.dirty_for_sync = m.dirty_for_digest = true;
        has_memory = true;
    });
    if (!has_memory)
        return;
    f.mode = mirror_mode::syncing;
    if (make_agent(f))
        f.agent->start_sync();
}

void primary_shadow::impl::finish_if_ready(file& f) {
    if (f.mode != mirror_mode::syncing || f.state->memory_is_pending() || !failure.empty())
        return;
    if (f.agent) {
        if (f.agent->ready_to_finish()) {
            f.agent->finish_sync();
            f.mode = mirror_mode::on;
        }
        return;
    }
    bool dirty = false;
    f.state->for_each_memory([&](memory_info& m) { dirty |= m.dirty_for_sync; });
    if (dirty)
        note_failure(no_agent);
    else
        f.mode = mirror_mode::on;
}

void primary_shadow::impl::lose_who_waits_too_long(std::uint64_t now_ms) {
    // Where the transfer has other things to do, it is not held up.
    const bool held_up =
        mode == mirror_mode::syncing && std::all_of(files.begin(), files.end(), [](const auto& at) {
            const file& f = at.second;
            return f.mode != mirror_mode::syncing || !f.agent || f.agent->waits_for_guest() ||
                   f.agent->ready_to_finish();
        });
    std::vector<std::uint32_t> too_long;
    for (auto& [number, f] : files)
        if (!held_up || f.mode != mirror_mode::syncing || !f.agent || !f.agent->waits_for_guest())
            f.waits_since_ms.reset();
        else if (!f.waits_since_ms)
            f.waits_since_ms = now_ms;
        else if (options.transfer_wait_ms != 0 && now_ms - *f.waits_since_ms >= options.transfer_wait_ms)
            too_long.push_back(number);
    for (const std::uint32_t number : too_long) { // on_lost() is called from inside
        device.lose_session(number, options.transfer_wait_ms,
                            "a user event of the guest that is not set kept the standby's copy from becoming "
                            "complete for " +
                                std::to_string(options.transfer_wait_ms) +
                                " ms (transfer-wait-ms), so its worker was killed");
    }
}

void primary_shadow::impl::take_digests() {
    if (mode != mirror_mode::on)
        return;
    for (auto& [number, f] : files) {
        if (!f.digest_due || f.lost || !make_agent(f))
            continue;
        if (f.agent->take_digest(f.digest_everything))
            f.digest_due = f.digest_everything = false;
    }
}

void primary_shadow::impl::prepare(file& f) {
    if (mode != mirror_mode::on || f.mode != mirror_mode::on ||
        (options.digest_interval_ms == 0 && !options.ship && options.ship_kernels.empty())) {
        return;
    }
    const std::size_t contexts = f.state->contexts().size();
    if (contexts > f.contexts && make_agent(f)) {
        f.agent->prepare();
        set_tick();
    }
    f.contexts = contexts;
}

void primary_shadow::impl::digests_are_due(bool everything) {
    for (auto& [number, f] : files) {
        f.digest_due = true;
        f.digest_everything |= everything;
    }
    take_digests();
}

} // namespace kagemusha::mirror
