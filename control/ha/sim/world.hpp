// SPDX-License-Identifier: GPL-2.0-or-later
//
// What ha_sim_test.cpp runs: two hosts with the supervisors' state machines, unchanged, and models of
// everything around them, in one thread, from a seed: the arbiter's record, the connection, QEMU's
// checkpoints, images' marks. Connections are cut or fall silent, messages and answers are late, hosts freeze
// and wake up, QEMUs and hosts die, the arbiter is away, loses answers or its memory; people stop, switch
// over and give standbys. At some moment all of it is healed.
//
// The VM is a number that grows while it runs. A checkpoint takes it to the standby; what leaves a VM tells
// it to the outside. So it must hold at each moment:
//
//   one speaker   a takeover begins a new line; once one has spoken, nobody of an older line speaks again
//   kept word     who takes over has at least the number that was told
//   marks         a recorded pair has the mark *protected* on the primary's images; images that a supervisor
//   calls
//                 the newest at its end can't be overtaken
//   stop          what was stopped in order never runs again
//
// and after healing: the VM is protected again within the bound, unless it was lost and was allowed to be.
#pragma once

#include "control/ha/ha_sim_arbiter.hpp"
#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace kagemusha::ha::test {

class world {
public:
    static constexpr std::uint64_t budget_ms = 100;
    // docs/spec/takeover.md, section 5: a greeting that nobody answers, a new connection, the arbiter, a new
    // QEMU, the longest wait between transfers, and a transfer.
    static constexpr std::uint64_t bound_ms = 5000 + 500 + 10 * lease_ms + 400 + 1000;
    // Without a record nothing but the standby's word ends a primary that has told it of its QEMU's death.
    static constexpr std::uint64_t leaving_ms = 10000;
    static constexpr std::uint64_t fence_valid_ms = 1000; // nobody is switched off for what is older

    world(std::uint64_t seed, bool verbose, mutation broken = mutation::none)
        : random_(seed), verbose_(verbose), broken_(broken), arbiter_(broken) {
        faults_ = chance(0.1) ? 0 : 1 + below(5);
        older_peer_ = chance(0.15);
        stop_policy_ = chance(0.1);
        fences_ = chance(0.15) && !older_peer_; // who would be refused
        slow_arbiter_ms_ = chance(0.2) ? 2 * lease_ms : 65;
    }

    void run() {
        start_primary(0);
        start_standby(1);
        std::vector<std::uint64_t> fault_at;
        for (unsigned i = 0; i < faults_; ++i)
            fault_at.push_back(300 + below(2500));
        heal_at_ = 3000 + below(1000);
        for (now_ = 1; now_ < heal_at_ + 2 * (bound_ms + leaving_ms) && !finished_ && violation_.empty();
             ++now_) {
            for (const auto at : fault_at)
                if (at == now_)
                    fault();
            if (now_ == heal_at_)
                heal();
            step();
            if (now_ > heal_at_)
                look_after();
        }
    }

    const std::string& violation() const { return violation_; } // the first; empty: all of it held
    unsigned takeovers() const { return takeovers_; }
    unsigned switchovers() const { return switchovers_; }
    unsigned taken_back() const { return taken_back_; }
    unsigned restored() const { return arbiter_.restored(); }
    bool was_protected() const { return was_protected_; }
    bool stopped() const { return stopped_in_order_; }
    bool protected_again() const { return finished_; }
    std::uint64_t took_ms() const { return took_ms_; }

private:
    // What arrives somewhere at some time, in the order of sending.
    template <class T>
    struct pipe {
        std::deque<std::pair<std::uint64_t, T>> items;
        void put(std::uint64_t at, T item) {
            if (!items.empty())
                at = std::max(at, items.back().first);
            items.emplace_back(at, std::move(item));
        }
        std::optional<T> take(std::uint64_t now) {
            if (items.empty() || items.front().first > now)
                return std::nullopt;
            T item = std::move(items.front().second);
            items.pop_front();
            return item;
        }
    };
    struct host {
        unsigned index = 0;
        std::optional<primary_fsm> primary;
        std::optional<standby_fsm> standby;
        int run = -1; // of the supervisor: who the arbiter knows
        std::uint64_t frozen_until = 0;
        // QEMU
        unsigned qemu = 0; // which one; 0: none
        bool running = false, paused = false, death_unseen = false;
        std::uint64_t number = 1, died = 0; // as a standby counts them; the one whose death is unseen
        std::optional<std::uint64_t> ready_at, takes_over_at;
        std::uint64_t vm = 0, line = 0; // its state
        bool gpu_failed = false, copy_lost = false, copy_lost_reported = false;
        // Of a primary's QEMU
        bool replicating = false, held = false, lost_reported = false, gpu_cut = false;
        std::uint64_t replication = 0;
        unsigned to_qemu = 0;
        std::uint64_t committed = 0, replicated_at = 0;
        std::optional<std::uint64_t> stream_broken_since, hand_over_at;
        // The supervisor's thin layer
        std::uint64_t gate = 0;
        pipe<arbiter_answer> answers;
        pipe<mirror::message> inbox;
        pipe<disk_mark> marks; // of its images, being written
        std::optional<std::uint64_t> connecting, closing;
        bool link = false;
        bool up(std::uint64_t now) const { return (primary || standby) && now >= frozen_until; }
        bool has_vm() const { return qemu != 0 && primary && running; }
    };

    bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
    std::uint64_t below(std::uint64_t n) {
        return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
    }
    template <class... A>
    void say(fmt::format_string<A...> text, A&&... a) {
        if (verbose_)
            fmt::print("{:5} {}\n", now_, fmt::format(text, std::forward<A>(a)...));
    }
    void check(bool holds, const std::string& otherwise) {
        if (holds || !violation_.empty())
            return;
        violation_ = fmt::format("at {} ms: {}", now_, otherwise);
        say("VIOLATION {}", otherwise);
    }
    host& peer(const host& h) { return hosts_[1 - h.index]; }

    // ---- people

    primary_config primary_of(bool has_standby) const {
        primary_config c;
        c.vm = "vm";
        c.description = "same";
        c.parts = {{mirror::part_rule::equal, "machine", "same"}};
        c.heartbeat_ms = 20;
        c.heartbeat_budget_ms = budget_ms;
        c.renew_ms = 60;
        c.has_standby = has_standby;
        c.policy = stop_policy_ ? loss_policy::stop : loss_policy::degraded;
        c.switchover_ms = 200;
        c.stop_ms = 2000;
        c.stop_confirmed_ms = 300;
        c.resync = {50, 400, 1000, 10};
        c.shared_record = !fences_;
        c.disks = true;
        c.image = "disk.img";
        return c;
    }

    void start_primary(unsigned i) {
        auto& h = hosts_[i];
        h = host{};
        h.index = i;
        h.run = ++runs_;
        auto c = primary_of(true);
        c.instance = static_cast<std::uint64_t>(h.run);
        c.mark = images_[i];
        h.primary.emplace(c);
        h.primary->start(now_);
        carry_out(h);
    }

    void start_standby(unsigned i) {
        auto& h = hosts_[i];
        h = host{};
        h.index = i;
        h.run = ++runs_;
        standby_config c;
        c.vm = "vm";
        c.description = "same";
        c.parts = {{mirror::part_rule::equal, "machine", "same"}};
        c.instance = static_cast<std::uint64_t>(h.run);
        c.heartbeat_budget_ms = budget_ms;
        c.retry_ms = 30;
        c.look_ms = 200;
        c.shared_record = !fences_;
        c.disks = true;
        images_[i] = waits(images_[i]);
        c.mark = images_[i];
        h.standby.emplace(c);
        h.number = h.standby->qemu();
        h.ready_at = now_ + below(200);
    }

    // ---- faults

    void kill_host(host& h) {
        cut(chance(0.5));
        h.primary.reset();
        h.standby.reset();
        h.qemu = 0;
        h.running = h.link = false;
        h.connecting.reset();
        h.answers.items.clear();
        h.marks.items.clear();
    }

    void kill_qemu(host& h) {
        if (h.qemu != 0)
            h.died = h.number;
        h.death_unseen = h.death_unseen || h.qemu != 0;
        h.qemu = 0;
        h.running = h.paused = false;
    }

    host* vm_host() {
        for (auto& h : hosts_)
            if (h.has_vm())
                return &h;
        return nullptr;
    }

    void fault() {
        auto* const p = vm_host();
        const bool only = !faulted_ && p && p->primary->state() == primary_state::protecting &&
                          peer(*p).standby && peer(*p).standby->state() == standby_state::synced;
        must_survive_ = false; // said again below, if this is the only fault
        auto& any = hosts_[below(2)];
        switch (below(18)) {
        case 0:
        case 1:
            if (p) {
                say("FAULT host {}: QEMU is killed", p->index);
                must_survive_ = only;
                kill_qemu(*p);
            }
            break;
        case 2:
            say("FAULT host {} dies", any.index);
            must_survive_ = only && !(stop_policy_ && any.standby);
            kill_host(any);
            break;
        case 3:
            any.frozen_until = now_ + below(2000);
            say("FAULT host {} freezes until {}", any.index, any.frozen_until);
            break;
        case 4:
            say("FAULT connection cut");
            must_survive_ = only;
            cut(chance(0.5));
            break;
        case 5:
            say("FAULT connection and stream cut");
            must_survive_ = only;
            cut(chance(0.7));
            stream_cut_until_ = now_ + below(300);
            break;
        case 6:
            stream_cut_until_ = now_ + below(1500);
            say("FAULT stream cut until {}", stream_cut_until_);
            must_survive_ = only;
            break;
        case 7:
            partition_until_ = now_ + below(2000);
            say("FAULT partition until {}", partition_until_);
            cut(false);
            break;
        case 8:
            for (auto& until : arbiter_away_until_)
                until = now_ + below(2000);
            say("FAULT arbiter away until {} and {}", arbiter_away_until_[0], arbiter_away_until_[1]);
            break;
        case 9: {
            auto& until = arbiter_away_until_[any.index];
            until = now_ + below(2500);
            say("FAULT arbiter away from host {} until {}", any.index, until);
            break;
        }
        case 10:
            if (any.standby && any.qemu != 0) {
                say("FAULT standby's QEMU is killed");
                must_survive_ = only && !stop_policy_;
                kill_qemu(any);
            }
            break;
        case 11:
            if (p && p->held) {
                say("FAULT host {}: GPU fails", p->index);
                must_survive_ = only;
                p->gpu_failed = true;
            }
            break;
        case 12:
            if (p && peer(*p).standby && peer(*p).qemu != 0 && p->held) {
                say("FAULT standby's GPU has no copy any more");
                peer(*p).copy_lost = true;
            }
            break;
        case 13:
            if (p && p->held) {
                say("FAULT connection of the GPUs cut");
                must_survive_ = only;
                p->gpu_cut = true;
            }
            break;
        case 14:
            if (!stop_policy_ && !fences_) { // which kills a VM whose standby was given up for it
                must_survive_ = only;
                if (arbiter_.present().term % 2 == 0 && arbiter_.go_back(now_)) {
                    say("FAULT the arbiter is put back to an older record");
                } else {
                    say("FAULT the arbiter loses its memory");
                    arbiter_.forget();
                }
            }
            break;
        case 15:
        case 16:
            if (p && p->held && p->primary->may_hand_over() && !p->hand_over_at) {
                say("DO switchover");
                must_survive_ = only;
                p->paused = true;
                p->hand_over_at = now_ + 5 + below(20);
                if (chance(0.3))
                    cancel_at_ = now_ + below(60);
                if (chance(0.2))
                    takeover_fails_ = true;
            }
            break;
        case 17:
            if (p && chance(0.4)) {
                say("DO stop");
                stop_asked_ = true;
                p->primary->on_stop(now_);
                carry_out(*p);
            }
            break;
        }
        faulted_ = true;
    }

    void cut(bool noticed) {
        connected_ = false;
        for (auto& h : hosts_) {
            h.inbox.items.clear();
            if (h.link && noticed)
                h.closing = now_ + below(30);
        }
    }

    void heal() {
        say("HEAL");
        partition_until_ = stream_cut_until_ = 0;
        arbiter_away_until_ = {0, 0};
        takeover_fails_ = false;
        for (auto& h : hosts_)
            h.frozen_until = std::min(h.frozen_until, now_);
    }

    // ---- after healing

    // What a person (or systemd) does: a host without a supervisor gets a standby for the VM that runs.
    void look_after() {
        auto* const p = vm_host();
        if (now_ % 50 == 0 && p && !peer(*p).primary && !peer(*p).standby) {
            say("DO standby on host {}", peer(*p).index);
            start_standby(peer(*p).index);
            p->primary->on_protect({}, now_);
            carry_out(*p);
            healed_since_ = now_;
        } else if (p && p->primary->state() == primary_state::alone && peer(*p).standby && now_ % 500 == 0 &&
                   p->index != 0) {
            p->primary->on_protect({}, now_); // it has no address of its own after a takeover
            carry_out(*p);
        }
        healed_since_ = std::max(healed_since_, heal_at_);
        if (p && p->primary->state() == primary_state::protecting && peer(*p).standby &&
            peer(*p).standby->state() == standby_state::synced && p->replicating && !p->lost_reported &&
            !p->gpu_failed && !p->gpu_cut && !peer(*p).copy_lost && p->gate > now_) {
            finished_ = true;
            took_ms_ = now_ - healed_since_;
            return;
        }
        if (now_ < healed_since_ + bound_ms + (fences_ ? leaving_ms : 0))
            return;
        const bool stands_still = p && !fences_ && arbiter_.present().term < p->primary->term() &&
                                  p->gate <= now_ && !must_survive_;
        if (stands_still) {
            // The arbiter lost its memory, or some of it, and the one standby that could say whether it took
            // over is gone.
        } else if (p) {
            check(false, fmt::format("not protected again: host {} is {} ({}), its standby {}", p->index,
                                     to_text(p->primary->state()), p->primary->degraded(),
                                     peer(*p).standby ? to_text(peer(*p).standby->state()) : "none"));
        } else {
            check(!must_survive_ || stop_asked_, "the VM is lost");
            // Without a record, or with one of before, nobody may say who has what was handed over: it
            // stands still.
            for (const auto& h : hosts_)
                check(!h.standby || h.standby->state() != standby_state::taking_over ||
                          (!fences_ && arbiter_.present().term < h.standby->term()),
                      "a takeover that does not end");
        }
        finished_ = false;
        now_ = heal_at_ + 2 * (bound_ms + leaving_ms); // nothing more happens
    }

    // ---- time

    void step() {
        for (auto& h : hosts_)
            if (h.up(now_)) {
                if (h.primary)
                    step_primary(h);
                else
                    step_standby(h);
            }
        for (auto& h : hosts_)
            speak(h);
    }

    void hear(host& h) {
        if (h.connecting && now_ >= *h.connecting) {
            h.connecting.reset();
            auto& to = peer(h);
            if (now_ >= partition_until_ && to.up(now_) && to.standby && !to.link && !h.link) {
                connected_ = h.link = to.link = true;
                for (auto* one : {&h, &to}) {
                    one->inbox.items.clear();
                    one->closing.reset();
                }
                to.standby->on_link_up(now_);
                carry_out(to);
                h.primary->on_link_up(now_);
            } else {
                h.primary->on_link_closed("no connection", now_);
            }
            carry_out(h);
        }
        while (auto m = h.inbox.take(now_)) {
            if (h.primary)
                h.primary->on_message(*m, now_);
            else if (h.standby)
                h.standby->on_message(*m, now_);
            carry_out(h);
        }
        if (h.link && h.closing && now_ >= *h.closing) {
            h.link = false;
            h.closing.reset();
            if (h.primary)
                h.primary->on_link_closed("closed", now_);
            else if (h.standby)
                closed(*h.standby);
            carry_out(h);
        }
    }

    void closed(standby_fsm& fsm) {
        if (broken_ == mutation::silence_is_proof)
            fsm.on_message(mirror::supervision{mirror::supervision_kind::died, fsm.term(), "silent"}, now_);
        fsm.on_link_closed("closed", now_);
    }

    void step_primary(host& h) {
        auto& fsm = *h.primary;
        if (h.death_unseen) {
            h.death_unseen = false;
            fsm.on_qemu_died("killed", false, now_);
            carry_out(h);
        }
        if (auto a = h.answers.take(now_); a && h.primary)
            fsm.on_arbiter(*a, now_);
        carry_out(h);
        if (h.primary)
            hear(h);
        step_marks(h);
        if (h.primary && h.qemu != 0)
            step_checkpoints(h);
        if (h.primary && h.running && h.gpu_failed && now_ % 20 == 0)
            fsm.on_gpu_failed("its worker died", now_);
        if (h.primary && cancel_at_ && now_ >= *cancel_at_) {
            cancel_at_.reset();
            fsm.on_cancel_switchover(now_);
        }
        if (h.primary && now_ >= fsm.deadline())
            fsm.on_tick(now_);
        carry_out(h);
    }

    // What is written to the images' marks is durable now.
    void step_marks(host& h) {
        while (auto m = h.marks.take(now_)) {
            images_[h.index] = older_peer_ ? of_older_release(*m) : *m;
            if (h.primary)
                h.primary->on_marked({}, now_);
            else if (h.standby)
                h.standby->on_marked({}, now_);
            carry_out(h);
        }
    }

    static disk_mark of_older_release(const disk_mark& m) {
        const bool is_none = m.state <= disk_state::newest; // it has no file for that
        return {is_none ? disk_state::unmarked : m.state, {}};
    }

    void mark(host& h, const disk_mark& m) {
        const bool is_late = broken_ == mutation::mark_comes_late && m.state == disk_state::protected_;
        h.marks.put(now_ + 1 + below(20), is_late ? disk_mark{disk_state::newest, m.of} : m);
    }

    void step_checkpoints(host& h) {
        auto& to = peer(h);
        if (h.running && !h.paused)
            ++h.vm;
        if (!h.replicating)
            return;
        const bool works = now_ >= partition_until_ && now_ >= stream_cut_until_ && to.qemu != 0 &&
                           to.qemu == h.to_qemu && to.standby && to.up(now_) && !to.takes_over_at &&
                           !to.running;
        if (works && now_ >= h.replicated_at && !h.lost_reported) {
            h.stream_broken_since.reset();
            if (!h.held) {
                h.held = true;
                h.gpu_cut = false; // no checkpoint comes before
                h.primary->on_qemu_protecting(h.replication, now_);
                commit(h, to);
            } else if (now_ % 10 == 0 && !to.copy_lost && !h.gpu_cut) {
                commit(h, to);
            }
            if (h.hand_over_at && now_ >= *h.hand_over_at && !to.copy_lost && !h.gpu_cut) {
                h.hand_over_at.reset();
                commit(h, to);
                h.primary->on_qemu_handed_over(h.replication, now_);
            }
        } else if (!works && !h.stream_broken_since) {
            h.stream_broken_since = now_ + 20 + below(300); // when TCP tells
        } else if (!works && now_ >= *h.stream_broken_since && !h.lost_reported) {
            h.lost_reported = true;
            h.primary->on_qemu_replication_lost(h.replication, "broken pipe", now_);
        }
        // Also by a device that is refused for as long as the standby has a copy to keep.
        if (h.held && (to.copy_lost || h.gpu_cut) && now_ % 20 == 0)
            h.primary->on_qemu_replication_lost(h.replication, "the standby's GPU", now_);
        carry_out(h);
    }

    void commit(host& from, host& to) {
        to.vm = from.committed = from.vm;
        to.line = from.line;
    }

    void step_standby(host& h) {
        auto& fsm = *h.standby;
        if (h.ready_at && now_ >= *h.ready_at) {
            h.ready_at.reset();
            h.qemu = ++qemus_;
            h.vm = 0;
            fsm.on_qemu_ready(h.number, now_);
            carry_out(h);
        }
        if (h.death_unseen) {
            h.death_unseen = false;
            if (h.died == h.number)
                h.takes_over_at.reset();
            fsm.on_qemu_died("killed", h.died, now_);
            carry_out(h);
        }
        if (auto a = h.answers.take(now_)) {
            if (h.standby)
                fsm.on_arbiter(*a, now_);
            else if (h.primary)
                h.primary->on_arbiter(*a, now_);
        }
        carry_out(h);
        step_marks(h);
        if (h.standby && h.copy_lost && !h.copy_lost_reported && h.qemu != 0 && now_ % 20 == 0) {
            h.copy_lost_reported = true;
            fsm.on_gpu_lost("a worker died", now_);
        }
        if (h.standby)
            hear(h);
        if (h.standby && h.takes_over_at && now_ >= *h.takes_over_at) {
            h.takes_over_at.reset();
            if (h.qemu != 0 && std::exchange(takeover_fails_, false)) {
                fsm.on_takeover_failed("a load error", now_);
            } else if (h.qemu != 0) {
                h.running = true;
                h.line = ++lines_;
                fsm.on_qemu_running(now_);
            }
            carry_out(h);
        }
        if (h.standby && now_ >= fsm.deadline())
            fsm.on_tick(now_);
        carry_out(h);
        if (h.standby && h.running && h.qemu != 0)
            ++h.vm;
    }

    // ---- what the state machines want

    void carry_out(host& h) {
        bool more = true;
        while (more) {
            more = false;
            standby_action s;
            while (h.standby && h.standby->next(s)) {
                std::visit([&](auto& a) { act(h, a); }, s);
                more = true;
            }
            if (h.standby && h.standby->state() == standby_state::ended)
                h.standby.reset();
            primary_action p;
            while (h.primary && h.primary->next(p)) {
                std::visit([&](auto& a) { act(h, a); }, p);
                more = true;
            }
            if (h.primary && h.primary->state() == primary_state::ended)
                h.primary.reset();
        }
    }

    void act(host& h, act_state& a) {
        say("host {}: primary {} {}", h.index, to_text(a.state), a.why);
        was_protected_ = was_protected_ || a.state == primary_state::protecting;
        if (a.state == primary_state::handing_over)
            ++switchovers_;
        if (a.state == primary_state::alone && h.paused)
            ++taken_back_;
    }
    void act(host& h, act_ask& a) { ask(h, a.request); }
    void act(host& h, act_gate& a) {
        if (a.until_ms != 0 || broken_ != mutation::switchover_lets_run)
            h.gate = a.until_ms;
    }
    void act(host& h, act_connect&) { h.connecting = now_ + below(10); }
    void act(host& h, act_close_link&) { hang_up(h); }
    void act(host& h, act_send& a) { send(h, a.what); }
    void act(host& h, act_start_qemu&) {
        h.qemu = ++qemus_;
        h.running = true;
        h.line = ++lines_;
    }
    void act(host& h, act_replicate& a) {
        h.replicating = true;
        h.replication = a.replication;
        h.held = h.lost_reported = false;
        h.to_qemu = peer(h).qemu;
        h.stream_broken_since.reset();
        h.hand_over_at.reset();
        h.replicated_at = now_ + below(200);
    }
    void act(host& h, act_mark& a) { mark(h, a.mark); }
    void act(host& h, act_standby_mark& a) { mark(h, a.mark); }
    void act(host& h, act_go_on_alone&) {
        h.replicating = h.held = h.paused = h.gpu_failed = h.gpu_cut = false;
        h.hand_over_at.reset();
    }
    void act(host& h, act_report_gpu_failure&) { h.gpu_failed = false; }
    void act(host& h, act_kill_qemu& a) {
        say("host {}: QEMU is killed: {}", h.index, a.why);
        kill_qemu(h);
    }
    void act(host& h, act_ended& a) {
        say("host {}: primary ended {}: {}", h.index, a.in_order ? "in order" : "", a.why);
        h.qemu = 0;
        h.running = false;
        if (a.alone && !fences_) {
            check(arbiter_.present().owner != h.run || !arbiter_.present().paired,
                  "newest images, and a standby may go on");
            check(arbiter_.present().owner == h.run || arbiter_.present().owner == -1,
                  "newest images, and another has the VM");
        }
        if (stop_asked_ && a.in_order && a.why.starts_with("stopped"))
            stopped_in_order_ = true;
    }

    void act(host& h, act_standby_state& a) {
        say("host {}: standby {} {}", h.index, to_text(a.state), a.why);
    }
    void act(host& h, act_standby_ask& a) { ask(h, a.request); }
    void act(host& h, act_standby_send& a) { send(h, a.what); }
    void act(host& h, act_standby_close_link&) { hang_up(h); }
    void act(host& h, act_take_over& a) {
        const bool without = a.why.find("without the state of its GPU") != std::string::npos;
        check(without == h.copy_lost_reported, "what a takeover says of its GPU is not so");
        h.takes_over_at = now_ + below(30);
    }
    void act(host& h, act_restart_qemu& a) {
        h.qemu = 0;
        h.number = a.qemu;
        h.running = h.copy_lost = h.copy_lost_reported = false;
        h.takes_over_at.reset();
        h.ready_at = now_ + 1 + below(100);
    }
    void act(host& h, act_running& a) {
        say("host {}: the VM runs here with term {}", h.index, a.term);
        ++takeovers_;
        check(h.vm >= reported_, "a takeover without what was told");
        h.copy_lost = h.copy_lost_reported = false;
        auto c = primary_of(false);
        c.instance = static_cast<std::uint64_t>(h.run);
        c.mark = a.mark;
        check(a.mark.state == disk_state::newest && (older_peer_ || images_[h.index] == a.mark),
              "a VM goes on, and its images do not say so");
        h.standby.reset();
        h.replicating = h.held = false;
        h.primary.emplace(c);
        h.primary->start_after_takeover(a.term, a.lease_until, now_, a.gpu_failed);
    }
    void act(host& h, act_standby_ended& a) {
        say("host {}: standby ended: {}", h.index, a.why);
        h.qemu = 0;
        h.running = false;
    }

    void send(host& from, mirror::message m) {
        auto& to = peer(from);
        if (!from.link || !connected_ || now_ < partition_until_)
            return;
        if (auto* h = std::get_if<mirror::hello>(&m); h && older_peer_)
            h->capabilities = {"supervision"}, h->version = 1;
        if (const auto* s = std::get_if<mirror::supervision>(&m)) {
            using k = mirror::supervision_kind;
            check(!older_peer_ || (s->kind < k::belief && s->parts.empty()),
                  "a word that an older peer does not know");
            say("host {} says {} term {} {}", from.index, static_cast<int>(s->kind), s->term, s->text);
            if (broken_ == mutation::unpaired_is_lost && (s->kind == k::unpaired || s->kind == k::belief))
                return;
            if (broken_ == mutation::ready_is_lost && s->kind == k::ready)
                return;
        }
        to.inbox.put(now_ + below(8), std::move(m));
    }

    void hang_up(host& from) {
        auto& to = peer(from);
        from.link = false;
        from.closing.reset();
        if (connected_ && to.link) // behind what was sent
            to.closing = std::max(now_ + 8, to.inbox.items.empty() ? 0 : to.inbox.items.back().first + 1);
        connected_ = false;
    }

    // ---- the arbiter

    void fence(host& h, const arbiter_request& q) {
        if (now_ < arbiter_away_until_[h.index]) { // the switch can't be reached
            h.answers.put(now_ + 5 + below(60),
                          {arbiter_answer::verdict::unreachable, q.number, 0, 0, "no switch"});
            return;
        }
        bool off = false;
        auto a = sim_arbiter::decide_by_fencing(q, now_, off);
        if (off && now_ >= q.heard_ms + fence_valid_ms) { // the other one may have gone on since
            off = false;
            a = {arbiter_answer::verdict::held, q.number, 0, now_ + 50, "heard too long ago"};
        }
        if (off) {
            say("host {} asks {}: host {} is switched off", h.index, to_text(q.what), 1 - h.index);
            must_survive_ = must_survive_ && &peer(h) != vm_host();
            kill_host(peer(h));
        }
        h.answers.put(now_ + below(6), a);
    }

    void ask(host& h, const arbiter_request& q) {
        if (fences_)
            return fence(h, q);
        const bool away = now_ < arbiter_away_until_[h.index];
        if (away && chance(0.3)) { // done, and the answer is lost
            arbiter_.decide(h.run, q, now_);
            say("host {} asks {} term {}: done, answer lost", h.index, to_text(q.what), q.term);
        }
        if (away) {
            h.answers.put(now_ + 5 + below(slow_arbiter_ms_),
                          {arbiter_answer::verdict::unreachable, q.number, 0, 0, "away"});
            return;
        }
        auto a = arbiter_.decide(h.run, q, now_);
        if (q.what != arbiter_request::kind::renew && q.what != arbiter_request::kind::look)
            say("host {} asks {} term {}: {}", h.index, to_text(q.what), q.term, to_text(a.what));
        if (q.what == arbiter_request::kind::pair && a.what == arbiter_answer::verdict::granted)
            check(images_[h.index].state == disk_state::protected_ &&
                      (!peer(h).standby || !h.primary || h.primary->state() != primary_state::recording ||
                       images_[1 - h.index] == disk_mark{disk_state::paired, images_[h.index].of}),
                  "a pair is recorded, and the images have no mark");
        h.answers.put(now_ + below(6), a);
    }

    // ---- the outside

    // Output leaves: of a VM that runs, on a host that is awake, through an open gate.
    void speak(host& h) {
        const bool awake = now_ >= h.frozen_until;
        const bool still = h.paused && broken_ != mutation::switchover_lets_run;
        const bool gate = now_ < h.gate || (broken_ == mutation::gate_stays_open && h.gate != 0);
        if (h.qemu == 0 || !h.running || !h.primary || !awake || !gate || still)
            return;
        const bool holds = h.replicating && h.held && broken_ != mutation::output_is_not_held;
        const auto told = holds ? h.committed : h.vm;
        if (told <= reported_ && h.line == spoken_)
            return;
        check(h.line >= spoken_, "two speakers");
        check(!stopped_in_order_, "a VM that was stopped speaks");
        spoken_ = h.line;
        reported_ = std::max(reported_, told);
    }

    std::mt19937_64 random_;
    bool verbose_;
    mutation broken_;
    std::string violation_;
    std::uint64_t now_ = 0, heal_at_ = 0, healed_since_ = 0, took_ms_ = 0;
    std::array<host, 2> hosts_;
    std::array<disk_mark, 2> images_; // their marks outlive the supervisors
    sim_arbiter arbiter_;
    int runs_ = 0;
    unsigned qemus_ = 0, faults_ = 0;
    std::uint64_t lines_ = 0, spoken_ = 0, reported_ = 0;
    bool connected_ = false;
    std::uint64_t partition_until_ = 0, stream_cut_until_ = 0, slow_arbiter_ms_ = 65;
    std::array<std::uint64_t, 2> arbiter_away_until_{0, 0};
    std::optional<std::uint64_t> cancel_at_;
    bool fences_ = false, older_peer_ = false, stop_policy_ = false, takeover_fails_ = false;
    bool faulted_ = false, must_survive_ = false, stop_asked_ = false, stopped_in_order_ = false;
    bool was_protected_ = false, finished_ = false;
    unsigned takeovers_ = 0, switchovers_ = 0, taken_back_ = 0;
};

} // namespace kagemusha::ha::test
