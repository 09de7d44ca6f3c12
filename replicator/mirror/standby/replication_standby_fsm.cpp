// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/replication_standby_fsm.hpp"

#include <algorithm>
#include <cassert>
#include <optional>

#include "mirror/protocol/action_queue.hpp"
#include "mirror/protocol/agreement.hpp"
#include "mirror/standby/standby_comparisons.hpp"
#include "mirror/standby/standby_log.hpp"
#include "mirror/standby/standby_marks.hpp"
#include "mirror/standby/standby_text.hpp"

namespace kagemusha::mirror {

namespace {

constexpr std::uint64_t never = UINT64_MAX;

bool legal(standby_state from, standby_state to) {
    using enum standby_state;
    switch (from) {
    case listening:
        return to != following && to != ready;
    case greeting:
        return to != ready;
    case following:
        return to != greeting;
    case ready:
        return to != greeting && to != following;
    case taken_over:
        return to == taken_over || to == ended;
    case ended:
        return false;
    }
    return false;
}

} // namespace

struct replication_standby_fsm::impl {
    const standby_config config;
    std::uint64_t now;
    action_queue<standby_action> actions;

    // ---- connection
    standby_state state = standby_state::listening;
    std::string why;
    bool connected = false;
    bool greeted = false;    // the peer has said a hello that fits
    bool forgetting = false; // the device has not given everything of the last copy back
    std::uint64_t connected_at = 0, last_heard = 0;
    hello peer;
    ack told;                     // the last one sent
    std::uint64_t ack_at = never; // when the next one is due

    // ---- the copy; it outlives its connection
    struct held_copy {
        standby_marks marks;
        log_sequence synced_at = 0;
        std::string faulty; // not empty: the copy is none any more, and why
        standby_comparisons comparisons;
    };
    held_copy copy;
    standby_log log;   // of the copy
    bool live = false; // after a takeover everything was given
    bool keep = false; // what belongs to a VM's checkpoint

    // ---- what compilers made, with the thin layer and not with a worker yet
    std::uint64_t held_built = 0, held_built_bytes = 0;

    // ---- for people
    std::uint64_t built_stored = 0, built_bytes = 0, built_dropped = 0;
    std::uint64_t received_bytes = 0, digests_compared = 0, digests_different = 0, faults = 0;

    impl(const standby_config& c, std::uint64_t now_ms)
        : config(c), now(now_ms), why("no primary has connected yet"), log(config, actions) {}

    // The only place that changes the state.
    void become(standby_state to, std::string reason) {
        assert(legal(state, to) && "illegal transition");
        if (to == state && reason == why)
            return;
        state = to;
        why = std::move(reason);
        actions.push(act_standby_state{state, why});
    }

    bool following() const { return state == standby_state::following || state == standby_state::ready; }
    bool dead_end() const { return state == standby_state::taken_over || state == standby_state::ended; }

    // ---- the link

    hello own_hello() const {
        hello h;
        h.role = role::standby;
        h.vm = config.vm;
        h.instance = config.instance;
        h.gpu = config.gpu;
        if (config.compression)
            h.capabilities.push_back(compression_capability);
        h.capabilities.insert(h.capabilities.end(), config.gpu_capabilities.begin(),
                              config.gpu_capabilities.end());
        if (!config.built_capability.empty())
            h.capabilities.push_back(config.built_capability);
        h.heartbeat_budget_ms = config.heartbeat_budget_ms;
        h.hold_bytes = config.hold_bytes;
        h.hold_entries = config.hold_entries;
        h.limits = config.limits;
        return h;
    }

    void leave(std::string reason, goodbye_reason farewell) {
        hang_up(reason, farewell);
        become(standby_state::listening, std::move(reason));
    }

    void hang_up(const std::string& reason, std::optional<goodbye_reason> farewell) {
        if (!connected)
            return;
        if (farewell)
            actions.push(act_send{goodbye{*farewell, reason}});
        actions.push(act_close_link{reason});
        connected = false;
        ack_at = never;
    }

    void violation(const std::string& what) {
        leave("the primary broke the protocol: " + what, goodbye_reason::protocol_error);
    }

    // The first message only says who is there: an earlier copy is given up when a primary of this VM, that
    // this side can follow, is certain.
    void on_hello(const hello& theirs) {
        const std::string reason = disagreement(own_hello(), theirs);
        if (!reason.empty())
            return leave(reason, goodbye_reason::refused);
        if (keep && copy.marks.committed_checkpoint() != 0) {
            return leave(!copy.faulty.empty()
                             ? "this standby's GPU has no copy any more: " + copy.faulty
                             : "this standby keeps its copy of the GPU, which belongs to the VM's "
                               "checkpoint of epoch " +
                                   std::to_string(copy.marks.committed_checkpoint()) +
                                   ": begin it anew for another one",
                         goodbye_reason::refused);
        }
        peer = theirs;
        greeted = true;
        if (log.received() != 0 || !copy.faulty.empty()) {
            log.clear();
            copy = {};
            forgetting = true;
            held_built = held_built_bytes = 0;
            actions.push(act_forget_all{});
            return;
        }
        if (!forgetting)
            follow();
    }

    void follow() {
        told = {};
        ack_at = never;
        actions.push(act_send{own_hello()});
        become(standby_state::following, {});
    }

    // ---- acknowledgements

    ack current_ack() const {
        return {.received = log.received(),
                .executed = log.executed(),
                .committed_epoch = copy.marks.committed_epoch(),
                .freed_bytes = log.freed_bytes(),
                .freed_entries = log.freed_entries(),
                .complete_checkpoint = copy.marks.complete_checkpoint()};
    }

    void send_ack() {
        ack_at = never;
        if (const ack a = current_ack(); !(a == told)) {
            told = a;
            actions.push(act_send{a});
        }
    }

    // Something may have changed that the primary wants to know.
    void tell() {
        if (!connected || !following())
            return;
        if (copy.synced_at != 0 && state == standby_state::following && log.executed() >= copy.synced_at &&
            copy.faulty.empty()) {
            become(standby_state::ready, {});
        }
        const bool much =
            log.freed_bytes() - told.freed_bytes >= std::max<std::uint64_t>(config.hold_bytes / 8, 1) ||
            log.freed_entries() - told.freed_entries >= std::max<std::uint64_t>(config.hold_entries / 8, 1);
        if (copy.marks.committed_epoch() != told.committed_epoch ||
            copy.marks.complete_checkpoint() != told.complete_checkpoint || much) {
            send_ack();
        } else if (ack_at == never && !(current_ack() == told)) {
            ack_at = now + ack_delay_ms;
        }
    }

    // ---- what a primary says

    void on_message(const message& m) {
        if (!connected)
            return; // of a link that is being closed
        last_heard = now;
        if (const auto* bye = std::get_if<goodbye>(&m)) {
            hang_up(bye->why, std::nullopt);
            const char* what = bye->reason == goodbye_reason::shutdown ? "the primary was shut down: "
                               : bye->reason == goodbye_reason::refused
                                   ? "the primary refused: "
                                   : "the primary ended the connection: ";
            return become(standby_state::listening, what + bye->why);
        }
        if (std::holds_alternative<unknown_message>(m))
            return;
        if (state == standby_state::greeting) {
            const auto* h = std::get_if<hello>(&m);
            if (h == nullptr || greeted) {
                return violation(greeted ? "it did not wait for the standby's hello"
                                         : "its first message is no hello");
            }
            return on_hello(*h);
        }
        std::string broken = std::visit([this](const auto& what) { return on(what); }, m);
        if (!broken.empty())
            return violation(broken);
        tell();
    }

    // Each gives the rule that was broken, or nothing.
    std::string on(const entries& m) {
        for (const entries::entry& e : m.list) {
            if (std::string broken = log.on_entry(e); !broken.empty())
                return broken;
            received_bytes += e.meta.stream_bytes;
            if ((e.meta.flags & entry_late_content) == 0)
                received_bytes += e.meta.content_bytes;
            if ((e.meta.flags & entry_compare) != 0) {
                if (std::string broken = copy.comparisons.expect(e.meta.sequence); !broken.empty())
                    return broken;
            }
        }
        return {};
    }

    std::string on(const content& m) {
        received_bytes += m.bytes;
        std::string broken = log.on_content(m);
        if (broken.empty())
            on_complete();
        return broken;
    }

    // Never needed, so nothing waits for room.
    std::string on(const built& m) {
        if (config.built_capability.empty() || !has_capability(peer, config.built_capability))
            return "it sent built programs, which was not agreed on";
        received_bytes += m.bytes;
        if (!log.file_is_open(m.file) || held_built >= max_held_built ||
            held_built_bytes + m.bytes > max_held_built_bytes) {
            ++built_dropped;
            return {};
        }
        ++held_built;
        held_built_bytes += m.bytes;
        ++built_stored;
        built_bytes += m.bytes;
        actions.push(act_store_built{m});
        return {};
    }

    std::string on(const outcome& m) {
        // A comparison is called off, whether its entry has run or not.
        if (m.canceled && copy.comparisons.call_off(m.sequence) && !log.waits(m.sequence))
            return {};
        std::string broken = log.on_outcome(m);
        if (broken.empty())
            on_complete();
        return broken;
    }

    std::string on(const marker& m) {
        std::string broken = copy.marks.on_marker(m, log.received());
        if (broken.empty())
            on_complete();
        return broken;
    }

    std::string on(const synced& m) {
        if (copy.synced_at != 0 || m.sequence == 0 || m.sequence > log.received())
            return "it ended the state transfer twice, or before its last entry";
        copy.synced_at = m.sequence;
        return {};
    }

    std::string on(const heartbeat& m) {
        if (m.answer_to_ms == 0) {
            actions.push(act_send{heartbeat{.time_ms = now, .answer_to_ms = m.time_ms}});
            send_ack();
        }
        return {};
    }

    std::string on(const digests& m) {
        std::optional<standby_comparisons::result> found;
        std::string broken = copy.comparisons.on_theirs(m.sequence, m.hashes, found);
        note(found);
        return broken;
    }

    std::string on(const hello&) { return "it greeted twice"; }
    template <class Other>
    std::string on(const Other&) {
        return "it sent a message that only a standby sends";
    }

    // ---- comparisons

    void note(std::optional<standby_comparisons::result>& found) {
        if (!found)
            return;
        digests_compared += found->compared;
        digests_different += found->different.different.size();
        if (connected && following())
            actions.push(act_send{std::move(found->different)});
    }

    // ---- commit

    // Content may have been what an epoch lacked.
    void on_complete() {
        const std::uint64_t by_itself = copy.marks.complete_before(log.first_incomplete());
        if (config.commit_at_marker && by_itself != 0)
            commit(by_itself, {});
    }

    void commit(std::uint64_t epoch, std::span<const open_request> open) {
        if (const auto up_to = copy.marks.commit(epoch))
            log.commit(*up_to, open);
    }

    // ---- the device

    void on_executed(log_sequence entry, std::int32_t result) {
        if (forgetting)
            return;
        const standby_log::ended e = log.on_executed(entry, result);
        copy.comparisons.on_executed(entry);
        if (e.failed && !e.failure_expected)
            on_fault(entry, failed_here_alone(entry, e.meta.file, result));
        note_live();
        tell();
    }

    void on_digests(log_sequence entry, const std::vector<std::uint64_t>& hashes) {
        if (forgetting)
            return;
        std::optional<standby_comparisons::result> found;
        const std::string broken = copy.comparisons.on_own(entry, hashes, found);
        note(found);
        if (!broken.empty() && connected)
            violation(broken);
    }

    void on_fault(log_sequence entry, std::string reason) {
        ++faults;
        if (!copy.faulty.empty() || state == standby_state::ended)
            return; // why was said
        if (state == standby_state::taken_over)
            return become(state, std::move(reason)); // there is no better copy to go on with
        copy.faulty = reason;
        log.stop();
        if (connected && following())
            actions.push(act_send{fault{entry, reason}});
        become(state, std::move(reason));
    }

    void take_over(std::uint64_t checkpoint) {
        hang_up("this standby takes over", goodbye_reason::other);
        if (dead_end())
            return;
        std::string reason =
            !copy.faulty.empty()                                      ? copy.faulty
            : copy.synced_at == 0 || log.committed() < copy.synced_at ? "no state transfer was completed"
            : checkpoint != 0 && checkpoint != copy.marks.committed_checkpoint()
                ? "the GPU's state is of epoch " + std::to_string(copy.marks.committed_epoch()) +
                      ", the VM's of checkpoint " + std::to_string(checkpoint)
                : "";
        if (!reason.empty())
            return become(standby_state::ended, "can't take over: " + reason);
        become(standby_state::taken_over, {});
        copy.marks.drop_uncommitted();
        copy.comparisons.clear();
        log.take_over(copy.synced_at);
        note_live();
    }

    void note_live() {
        if (state == standby_state::taken_over && !live && log.all_given()) {
            live = true;
            actions.push(act_live{});
        }
    }

    // ---- time

    void on_tick() {
        if (!connected)
            return;
        if (state == standby_state::greeting) {
            if (!greeted && now >= connected_at + hello_timeout_ms) {
                leave("the primary did not greet within " + std::to_string(hello_timeout_ms) + " ms",
                      goodbye_reason::other);
            }
            return;
        }
        if (now >= last_heard + config.heartbeat_budget_ms) {
            return leave("nothing was heard of the primary for " + std::to_string(now - last_heard) + " ms",
                         goodbye_reason::other);
        }
        if (now >= ack_at)
            send_ack();
    }

    std::uint64_t next_tick() const {
        if (!connected)
            return never;
        if (state == standby_state::greeting)
            return greeted ? never : connected_at + hello_timeout_ms;
        return std::min(last_heard + config.heartbeat_budget_ms, ack_at);
    }
};

replication_standby_fsm::replication_standby_fsm(const standby_config& config, std::uint64_t now_ms)
    : impl_(std::make_unique<impl>(config, now_ms)) {}
replication_standby_fsm::~replication_standby_fsm() = default;

void replication_standby_fsm::on_connected(std::uint64_t now_ms) {
    impl& i = *impl_;
    i.now = now_ms;
    assert(!i.connected && "the thin layer refuses a second connection");
    if (i.dead_end()) {
        const char* reason =
            i.state == standby_state::taken_over ? "this standby has taken over" : "this standby has ended";
        i.actions.push(act_send{goodbye{goodbye_reason::refused, reason}});
        i.actions.push(act_close_link{reason});
        return;
    }
    i.connected = true;
    i.greeted = false;
    i.connected_at = i.last_heard = now_ms;
    i.become(standby_state::greeting, {});
}

void replication_standby_fsm::on_message(const message& m, std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_message(m);
}

void replication_standby_fsm::on_closed(const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->connected) {
        impl_->connected = false;
        impl_->ack_at = never;
        impl_->become(standby_state::listening, why);
    }
}

void replication_standby_fsm::on_executed(log_sequence entry, std::int32_t result, std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_executed(entry, result);
}

void replication_standby_fsm::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes,
                                         std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_digests(entry, hashes);
}

void replication_standby_fsm::on_file_lost(std::uint32_t file, const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (!impl_->forgetting && impl_->log.file_lives(file))
        impl_->on_fault(0, why);
}

void replication_standby_fsm::on_built_stored(std::uint64_t bytes) {
    impl& i = *impl_;
    assert(i.held_built != 0 && i.held_built_bytes >= bytes && "once for each act_store_built");
    --i.held_built;
    i.held_built_bytes -= bytes;
}

void replication_standby_fsm::on_forgotten(std::uint64_t now_ms) {
    impl_->now = now_ms;
    assert(impl_->forgetting && "nobody asked for it");
    impl_->forgetting = false;
    if (impl_->connected && impl_->greeted) {
        impl_->last_heard = now_ms;
        impl_->follow();
    }
}

void replication_standby_fsm::commit(std::uint64_t epoch, std::uint64_t now_ms,
                                     std::span<const open_request> open) {
    impl_->now = now_ms;
    assert(epoch <= impl_->copy.marks.complete_epoch() && "an epoch that is not complete can't be committed");
    impl_->commit(epoch, open);
    impl_->tell();
}

void replication_standby_fsm::keep_copy(bool on) {
    impl_->keep = on;
}

void replication_standby_fsm::takeover(std::uint64_t now_ms, std::uint64_t checkpoint) {
    impl_->now = now_ms;
    impl_->take_over(checkpoint);
}

void replication_standby_fsm::on_tick(std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_tick();
}

std::uint64_t replication_standby_fsm::next_tick_ms() const {
    return impl_->next_tick();
}

void replication_standby_fsm::on_shutdown(std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->state != standby_state::ended) {
        impl_->hang_up("the standby was shut down", goodbye_reason::shutdown);
        impl_->become(standby_state::ended, "the standby was shut down");
    }
}

bool replication_standby_fsm::next(standby_action& out) {
    return impl_->actions.pop(out);
}

log_sequence replication_standby_fsm::received() const {
    return impl_->log.received();
}

standby_status replication_standby_fsm::status(std::uint64_t) const {
    const impl& i = *impl_;
    standby_status s;
    s.state = i.state;
    s.why = i.why;
    s.fault = i.copy.faulty;
    s.epoch = i.copy.marks.epoch();
    s.complete_epoch = i.copy.marks.complete_epoch();
    s.committed_epoch = i.copy.marks.committed_epoch();
    s.complete_checkpoint = i.copy.marks.complete_checkpoint();
    s.committed_checkpoint = i.copy.marks.committed_checkpoint();
    s.primary_instance = i.peer.instance;
    s.received = i.log.received();
    s.executed = i.log.executed();
    s.committed = i.log.committed();
    s.held_bytes = i.log.held_bytes();
    s.held_entries = i.log.held_entries();
    s.received_bytes = i.received_bytes;
    s.digests_compared = i.digests_compared;
    s.digests_different = i.digests_different;
    s.faults = i.faults;
    s.built_stored = i.built_stored;
    s.built_bytes = i.built_bytes;
    s.built_dropped = i.built_dropped;
    s.primary_gpu = i.peer.gpu;
    s.compression = i.config.compression && has_capability(i.peer, compression_capability);
    s.bookkeeping = i.log.memory_slots() + i.copy.comparisons.open() + i.copy.marks.pending();
    return s;
}

} // namespace kagemusha::mirror
