// SPDX-License-Identifier: GPL-2.0-or-later
//
// What sim_test.cpp runs: two hosts with the supervisors' state machines, unchanged, and models of
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

#include "control/ha/primary_fsm.hpp"
#include "control/ha/sim/arbiter.hpp"
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

    void run();

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
    primary_config primary_of(bool has_standby) const;
    void start_primary(unsigned i);
    void start_standby(unsigned i);

    // ---- faults
    void kill_host(host& h);
    void kill_qemu(host& h);
    host* vm_host();
    void fault();
    void cut(bool noticed);
    void heal();

    // ---- after healing
    // What a person (or systemd) does: a host without a supervisor gets a standby for the VM that runs.
    void look_after();

    // ---- time
    void step();
    void hear(host& h);
    void closed(standby_fsm& fsm);
    void step_primary(host& h);
    // What is written to the images' marks is durable now.
    void step_marks(host& h);
    static disk_mark of_older_release(const disk_mark& m);
    void mark(host& h, const disk_mark& m);
    void step_checkpoints(host& h);
    void commit(host& from, host& to);
    void step_standby(host& h);

    // ---- what the state machines want
    void carry_out(host& h);
    void act(host& h, act_state& a);
    void act(host& h, act_ask& a) { ask(h, a.request); }
    void act(host& h, act_gate& a);
    void act(host& h, act_connect&) { h.connecting = now_ + below(10); }
    void act(host& h, act_close_link&) { hang_up(h); }
    void act(host& h, act_send& a) { send(h, a.what); }
    void act(host& h, act_start_qemu&);
    void act(host& h, act_replicate& a);
    void act(host& h, act_mark& a) { mark(h, a.mark); }
    void act(host& h, act_standby_mark& a) { mark(h, a.mark); }
    void act(host& h, act_standby_use_files&) { h.standby->on_files_ready({}); }
    void act(host& h, act_go_on_alone&);
    void act(host& h, act_report_gpu_failure&) { h.gpu_failed = false; }
    void act(host& h, act_kill_qemu& a);
    void act(host& h, act_ended& a);
    void act(host& h, act_standby_state& a);
    void act(host& h, act_standby_ask& a) { ask(h, a.request); }
    void act(host& h, act_standby_send& a) { send(h, a.what); }
    void act(host& h, act_standby_close_link&) { hang_up(h); }
    void act(host& h, act_take_over& a);
    void act(host& h, act_restart_qemu& a);
    void act(host& h, act_running& a);
    void act(host& h, act_standby_ended& a);
    void send(host& from, mirror::message m);
    void hang_up(host& from);

    // ---- the arbiter
    void fence(host& h, const arbiter_request& q);
    void ask(host& h, const arbiter_request& q);

    // ---- the outside
    // Output leaves: of a VM that runs, on a host that is awake, through an open gate.
    void speak(host& h);

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
