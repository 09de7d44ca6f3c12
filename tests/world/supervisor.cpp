// SPDX-License-Identifier: GPL-2.0-or-later
//
// The counterpart of control/supervise: supervisor_loop.cpp (the state machines' thread) and supervisor.cpp (the main
// thread: marks and QEMU). What is reported of QEMU: supervisor_pilot.cpp; what was decided:
// supervisor_actions.cpp.
#include "world/supervisor.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

using namespace ha;

namespace {

constexpr std::uint32_t longest_resync_ms = 4000; // so that a schedule need not wait for minutes

// What a release that knows no lineages reads from what it wrote. It marked a standby's image at once.
disk_mark of_old_release(const disk_mark& m) {
    if (m.state == disk_state::waiting)
        return {disk_state::copy, {}};
    return {m.state == disk_state::newest ? disk_state::unmarked : m.state, {}};
}

// A standby's address is its host's number.
std::string address_of(std::int8_t host) {
    return host < 0 ? std::string() : std::to_string(host);
}

const char* name_of(mirror::supervision_kind kind) {
    static constexpr const char* names[] = {
        "?",           "DESCRIPTION", "READY",  "PAIR",    "PAIRED",          "UNPAIRED", "DIED",
        "HANDED_OVER", "LOST",        "BELIEF", "RUNNING", "TAKEOVER_FAILED", "LINEAGE"};
    const auto i = static_cast<std::size_t>(kind);
    return i < std::size(names) ? names[i] : "?";
}

} // namespace

// ---- life

void supervisor::start(const unit& how) {
    ++generation_;
    alive_ = true;
    frozen_until = 0;
    w_.ends.starts(host_.index);
    identity_ = ++w_.arbiter->identities;
    const bool as_standby = how.what == unit::kind::standby;
    primary_.reset();
    standby_.reset();
    successor_.reset();
    line_ = -1;
    peer_ = as_standby ? -1 : how.standby;
    gate_until_ms_ = 0;
    tick_at_ = never;
    orders_.clear();
    main_busy_ = had_vm_ = quitting_ = in_order_ = expects_death_ = false;
    reported_protecting_ = reported_lost_ = reported_copy_lost_ = looks_ = false;
    killed_why_.clear();
    ended_why_.clear();
    w_.say(host_.index, "starts: kage {}{}{}", as_standby ? "standby" : "run",
           how.anew        ? " --force-new"
           : how.overwrite ? " --discard-replica"
                           : "",
           w_.traces() ? ", its image is " + to_text(host_.image.mark) : "");
    if (as_standby && host_.image.mark.state == disk_state::unmarked)
        if (const auto problem = mark(waits({})); !problem.empty())
            return exit(false, problem);
    host_.image.exists = true;
    if (!as_standby && !how.anew && w_.o.old_release[host_.index] &&
        host_.image.mark.state != disk_state::unmarked)
        return exit(false, "an older release asks nobody what a mark means");
    anew_ = how.anew;
    const auto& o = w_.o;
    if (as_standby) {
        standby_config c;
        c.vm = "vm";
        c.description = "same";
        c.parts = {{mirror::part_rule::equal, "machine", "same"}};
        c.instance = identity_;
        c.heartbeat_budget_ms = o.heartbeat_budget_ms;
        c.retry_ms = std::min(o.heartbeat_budget_ms / 4 + 1, 500u);
        c.shared_record = o.arbiter != arbiter_kind::fence;
        c.disks = true;
        c.mark = w_.broken(mutation::forgets_marks) ? disk_mark{} : host_.image.mark;
        c.overwrite = how.overwrite;
        standby_.emplace(c);
        qemu_ = standby_->qemu();
        order(0, [this] { host_.vm.start_standby(); });
        return;
    }
    primary_.emplace(config_of_primary());
    primary_->start(host_.clock_ms());
    settle();
}

primary_config supervisor::config_of_primary() const {
    const auto& o = w_.o;
    primary_config c;
    c.vm = "vm";
    c.description = "same";
    c.parts = {{mirror::part_rule::equal, "machine", "same"}};
    c.instance = identity_;
    c.heartbeat_ms = o.heartbeat_ms;
    c.heartbeat_budget_ms = o.heartbeat_budget_ms;
    c.renew_ms = std::max(o.lease_ms / 4, 5u);
    c.policy = o.stop_without_standby ? loss_policy::stop : loss_policy::degraded;
    c.has_standby = peer_ >= 0;
    c.standby_address = address_of(peer_);
    c.anew = anew_;
    c.opening_ms = std::max(15000u, o.lease_ms + 5000);
    c.shared_record = o.arbiter != arbiter_kind::fence;
    c.resync.longest_ms = longest_resync_ms;
    c.disks = true;
    c.mark = host_.image.mark;
    c.image = "disk.img";
    return c;
}

void supervisor::kill(const char* why) {
    if (!alive_)
        return;
    w_.say(host_.index, "supervisor: killed, {}", why);
    if (primary_)
        w_.disks.primary_ended(is_protecting());
    w_.arbiter->client_ended(host_.index);
    exit(false, why);
    host_.vm.kill("its supervisor has ended"); // PR_SET_PDEATHSIG
}

void supervisor::end_with_host() {
    if (alive_ && primary_)
        w_.disks.primary_ended(is_protecting());
    alive_ = false;
    ++generation_;
    primary_.reset();
    standby_.reset();
    orders_.clear();
    w_.arbiter->client_ended(host_.index);
    host_.vm.kill("its host has no power");
}

void supervisor::exit(bool in_order, const std::string& why) {
    w_.say(host_.index, "supervisor: exits {}, {}", in_order ? 0 : 1, why);
    alive_ = false;
    ++generation_;
    ended_why_ = why;
    primary_.reset();
    standby_.reset();
    successor_.reset();
    orders_.clear();
    main_busy_ = false;
    w_.net.process_ended(host_.index, false);
    host_.supervisor_ended(in_order);
}

bool supervisor::frozen() const {
    return w_.now() < thaws();
}
time_us supervisor::thaws() const {
    return std::max(frozen_until, host_.frozen_until);
}

bool supervisor::gate_is_open() const {
    return gate_until_ms_ != 0 && host_.clock_ms() < gate_until_ms_;
}

// ---- events

void supervisor::happen(const event& e) {
    if (!alive_ || e.generation != generation_)
        return;
    if (frozen()) {
        auto later = e;
        later.at = thaws();
        if (e.kind == event_kind::tick)
            tick_at_ = later.at;
        return w_.put(later);
    }
    switch (e.kind) {
    case event_kind::tick:
        return e.at == tick_at_ ? tick() : void();
    case event_kind::order: {
        main_busy_ = false;
        const auto what = std::move(orders_.front().what);
        orders_.pop_front();
        what();
        return alive_ ? next_order() : void();
    }
    case event_kind::look:
        return look(e.arg);
    case event_kind::connect_failed:
        return e.arg >> 8 == attempt_ ? connect_failed() : void();
    case event_kind::qemu_ended: {
        // A standby's next one may have been ordered, or run, since.
        const bool present = e.arg == host_.vm.generation();
        if (!present && !standby_)
            return;
        const auto how = killed_why_.empty() ? std::string("killed") : killed_why_;
        if (!standby_ || died_ == standby_->qemu())
            w_.ends.qemu_ended(host_.index);
        if (primary_) {
            w_.disks.primary_ended(is_protecting());
            tell([&] { primary_->on_qemu_died(how, false, host_.clock_ms()); });
        }
        if (standby_)
            tell([&] {
                const auto which = w_.broken(mutation::counts_former_ends) ? standby_->qemu() : died_;
                standby_->on_qemu_died(how, which, host_.clock_ms());
            });
        if (!present)
            return;
        return quitting_ && alive_ ? exit(in_order_, ended_why_) : void();
    }
    default:
        return;
    }
}

// Carries out what was decided, then sets the timer.
void supervisor::settle() {
    if (settling_)
        return;
    settling_ = true;
    bool more = true;
    while (more && alive_) {
        more = false;
        standby_action s;
        while (standby_ && standby_->next(s)) {
            std::visit([this](auto& a) { carry_out(a); }, s);
            more = true;
        }
        if (successor_) {
            primary_ = std::move(successor_);
            successor_.reset();
            standby_.reset();
        }
        primary_action p;
        while (primary_ && primary_->next(p)) {
            std::visit([this](auto& a) { carry_out(a); }, p);
            more = true;
        }
    }
    settling_ = false;
    if (!alive_)
        return;
    const auto at = standby_ ? standby_->deadline() : primary_ ? primary_->deadline() : UINT64_MAX;
    if (at == UINT64_MAX)
        return;
    const auto due = std::max(host_.when(at), w_.now() + 1);
    if (tick_at_ > w_.now() && tick_at_ <= due)
        return; // one that comes early does no harm
    tick_at_ = due;
    w_.put(due, event_kind::tick, host_.index, generation_);
}

void supervisor::tick() {
    tick_at_ = never;
    tell([&] {
        if (standby_)
            standby_->on_tick(host_.clock_ms());
        else if (primary_)
            primary_->on_tick(host_.clock_ms());
    });
}

// ---- the main thread

void supervisor::order(time_us takes, std::function<void()> what) {
    orders_.push_back({takes, std::move(what)});
    if (!main_busy_)
        next_order();
}

void supervisor::next_order() {
    if (orders_.empty() || main_busy_)
        return;
    main_busy_ = true;
    w_.put(w_.now() + 20 + w_.below(500) + orders_.front().takes, event_kind::order, host_.index,
           generation_);
}

// Ends when it is on the disk.
void supervisor::order_mark(const disk_mark& m, bool flush) {
    const auto takes = (flush ? 2 : 1) * w_.o.flush_ms * ms;
    order(host_.image.ends(w_.now(), takes) - w_.now(), [this, m, flush] {
        const auto problem = mark(m, flush);
        tell([&] {
            if (standby_)
                standby_->on_marked(problem, host_.clock_ms());
            else if (primary_)
                primary_->on_marked(problem, host_.clock_ms());
        });
    });
}

std::string supervisor::mark(disk_mark m, bool flush) {
    if (w_.now() < host_.image.fails_until)
        return "the mark can't be written";
    if (flush && !w_.broken(mutation::marks_unflushed))
        host_.image.flush();
    if ((m.state == disk_state::protected_ && w_.broken(mutation::no_mark_protected)) ||
        ((m.state == disk_state::copy || m.state == disk_state::waiting) &&
         w_.broken(mutation::no_mark_copy)) ||
        (m.state == disk_state::newest && standby_ && w_.broken(mutation::no_mark_taken_over)))
        return {};
    if (m != host_.image.mark)
        w_.say(host_.index, "its image is {}", to_text(m));
    host_.image.mark = w_.o.old_release[host_.index] ? of_old_release(m) : std::move(m);
    if (host_.image.mark.state == disk_state::copy)
        w_.disks.marked_as_copy(host_.index);
    return {};
}

// The supervisor_loop is through. QEMU may still be there.
void supervisor::finish(bool in_order, const std::string& why) {
    quitting_ = true;
    in_order_ = in_order;
    ended_why_ = why;
    if (!host_.vm.alive())
        return exit(in_order, why);
    if (killed_why_.empty())
        killed_why_ = "the VM is stopped";
    host_.vm.kill(killed_why_);
}

// ---- people

void supervisor::stop() {
    if (!alive_ || frozen())
        return;
    w_.ends.told_to_stop(host_.index);
    tell([&] {
        if (standby_)
            standby_->on_stop(host_.clock_ms());
        else if (primary_)
            primary_->on_stop(host_.clock_ms());
    });
}

bool supervisor::switch_over() {
    return alive_ && !frozen() && is_protecting() && host_.vm.hand_over();
}

void supervisor::protect(std::uint8_t standby) {
    if (!alive_ || frozen() || !primary_)
        return;
    peer_ = static_cast<std::int8_t>(standby);
    tell([&] { primary_->on_protect(address_of(peer_), host_.clock_ms()); });
}

// ---- the connection

void supervisor::connected(std::uint32_t id, int end) {
    line_ = id;
    line_speaks_version_1_ = false;
    line_end_ = end;
    if (standby_)
        tell([&] { standby_->on_link_up(host_.clock_ms()); });
    else if (primary_)
        tell([&] { primary_->on_link_up(host_.clock_ms()); });
}

void supervisor::connect_failed() {
    if (primary_ && line_ < 0)
        tell([&] { primary_->on_link_closed("no connection", host_.clock_ms()); });
}

void supervisor::arrived(std::uint32_t id, const mirror::message& m) {
    if (line_ != id)
        return;
    if (const auto* h = std::get_if<mirror::hello>(&m);
        h && w_.o.old_release[host_.index] && (!h->capabilities.empty() || h->version != 1)) {
        auto understood = *h; // an older release does not know the newer capabilities, nor version 2
        std::erase(understood.capabilities, mirror::supervision_2_capability);
        std::erase(understood.capabilities, mirror::lineage_capability);
        std::erase(understood.capabilities, mirror::only_compares_capability);
        std::erase(understood.capabilities, mirror::heartbeat_echo_capability);
        understood.version = 1;
        if (understood != *h)
            return arrived(id, understood);
    }
    const auto* const word = std::get_if<mirror::supervision>(&m);
    if (const auto* h = std::get_if<mirror::hello>(&m))
        line_speaks_version_1_ = std::ranges::count(h->capabilities, mirror::supervision_2_capability) == 0;
    if ((word && word->kind == mirror::supervision_kind::running) ||
        (line_speaks_version_1_ && std::holds_alternative<mirror::goodbye>(m))) // its way to say so
        w_.ends.runs_elsewhere(host_.index);
    tell([&] {
        if (standby_)
            standby_->on_message(m, host_.clock_ms());
        else if (primary_)
            primary_->on_message(m, host_.clock_ms());
    });
}

void supervisor::closed(std::uint32_t id, const std::string& why) {
    if (line_ != id)
        return;
    line_ = -1;
    tell([&] {
        if (standby_)
            standby_->on_link_closed(why, host_.clock_ms());
        else if (primary_)
            primary_->on_link_closed(why, host_.clock_ms());
    });
}

void supervisor::send(const mirror::message& m) {
    if (line_ < 0)
        return;
    if (const auto* s = std::get_if<mirror::supervision>(&m)) {
        w_.say(host_.index, "sends {} {}", name_of(s->kind), s->term);
        if ((s->kind == mirror::supervision_kind::unpaired || s->kind == mirror::supervision_kind::belief) &&
            w_.broken(mutation::loses_unpaired))
            return;
    }
    if (const auto* h = std::get_if<mirror::hello>(&m); h && w_.o.old_release[host_.index]) {
        auto old = *h;
        std::erase(old.capabilities, mirror::supervision_2_capability);
        std::erase(old.capabilities, mirror::lineage_capability);
        std::erase(old.capabilities, mirror::only_compares_capability);
        std::erase(old.capabilities, mirror::heartbeat_echo_capability);
        old.version = 1;
        return w_.net.send(static_cast<std::uint32_t>(line_), line_end_, old);
    }
    w_.net.send(static_cast<std::uint32_t>(line_), line_end_, m);
}

void supervisor::close_link() {
    ++attempt_; // one that is under way is none any more
    if (line_ >= 0)
        w_.net.finish(static_cast<std::uint32_t>(std::exchange(line_, -1)), line_end_, "closed");
}

} // namespace kagemusha::world
