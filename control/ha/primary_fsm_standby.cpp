// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm: the connection to the standby's supervisor, what it says, and how a standby is won and lost.
#include "control/ha/primary_fsm.hpp"

#include "mirror/protocol/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::ha {

using mirror::supervision;
using mirror::supervision_kind;

namespace {

constexpr std::uint64_t never = UINT64_MAX;
// Between attempts to connect: to a standby that has our state (or must be told something), and to any.
constexpr std::uint64_t reconnect_ms = 20, connect_pause_ms = 500;
constexpr std::uint64_t hello_ms = 5000; // also of silence, before anything is at stake
const char* const another_is_wanted = "another standby is wanted";

} // namespace

// ---- the connection

bool primary_fsm::is_urgent() const {
    switch (state_) {
    case primary_state::protecting:
    case primary_state::handing_over:
    case primary_state::reclaiming:
    case primary_state::leaving:
        return true;
    case primary_state::unpairing:
        return stopping_;
    default:
        return false;
    }
}

std::uint64_t primary_fsm::silence_limit_ms() const {
    const auto budget = std::max<std::uint64_t>(budget_ms_, 1);
    return is_urgent() ? budget : std::max(budget, hello_ms);
}

void primary_fsm::connect_if_due(std::uint64_t now) {
    if (link_ != link_state::down || !config_.has_standby || now < connect_at_ ||
        state_ == primary_state::opening || state_ == primary_state::ended)
        return;
    link_ = link_state::connecting;
    switch (state_) {
    case primary_state::handing_over: // it may have the VM
    case primary_state::reclaiming:
    case primary_state::leaving:
        link_address_ = paired_address_;
        break;
    default:
        link_address_ = config_.standby_address;
    }
    actions_.push_back(act_connect{link_address_});
}

void primary_fsm::on_link_up(std::uint64_t now) {
    if (link_ != link_state::connecting || state_ == primary_state::ended)
        return;
    link_ = link_state::greeting;
    link_since_ = awake_ms_ = now;
    described_ = tells_belief_ = tells_lineage_ = standby_is_clean_ = false;
    their_beat_ = 0;
    unpairing_ = false;
    unpair_at_ = never;
    peer_.on_link_up();
    auto h = supervisor_hello(mirror::role::primary, config_.vm);
    h.instance = config_.instance;
    if (state_ == primary_state::comparing)
        h.capabilities.emplace_back(mirror::only_compares_capability);
    h.heartbeat_budget_ms = config_.heartbeat_budget_ms;
    send(h);
}

void primary_fsm::on_message(const mirror::message& m, std::uint64_t now) {
    if (link_ < link_state::greeting || state_ == primary_state::ended || compares_again(now))
        return;
    last_heard_ = std::max(last_heard_, now);
    if (const auto* bye = std::get_if<mirror::goodbye>(&m))
        return on_goodbye(*bye, now);
    if (const auto* h = std::get_if<mirror::hello>(&m); h && link_ == link_state::greeting)
        return on_hello(*h, now);
    if (const auto* s = std::get_if<supervision>(&m); s && link_ >= link_state::greeted)
        return on_supervision(*s, now);
    if (const auto* beat = std::get_if<mirror::heartbeat>(&m); beat && link_ >= link_state::greeted) {
        their_beat_ = beat->time_ms;
        if (!described_ || beat->answer_to_ms == 0 || beat->answer_to_ms > now)
            return;
        surely_heard(beat->answer_to_ms);
        settle_open_pair(beat->answer_to_ms, now);
        // Another one at its address knows nothing of the one that was paired.
        if (gone_ && beat->answer_to_ms >= gone_at_ && !answered_since_gone_ &&
            peer_instance_ == paired_instance_) {
            answered_since_gone_ = true;
            ask_next(now);
        }
        if (state_ == primary_state::protecting && !gone_)
            open_gate(beat->answer_to_ms + budget_ms_);
        return;
    }
    if (std::holds_alternative<mirror::unknown_message>(m))
        return;
    drop_link(mirror::goodbye_reason::protocol_error, "a message that a standby's supervisor does not send",
              now);
}

void primary_fsm::on_hello(const mirror::hello& theirs, std::uint64_t now) {
    const auto mine = supervisor_hello(mirror::role::primary, config_.vm);
    const auto why = why_not_paired(mine, theirs, config_.shared_record);
    if (!why.empty())
        return drop_link(mirror::goodbye_reason::refused, why, now);
    budget_ms_ = std::min(config_.heartbeat_budget_ms, theirs.heartbeat_budget_ms);
    tells_belief_ = mirror::has_capability(theirs, mirror::supervision_2_capability);
    tells_lineage_ = mirror::has_capability(theirs, mirror::lineage_capability);
    peer_instance_ = theirs.instance;
    link_ = link_state::greeted;
    surely_heard(link_since_); // it answers our hello
    peer_.on_hello(mine, theirs);
    send(peer_.description(config_.description, config_.parts));
    report_lineage();
    if (state_ == primary_state::comparing)
        return tells_lineage_ ? void() : compare_or_end(nullptr, now);
    if (tells_belief_)
        say(supervision_kind::belief, believed_term(), {});
    else if (state_ == primary_state::alone)
        unpair_at_ = now + budget_ms_; // an older one says READY at once, or has something else in mind
    last_beat_ = 0;
    if (state_ == primary_state::leaving || state_ == primary_state::handing_over)
        report_leaving();
    if ((state_ == primary_state::unpairing && stopping_) ||
        (!config_.shared_record &&
         (state_ == primary_state::unpairing || state_ == primary_state::reclaiming)))
        unpair(degraded_, now);
    heartbeat_if_due(now);
}

// What is read now may be old, if this supervisor stood still. What it answers is not older than that.
void primary_fsm::surely_heard(std::uint64_t said_ms) {
    if (state_ != primary_state::unpairing || link_address_ == paired_address_)
        surely_heard_ = std::max(surely_heard_, said_ms);
}

void primary_fsm::heartbeat_if_due(std::uint64_t now) {
    if (link_ < link_state::greeted || state_ == primary_state::comparing ||
        now < last_beat_ + config_.heartbeat_ms)
        return;
    last_beat_ = now;
    send(mirror::heartbeat{now, their_beat_});
}

void primary_fsm::on_link_closed(const std::string& why, std::uint64_t now) {
    if (link_ != link_state::down)
        link_down(why, now);
}

// A paired standby may come back within its budget; nothing of its state is lost with the connection.
void primary_fsm::link_down(const std::string& why, std::uint64_t now) {
    const bool was_greeted = link_ >= link_state::greeted;
    link_ = link_state::down;
    connect_at_ = now + (is_urgent() ? reconnect_ms : connect_pause_ms);
    lost_why_ = why;
    described_ = standby_is_clean_ = pair_is_open_ = false; // what it says at the next greeting is new
    unpairing_ = false;
    unpair_at_ = never;
    standby_problem_.clear();
    if (state_ == primary_state::leaving)
        leave_by_ = was_greeted ? std::max(leave_by_, now + leaving_ms) : leave_by_;
    else if (state_ == primary_state::alone)
        degraded_ = why;
    else if (!is_urgent())
        lost_standby(why, now);
}

void primary_fsm::drop_link(mirror::goodbye_reason reason, const std::string& why, std::uint64_t now) {
    send(mirror::goodbye{reason, why});
    actions_.push_back(act_close_link{});
    link_down(why, now);
}

void primary_fsm::on_goodbye(const mirror::goodbye& m, std::uint64_t now) {
    actions_.push_back(act_close_link{});
    settle_open_pair(never, now); // it reads nothing any more
    // An older standby's way to say that it runs the VM. (It says LOST before it ends for another reason.)
    if (link_ >= link_state::greeted && !tells_belief_ && m.reason == mirror::goodbye_reason::shutdown &&
        reported_ && standby_has_vm_) {
        if (state_ == primary_state::handing_over || state_ == primary_state::reclaiming)
            return gone_over();
        if (state_ == primary_state::leaving)
            return end(true, "the standby goes on");
    }
    link_down("the standby's supervisor ended the connection: " + m.why, now);
}

void primary_fsm::watch_link(std::uint64_t now) {
    if (link_ == link_state::greeting && now >= link_since_ + hello_ms)
        drop_link(mirror::goodbye_reason::other, "the peer did not greet", now);
    if (link_ >= link_state::greeted && now >= last_heard_ + silence_limit_ms())
        drop_link(mirror::goodbye_reason::other,
                  fmt::format("the standby's supervisor was silent for {} ms", silence_limit_ms()), now);
    if (state_ == primary_state::protecting && killing_by_ == 0 && now >= last_heard_ + budget_ms_)
        lost_standby(lost_why_.empty() ? "the standby is silent" : lost_why_, now);
}

// ---- what the standby says

void primary_fsm::say(supervision_kind kind, std::uint64_t term, const std::string& text) {
    supervision m{kind, term, text};
    if (kind == supervision_kind::pair)
        m.recorded = term_;
    if (kind == supervision_kind::died) {
        m.unreleased = alone_asked_;
        m.gpu_failed = gpu_failed_;
    }
    send(std::move(m));
}

std::uint64_t primary_fsm::believed_term() const {
    switch (state_) {
    case primary_state::announcing:
    case primary_state::recording:
    case primary_state::protecting:
    case primary_state::unpairing:
    case primary_state::handing_over:
    case primary_state::reclaiming:
    case primary_state::leaving:
        return reported_term_;
    default:
        return 0;
    }
}

void primary_fsm::on_supervision(const supervision& m, std::uint64_t now) {
    if (m.kind == supervision_kind::description)
        return on_description(m, now);
    if (!described_)
        return drop_link(mirror::goodbye_reason::protocol_error,
                         "the standby has not said yet what VM it is for", now);
    if (state_ == primary_state::comparing)
        return m.kind == supervision_kind::lineage ? compare_or_end(&m, now) : void();
    switch (m.kind) {
    case supervision_kind::ready:
        link_ = link_state::ready;
        replica_ = m.text;
        return standby_has_nothing("the standby's QEMU is a new one", now);
    case supervision_kind::paired:
        said_nothing_left_ = false;
        if (state_ != primary_state::announcing || !pair_told_ || m.term != reported_term_) {
            if (m.term == believed_term())
                return;
            standby_is_clean_ = false; // it said READY before PAIR came there, and believes that now
            return unpair(degraded_, now);
        }
        pair_is_open_ = false;
        standby_has_vm_ = true;
        marked_ = !config_.disks;
        degraded_ = "the pair is being recorded"; // and what the standby could not do is over
        become(primary_state::recording, {});
        if (config_.disks)
            mark({disk_state::protected_, mark_.of});
        else
            ask_next(now);
        if (qemu_gone_)
            leave(how_, now);
        return;
    case supervision_kind::lost:
        link_ = std::min(link_, link_state::greeted);
        if (m.term == 0)
            return standby_has_nothing("the standby is lost: " + m.text, now);
        if (m.term != reported_term_)
            return standby_of_another_time(now);
        // Only its GPU: the VM's own state is there.
        if (state_ == primary_state::handing_over)
            return take_back("the standby is lost: " + m.text, now);
        return lost_standby("the standby is lost: " + m.text, now);
    case supervision_kind::belief:
        return on_belief(m, now);
    case supervision_kind::lineage: // it decides whether its disks may be overwritten
        if (!parse_disk_mark(m.text))
            drop_link(mirror::goodbye_reason::protocol_error, "a lineage of disks that is none", now);
        return;
    case supervision_kind::running:
        // Without a shared record it waits for our DIED, which it does not get any more: it was told
        // UNPAIRED.
        if (state_ == primary_state::handing_over ||
            (state_ == primary_state::reclaiming && config_.shared_record))
            return gone_over();
        if (state_ == primary_state::leaving)
            return end(true, "the standby goes on");
        return;
    case supervision_kind::takeover_failed:
        if (state_ == primary_state::handing_over || state_ == primary_state::reclaiming) {
            standby_has_vm_ = false;
            confirmed_ = peer_instance_ == paired_instance_;
            take_back("the VM does not run on the standby: " + m.text, now);
        }
        return;
    default:
        drop_link(mirror::goodbye_reason::protocol_error, "a word that only a primary says", now);
    }
}

void primary_fsm::on_description(const supervision& m, std::uint64_t now) {
    const auto why = peer_.on_description(m, config_.description, config_.parts);
    described_ = why.empty();
    if (!described_)
        drop_link(mirror::goodbye_reason::refused, why, now);
}

void primary_fsm::on_belief(const supervision& m, std::uint64_t now) {
    standby_problem_ = m.text;
    if (state_ == primary_state::announcing && !m.text.empty())
        degraded_ = "the standby could not take over: " + m.text;
    if (m.term == 0) {
        if (state_ == primary_state::announcing) // it has the state, and not the term yet
            return;
        link_ = std::min(link_, link_state::greeted); // READY follows
        return standby_has_nothing("the standby does not have the VM's state any more", now);
    }
    if (m.term != believed_term())
        standby_of_another_time(now);
}

void primary_fsm::standby_of_another_time(std::uint64_t now) {
    standby_is_clean_ = false;
    if (believed_term() != 0)
        lost_standby("the standby is one of another time", now);
    if (state_ == primary_state::alone)
        unpair(degraded_, now);
}

// READY, LOST and BELIEF 0: whatever it had, it has no more.
void primary_fsm::standby_has_nothing(const std::string& why, std::uint64_t now) {
    if (pair_is_open_) {
        said_nothing_left_ = true;
        return lost_standby(why, now); // from announcing, with UNPAIRED
    }
    standby_is_clean_ = true;
    unpairing_ = false;
    unpair_at_ = never;
    standby_has_vm_ = false;
    if (peer_instance_ == paired_instance_ && !confirmed_) {
        confirmed_ = true;
        if (state_ == primary_state::unpairing || state_ == primary_state::reclaiming) {
            ask_alone_at_ = 0;
            if (stopping_)
                stop_by_ = std::min(stop_by_, now + config_.stop_confirmed_ms);
            ask_next(now);
        }
    }
    switch (state_) {
    case primary_state::alone:
        return replicate_if_ready(now);
    case primary_state::replicating:
    case primary_state::announcing:
    case primary_state::recording:
    case primary_state::protecting:
        return lost_standby(why, now);
    case primary_state::handing_over:
        return take_back(why, now);
    case primary_state::leaving:
        return end(false, why + "; nobody can go on with the VM");
    default:
        return;
    }
}

void primary_fsm::settle_open_pair(std::uint64_t answer_to_ms, std::uint64_t now) {
    if (!pair_is_open_ || unpaired_ms_ == 0 || answer_to_ms <= unpaired_ms_)
        return; // it may have been sent before UNPAIRED, in the same millisecond
    pair_is_open_ = false;
    if (said_nothing_left_)
        standby_has_nothing(degraded_, now);
}

// ---- winning one

void primary_fsm::on_protect(const std::string& address, std::uint64_t now) {
    const bool elsewhere = !address.empty() && address != config_.standby_address;
    if (!address.empty())
        config_.standby_address = address;
    config_.has_standby = true;
    resync_.forget();
    if (elsewhere && link_ != link_state::down) {
        // What it has counts until `alone` is recorded. Without a shared record also what it may have been
        // told.
        const bool may_have_been_told = !config_.shared_record && (state_ == primary_state::announcing ||
                                                                   state_ == primary_state::recording);
        if ((state_ == primary_state::protecting && killing_by_ == 0) || (may_have_been_told && !qemu_gone_))
            lose(another_is_wanted, now);
        part_by_ = now + budget_ms_;
        return part_if_due(now);
    }
    connect_at_ = now;
    connect_if_due(now);
    replicate_if_ready(now);
}

// From a standby at another address than the one that is wanted. Where going on alone means to cut its host
// off, it has the time of an answer to confirm UNPAIRED first. Who may have the VM is heard to the end.
bool primary_fsm::may_part(std::uint64_t now) const {
    switch (state_) {
    case primary_state::unpairing:
        return config_.shared_record || link_ < link_state::greeted || confirmed_ || now >= part_by_;
    case primary_state::protecting: // only when its QEMU is being killed for that standby
    case primary_state::handing_over:
    case primary_state::reclaiming:
    case primary_state::leaving:
        return false;
    default:
        return true;
    }
}

void primary_fsm::part_if_due(std::uint64_t now) {
    if (!is_parting() || !may_part(now))
        return;
    drop_link(mirror::goodbye_reason::shutdown, another_is_wanted, now);
    connect_at_ = now;
    connect_if_due(now);
}

void primary_fsm::replicate_if_ready(std::uint64_t now) {
    if (state_ != primary_state::alone || link_ != link_state::ready || stopping_ || is_parting() ||
        now < resync_.not_before() || !marking_.empty() || !mark_problem_.empty())
        return;
    standby_is_clean_ = false;
    become(primary_state::replicating, {});
    actions_.push_back(act_replicate{++replication_, replica_, peer_.decodes_page_changes()});
}

void primary_fsm::on_qemu_protecting(std::uint64_t replication, std::uint64_t now) {
    if (state_ != primary_state::replicating || replication != replication_)
        return;
    ++reported_term_;
    pair_asked_ = pair_told_ = false;
    confirmed_ = true; // until it is told
    paired_instance_ = peer_instance_;
    paired_address_ = link_address_;
    become(primary_state::announcing, {});
    if (config_.shared_record)
        report_pair();
    else
        ask_next(now);
}

void primary_fsm::report_pair() {
    pair_told_ = generation_told_ = true;
    confirmed_ = false;
    pair_is_open_ = !config_.shared_record;
    said_nothing_left_ = false;
    unpaired_ms_ = 0;
    say(supervision_kind::pair, reported_term_, {});
}

// ---- losing one

void primary_fsm::on_qemu_replication_lost(std::uint64_t replication, const std::string& why,
                                           std::uint64_t now) {
    if (replication == replication_)
        lost_standby(why, now);
}

void primary_fsm::lost_standby(const std::string& why, std::uint64_t now) {
    switch (state_) {
    case primary_state::announcing:
        if (qemu_gone_)
            return end(false, how_);
        resync_.failed(now);
        if (!config_.shared_record)
            return lose(why, now); // it may have been told, and then nothing refuses it
        return go_on_alone(why, now);
    case primary_state::replicating:
        resync_.failed(now);
        return go_on_alone(why, now);
    case primary_state::protecting:
        if (config_.policy == loss_policy::stop && !stopping_) {
            // The standby has everything that was let out: it may go on, if it lives.
            return kill_for_standby("the standby is lost, and the policy is to stop: " + why, now);
        }
        [[fallthrough]];
    case primary_state::recording:
        resync_.failed(now);
        return lose(why, now);
    default:
        return;
    }
}

// Nothing is let out before `alone` is recorded, or the standby cut off.
void primary_fsm::lose(const std::string& why, std::uint64_t now) {
    degraded_ = why;
    ask_alone_at_ = now;
    become(primary_state::unpairing, why);
    // Who stops the VM ends the standby's right by that. And where going on alone means to cut the standby's
    // host off, one that hears is asked first: it costs the time of an answer in which nobody could take
    // over.
    if (!config_.shared_record)
        unpair_before_alone(why, now);
    else if (stopping_)
        unpair(why, now);
    ask_next(now);
}

void primary_fsm::unpair_before_alone(const std::string& why, std::uint64_t now) {
    unpair(why, now);
    if (!confirmed_ && link_ >= link_state::greeted)
        ask_alone_at_ = now + budget_ms_;
}

void primary_fsm::alone_recorded(std::uint64_t now) {
    pair_asked_ = alone_asked_ = standby_has_vm_ = false;
    unpair(degraded_, now);
    if (stopping_)
        return end(true, stop_why_, true);
    go_on_alone(degraded_, now);
}

void primary_fsm::go_on_alone(const std::string& why, std::uint64_t now) {
    degraded_ = why;
    if (may_be_behind())
        mark_alone();
    become(primary_state::alone, why);
    unpair(why, now);
    actions_.push_back(act_go_on_alone{});
    if (marking_.empty())
        report_lineage(); // otherwise when it is durable
    resync_.settle(now);
    connect_if_due(now);
    replicate_if_ready(now);
}

// Once, until the standby says that it has nothing. It is not ready before it says so again. A connection
// loses nothing, and each UNPAIRED that is read when the next QEMU is ready would cost that one, too.
void primary_fsm::unpair(const std::string& why, std::uint64_t now) {
    if (link_ < link_state::greeted || state_ == primary_state::comparing || standby_is_clean_ || unpairing_)
        return;
    link_ = link_state::greeted;
    standby_has_vm_ = false; // what it has does not count any more
    unpairing_ = true;
    say(supervision_kind::unpaired, reported_term_, why);
    if (unpaired_ms_ == 0)
        unpaired_ms_ = now;
    // An older release confirms it by READY only, and may overhear it.
    unpair_at_ = tells_belief_ ? never : now + std::max(budget_ms_, config_.heartbeat_ms);
}

void primary_fsm::unpair_if_due(std::uint64_t now) {
    if (now < unpair_at_)
        return;
    unpair_at_ = never;
    unpairing_ = false;
    unpair(degraded_, now);
}

} // namespace kagemusha::ha
