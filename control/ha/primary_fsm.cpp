// SPDX-License-Identifier: GPL-2.0-or-later
//
// See primary_fsm.hpp.
#include "control/ha/primary_fsm.hpp"

#include "mirror/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::ha {

namespace {

using mirror::supervision;
using mirror::supervision_kind;

constexpr std::uint64_t never = UINT64_MAX;
// Between attempts to connect: to a standby that has our state (or must be told something), and to any.
constexpr std::uint64_t reconnect_ms = 20, connect_pause_ms = 500;
constexpr std::uint64_t hello_ms = 5000;
constexpr std::uint64_t opening_ms = 15000; // longer than any lease: then the holder is alive
constexpr std::uint64_t leaving_ms = 10000; // for telling the standby; after that it has the arbiter

bool is_legal(primary_state from, primary_state to) {
    using s = primary_state;
    switch (from) {
    case s::opening:
        return to == s::alone || to == s::ended;
    case s::alone:
        return to == s::replicating || to == s::ended;
    case s::replicating:
        return to == s::telling || to == s::alone || to == s::ended;
    case s::telling:
        return to == s::recording || to == s::alone || to == s::ended;
    case s::recording:
        return to == s::protecting || to == s::losing || to == s::ended;
    case s::protecting:
        return to == s::losing || to == s::leaving || to == s::ended;
    case s::losing:
        return to == s::alone || to == s::leaving || to == s::ended;
    case s::leaving:
        return to == s::ended;
    case s::ended:
        return false;
    }
    return false;
}

} // namespace

const char* to_text(primary_state state) {
    static constexpr const char* names[] = {"opening",    "alone",  "replicating", "telling", "recording",
                                            "protecting", "losing", "leaving",     "ended"};
    return names[static_cast<std::size_t>(state)];
}

const char* to_text(arbiter_request::kind what) {
    static constexpr const char* names[] = {"open",  "renew",   "alone", "pair",
                                            "claim", "release", "look",  "restore"};
    return names[static_cast<std::size_t>(what)];
}

const char* to_text(arbiter_answer::verdict what) {
    static constexpr const char* names[] = {"granted", "refused", "held", "unreachable", "gone"};
    return names[static_cast<std::size_t>(what)];
}

// The only place where the state changes.
void primary_fsm::become(primary_state to, std::string why) {
    if (!is_legal(state_, to)) {
        fmt::print(stderr, "kagemusha: primary_fsm: illegal transition {} -> {}\n", to_text(state_),
                   to_text(to));
        std::abort();
    }
    state_ = to;
    actions_.push_back(act_state{to, std::move(why)});
}

bool primary_fsm::next(primary_action& out) {
    if (actions_.empty())
        return false;
    out = std::move(actions_.front());
    actions_.pop_front();
    return true;
}

void primary_fsm::send(mirror::message m) {
    actions_.push_back(act_send{std::move(m)});
}

void primary_fsm::ask(arbiter_request::kind what, std::uint64_t now) {
    arbiter_request request{what, ++last_number_, term_, 0, false, false};
    if (what == arbiter_request::kind::pair)
        request.new_term = told_term_;
    if (what == arbiter_request::kind::open)
        request.anew = config_.anew;
    request_ = request.number;
    asked_ = what;
    last_asked_ = now;
    actions_.push_back(act_ask{request});
}

void primary_fsm::open_gate(std::uint64_t until) {
    if (until > gate_) {
        gate_ = until;
        actions_.push_back(act_gate{until});
    }
}

// ---- beginnings

void primary_fsm::start(std::uint64_t now) {
    opening_by_ = now + opening_ms;
    actions_.push_back(act_state{state_, {}});
    ask(arbiter_request::kind::open, now);
}

void primary_fsm::start_after_takeover(std::uint64_t term, std::uint64_t lease_until, std::uint64_t now) {
    term_ = told_term_ = term;
    lease_until_ = lease_until;
    last_asked_ = now;
    degraded_ = "the VM was taken over here; give it a standby with `kage protect`";
    become(primary_state::alone, degraded_);
    open_gate(lease_until);
    connect_if_due(now);
}

void primary_fsm::on_protect(std::uint64_t now) {
    config_.has_standby = true;
    connect_at_ = now;
    connect_if_due(now);
}

// ---- the arbiter

void primary_fsm::on_arbiter(const arbiter_answer& answer, std::uint64_t now) {
    if (answer.number != request_ || state_ == primary_state::ended || state_ == primary_state::leaving)
        return;
    request_ = 0;
    using verdict = arbiter_answer::verdict;
    const auto asked = asked_;
    if (answer.what == verdict::granted) {
        lease_until_ = std::max(lease_until_, answer.until_ms);
        term_ = answer.term;
        told_term_ = std::max(told_term_, term_);
        open_gate(lease_until_);
    }
    if (asked == arbiter_request::kind::open) {
        if (answer.what == verdict::granted) {
            become(primary_state::alone, degraded_);
            actions_.push_back(act_start_qemu{});
            return connect_if_due(now);
        }
        if (answer.what == verdict::refused || now >= opening_by_)
            return end(false, answer.why);
        last_asked_ = now; // asked again by on_tick
        return;
    }
    if (answer.what == verdict::refused)
        return superseded(answer.why);
    if (state_ == primary_state::losing) {
        if (answer.what == verdict::granted && asked == arbiter_request::kind::alone)
            return alone_recorded(now);
        if (stopping_ && answer.what != verdict::granted)
            return end(true, "stopped; " + answer.why);
        if (answer.what == verdict::granted)
            return ask(arbiter_request::kind::alone, now);
        return; // on_tick asks again
    }
    if (answer.what == verdict::granted && state_ == primary_state::recording) {
        if (asked != arbiter_request::kind::pair)
            return ask(arbiter_request::kind::pair, now);
        degraded_.clear();
        standby_has_vm_ = true;
        become(primary_state::protecting, {});
    }
}

void primary_fsm::renew_if_due(std::uint64_t now) {
    if (over() || request_ != 0 || now < last_asked_ + config_.renew_ms)
        return;
    switch (state_) {
    case primary_state::opening:
        return ask(arbiter_request::kind::open, now);
    case primary_state::recording:
        return ask(arbiter_request::kind::pair, now);
    case primary_state::losing:
        // Whether an unanswered `pair` was done is not known: once more first, it is granted again.
        return ask(told_term_ > term_ ? arbiter_request::kind::pair : arbiter_request::kind::alone, now);
    default:
        return ask(arbiter_request::kind::renew, now);
    }
}

void primary_fsm::superseded(const std::string& why) {
    actions_.push_back(act_kill_qemu{why});
    end(false, "this VM must not run here any more: " + why);
}

// ---- the standby

void primary_fsm::connect_if_due(std::uint64_t now) {
    if (link_ != link_state::down || !config_.has_standby || now < connect_at_ ||
        state_ == primary_state::opening || state_ == primary_state::ended || stopping_)
        return;
    link_ = link_state::connecting;
    actions_.push_back(act_connect{});
}

void primary_fsm::on_link_up(std::uint64_t now) {
    if (link_ != link_state::connecting || state_ == primary_state::ended)
        return;
    link_ = link_state::greeting;
    link_since_ = now;
    mirror::hello h;
    h.role = mirror::role::primary;
    h.vm = config_.vm;
    h.instance = config_.instance;
    h.gpu = "supervisor";
    h.capabilities = {"supervision"};
    h.heartbeat_budget_ms = config_.heartbeat_budget_ms;
    send(h);
}

void primary_fsm::on_message(const mirror::message& m, std::uint64_t now) {
    if (link_ < link_state::greeting || state_ == primary_state::ended)
        return;
    last_heard_ = std::max(last_heard_, now);
    if (const auto* bye = std::get_if<mirror::goodbye>(&m)) {
        actions_.push_back(act_close_link{});
        return link_down("the standby's supervisor ended the connection: " + bye->why, now);
    }
    if (const auto* h = std::get_if<mirror::hello>(&m); h && link_ == link_state::greeting)
        return on_hello(*h, now);
    if (const auto* s = std::get_if<supervision>(&m); s && link_ >= link_state::greeted)
        return on_supervision(*s, now);
    if (const auto* beat = std::get_if<mirror::heartbeat>(&m); beat && link_ >= link_state::greeted) {
        if (state_ == primary_state::protecting && beat->answer_to_ms != 0 && beat->answer_to_ms <= now)
            open_gate(beat->answer_to_ms + budget_ms_);
        return;
    }
    if (std::holds_alternative<mirror::unknown_message>(m))
        return;
    drop_link(mirror::goodbye_reason::protocol_error, "a message that a standby's supervisor does not send",
              now);
}

void primary_fsm::on_hello(const mirror::hello& theirs, std::uint64_t now) {
    mirror::hello mine;
    mine.role = mirror::role::primary;
    mine.vm = config_.vm;
    auto why = mirror::disagreement(mine, theirs);
    if (why.empty() && !mirror::has_capability(theirs, "supervision"))
        why = "the peer is no supervisor of a VM: check the addresses";
    if (!why.empty())
        return drop_link(mirror::goodbye_reason::refused, why, now);
    budget_ms_ = std::min(config_.heartbeat_budget_ms, theirs.heartbeat_budget_ms);
    link_ = link_state::greeted;
    send(supervision{supervision_kind::description, 0, config_.description});
    last_beat_ = 0;
    if (state_ == primary_state::leaving)
        return tell_leaving(now);
    heartbeat_if_due(now);
}

void primary_fsm::on_supervision(const supervision& m, std::uint64_t now) {
    switch (m.kind) {
    case supervision_kind::description:
        if (m.text != config_.description)
            drop_link(
                mirror::goodbye_reason::refused,
                "both hosts describe the VM differently (description, kernel or an image): use the same "
                "files on both",
                now);
        return;
    case supervision_kind::ready:
        if (link_ == link_state::greeted)
            link_ = link_state::ready;
        return replicate_if_ready();
    case supervision_kind::paired:
        if (state_ == primary_state::telling && m.term == told_term_) {
            become(primary_state::recording, {});
            if (request_ == 0)
                ask(arbiter_request::kind::pair, now);
        }
        return;
    case supervision_kind::lost:
        link_ = std::min(link_, link_state::greeted);
        standby_has_vm_ = standby_has_vm_ && m.term == term_; // if only its GPU is lost
        return lost_standby("the standby is lost: " + m.text, now);
    default:
        drop_link(mirror::goodbye_reason::protocol_error, "a word that only a primary says", now);
    }
}

void primary_fsm::replicate_if_ready() {
    if (state_ != primary_state::alone || link_ != link_state::ready || stopping_)
        return;
    become(primary_state::replicating, {});
    actions_.push_back(act_replicate{});
}

void primary_fsm::on_qemu_protecting(std::uint64_t) {
    if (state_ != primary_state::replicating)
        return;
    ++told_term_;
    become(primary_state::telling, {});
    send(supervision{supervision_kind::pair, told_term_, {}});
}

void primary_fsm::on_qemu_replication_lost(const std::string& why, std::uint64_t now) {
    lost_standby(why, now);
}

void primary_fsm::on_link_closed(const std::string& why, std::uint64_t now) {
    if (link_ != link_state::down)
        link_down(why, now);
}

// A paired standby may come back within its budget; nothing of its state is lost with the connection.
void primary_fsm::link_down(const std::string& why, std::uint64_t now) {
    const bool urgent = state_ == primary_state::protecting || state_ == primary_state::leaving;
    link_ = link_state::down;
    connect_at_ = now + (urgent ? reconnect_ms : connect_pause_ms);
    lost_why_ = why;
    if (state_ == primary_state::leaving && told_)
        return end(true, "the standby goes on");
    if (state_ == primary_state::alone)
        degraded_ = why;
    else if (state_ != primary_state::protecting)
        lost_standby(why, now);
}

void primary_fsm::drop_link(mirror::goodbye_reason reason, const std::string& why, std::uint64_t now) {
    send(mirror::goodbye{reason, why});
    actions_.push_back(act_close_link{});
    link_down(why, now);
}

void primary_fsm::lost_standby(const std::string& why, std::uint64_t now) {
    switch (state_) {
    case primary_state::replicating:
    case primary_state::telling:
        degraded_ = why;
        if (link_ >= link_state::greeted) {
            link_ = link_state::greeted;
            send(supervision{supervision_kind::unpaired, told_term_, why});
        }
        become(primary_state::alone, why);
        actions_.push_back(act_go_on_alone{});
        return;
    case primary_state::protecting:
        if (config_.policy == loss_policy::stop && !stopping_) {
            // The standby has everything that was let out: it may go on, if it lives.
            lost_why_ = why;
            actions_.push_back(act_kill_qemu{"the standby is lost, and the policy is to stop: " + why});
            return;
        }
        [[fallthrough]];
    case primary_state::recording:
        degraded_ = why;
        become(primary_state::losing, why);
        if (request_ == 0)
            ask(told_term_ > term_ ? arbiter_request::kind::pair : arbiter_request::kind::alone, now);
        return;
    default:
        return;
    }
}

void primary_fsm::alone_recorded(std::uint64_t now) {
    if (link_ >= link_state::greeted) {
        link_ = link_state::greeted; // it says READY again
        send(supervision{supervision_kind::unpaired, term_, degraded_});
    }
    if (stopping_)
        return end(true, "stopped");
    standby_has_vm_ = false;
    become(primary_state::alone, degraded_);
    actions_.push_back(act_go_on_alone{});
    connect_if_due(now);
}

// ---- the end

void primary_fsm::on_gpu_failed(const std::string& why, std::uint64_t) {
    switch (state_) {
    case primary_state::protecting:
        // Without a connection the standby may be as dead as the GPU: the connection comes back, or the
        // standby is lost.
        if (may_hand_over() && !gpu_failed_) {
            gpu_failed_ = true;
            actions_.push_back(act_kill_qemu{"its GPU failed: " + why});
        }
        return;
    case primary_state::telling:
    case primary_state::recording:
    case primary_state::losing:
        return; // soon protecting, or alone
    case primary_state::opening:
    case primary_state::alone:
    case primary_state::replicating:
        actions_.push_back(act_tell_gpu_failure{});
        return;
    case primary_state::leaving:
    case primary_state::ended:
        return;
    }
}

void primary_fsm::on_qemu_died(const std::string& how, bool in_order, std::uint64_t now) {
    if (over())
        return;
    const bool may_go_on =
        state_ == primary_state::protecting || (state_ == primary_state::losing && !stopping_);
    if (may_go_on && standby_has_vm_ && !in_order)
        return leave(supervision_kind::died, how, now);
    if (link_ >= link_state::greeted)
        send(supervision{supervision_kind::unpaired, std::max(term_, told_term_), how});
    end(in_order, how);
}

void primary_fsm::on_qemu_handed_over(std::uint64_t now) {
    if (state_ != primary_state::protecting)
        return;
    actions_.push_back(act_gate{0});
    leave(supervision_kind::handed_over, "handed over", now);
    actions_.push_back(act_kill_qemu{"the VM was handed over"});
}

void primary_fsm::leave(supervision_kind kind, const std::string& how, std::uint64_t now) {
    last_word_ = kind;
    how_ = how;
    leave_by_ = now + leaving_ms;
    become(primary_state::leaving, how);
    tell_leaving(now);
    ask(arbiter_request::kind::release, now);
    connect_if_due(now);
}

void primary_fsm::tell_leaving(std::uint64_t) {
    if (link_ < link_state::greeted)
        return;
    send(supervision{last_word_, term_, how_});
    told_ = true;
}

void primary_fsm::on_stop(std::uint64_t now) {
    if (over() || stopping_)
        return;
    stopping_ = true;
    if (state_ == primary_state::losing)
        return;
    if (state_ == primary_state::protecting || state_ == primary_state::recording)
        return lost_standby("the VM is stopped", now);
    if (link_ >= link_state::greeted)
        send(supervision{supervision_kind::unpaired, told_term_, "the VM is stopped"});
    end(true, "stopped");
}

void primary_fsm::end(bool in_order, const std::string& why) {
    const bool held = state_ != primary_state::leaving && state_ != primary_state::opening && in_order;
    const bool paired = state_ == primary_state::protecting || state_ == primary_state::recording;
    if (link_ >= link_state::greeting) {
        send(mirror::goodbye{mirror::goodbye_reason::shutdown, why});
        actions_.push_back(act_close_link{});
    }
    link_ = link_state::down;
    become(primary_state::ended, why);
    if (held && paired) // a VM that has ended must not start again elsewhere
        ask(arbiter_request::kind::alone, last_asked_);
    if (held)
        ask(arbiter_request::kind::release, last_asked_);
    actions_.push_back(act_ended{in_order, why});
}

// ---- time

void primary_fsm::heartbeat_if_due(std::uint64_t now) {
    if (link_ < link_state::greeted || now < last_beat_ + config_.heartbeat_ms)
        return;
    last_beat_ = now;
    send(mirror::heartbeat{now, 0});
}

void primary_fsm::on_tick(std::uint64_t now) {
    if (state_ == primary_state::ended)
        return;
    renew_if_due(now);
    if (state_ == primary_state::leaving && now >= leave_by_)
        return end(told_, told_ ? "the standby goes on"
                                : "the standby could not be told; it has to wait for the arbiter");
    if (link_ == link_state::greeting && now >= link_since_ + hello_ms)
        drop_link(mirror::goodbye_reason::other, "the peer did not greet", now);
    if (link_ >= link_state::greeted && now >= last_heard_ + budget_ms_) {
        lost_why_ = fmt::format("the standby's supervisor was silent for {} ms", budget_ms_);
        if (state_ == primary_state::leaving || state_ == primary_state::protecting)
            drop_link(mirror::goodbye_reason::other, lost_why_, now);
        else if (now >= last_heard_ + std::max<std::uint64_t>(budget_ms_, hello_ms))
            drop_link(mirror::goodbye_reason::other, lost_why_, now);
    }
    if (state_ == primary_state::protecting && now >= last_heard_ + budget_ms_)
        lost_standby(lost_why_.empty() ? "the standby is silent" : lost_why_, now);
    heartbeat_if_due(now);
    connect_if_due(now);
}

std::uint64_t primary_fsm::deadline() const {
    if (state_ == primary_state::ended)
        return never;
    std::uint64_t at = state_ == primary_state::leaving ? leave_by_ : never;
    if (!over() && request_ == 0)
        at = std::min(at, last_asked_ + config_.renew_ms);
    if (link_ == link_state::greeting)
        at = std::min(at, link_since_ + hello_ms);
    if (link_ >= link_state::greeted)
        at = std::min(
            {at, last_beat_ + config_.heartbeat_ms, last_heard_ + std::max<std::uint64_t>(budget_ms_, 1)});
    if (state_ == primary_state::protecting)
        at = std::min(at, last_heard_ + budget_ms_);
    if (link_ == link_state::down && config_.has_standby && state_ != primary_state::opening && !stopping_)
        at = std::min(at, connect_at_);
    return at;
}

} // namespace kagemusha::ha
