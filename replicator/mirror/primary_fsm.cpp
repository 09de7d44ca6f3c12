// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/primary_fsm.hpp"

#include <algorithm>
#include <cassert>
#include <deque>
#include <optional>

#include "mirror/action_queue.hpp"
#include "mirror/agreement.hpp"
#include "mirror/primary_followups.hpp"
#include "mirror/sequence_ring.hpp"

namespace kagemusha::mirror {

namespace {

constexpr std::uint64_t never = UINT64_MAX;
// A standby may say any number; this one is as good as infinite and can be added to.
constexpr std::uint64_t most_that_counts = std::uint64_t{1} << 62;

bool legal(primary_state from, primary_state to) {
    using enum primary_state;
    switch (from) {
    case disconnected:
        return to == disconnected || to == greeting || to == ended;
    case greeting:
        return to == disconnected || to == syncing || to == ended;
    case syncing:
        return to == disconnected || to == protecting || to == ended;
    case protecting:
        return to == disconnected || to == ended;
    case ended:
        return false;
    }
    return false;
}

} // namespace

struct primary_fsm::impl {
    // What the device's side does as far as this side knows.
    enum class device : std::uint8_t { off, on, stopping };
    enum class link : std::uint8_t { down, connecting, up };

    // One entry of the log; sums over this run of the mirror up to it, itself included.
    struct logged {
        std::uint64_t hold = 0; // what standbys hold for it
        std::uint64_t log = 0;  // what this side holds for it, without late content
    };
    struct closed_epoch {
        std::uint64_t epoch;
        log_sequence sequence;
        std::uint64_t hold; // sum up to it
    };

    const primary_config config;
    std::uint64_t now;
    action_queue<primary_action> actions;

    // ---- connection
    primary_state state = primary_state::disconnected;
    std::string degraded;
    link link_state = link::down;
    device device_state = device::off;
    std::uint64_t reconnect_at;
    std::uint32_t reconnect_delay = min_reconnect_ms;
    std::uint64_t connected_at = 0, last_heard = 0, next_heartbeat = never;
    std::uint64_t link_queued = 0; // bytes handed to the link that it did not send, as far as is known
    hello peer;
    std::uint64_t hold_bytes = 0, hold_entries = 0;

    // ---- this run of the mirror; empty while the device is off
    log_sequence last_ever = 0;           // of earlier runs
    log_sequence first = 0, appended = 0; // 0: nothing yet
    log_sequence sent = 0, dropped = 0;
    sequence_ring<logged> log; // dropped + 1 … appended
    std::uint64_t appended_hold = 0, sent_hold = 0;
    std::uint64_t appended_log = 0, sent_log = 0, dropped_log = 0;
    primary_followups followups;
    bool content_turn = false;
    std::uint64_t stalled_since = never; // the standby has been full, and freed nothing
    ack acked;
    bool congested = false;
    log_sequence synced_at = 0; // 0: not yet
    bool synced_sent = false;
    std::uint64_t synced_mark =
        0; // the first epoch whose marker followed it: committed means that it arrived
    std::deque<std::pair<log_sequence, std::uint64_t>> times; // first entry of a millisecond, which

    // ---- epochs
    std::uint64_t epoch = 0;               // closed last
    std::deque<closed_epoch> unsent_marks; // epoch_ms = 0: closed at an entry that was not sent
    std::deque<closed_epoch> sent_marks;   // not committed
    log_sequence marked = 0;               // last entry that belongs to a closed epoch, in this run
    std::uint64_t marked_hold = 0;
    std::uint64_t sent_epoch = 0; // its marker was sent in this run
    log_sequence committed = 0;
    std::uint64_t committed_hold = 0;
    std::uint64_t epoch_ends = never;
    bool epoch_wanted = false;

    // ---- for people
    std::uint64_t sent_bytes = 0, digests_compared = 0, digests_different = 0, connections = 0;
    std::uint64_t round_trip_ms = 0;

    impl(const primary_config& c, std::uint64_t now_ms)
        : config(c)
        , now(now_ms)
        , degraded("no standby has been reached yet")
        , reconnect_at(now_ms)
        , followups(actions) {}

    bool mirroring() const { return device_state == device::on; }

    // The only place that changes the state.
    void become(primary_state to, std::string reason) {
        assert(legal(state, to) && "illegal transition");
        if (to == state && reason == degraded) {
            return;
        }
        state = to;
        degraded = std::move(reason);
        actions.push(act_state{state, degraded});
    }

    // ---- the link

    hello own_hello() const {
        hello h;
        h.role = role::primary;
        h.vm = config.vm;
        h.instance = config.instance;
        h.gpu = config.gpu;
        if (config.compression) {
            h.capabilities.push_back(compression_capability);
        }
        h.heartbeat_budget_ms = config.heartbeat_budget_ms;
        return h;
    }

    void connect_if_due() {
        if (state == primary_state::disconnected && link_state == link::down && device_state == device::off &&
            now >= reconnect_at) {
            link_state = link::connecting;
            actions.push(act_connect{});
        }
    }

    // Every way out of a connection, or out of trying one. The run of the mirror ends with it.
    void leave(std::string why, std::optional<goodbye_reason> farewell,
               primary_state to = primary_state::disconnected) {
        if (link_state != link::down) {
            if (farewell && link_state == link::up) {
                actions.push(act_send{goodbye{*farewell, why}});
            }
            actions.push(act_close_link{why});
        }
        on_link_gone(std::move(why), to);
    }

    void on_link_gone(std::string why, primary_state to) {
        link_state = link::down;
        link_queued = 0;
        next_heartbeat = never;
        reconnect_at = now + reconnect_delay;
        reconnect_delay = std::min(reconnect_delay * 2, max_reconnect_ms);
        if (device_state == device::on) {
            if (congested) {
                actions.push(act_congestion{false});
            }
            actions.push(act_stop_mirror{});
            actions.push(act_drop_log{UINT64_MAX});
            device_state = device::stopping;
            forget_run();
        }
        become(to, std::move(why));
    }

    void forget_run() {
        last_ever = std::max(last_ever, appended);
        first = appended = sent = dropped = 0;
        log.restart(1);
        appended_hold = sent_hold = appended_log = sent_log = dropped_log = 0;
        followups.clear();
        acked = {};
        congested = false;
        stalled_since = never;
        synced_at = 0;
        synced_sent = false;
        synced_mark = 0;
        times.clear();
        unsent_marks.clear();
        sent_marks.clear();
        marked = committed = 0;
        marked_hold = committed_hold = sent_epoch = 0;
        epoch_ends = never;
        epoch_wanted = false;
    }

    void violation(const std::string& what) {
        leave("the standby broke the protocol: " + what, goodbye_reason::protocol_error);
    }

    void on_hello(const hello& theirs) {
        const std::string why = disagreement(own_hello(), theirs);
        if (!why.empty()) {
            leave(why, goodbye_reason::refused);
            return;
        }
        peer = theirs;
        hold_bytes = std::min(theirs.hold_bytes, most_that_counts);
        hold_entries = std::min(theirs.hold_entries, most_that_counts);
        ++connections;
        // What the standby wants to hear often enough, and what this side promised itself.
        next_heartbeat = now;
        device_state = device::on;
        actions.push(act_start_sync{});
        become(primary_state::syncing, {});
        send_heartbeat();
    }

    std::uint32_t heartbeat_period() const {
        return std::max(1u, std::min(config.heartbeat_ms, peer.heartbeat_budget_ms / 3));
    }

    void send_heartbeat() {
        actions.push(act_send{heartbeat{.time_ms = now, .answer_to_ms = 0}});
        next_heartbeat = now + heartbeat_period();
    }

    // ---- what a standby says

    void on_ack(const ack& a) {
        if (a.received < acked.received || a.executed < acked.executed ||
            a.committed_epoch < acked.committed_epoch || a.freed_bytes < acked.freed_bytes ||
            a.freed_entries < acked.freed_entries) {
            return violation("an acknowledgement went backwards");
        }
        if (a.received > sent || (a.received != 0 && a.received < first)) {
            return violation("it acknowledged entry " + std::to_string(a.received) +
                             " as received, the last one sent is " + std::to_string(sent));
        }
        if (a.executed > a.received) {
            return violation("it acknowledged entry " + std::to_string(a.executed) +
                             " as executed and only " + std::to_string(a.received) + " as received");
        }
        if (a.freed_bytes > sent_hold || a.freed_entries > sent_count()) {
            return violation("it freed more than was sent");
        }
        if (a.committed_epoch != acked.committed_epoch &&
            (sent_marks.empty() || a.committed_epoch < sent_marks.front().epoch ||
             a.committed_epoch > sent_epoch)) {
            return violation("it committed epoch " + std::to_string(a.committed_epoch) +
                             ", the last one that was closed is " + std::to_string(sent_epoch));
        }
        while (!sent_marks.empty() && sent_marks.front().epoch <= a.committed_epoch) {
            committed = sent_marks.front().sequence;
            committed_hold = sent_marks.front().hold;
            sent_marks.pop_front();
        }
        if (committed > a.received) {
            return violation("it committed an epoch whose entries it has not received");
        }
        if (a.executed > committed) {
            return violation("it executed entry " + std::to_string(a.executed) +
                             " before its epoch was committed");
        }
        if (a.freed_bytes > committed_hold || a.freed_entries > committed_count()) {
            return violation("it freed entries before their epoch was committed");
        }
        if (a.freed_bytes != acked.freed_bytes || a.freed_entries != acked.freed_entries) {
            stalled_since = never;
        }
        acked = a;
        while (times.size() > 1 && times[1].first <= acked.received + 1) {
            times.pop_front();
        }
        if (!times.empty() && appended == acked.received) {
            times.clear();
        }
        drop(acked.received);
        if (state == primary_state::syncing && synced_mark != 0 && acked.committed_epoch >= synced_mark &&
            acked.executed >= synced_at) {
            reconnect_delay = min_reconnect_ms;
            become(primary_state::protecting, {});
        }
        check_congestion();
    }

    void drop(log_sequence up_to) {
        if (up_to <= dropped) {
            return;
        }
        dropped_log = log[up_to].log;
        while (log.first() <= up_to) {
            log.pop_front();
        }
        dropped = up_to;
        actions.push(act_drop_log{up_to});
    }

    void on_digest_result(const digest_result& r) {
        if (r.sequence == 0 || r.sequence > sent) {
            return violation("it compared digests of entry " + std::to_string(r.sequence) +
                             ", which was not sent");
        }
        // None: the entry's file has ended while the answer was under way.
        const std::optional<std::uint64_t> hashes = followups.take_comparison(r.sequence);
        if (!hashes) {
            return;
        }
        std::uint64_t least = 0;
        for (const std::uint64_t index : r.different) {
            if (index < least || index >= *hashes) {
                return violation("it found a difference in hash " + std::to_string(index) + " of " +
                                 std::to_string(*hashes));
            }
            least = index + 1;
        }
        digests_compared += *hashes;
        digests_different += r.different.size();
        actions.push(act_digest_result{r});
    }

    void on_heartbeat(const heartbeat& h) {
        if (h.answer_to_ms > now) {
            return violation("it answered a heartbeat of the future");
        }
        if (h.answer_to_ms != 0) {
            round_trip_ms = now - h.answer_to_ms;
        }
    }

    void on_message(const message& m) {
        if (link_state != link::up) {
            return; // of a link that is being closed
        }
        last_heard = now;
        if (const auto* bye = std::get_if<goodbye>(&m)) {
            const char* what = bye->reason == goodbye_reason::shutdown ? "the standby was shut down: "
                               : bye->reason == goodbye_reason::refused
                                   ? "the standby refused: "
                                   : "the standby ended the connection: ";
            return leave(what + bye->why, std::nullopt);
        }
        if (std::holds_alternative<unknown_message>(m)) {
            return;
        }
        if (state == primary_state::greeting) {
            if (const auto* h = std::get_if<hello>(&m)) {
                return on_hello(*h);
            }
            return violation("its first message is no hello");
        }
        if (const auto* a = std::get_if<ack>(&m)) {
            return on_ack(*a);
        }
        if (const auto* h = std::get_if<heartbeat>(&m)) {
            return on_heartbeat(*h);
        }
        if (const auto* r = std::get_if<digest_result>(&m)) {
            return on_digest_result(*r);
        }
        if (std::holds_alternative<mirror::close_epoch>(m)) {
            return on_standby_full();
        }
        if (const auto* f = std::get_if<fault>(&m)) {
            return leave("the standby is no copy any more: " + f->why, goodbye_reason::other);
        }
        if (std::holds_alternative<hello>(m)) {
            return violation("it greeted twice");
        }
        violation("it sent a message that only a primary sends");
    }

    // ---- the log

    std::uint64_t sent_count() const { return sent == 0 ? 0 : sent - first + 1; }
    std::uint64_t committed_count() const { return first == 0 ? 0 : committed - (first - 1); }
    std::uint64_t log_bytes() const { return appended_log - dropped_log + followups.waiting_bytes(); }

    void on_entry(const entry_meta& meta) {
        assert(device_state != device::off && "entries before a state transfer was started");
        if (!mirroring()) {
            last_ever = std::max(last_ever, meta.sequence);
            return;
        }
        if (first == 0) {
            assert(meta.kind == entry_kind::reset && "a state transfer begins with a reset");
            assert(meta.sequence > last_ever && "numbers are never used twice");
            first = meta.sequence;
            sent = dropped = marked = committed = first - 1;
            log.restart(first);
        } else {
            assert(meta.sequence == appended + 1 && "numbers have no gaps");
        }
        const std::uint64_t hold = meta.stream_bytes + meta.content_bytes;
        assert(hold >= meta.stream_bytes);
        if (hold > hold_bytes) {
            appended = meta.sequence;
            leave("one request of the guest needs " + std::to_string(hold) +
                      " bytes, and the standby can hold " + std::to_string(hold_bytes) +
                      ": give it a larger hold",
                  goodbye_reason::other);
            return;
        }
        appended = meta.sequence;
        appended_hold += hold;
        appended_log += (meta.flags & entry_late_content) != 0 ? meta.stream_bytes : hold;
        log.push_back({appended_hold, appended_log});
        if (times.empty() || times.back().second != now) {
            times.emplace_back(appended, now);
        }
        if (meta.kind != entry_kind::submit || meta.flags != 0) {
            followups.on_entry(meta, sent);
        }
        check_congestion();
    }

    // How far the guest is ahead of the last commit matters only where nobody but a checkpoint closes epochs:
    // an epoch that does not fit into the standby could never be committed.
    void check_congestion() {
        if (!mirroring()) {
            return;
        }
        const std::uint64_t bytes = log_bytes(), entries = appended - dropped;
        const bool checkpoints = config.epoch_ms == 0;
        const std::uint64_t ahead = checkpoints ? appended_hold - committed_hold : 0;
        const std::uint64_t entries_ahead = checkpoints ? appended - committed : 0;
        if (!congested && (bytes >= config.log_bytes || entries >= config.log_entries ||
                           ahead > hold_bytes / 2 || entries_ahead > hold_entries / 2)) {
            congested = true;
            actions.push(act_congestion{true});
        } else if (congested && bytes <= config.log_bytes / 2 && entries <= config.log_entries / 2 &&
                   ahead <= hold_bytes / 4 && entries_ahead <= hold_entries / 4) {
            congested = false;
            actions.push(act_congestion{false});
        }
        if (checkpoints && !epoch_wanted && appended > marked &&
            (ahead > hold_bytes / 4 || entries_ahead > hold_entries / 4)) {
            epoch_wanted = true;
            actions.push(act_epoch_wanted{});
        }
    }

    bool held_up_by_standby() const {
        return sent < appended && (log[sent + 1].hold > acked.freed_bytes + hold_bytes ||
                                   sent_count() + 1 > acked.freed_entries + hold_entries);
    }

    // Hands to the link what it and the standby have room for.
    void pump() {
        if (!mirroring() || first == 0) {
            return;
        }
        while (link_queued < config.window_bytes) {
            // By turns: neither may starve the other.
            if (content_turn && send_content()) {
                content_turn = false;
            } else if (send_entries()) {
                content_turn = true;
            } else if (!send_content()) {
                break;
            }
        }
        pressure();
    }

    bool send_content() {
        content piece;
        if (!followups.next_content(piece)) {
            return false;
        }
        link_queued += piece.bytes;
        sent_bytes += piece.bytes;
        actions.push(act_send_content{piece});
        return true;
    }

    bool send_entries() {
        if (sent == appended) {
            return false;
        }
        const std::uint64_t most_hold = acked.freed_bytes + hold_bytes;
        const log_sequence most_sequence =
            std::min(appended, first - 1 + std::min(acked.freed_entries + hold_entries, most_that_counts));
        log_sequence last = sent;
        while (last < most_sequence) {
            const logged& e = log[last + 1];
            // One entry may be larger than the window.
            const std::uint64_t queued = link_queued + (e.log - sent_log);
            if (e.hold > most_hold || (queued > config.window_bytes && (link_queued != 0 || last != sent))) {
                break;
            }
            ++last;
        }
        if (last == sent) {
            return false;
        }
        actions.push(act_send_entries{sent + 1, last});
        const logged& e = log[last];
        link_queued += e.log - sent_log;
        sent_bytes += e.log - sent_log;
        sent_log = e.log;
        sent_hold = e.hold;
        sent = last;
        followups.on_sent(sent);
        send_synced();
        while (!unsent_marks.empty() && unsent_marks.front().sequence <= sent) {
            send_mark(unsent_marks.front());
            unsent_marks.pop_front();
        }
        if (config.epoch_ms != 0 && epoch_ends == never && sent > marked) {
            epoch_ends = now + config.epoch_ms;
        }
        return true;
    }

    void send_synced() {
        if (synced_at != 0 && !synced_sent && synced_at <= sent) {
            synced_sent = true;
            actions.push(act_send{synced{synced_at}});
            if (config.epoch_ms != 0) {
                close_at(sent, sent_hold);
            } else if (!epoch_wanted) {
                epoch_wanted = true;
                actions.push(act_epoch_wanted{});
            }
        }
    }

    // ---- epochs

    void send_mark(const closed_epoch& e) {
        actions.push(act_send{marker{.epoch = e.epoch, .sequence = e.sequence}});
        sent_marks.push_back(e);
        sent_epoch = e.epoch;
        if (synced_sent && synced_mark == 0) {
            synced_mark = e.epoch;
        }
    }

    void close_at(log_sequence sequence, std::uint64_t hold) {
        ++epoch;
        epoch_ends = never;
        epoch_wanted = false;
        if (!mirroring() || first == 0) {
            return;
        }
        marked = sequence;
        marked_hold = hold;
        const closed_epoch e{epoch, sequence, hold};
        if (sequence <= sent) {
            send_mark(e);
        } else {
            unsent_marks.push_back(e);
        }
    }

    std::uint64_t close_epoch() {
        if (config.epoch_ms == 0) {
            close_at(appended, appended_hold);
        } else {
            pump();
            close_at(sent, sent_hold);
        }
        return epoch;
    }

    void on_standby_full() {
        if (config.epoch_ms != 0) {
            pump();
            if (mirroring() && sent > marked) {
                close_at(sent, sent_hold);
            }
        } else if (!epoch_wanted && appended > marked) {
            epoch_wanted = true;
            actions.push(act_epoch_wanted{});
        }
    }

    // An epoch is closed early rather than that the standby is full of what it may not run.
    void pressure() {
        if (!mirroring() || first == 0) {
            return;
        }
        if (!held_up_by_standby()) {
            stalled_since = never;
        } else if (stalled_since == never) {
            stalled_since = now;
        }
        if (config.epoch_ms != 0) {
            const bool much = sent_hold - marked_hold > hold_bytes / 2 || sent - marked > hold_entries / 2;
            if (sent > marked && (much || held_up_by_standby())) {
                close_at(sent, sent_hold);
            }
            return;
        }
        // Nothing that was sent can end any more, and the next entries do not fit.
        if (!unsent_marks.empty() && held_up_by_standby() && sent_marks.empty() &&
            acked.freed_bytes == committed_hold && acked.freed_entries == committed_count()) {
            leave("epoch " + std::to_string(unsent_marks.front().epoch) + " needs " +
                      std::to_string(unsent_marks.front().hold - committed_hold) +
                      " bytes, and the standby can hold " + std::to_string(hold_bytes) +
                      ": give it a larger hold",
                  goodbye_reason::other);
        }
    }

    // ---- time

    void on_tick() {
        switch (state) {
        case primary_state::disconnected:
            return connect_if_due();
        case primary_state::greeting:
            if (now >= connected_at + hello_timeout_ms) {
                leave("the standby did not greet within " + std::to_string(hello_timeout_ms) + " ms",
                      goodbye_reason::other);
            }
            return;
        case primary_state::ended:
            return;
        case primary_state::syncing:
        case primary_state::protecting:
            break;
        }
        if (now >= last_heard + config.heartbeat_budget_ms) {
            return leave("nothing was heard of the standby for " + std::to_string(now - last_heard) + " ms",
                         goodbye_reason::other);
        }
        if (stalled_since != never && now >= stalled_since + config.stall_budget_ms) {
            return leave("the standby is full and has freed nothing for " +
                             std::to_string(now - stalled_since) +
                             " ms: what it holds may wait for the guest; a larger hold would help",
                         goodbye_reason::other);
        }
        if (now >= next_heartbeat) {
            send_heartbeat();
        }
        pump();
        if (mirroring() && now >= epoch_ends) {
            close_at(sent, sent_hold);
        }
    }

    std::uint64_t next_tick() const {
        switch (state) {
        case primary_state::disconnected:
            return link_state == link::down && device_state == device::off ? reconnect_at : never;
        case primary_state::greeting:
            return connected_at + hello_timeout_ms;
        case primary_state::ended:
            return never;
        case primary_state::syncing:
        case primary_state::protecting:
            break;
        }
        const std::uint64_t stalled = stalled_since == never ? never : stalled_since + config.stall_budget_ms;
        return std::min({last_heard + config.heartbeat_budget_ms, next_heartbeat, epoch_ends, stalled});
    }
};

primary_fsm::primary_fsm(const primary_config& config, std::uint64_t now_ms)
    : impl_(std::make_unique<impl>(config, now_ms)) {}
primary_fsm::~primary_fsm() = default;

void primary_fsm::on_entry(const entry_meta& meta, std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_entry(meta);
}

void primary_fsm::on_outcome(log_sequence entry, bool canceled, std::int32_t result) {
    if (impl_->mirroring()) {
        impl_->followups.on_outcome(entry, canceled, result, impl_->sent);
        impl_->check_congestion();
    }
}

void primary_fsm::on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes) {
    if (impl_->mirroring()) {
        impl_->followups.on_late_content(entry, payload, bytes, impl_->sent);
        impl_->check_congestion();
    } else {
        impl_->actions.push(act_drop_content{entry});
    }
}

void primary_fsm::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes) {
    if (impl_->mirroring()) {
        impl_->followups.on_digests(entry, std::move(hashes), impl_->sent);
    }
}

void primary_fsm::on_synced(log_sequence last) {
    if (impl_->mirroring()) {
        assert(impl_->state == primary_state::syncing && impl_->synced_at == 0 && last >= impl_->first &&
               last <= impl_->appended && "synced() comes once, for an entry of this state transfer");
        impl_->synced_at = last;
        impl_->send_synced();
    }
}

void primary_fsm::on_mirror_failed(const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->mirroring()) {
        impl_->leave(why, goodbye_reason::other);
    }
}

void primary_fsm::on_mirror_stopped(std::uint64_t now_ms) {
    impl_->now = now_ms;
    assert(impl_->device_state == impl::device::stopping && "nobody asked for it");
    impl_->device_state = impl::device::off;
    // What the device appended before it knew.
    impl_->actions.push(act_drop_log{UINT64_MAX});
    impl_->connect_if_due();
}

std::uint64_t primary_fsm::close_epoch(std::uint64_t now_ms) {
    impl_->now = now_ms;
    return impl_->close_epoch();
}

void primary_fsm::on_connected(std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->link_state != impl::link::connecting) {
        return; // given up meanwhile
    }
    impl_->link_state = impl::link::up;
    impl_->connected_at = impl_->last_heard = now_ms;
    impl_->link_queued = 0;
    impl_->become(primary_state::greeting, impl_->degraded);
    impl_->actions.push(act_send{impl_->own_hello()});
}

void primary_fsm::on_message(const message& m, std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_message(m);
}

void primary_fsm::on_closed(const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->link_state != impl::link::down) {
        impl_->on_link_gone(why, primary_state::disconnected);
    }
}

void primary_fsm::on_sent(std::uint64_t queued_bytes) {
    if (impl_->link_state == impl::link::up) {
        impl_->link_queued = queued_bytes;
    }
}

void primary_fsm::on_tick(std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_tick();
}

std::uint64_t primary_fsm::next_tick_ms() const {
    return impl_->next_tick();
}

void primary_fsm::on_shutdown(std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->state != primary_state::ended) {
        impl_->leave("the primary was shut down", goodbye_reason::shutdown, primary_state::ended);
    }
}

bool primary_fsm::next(primary_action& out) {
    if (impl_->actions.empty()) {
        impl_->pump();
    }
    return impl_->actions.pop(out);
}

primary_status primary_fsm::status(std::uint64_t now_ms) const {
    const impl& i = *impl_;
    primary_status s;
    s.state = i.state;
    s.degraded = i.degraded;
    s.epoch = i.epoch;
    s.committed_epoch = i.acked.committed_epoch;
    s.appended = i.appended;
    s.sent = i.sent;
    s.received = i.acked.received;
    s.executed = i.acked.executed;
    s.log_bytes = i.log_bytes();
    s.log_entries = i.appended - i.dropped;
    s.lag_ms = i.times.empty() ? 0 : now_ms - std::min(now_ms, i.times.front().second);
    s.sent_bytes = i.sent_bytes;
    s.digests_compared = i.digests_compared;
    s.digests_different = i.digests_different;
    s.connections = i.connections;
    s.standby_gpu = i.peer.gpu;
    s.round_trip_ms = i.round_trip_ms;
    s.compression = i.config.compression && has_capability(i.peer, compression_capability);
    s.late_bytes = i.followups.waiting_bytes();
    s.open_entries = i.followups.size();
    return s;
}

} // namespace kagemusha::mirror
