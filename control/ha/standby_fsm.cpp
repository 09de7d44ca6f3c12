// SPDX-License-Identifier: GPL-2.0-or-later
//
// See standby_fsm.hpp.
#include "control/ha/standby_fsm.hpp"

#include "mirror/protocol/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::ha {

namespace {

using mirror::supervision;
using mirror::supervision_kind;

constexpr std::uint64_t greeting_ms = 5000; // for the hello, and for silence before anything is at stake

bool is_legal(standby_state from, standby_state to) {
    using s = standby_state;
    if (to == s::ended)
        return from != s::running && from != s::ended;
    switch (from) {
    case s::starting:
        return to == s::listening;
    case s::listening:
        return to == s::greeted || to == s::outdated;
    case s::greeted:
        return to == s::proving || to == s::outdated;
    case s::proving:
        return to == s::synced || to == s::outdated;
    case s::synced:
        return to == s::claiming || to == s::taking_over || to == s::outdated;
    case s::claiming:
        return to == s::synced || to == s::taking_over || to == s::outdated;
    case s::taking_over:
        return to == s::running || to == s::outdated;
    case s::outdated:
        return to == s::starting;
    case s::running:
    case s::ended:
        return false;
    }
    return false;
}

} // namespace

const char* to_text(standby_state state) {
    static constexpr const char* names[] = {"starting", "listening",   "greeted", "proving",  "synced",
                                            "claiming", "taking-over", "running", "outdated", "ended"};
    return names[static_cast<std::size_t>(state)];
}

void standby_fsm::become(standby_state to, std::string why) {
    if (!is_legal(state_, to)) {
        fmt::print(stderr, "kage: standby_fsm: illegal transition {} -> {}\n", to_text(state_), to_text(to));
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

void standby_fsm::say(supervision_kind kind, std::uint64_t term, const std::string& text) {
    if (linked_ && greeted_)
        send(supervision{kind, term, text});
}

// In proving it has the state, and not the right yet.
void standby_fsm::report_belief() {
    if (!tells_belief_)
        return;
    const bool looks = state_ == standby_state::proving || state_ == standby_state::synced;
    say(supervision_kind::belief, may_claim() || state_ == standby_state::taking_over ? term_ : 0,
        looks ? waiting_for_ : std::string());
}

// ---- QEMU

void standby_fsm::on_qemu_ready(std::uint64_t qemu, std::uint64_t, const std::string& replica) {
    if (state_ != standby_state::starting || qemu != qemu_)
        return;
    replica_ = replica;
    become(standby_state::listening, {});
    be_ready(); // the primary may have been waiting for us
}

void standby_fsm::on_qemu_died(const std::string& how, std::uint64_t qemu, std::uint64_t) {
    if (over() || qemu != qemu_)
        return; // another one is started already
    if (state_ == standby_state::taking_over)
        return did_not_run("QEMU ended during the takeover: " + how);
    say(supervision_kind::lost, 0, "its QEMU ended: " + how);
    if (state_ == standby_state::starting || state_ == standby_state::outdated)
        return end(false, "QEMU does not start: " + how);
    out_of_date("QEMU ended: " + how);
}

void standby_fsm::on_takeover_failed(const std::string& why, std::uint64_t) {
    if (state_ == standby_state::taking_over)
        did_not_run("QEMU could not take the VM over: " + why);
}

// Of a VM that nobody else has any more, nothing is left. One that was handed over goes on at its source: it
// was not claimed, and its gate was never open.
void standby_fsm::did_not_run(const std::string& why) {
    if (handed_over_ && (!qemu_running_ || (awaits_source() && granted_term_ == 0))) {
        if (tells_belief_)
            say(supervision_kind::takeover_failed, term_, why);
        else
            say(supervision_kind::lost, 0, why);
        return out_of_date(why);
    }
    say(supervision_kind::lost, 0, why);
    end(false, why);
}

void standby_fsm::on_qemu_stuck(const std::string& why, std::uint64_t) {
    // Of a primary that can't be heard this may be all that is left: better late than never.
    if (!greeted_ || !linked_ ||
        (state_ != standby_state::greeted && state_ != standby_state::proving &&
         state_ != standby_state::synced))
        return;
    say(supervision_kind::lost, 0, "its QEMU stands still: " + why);
    out_of_date("QEMU stands still: " + why);
}

void standby_fsm::on_gpu_lost(const std::string& why, std::uint64_t) {
    // While another QEMU is started it is still the old one's.
    if (over() || state_ == standby_state::starting || !gpu_lost_.empty())
        return;
    if (!may_claim() && state_ != standby_state::taking_over) { // nothing to take over with: it begins anew
        say(supervision_kind::lost, 0, "its GPU failed: " + why);
        return out_of_date("its GPU failed: " + why);
    }
    gpu_lost_ = why;
    report_gpu_lost();
}

void standby_fsm::report_gpu_lost() {
    if (!gpu_lost_.empty() && state_ != standby_state::taking_over)
        say(supervision_kind::lost, term_, "its GPU has no copy any more: " + gpu_lost_);
}

void standby_fsm::out_of_date(const std::string& why) {
    term_ = recorded_ = granted_term_ = 0;
    proven_ = unreleased_ = handed_over_ = gpu_failed_ = qemu_running_ = gone_ = false;
    record_is_theirs_ = unpaired_meanwhile_ = false;
    may_be_paired_at_ = mark_again_at_ = 0;
    waiting_for_.clear();
    gpu_lost_.clear(); // a new QEMU has a new one
    request_ = 0;      // its answer, if any comes, is nobody's
    become(standby_state::outdated, why);
    report_belief();
    actions_.push_back(act_restart_qemu{why, ++qemu_});
    become(standby_state::starting, {});
}

// ---- the primary's supervisor

void standby_fsm::on_link_up(std::uint64_t now) {
    linked_ = true;
    greeted_ = described_ = tells_belief_ = tells_lineage_ = only_compares_ = echoes_ = false;
    theirs_.reset();
    peer_.on_link_up();
    link_heard_ = link_up_at_ = now;
    late_until_ = 0;
}

void standby_fsm::on_link_closed(const std::string& why, std::uint64_t) {
    if (!linked_)
        return;
    linked_ = greeted_ = described_ = false;
    // Not proof of anything. A paired standby waits for its budget; what another has is of no use.
    if (state_ == standby_state::greeted || state_ == standby_state::proving)
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
    link_heard_ = std::max(link_heard_, now);
    if (const auto* bye = std::get_if<mirror::goodbye>(&m)) {
        actions_.push_back(act_standby_close_link{});
        // Both may refuse each other for the same reason: ours is told then.
        if (state_ == standby_state::listening && bye->reason == mirror::goodbye_reason::refused &&
            waiting_for_.empty())
            note_refusal(bye->why);
        return on_link_closed(bye->why, now);
    }
    if (std::holds_alternative<mirror::unknown_message>(m))
        return;
    if (!greeted_) {
        if (const auto* h = std::get_if<mirror::hello>(&m))
            return on_hello(*h, now);
        return drop_link(mirror::goodbye_reason::protocol_error, "the first message is no hello");
    }
    if (const auto* s = std::get_if<supervision>(&m)) {
        if (s->kind == supervision_kind::description)
            return on_description(*s, now);
        if (!described_)
            return drop_link(mirror::goodbye_reason::protocol_error,
                             "the primary has not said yet what VM it is for");
        heard(now);
        return on_supervision(*s, now);
    }
    if (const auto* beat = std::get_if<mirror::heartbeat>(&m)) {
        if (!described_)
            return;
        heard(now);
        if (may_be_paired_at_ != 0 && beat->answer_to_ms > may_be_paired_at_ && beat->answer_to_ms <= now &&
            now - beat->answer_to_ms < config_.heartbeat_budget_ms)
            be_paired();
        // No promise while something is claimed. Who gave the VM up by itself only wants to know that we
        // live.
        if (state_ != standby_state::claiming && (state_ != standby_state::taking_over || proven_))
            send(mirror::heartbeat{now, beat->time_ms});
        return;
    }
    drop_link(mirror::goodbye_reason::protocol_error, "a message that a primary's supervisor does not send");
}

void standby_fsm::on_hello(const mirror::hello& theirs, std::uint64_t) {
    auto mine = supervisor_hello(mirror::role::standby, config_.vm);
    mine.instance = config_.instance;
    mine.heartbeat_budget_ms = config_.heartbeat_budget_ms;
    mine.hold_bytes = mine.hold_entries = 1; // of no meaning here; none is refused
    const auto why = why_not_paired(mine, theirs, config_.shared_record);
    if (!why.empty())
        return drop_link(mirror::goodbye_reason::refused, why);
    greeted_ = true;
    tells_belief_ = mirror::has_capability(theirs, mirror::supervision_2_capability);
    tells_lineage_ = mirror::has_capability(theirs, mirror::lineage_capability);
    echoes_ = mirror::has_capability(theirs, mirror::heartbeat_echo_capability);
    only_compares_ = mirror::has_capability(theirs, mirror::only_compares_capability);
    send(mine);
    peer_.on_hello(mine, theirs);
    send(peer_.description(description(), parts_));
    report_belief();
    if (config_.disks && tells_lineage_)
        say(supervision_kind::lineage, may_claim() || state_ == standby_state::taking_over ? term_ : 0,
            to_text(mark_));
    report_gpu_lost(); // it may have happened while nobody was connected
}

void standby_fsm::on_description(const supervision& m, std::uint64_t now) {
    const auto why = peer_.on_description(m, description(), parts_);
    described_ = why.empty();
    if (described_) {
        heard(now);
        return be_ready();
    }
    if (state_ != standby_state::listening)
        return drop_link(mirror::goodbye_reason::refused, why);
    if (auto parts = other_files_for(m))
        return use_files(std::move(*parts));
    refuse_primary(why);
}

void standby_fsm::heard(std::uint64_t now) {
    if (only_compares_)
        return;
    // on_tick would have claimed it, had this supervisor not stood still itself.
    if (may_claim() && now >= std::max(last_heard_, link_up_at_) + config_.heartbeat_budget_ms)
        late_until_ = now + config_.heartbeat_budget_ms;
    last_heard_ = std::max(last_heard_, now);
    if (now >= late_until_)
        surely_heard_ = now;
    heard_again_ = true;
    if (state_ == standby_state::claiming && request_ == 0)
        heard_while_claiming(now);
}

// The last claim may have been done without an answer, or `alone` be recorded since: the record says so.
void standby_fsm::heard_while_claiming(std::uint64_t now) {
    become(standby_state::synced, "the primary is heard again");
    waiting_for_.clear();
    gone_ = false;
    ask(arbiter_request::kind::look, now);
}

void standby_fsm::on_supervision(const supervision& m, std::uint64_t now) {
    switch (m.kind) {
    case supervision_kind::pair:
        if (state_ != standby_state::greeted || m.term == 0)
            return drop_link(mirror::goodbye_reason::protocol_error, "PAIR came at the wrong time");
        term_ = m.term;
        recorded_ = m.recorded;
        become(standby_state::proving, {});
        return ask(arbiter_request::kind::look, now);
    case supervision_kind::lineage:
        return on_lineage(m);
    case supervision_kind::unpaired:
        if (state_ != standby_state::greeted && state_ != standby_state::proving && !may_claim() &&
            (state_ != standby_state::taking_over || !handed_over_))
            return report_belief();
        if (is_cutting_off()) {
            unpaired_meanwhile_ = true;
            return;
        }
        return out_of_date("the primary goes on without this standby: " + m.text);
    case supervision_kind::belief:
        if (may_claim() && !is_cutting_off() && m.term != term_)
            out_of_date("the primary does not know this standby as its own");
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
    const bool taking_over = state_ == standby_state::taking_over;
    if ((!may_claim() && !taking_over) || m.term != term_) {
        // READY has said it on this connection, and BELIEF 0 would say that another QEMU is started.
        if (tells_belief_)
            return state_ == standby_state::greeted ? void() : report_belief();
        return drop_link(mirror::goodbye_reason::other,
                         "this standby has nothing of that term to take over with");
    }
    if (!taking_over && now < late_until_) {
        // Its source may have taken it back since, so the record is asked first. Without a shared one the
        // source is, and would be cut off by a claim.
        if (m.kind == supervision_kind::handed_over && config_.shared_record &&
            state_ == standby_state::synced)
            return claim("the VM was handed over while this supervisor stood still", now);
        // Without a shared one nothing refuses a claim with proof that is too old: a person may have started
        // the VM anew since. Who lives says it again on a new connection.
        if (m.kind == supervision_kind::died && !config_.shared_record)
            return drop_link(mirror::goodbye_reason::other,
                             "the primary's QEMU ended while this supervisor stood still");
    }
    proven_ = true;
    unreleased_ = unreleased_ || m.unreleased;
    gpu_failed_ = gpu_failed_ || m.gpu_failed;
    if (m.kind == supervision_kind::died)
        handed_over_ = false; // nobody could take it back any more
    if (!taking_over) {
        handed_over_ = m.kind == supervision_kind::handed_over;
        ask_at_ = now; // not when the next look was due
        take_over(what + m.text);
    }
    if (awaits_source() && qemu_running_)
        say(supervision_kind::running, term_ + 1); // again: it may not have heard it
    // A claim that is under way may be answered "held"; then it is asked again, with the proof.
    if (granted_term_ == 0 && !handed_over_ && (request_ == 0 || asked_ == arbiter_request::kind::look))
        ask_next(now);
}

void standby_fsm::take_over(std::string why) {
    if (!gpu_lost_.empty())
        why += "; without the state of its GPU, so programs that use it get errors: " + gpu_lost_;
    become(standby_state::taking_over, why);
    actions_.push_back(act_take_over{std::move(why)});
}

// ---- the end: it runs the VM, or was stopped

void standby_fsm::on_qemu_running(std::uint64_t now) {
    if (state_ != standby_state::taking_over)
        return;
    qemu_running_ = true;
    if (awaits_source())
        say(supervision_kind::running, term_ + 1);
    else if (handed_over_ && granted_term_ == 0 && (request_ == 0 || asked_ == arbiter_request::kind::look))
        ask_next(now);
    run_if_allowed();
}

void standby_fsm::run_if_allowed() {
    if (state_ != standby_state::taking_over || !qemu_running_ || granted_term_ == 0)
        return;
    if (config_.disks && mark_.state != disk_state::newest) {
        if (!marks(disk_state::newest) && mark_again_at_ == 0) {
            const auto next = gone_on(mark_, config_.instance);
            mark(next.state, next.of);
        }
        return;
    }
    if (linked_) {
        if (tells_belief_)
            say(supervision_kind::running, granted_term_);
        send(mirror::goodbye{mirror::goodbye_reason::shutdown, "the VM runs here now"});
        actions_.push_back(act_standby_close_link{});
        linked_ = greeted_ = false;
    }
    become(standby_state::running, {});
    actions_.push_back(act_running{granted_term_, lease_until_, mark_, gpu_failed_, description(), parts_});
}

void standby_fsm::on_stop(std::uint64_t) {
    if (over())
        return;
    say(supervision_kind::lost, 0, "it is stopped");
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

std::uint64_t standby_fsm::silence_limit_ms() const {
    return greeted_ ? std::max<std::uint64_t>(greeting_ms, config_.heartbeat_budget_ms) : greeting_ms;
}

void standby_fsm::on_tick(std::uint64_t now) {
    if (over())
        return;
    if (state_ == standby_state::synced && now >= last_heard_ + config_.heartbeat_budget_ms)
        return claim(linked_ ? "the primary is silent" : "the primary's connection is closed", now);
    if (linked_ && now >= link_heard_ + silence_limit_ms())
        drop_link(mirror::goodbye_reason::other,
                  greeted_ ? "the primary was silent" : "the peer did not greet");
    if (mark_again_at_ != 0 && now >= mark_again_at_) {
        mark_again_at_ = 0;
        run_if_allowed();
    }
    if (now < ask_at())
        return;
    if (state_ == standby_state::taking_over && awaits_source() && linked_) // a new connection may come
        drop_link(mirror::goodbye_reason::other, "the primary is silent");
    ask_next(now);
}

std::uint64_t standby_fsm::deadline() const {
    if (over())
        return no_deadline;
    std::uint64_t at = ask_at();
    if (mark_again_at_ != 0)
        at = std::min(at, mark_again_at_);
    if (linked_)
        at = std::min(at, link_heard_ + silence_limit_ms());
    if (state_ == standby_state::synced)
        at = std::min(at, last_heard_ + config_.heartbeat_budget_ms);
    return at;
}

} // namespace kagemusha::ha
