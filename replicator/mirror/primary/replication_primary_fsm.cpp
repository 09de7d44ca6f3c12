// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/primary/replication_primary_fsm.hpp"

#include <algorithm>
#include <cassert>
#include <optional>

#include "mirror/primary/primary_log.hpp"
#include "mirror/protocol/action_queue.hpp"
#include "mirror/protocol/agreement.hpp"

namespace kagemusha::mirror {

namespace {

constexpr std::uint64_t never = UINT64_MAX;

bool legal(primary_state from, primary_state to) {
    using enum primary_state;
    switch (from) {
    case disconnected:
        return to == disconnected || to == greeting || to == ended;
    case greeting:
        return to == disconnected || to == syncing || to == ended;
    case syncing:
        return to == disconnected || to == syncing || to == protecting || to == ended;
    case protecting:
        return to == disconnected || to == ended;
    case ended:
        return false;
    }
    return false;
}

} // namespace

struct replication_primary_fsm::impl {
    // What the device's side does as far as this side knows.
    enum class device : std::uint8_t { off, on, stopping };
    enum class link : std::uint8_t { down, connecting, up };

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
    std::uint64_t copied_at = never; // the standby has had everything since
    log_sequence came_meanwhile = 0; // the last entry that the guest made until then
    hello peer;
    primary_log log; // of this run of the mirror
    bool checkpoints_wanted = false;

    // ---- for people
    std::uint64_t connections = 0, round_trip_ms = 0;

    impl(const primary_config& c, std::uint64_t now_ms)
        : config(c)
        , now(now_ms)
        , degraded("no standby has been reached yet")
        , reconnect_at(now_ms)
        , log(config, actions) {}

    bool mirroring() const { return device_state == device::on; }

    // The only place that changes the state.
    void become(primary_state to, std::string reason) {
        assert(legal(state, to) && "illegal transition");
        if (to == state && reason == degraded)
            return;
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
        if (config.compression)
            h.capabilities.push_back(compression_capability);
        h.capabilities.insert(h.capabilities.end(), config.gpu_capabilities.begin(),
                              config.gpu_capabilities.end());
        if (!config.built_capability.empty())
            h.capabilities.push_back(config.built_capability);
        h.heartbeat_budget_ms = config.heartbeat_budget_ms;
        h.limits = config.limits;
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
            if (farewell && link_state == link::up)
                actions.push(act_send{goodbye{*farewell, why}});
            actions.push(act_close_link{why});
        }
        on_link_gone(std::move(why), to);
    }

    void on_link_gone(std::string why, primary_state to) {
        link_state = link::down;
        log.on_link_queue(0);
        next_heartbeat = never;
        reconnect_at = now + reconnect_delay;
        reconnect_delay = std::min(reconnect_delay * 2, max_reconnect_ms);
        if (device_state == device::on) {
            log.end();
            actions.push(act_stop_mirror{});
            actions.push(act_drop_log{UINT64_MAX});
            device_state = device::stopping;
        }
        become(to, std::move(why));
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
        ++connections;
        // What the standby wants to hear often enough, and what this side promised itself.
        next_heartbeat = now;
        device_state = device::on;
        copied_at = never;
        log.begin(theirs);
        actions.push(act_start_sync{built_wanted()});
        become(primary_state::syncing, {});
        send_heartbeat();
    }

    bool built_wanted() const {
        return !config.built_capability.empty() && has_capability(peer, config.built_capability);
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
        if (const std::string broken = log.on_ack(a); !broken.empty())
            return violation(broken);
        protect_if_complete();
    }

    void protect_if_complete() {
        if (state != primary_state::syncing || !log.copied())
            return;
        if (copied_at == never) {
            copied_at = now;
            came_meanwhile = log.appended();
        }
        const bool keeps_up = log.keeps_up(came_meanwhile, now);
        if (!keeps_up && now < copied_at + config.keep_up_wait_ms) {
            return become(primary_state::syncing,
                          "the standby has everything, and its GPU has still to do what this one has done");
        }
        reconnect_delay = min_reconnect_ms;
        become(primary_state::protecting, {});
        if (!keeps_up)
            actions.push(act_lagging{lag::at_protection, log.unexecuted_ms(now)});
        if (checkpoints_wanted)
            log.use_checkpoints(true);
    }

    void on_heartbeat(const heartbeat& h) {
        if (h.answer_to_ms > now)
            return violation("it answered a heartbeat of the future");
        if (h.answer_to_ms != 0)
            round_trip_ms = now - h.answer_to_ms;
    }

    void on_message(const message& m) {
        if (link_state != link::up)
            return; // of a link that is being closed
        last_heard = now;
        if (const auto* bye = std::get_if<goodbye>(&m)) {
            const char* what = bye->reason == goodbye_reason::shutdown ? "the standby was shut down: "
                               : bye->reason == goodbye_reason::refused
                                   ? "the standby refused: "
                                   : "the standby ended the connection: ";
            return leave(what + bye->why, std::nullopt);
        }
        if (std::holds_alternative<unknown_message>(m))
            return;
        if (state == primary_state::greeting) {
            if (const auto* h = std::get_if<hello>(&m))
                return on_hello(*h);
            return violation("its first message is no hello");
        }
        if (const auto* a = std::get_if<ack>(&m))
            return on_ack(*a);
        if (const auto* h = std::get_if<heartbeat>(&m))
            return on_heartbeat(*h);
        if (const auto* r = std::get_if<digest_result>(&m)) {
            const std::string broken = log.on_digest_result(*r, now);
            return broken.empty() ? void() : violation(broken);
        }
        if (std::holds_alternative<mirror::close_epoch>(m))
            return log.on_standby_full(now);
        if (const auto* f = std::get_if<fault>(&m))
            return leave("the standby is no copy any more: " + f->why, goodbye_reason::other);
        if (std::holds_alternative<hello>(m))
            return violation("it greeted twice");
        violation("it sent a message that only a primary sends");
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
        if (now >= next_heartbeat)
            send_heartbeat();
        give_up_if(log.on_tick(now));
        protect_if_complete();
    }

    // The mirror can't go on.
    void give_up_if(const std::string& reason) {
        if (!reason.empty())
            leave(reason, goodbye_reason::other);
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
        const std::uint64_t waited = state == primary_state::syncing && copied_at != never
                                         ? copied_at + config.keep_up_wait_ms
                                         : never;
        return std::min({last_heard + config.heartbeat_budget_ms, next_heartbeat, log.next_tick(), waited});
    }
};

replication_primary_fsm::replication_primary_fsm(const primary_config& config, std::uint64_t now_ms)
    : impl_(std::make_unique<impl>(config, now_ms)) {}
replication_primary_fsm::~replication_primary_fsm() = default;

void replication_primary_fsm::on_entry(const entry_meta& meta, std::uint64_t now_ms) {
    impl& i = *impl_;
    i.now = now_ms;
    assert(i.device_state != impl::device::off && "entries before a state transfer was started");
    if (i.mirroring())
        i.give_up_if(i.log.on_entry(meta, now_ms));
    else
        i.log.note_stale(meta.sequence);
}

void replication_primary_fsm::on_outcome(log_sequence entry, bool canceled, std::int32_t result) {
    if (impl_->mirroring())
        impl_->log.on_outcome(entry, canceled, result, impl_->now);
}

void replication_primary_fsm::on_late_content(log_sequence entry, std::uint32_t payload,
                                              std::uint64_t bytes) {
    if (impl_->mirroring())
        impl_->log.on_late_content(entry, payload, bytes, impl_->now);
    else
        impl_->actions.push(act_drop_content{entry});
}

void replication_primary_fsm::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes,
                                         std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->mirroring())
        impl_->log.on_digests(entry, std::move(hashes), now_ms);
}

void replication_primary_fsm::on_synced(log_sequence last) {
    if (impl_->mirroring())
        impl_->log.on_synced(last);
}

void replication_primary_fsm::on_built(std::uint32_t file, std::uint64_t bytes) {
    if (impl_->mirroring()) // its file's entry first
        impl_->give_up_if(impl_->log.pump(impl_->now));
    const bool send = impl_->mirroring() && impl_->built_wanted() && impl_->log.may_send_built(bytes);
    impl_->actions.push(act_built{{file, bytes}, send});
}

void replication_primary_fsm::on_mirror_failed(const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->mirroring())
        impl_->leave(why, goodbye_reason::other);
}

void replication_primary_fsm::on_mirror_stopped(std::uint64_t now_ms) {
    impl_->now = now_ms;
    assert(impl_->device_state == impl::device::stopping && "nobody asked for it");
    impl_->device_state = impl::device::off;
    // What the device appended before it knew.
    impl_->actions.push(act_drop_log{UINT64_MAX});
    impl_->connect_if_due();
}

std::uint64_t replication_primary_fsm::close_epoch(std::uint64_t now_ms) {
    impl_->now = now_ms;
    return impl_->log.close_epoch(now_ms);
}

void replication_primary_fsm::use_checkpoints(bool on, std::uint64_t now_ms) {
    impl& i = *impl_;
    i.now = now_ms;
    i.checkpoints_wanted = on;
    if (i.config.epoch_ms != 0 && i.state == primary_state::protecting)
        i.log.use_checkpoints(on);
}

void replication_primary_fsm::on_connected(std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->link_state != impl::link::connecting)
        return; // given up meanwhile
    impl_->link_state = impl::link::up;
    impl_->connected_at = impl_->last_heard = now_ms;
    impl_->log.on_link_queue(0);
    impl_->become(primary_state::greeting, impl_->degraded);
    impl_->actions.push(act_send{impl_->own_hello()});
}

void replication_primary_fsm::on_message(const message& m, std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_message(m);
}

void replication_primary_fsm::on_closed(const std::string& why, std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->link_state != impl::link::down)
        impl_->on_link_gone(why, primary_state::disconnected);
}

void replication_primary_fsm::on_sent(std::uint64_t queued_bytes) {
    if (impl_->link_state == impl::link::up)
        impl_->log.on_link_queue(queued_bytes);
}

void replication_primary_fsm::on_tick(std::uint64_t now_ms) {
    impl_->now = now_ms;
    impl_->on_tick();
}

std::uint64_t replication_primary_fsm::next_tick_ms() const {
    return impl_->next_tick();
}

void replication_primary_fsm::on_shutdown(std::uint64_t now_ms) {
    impl_->now = now_ms;
    if (impl_->state != primary_state::ended)
        impl_->leave("the primary was shut down", goodbye_reason::shutdown, primary_state::ended);
}

bool replication_primary_fsm::next(primary_action& out) {
    if (impl_->actions.empty() && impl_->mirroring())
        impl_->give_up_if(impl_->log.pump(impl_->now));
    return impl_->actions.pop(out);
}

primary_status replication_primary_fsm::status(std::uint64_t now_ms) const {
    const impl& i = *impl_;
    primary_status s;
    s.state = i.state;
    s.degraded = i.degraded;
    i.log.fill(s, now_ms);
    s.connections = i.connections;
    s.standby_gpu = i.peer.gpu;
    s.round_trip_ms = i.round_trip_ms;
    s.compression = i.config.compression && has_capability(i.peer, compression_capability);
    return s;
}

} // namespace kagemusha::mirror
