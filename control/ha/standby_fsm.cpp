// SPDX-License-Identifier: GPL-2.0-or-later
//
// See standby_fsm.hpp.
#include "control/ha/standby_fsm.hpp"

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
constexpr std::uint64_t greeting_ms = 5000; // for the hello, and for silence before anything is at stake

bool is_legal(standby_state from, standby_state to) {
    using s = standby_state;
    switch (from) {
    case s::starting:
        return to == s::listening || to == s::ended;
    case s::listening:
        return to == s::greeted || to == s::outdated || to == s::ended;
    case s::greeted:
        return to == s::synced || to == s::outdated || to == s::ended;
    case s::synced:
        return to == s::claiming || to == s::taking_over || to == s::outdated || to == s::ended;
    case s::claiming:
        return to == s::synced || to == s::taking_over || to == s::outdated || to == s::ended;
    case s::taking_over:
        return to == s::running || to == s::ended;
    case s::outdated:
        return to == s::starting || to == s::ended;
    case s::running:
    case s::ended:
        return false;
    }
    return false;
}

} // namespace

const char* to_text(standby_state state) {
    static constexpr const char* names[] = {"starting",    "listening", "greeted",  "synced", "claiming",
                                            "taking-over", "running",   "outdated", "ended"};
    return names[static_cast<std::size_t>(state)];
}

void standby_fsm::become(standby_state to, std::string why) {
    if (!is_legal(state_, to)) {
        fmt::print(stderr, "kagemusha: standby_fsm: illegal transition {} -> {}\n", to_text(state_),
                   to_text(to));
        std::abort();
    }
    state_ = to;
    actions_.push_back(act_standby_state{to, std::move(why)});
}

bool standby_fsm::next(standby_action& out) {
    if (actions_.empty())
        return false;
    out = std::move(actions_.front());
    actions_.pop_front();
    return true;
}

void standby_fsm::send(mirror::message m) {
    actions_.push_back(act_standby_send{std::move(m)});
}

// ---- QEMU

void standby_fsm::on_qemu_ready(std::uint64_t) {
    if (state_ != standby_state::starting)
        return;
    become(standby_state::listening, {});
    if (greeted_) { // the primary has been waiting for us
        become(standby_state::greeted, {});
        send(supervision{supervision_kind::ready, 0, {}});
    }
}

void standby_fsm::on_qemu_died(const std::string& how, std::uint64_t) {
    if (state_ == standby_state::running || state_ == standby_state::ended)
        return;
    if (greeted_ && linked_)
        send(supervision{supervision_kind::lost, 0, "its QEMU ended: " + how});
    if (state_ == standby_state::taking_over)
        return end(false, "QEMU ended during the takeover: " + how);
    if (state_ == standby_state::starting || state_ == standby_state::outdated)
        return end(false, "QEMU does not start: " + how);
    out_of_date("QEMU ended: " + how);
}

void standby_fsm::on_gpu_lost(const std::string& why, std::uint64_t) {
    // While another QEMU is started it is still the old one's.
    if (state_ == standby_state::running || state_ == standby_state::ended ||
        state_ == standby_state::starting || !gpu_lost_.empty())
        return;
    gpu_lost_ = why;
    tell_gpu_lost();
}

void standby_fsm::tell_gpu_lost() {
    if (!gpu_lost_.empty() && greeted_ && linked_ && state_ != standby_state::taking_over)
        send(supervision{supervision_kind::lost, term_, "its GPU has no copy any more: " + gpu_lost_});
}

void standby_fsm::out_of_date(const std::string& why) {
    term_ = 0;
    gpu_lost_.clear(); // a new QEMU has a new one
    request_ = 0;      // its answer, if any comes, is nobody's
    become(standby_state::outdated, why);
    actions_.push_back(act_restart_qemu{why});
    become(standby_state::starting, {});
}

// ---- the primary's supervisor

void standby_fsm::on_link_up(std::uint64_t now) {
    linked_ = true;
    greeted_ = described_ = false;
    link_since_ = now;
}

void standby_fsm::on_link_closed(const std::string& why, std::uint64_t) {
    if (!linked_)
        return;
    const bool was_greeted = greeted_;
    linked_ = greeted_ = false;
    // Not proof of anything. A paired standby waits for its budget; what another has is of no use.
    if (state_ == standby_state::greeted && was_greeted)
        out_of_date("the primary's connection ended: " + why);
}

void standby_fsm::drop_link(mirror::goodbye_reason reason, const std::string& why) {
    send(mirror::goodbye{reason, why});
    actions_.push_back(act_standby_close_link{});
    on_link_closed(why, 0);
}

void standby_fsm::on_message(const mirror::message& m, std::uint64_t now) {
    if (!linked_ || over())
        return;
    if (const auto* bye = std::get_if<mirror::goodbye>(&m)) {
        actions_.push_back(act_standby_close_link{});
        return on_link_closed(bye->why, now);
    }
    if (std::holds_alternative<mirror::unknown_message>(m))
        return;
    if (!greeted_) {
        if (const auto* h = std::get_if<mirror::hello>(&m))
            return on_hello(*h, now);
        return drop_link(mirror::goodbye_reason::protocol_error, "the first message is no hello");
    }
    if (const auto* beat = std::get_if<mirror::heartbeat>(&m)) {
        heard(now);
        // No promise while something is claimed.
        if (state_ != standby_state::claiming && !over())
            send(mirror::heartbeat{now, beat->time_ms});
        return;
    }
    if (const auto* s = std::get_if<supervision>(&m)) {
        heard(now);
        return on_supervision(*s, now);
    }
    drop_link(mirror::goodbye_reason::protocol_error, "a message that a primary's supervisor does not send");
}

void standby_fsm::on_hello(const mirror::hello& theirs, std::uint64_t now) {
    mirror::hello mine;
    mine.role = mirror::role::standby;
    mine.vm = config_.vm;
    mine.instance = config_.instance;
    mine.gpu = "supervisor";
    mine.capabilities = {"supervision"};
    mine.heartbeat_budget_ms = config_.heartbeat_budget_ms;
    mine.hold_bytes = mine.hold_entries = 1; // of no meaning here; none is refused
    auto why = mirror::disagreement(mine, theirs);
    if (why.empty() && !mirror::has_capability(theirs, "supervision"))
        why = "the peer is no supervisor of a VM: check the addresses";
    if (!why.empty())
        return drop_link(mirror::goodbye_reason::refused, why);
    greeted_ = true;
    heard(now);
    send(mine);
    send(supervision{supervision_kind::description, 0, config_.description});
    if (state_ == standby_state::listening) {
        become(standby_state::greeted, {});
        send(supervision{supervision_kind::ready, 0, {}});
    }
    tell_gpu_lost(); // it may have happened while nobody was connected
}

void standby_fsm::heard(std::uint64_t now) {
    last_heard_ = std::max(last_heard_, now);
    heard_again_ = true;
    if (state_ == standby_state::claiming && request_ == 0) {
        waiting_for_.clear();
        become(standby_state::synced, "the primary is heard again");
    }
}

void standby_fsm::on_supervision(const supervision& m, std::uint64_t now) {
    switch (m.kind) {
    case supervision_kind::description:
        described_ = m.text == config_.description;
        if (!described_)
            drop_link(
                mirror::goodbye_reason::refused,
                "both hosts describe the VM differently (description, kernel or an image): use the same "
                "files on both");
        return;
    case supervision_kind::pair:
        if (state_ != standby_state::greeted || m.term == 0 || !described_)
            return drop_link(mirror::goodbye_reason::protocol_error, "PAIR came at the wrong time");
        term_ = m.term;
        become(standby_state::synced, {});
        send(supervision{supervision_kind::paired, term_, {}});
        return;
    case supervision_kind::unpaired:
        if (state_ == standby_state::greeted || state_ == standby_state::synced ||
            state_ == standby_state::claiming)
            out_of_date("the primary goes on without this standby: " + m.text);
        return;
    case supervision_kind::died:
        return with_proof(m, "the primary's QEMU has ended: ", now);
    case supervision_kind::handed_over:
        return with_proof(m, "", now);
    default:
        drop_link(mirror::goodbye_reason::protocol_error, "a word that only a standby says");
    }
}

void standby_fsm::with_proof(const supervision& m, const char* what, std::uint64_t now) {
    if ((state_ != standby_state::synced && state_ != standby_state::claiming) || m.term != term_)
        return drop_link(mirror::goodbye_reason::other,
                         "this standby has nothing of that term to take over with");
    proven_ = true;
    take_over(what + m.text);
    // A claim that is under way may be answered "held"; then it is asked again, with the proof.
    if (request_ == 0)
        ask(now);
}

void standby_fsm::take_over(std::string why) {
    if (!gpu_lost_.empty())
        why += "; without the state of its GPU, so programs that use it get errors: " + gpu_lost_;
    become(standby_state::taking_over, why);
    actions_.push_back(act_take_over{std::move(why)});
}

// ---- the arbiter

void standby_fsm::ask(std::uint64_t now) {
    arbiter_request request{arbiter_request::kind::claim, ++last_number_, term_, 0, proven_, false};
    request_ = request.number;
    ask_at_ = now + config_.retry_ms;
    heard_again_ = false;
    actions_.push_back(act_standby_ask{request});
}

void standby_fsm::on_arbiter(const arbiter_answer& answer, std::uint64_t now) {
    if (answer.number != request_ || request_ == 0)
        return;
    request_ = 0;
    const bool taking_over = state_ == standby_state::taking_over;
    switch (answer.what) {
    case arbiter_answer::verdict::granted:
        granted_term_ = answer.term;
        lease_until_ = answer.until_ms;
        waiting_for_.clear();
        if (!taking_over) {
            const auto why =
                fmt::format("the primary was silent for {} ms, and the arbiter granted the VM to this host",
                            now - last_heard_);
            take_over(why);
        }
        return run_if_allowed();
    case arbiter_answer::verdict::refused:
        if (taking_over)
            return end(false, "the arbiter does not allow the takeover: " + answer.why);
        return out_of_date("the arbiter does not allow a takeover: " + answer.why);
    case arbiter_answer::verdict::held:
    case arbiter_answer::verdict::unreachable:
    case arbiter_answer::verdict::gone:
        waiting_for_ = answer.why;
        ask_at_ = answer.what == arbiter_answer::verdict::held ? std::max(answer.until_ms, now + 1)
                                                               : now + config_.retry_ms;
        if (taking_over && proven_ && answer.what == arbiter_answer::verdict::held)
            return ask(now); // that one was asked without the proof
        if (!taking_over && heard_again_)
            become(standby_state::synced, "the primary is heard again");
        return;
    }
}

void standby_fsm::on_qemu_running(std::uint64_t) {
    qemu_running_ = true;
    run_if_allowed();
}

void standby_fsm::run_if_allowed() {
    if (state_ != standby_state::taking_over || !qemu_running_ || granted_term_ == 0)
        return;
    if (linked_) {
        send(mirror::goodbye{mirror::goodbye_reason::shutdown, "the VM runs here now"});
        actions_.push_back(act_standby_close_link{});
        linked_ = greeted_ = false;
    }
    become(standby_state::running, {});
    actions_.push_back(act_running{granted_term_, lease_until_});
}

void standby_fsm::on_takeover_failed(const std::string& why, std::uint64_t) {
    if (state_ == standby_state::taking_over)
        end(false, "QEMU could not take the VM over: " + why);
}

void standby_fsm::on_stop(std::uint64_t) {
    if (state_ == standby_state::running || state_ == standby_state::ended)
        return;
    if (greeted_ && linked_)
        send(supervision{supervision_kind::lost, 0, "it is stopped"});
    end(true, "stopped");
}

void standby_fsm::end(bool in_order, const std::string& why) {
    request_ = 0; // its answer, if any comes, is nobody's
    if (linked_) {
        send(mirror::goodbye{mirror::goodbye_reason::shutdown, why});
        actions_.push_back(act_standby_close_link{});
        linked_ = greeted_ = false;
    }
    become(standby_state::ended, why);
    actions_.push_back(act_standby_ended{in_order, why});
}

// ---- time

void standby_fsm::on_tick(std::uint64_t now) {
    const auto silent_since = last_heard_ + config_.heartbeat_budget_ms;
    if (linked_ && !greeted_ && now >= link_since_ + greeting_ms)
        drop_link(mirror::goodbye_reason::other, "the peer did not greet");
    if (state_ == standby_state::greeted &&
        now >= last_heard_ + std::max<std::uint64_t>(greeting_ms, config_.heartbeat_budget_ms))
        drop_link(mirror::goodbye_reason::other, "the primary was silent");
    if (state_ == standby_state::synced && now >= silent_since) {
        become(standby_state::claiming,
               linked_ ? "the primary is silent" : "the primary's connection is closed");
        ask(now);
    } else if ((state_ == standby_state::claiming || state_ == standby_state::taking_over) && request_ == 0 &&
               granted_term_ == 0 && now >= ask_at_) {
        ask(now);
    }
}

std::uint64_t standby_fsm::deadline() const {
    std::uint64_t at = never;
    if (state_ == standby_state::running || state_ == standby_state::ended)
        return at;
    if (linked_ && !greeted_)
        at = std::min(at, link_since_ + greeting_ms);
    if (state_ == standby_state::greeted)
        at = std::min(at, last_heard_ + std::max<std::uint64_t>(greeting_ms, config_.heartbeat_budget_ms));
    if (state_ == standby_state::synced)
        at = std::min(at, last_heard_ + config_.heartbeat_budget_ms);
    if ((state_ == standby_state::claiming || state_ == standby_state::taking_over) && request_ == 0 &&
        granted_term_ == 0)
        at = std::min(at, ask_at_);
    return at;
}

} // namespace kagemusha::ha
