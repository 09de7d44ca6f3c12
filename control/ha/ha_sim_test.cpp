// SPDX-License-Identifier: GPL-2.0-or-later
//
// Both supervisors' state machines, the arbiter, the network and two QEMUs as models, in one thread, from a
// seed: connections are cut or fall silent, messages and answers are late, hosts freeze and wake up, QEMUs
// and hosts die, the arbiter is away or loses answers. In every schedule it must hold:
//
//   * one speaker: once the standby's VM has let something out, the primary's never does again
//   * nothing is taken back: what a primary that goes on alone has let out is never followed by a takeover by
//   a standby
//     that does not have it
//   * after PAIR was recorded, and with the arbiter there, the death of the primary ends in a running VM; so
//   does a failure of its GPU, and the guest is not told
//   * a failure of the GPU is not held back for ever: the standby goes on, or the guest is told
//   * a takeover without the GPU's state says so, and nobody calls a VM protected for long whose standby's
//   GPU has no copy, or is not connected any more
//
// KAGEMUSHA_HA_SEED=N runs one schedule and prints what happens in it.
#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>

namespace kagemusha::ha {
namespace {

constexpr std::uint64_t lease_ms = 300, budget_ms = 100;

struct record {
    std::uint64_t term = 0, lease_until = 0;
    bool paired = false;
    int holder = -1;
};

// The arbiter's contract (arbiter_request.hpp), as short as it can be said.
arbiter_answer decide(record& r, int asker, const arbiter_request& q, std::uint64_t now) {
    using kind = arbiter_request::kind;
    using verdict = arbiter_answer::verdict;
    const bool ours = r.holder == asker;
    const bool free = now >= r.lease_until;
    arbiter_answer a{verdict::refused, q.number, r.term, 0, "another term"};
    const auto grant = [&](std::uint64_t until) {
        r.lease_until = until;
        a = {verdict::granted, q.number, r.term, until, {}};
        return a;
    };
    switch (q.what) {
    case kind::open:
        if (!free)
            return {verdict::held, q.number, 0, r.lease_until, "held"};
        if (r.paired && !q.anew)
            return a;
        r = {r.term + 1, 0, false, asker};
        return grant(now + lease_ms);
    case kind::renew:
        return ours && r.term == q.term ? grant(now + lease_ms) : a;
    case kind::alone:
        if (!ours || r.term != q.term)
            return a;
        r.paired = false;
        return grant(now + lease_ms);
    case kind::pair:
        if (!ours || (r.term != q.term && r.term != q.new_term))
            return a;
        r.term = q.new_term;
        r.paired = true;
        return grant(now + lease_ms);
    case kind::claim:
        if (ours && r.term == q.term + 1)
            return grant(now + lease_ms);
        if (r.term != q.term || !r.paired)
            return a;
        if (!free && !q.proven_dead)
            return {verdict::held, q.number, 0, r.lease_until, "held"};
        r = {r.term + 1, 0, false, asker};
        return grant(now + lease_ms);
    case kind::release:
        return ours && r.term == q.term ? grant(now) : a;
    case kind::look:
        return {verdict::granted, q.number, r.term, 0, {}, r.paired, ours};
    case kind::restore:
        if (r.term > q.term || (r.term == q.term && (!ours || r.paired != q.paired)))
            return a;
        if (r.term < q.term && !free)
            return {verdict::held, q.number, 0, r.lease_until, "held"};
        r = {q.term, 0, q.paired, asker};
        return grant(now + lease_ms);
    }
    return a;
}

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
    std::uint64_t frozen_until = 0; // the whole host: supervisor and QEMU
    bool dead = false;
    bool qemu = false;    // there is one
    bool running = false; // and its VM runs
    bool death_unseen = false;
    std::uint64_t gate = 0;
    pipe<arbiter_answer> answers;
    pipe<mirror::message> inbox;
    bool link = false;                    // this end believes in the connection
    std::optional<std::uint64_t> closing; // this end will hear of the end then
    bool up(std::uint64_t now) const { return !dead && now >= frozen_until; }
};

class world {
public:
    world(std::uint64_t seed, bool verbose) : random_(seed), verbose_(verbose) {
        primary_config p;
        p.vm = "vm";
        p.description = "same";
        p.heartbeat_ms = 20;
        p.heartbeat_budget_ms = budget_ms;
        p.renew_ms = 60;
        p.has_standby = true;
        p.policy = chance(0.2) ? loss_policy::stop : loss_policy::degraded;
        primary_.emplace(p);
        standby_config s;
        s.vm = "vm";
        s.description = "same";
        s.heartbeat_budget_ms = budget_ms;
        s.retry_ms = 30;
        standby_.emplace(s);
        faults_ = chance(0.1) ? 0 : 1 + below(4);
    }

    void run() {
        primary_->start(now_);
        standby_qemu_ready_at_ = below(200);
        const std::uint64_t end = 6000;
        std::vector<std::uint64_t> fault_at;
        for (unsigned i = 0; i < faults_; ++i)
            fault_at.push_back(300 + below(2500));
        for (now_ = 1; now_ < end; ++now_) {
            for (const auto at : fault_at)
                if (at == now_)
                    fault();
            step();
        }
        // With everybody awake and the arbiter there, the VM runs somewhere, or it is known why not.
        if (must_survive_) {
            EXPECT_TRUE(s_.running || p_.running) << "the VM is lost";
        }
        EXPECT_FALSE(must_not_tell_ && gpu_failure_told_) << "the guest was told of a failure";
        EXPECT_FALSE(p_.running && !p_.dead && !successor_ && gpu_failed_)
            << "the guest waits for a GPU that failed";
        EXPECT_FALSE(p_.running && !p_.dead && !successor_ &&
                     primary_->state() == primary_state::protecting && (copy_lost_ || gpu_cut_))
            << "protecting, and the standby has no GPU";
    }

    unsigned takeovers() const { return takeovers_; }
    bool was_protected() const { return was_protected_; }
    unsigned takeovers_without_gpu() const { return takeovers_without_gpu_; }

private:
    bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
    std::uint64_t below(std::uint64_t n) {
        return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
    }
    template <class... A>
    void say(fmt::format_string<A...> text, A&&... a) {
        if (verbose_)
            fmt::print("{:5} {}\n", now_, fmt::format(text, std::forward<A>(a)...));
    }

    void fault() {
        must_survive_ = false; // said again below, if this is the only fault
        switch (below(12)) {
        case 0:
        case 1:
            if (p_.qemu && !p_.dead) {
                say("FAULT primary's QEMU is killed");
                must_survive_ = !faulted_ && was_protected_ && primary_->state() == primary_state::protecting;
                p_.qemu = p_.running = false;
                p_.death_unseen = true;
            }
            break;
        case 2:
            say("FAULT primary's host dies");
            must_survive_ = !faulted_ && was_protected_ && primary_->state() == primary_state::protecting;
            p_.dead = true;
            p_.qemu = p_.running = false;
            cut(chance(0.5));
            break;
        case 3:
            p_.frozen_until = now_ + below(2000);
            say("FAULT primary's host freezes until {}", p_.frozen_until);
            break;
        case 4:
            s_.frozen_until = now_ + below(1500);
            say("FAULT standby's host freezes until {}", s_.frozen_until);
            break;
        case 5:
            say("FAULT connection cut");
            cut(chance(0.5));
            break;
        case 6:
            partition_until_ = now_ + below(2000);
            say("FAULT partition until {}", partition_until_);
            cut(false);
            break;
        case 7:
            arbiter_away_until_ = now_ + below(2000);
            say("FAULT arbiter away until {}", arbiter_away_until_);
            break;
        case 8:
            if (s_.qemu && !s_.dead) {
                say("FAULT standby's QEMU is killed");
                s_.qemu = s_.running = false;
                s_.death_unseen = true;
                valid_copy_ = false;
            }
            break;
        case 9:
            if (p_.running && replicating_ && first_checkpoint_) {
                say("FAULT primary's GPU fails");
                must_survive_ = !faulted_ && was_protected_ && primary_->state() == primary_state::protecting;
                must_not_tell_ = must_survive_;
                gpu_failed_ = true;
            }
            break;
        case 10:
            if (s_.qemu && valid_copy_ && !successor_) {
                say("FAULT standby's GPU has no copy any more");
                copy_lost_ = true;
            }
            break;
        case 11:
            if (p_.running && first_checkpoint_) {
                say("FAULT connection of the GPUs cut");
                must_survive_ = !faulted_ && was_protected_ && primary_->state() == primary_state::protecting;
                gpu_cut_ = true;
            }
            break;
        }
        if (faulted_)
            must_not_tell_ = false;
        faulted_ = true;
    }

    void cut(bool noticed) {
        connected_ = false;
        p_.inbox.items.clear();
        s_.inbox.items.clear();
        for (auto* h : {&p_, &s_})
            if (h->link && noticed)
                h->closing = now_ + below(30);
    }

    void step() {
        if (standby_qemu_ready_at_ && now_ >= *standby_qemu_ready_at_ && s_.up(now_)) {
            standby_qemu_ready_at_.reset();
            s_.qemu = true;
            standby_->on_qemu_ready(now_);
            carry_out_standby();
        }
        if (p_.up(now_))
            step_primary();
        if (s_.up(now_))
            step_standby();
        speak();
    }

    void step_primary() {
        if (successor_)
            return;
        if (p_.death_unseen) {
            p_.death_unseen = false;
            primary_->on_qemu_died("killed", false, now_);
        }
        if (auto a = p_.answers.take(now_))
            primary_->on_arbiter(*a, now_);
        if (connecting_ && now_ >= *connecting_) {
            connecting_.reset();
            if (now_ >= partition_until_ && s_.up(now_) && !s_.link &&
                standby_->state() != standby_state::running && standby_->state() != standby_state::ended) {
                connected_ = p_.link = s_.link = true;
                p_.inbox.items.clear();
                s_.inbox.items.clear();
                p_.closing.reset();
                s_.closing.reset();
                standby_->on_link_up(now_);
                carry_out_standby();
                primary_->on_link_up(now_);
            } else {
                primary_->on_link_closed("no connection", now_);
            }
        }
        if (p_.link && p_.closing && now_ >= *p_.closing) {
            p_.link = false;
            p_.closing.reset();
            primary_->on_link_closed("closed", now_);
        }
        while (auto m = p_.inbox.take(now_))
            primary_->on_message(*m, now_);
        carry_out_primary();
        if (p_.qemu && replicating_) {
            const bool stream_works = s_.qemu && s_.up(now_) && now_ >= partition_until_;
            if (!first_checkpoint_ && now_ >= replicated_at_ && stream_works && p_.up(now_)) {
                first_checkpoint_ = true;
                valid_copy_ = true;
                gpu_cut_ = false; // no checkpoint comes before
                primary_->on_qemu_protecting(now_);
            } else if (stream_works) {
                stream_broken_since_.reset();
            } else if (!stream_broken_since_) {
                stream_broken_since_ = now_ + 20 + below(300); // when TCP tells
            } else if (now_ >= *stream_broken_since_ && !lost_told_) {
                lost_told_ = true;
                primary_->on_qemu_replication_lost("broken pipe", now_);
            }
        }
        // Also by a device that is refused for as long as the standby has a copy to keep.
        if (p_.running && replicating_ && first_checkpoint_ && (copy_lost_ || gpu_cut_) && now_ % 20 == 0)
            primary_->on_qemu_replication_lost("the standby's GPU", now_);
        if (p_.running && gpu_failed_ && now_ % 20 == 0) // as often as it is looked at
            primary_->on_gpu_failed("its worker died", now_);
        if (now_ >= primary_->deadline())
            primary_->on_tick(now_);
        carry_out_primary();
    }

    void tell_gpu_failure() {
        gpu_failure_told_ = gpu_failure_told_ || gpu_failed_;
        gpu_failed_ = false;
    }

    void carry_out_primary() {
        primary_action a;
        while (primary_->next(a)) {
            if (const auto* x = std::get_if<act_state>(&a)) {
                say("primary {} {}", to_text(x->state), x->why);
                was_protected_ = was_protected_ || x->state == primary_state::protecting;
            } else if (const auto* x = std::get_if<act_ask>(&a)) {
                ask(0, x->request, p_);
            } else if (const auto* x = std::get_if<act_gate>(&a)) {
                p_.gate = x->until_ms;
            } else if (std::get_if<act_connect>(&a)) {
                connecting_ = now_ + below(10);
            } else if (std::get_if<act_close_link>(&a)) {
                hang_up(p_, s_);
            } else if (const auto* x = std::get_if<act_send>(&a)) {
                if (p_.link && connected_ && now_ >= partition_until_)
                    s_.inbox.put(now_ + below(8), x->what);
            } else if (std::get_if<act_start_qemu>(&a)) {
                p_.qemu = p_.running = true;
            } else if (std::get_if<act_replicate>(&a)) {
                replicating_ = true;
                first_checkpoint_ = lost_told_ = false;
                stream_broken_since_.reset();
                replicated_at_ = now_ + below(200);
            } else if (std::get_if<act_go_on_alone>(&a)) {
                replicating_ = false;
                alone_since_pair_ = true;
                tell_gpu_failure();
            } else if (std::get_if<act_tell_gpu_failure>(&a)) {
                tell_gpu_failure();
            } else if (const auto* x = std::get_if<act_kill_qemu>(&a)) {
                say("primary's QEMU is killed: {}", x->why);
                p_.death_unseen = p_.qemu;
                p_.qemu = p_.running = false;
            } else if (const auto* x = std::get_if<act_ended>(&a)) {
                say("primary ended: {}", x->why);
                p_.qemu = p_.running = false;
            }
        }
    }

    void hang_up(host& from, host& to) {
        from.link = false;
        from.closing.reset();
        if (connected_ && to.link) // behind what was sent
            to.closing = std::max(now_ + 8, to.inbox.items.empty() ? 0 : to.inbox.items.back().first + 1);
        connected_ = false;
    }

    void step_standby() {
        if (successor_) {
            if (auto a = s_.answers.take(now_))
                successor_->on_arbiter(*a, now_);
            if (now_ >= successor_->deadline())
                successor_->on_tick(now_);
            carry_out_successor();
            return;
        }
        if (s_.death_unseen) {
            s_.death_unseen = false;
            standby_->on_qemu_died("killed", now_);
        }
        if (auto a = s_.answers.take(now_))
            standby_->on_arbiter(*a, now_);
        if (copy_lost_ && !copy_lost_told_ && s_.qemu && now_ % 20 == 0) {
            copy_lost_told_ = true;
            standby_->on_gpu_lost("a worker died", now_);
        }
        while (auto m = s_.inbox.take(now_))
            standby_->on_message(*m, now_);
        if (s_.link && s_.closing && now_ >= *s_.closing) {
            s_.link = false;
            s_.closing.reset();
            standby_->on_link_closed("closed", now_);
        }
        carry_out_standby();
        if (take_over_at_ && now_ >= *take_over_at_) {
            take_over_at_.reset();
            if (s_.qemu) {
                s_.running = true;
                standby_->on_qemu_running(now_);
            }
        }
        if (now_ >= standby_->deadline())
            standby_->on_tick(now_);
        carry_out_standby();
    }

    void carry_out_standby() {
        standby_action a;
        while (!successor_ && standby_->next(a)) {
            if (const auto* x = std::get_if<act_standby_state>(&a)) {
                say("standby {} {}", to_text(x->state), x->why);
                if (x->state == standby_state::synced &&
                    !paired_) // a copy made after all that was said until now
                    alone_since_pair_ = alone_output_ = false;
                paired_ = x->state == standby_state::synced || x->state == standby_state::claiming;
            } else if (const auto* x = std::get_if<act_standby_ask>(&a)) {
                ask(1, x->request, s_);
            } else if (const auto* x = std::get_if<act_standby_send>(&a)) {
                if (s_.link && connected_ && now_ >= partition_until_)
                    p_.inbox.put(now_ + below(8), x->what);
            } else if (std::get_if<act_standby_close_link>(&a)) {
                hang_up(s_, p_);
            } else if (std::get_if<act_take_over>(&a)) {
                EXPECT_TRUE(valid_copy_) << "a takeover from what is no copy";
                const bool said =
                    std::get<act_take_over>(a).why.find("without the state of its GPU") != std::string::npos;
                EXPECT_TRUE(!said || copy_lost_) << "there was a copy";
                EXPECT_TRUE(said || !copy_lost_told_) << "a takeover without the GPU's state";
                takeovers_without_gpu_ += said;
                take_over_at_ = now_ + below(30);
            } else if (std::get_if<act_restart_qemu>(&a)) {
                s_.qemu = s_.running = false;
                s_.death_unseen = false;
                valid_copy_ = copy_lost_ = copy_lost_told_ = false;
                standby_qemu_ready_at_ = now_ + 1 + below(100);
            } else if (const auto* x = std::get_if<act_running>(&a)) {
                say("standby's VM runs with term {}", x->term);
                ++takeovers_;
                primary_config c;
                c.vm = "vm";
                c.renew_ms = 60;
                successor_.emplace(c);
                successor_->start_after_takeover(x->term, x->lease_until, now_);
                carry_out_successor();
            } else if (const auto* x = std::get_if<act_standby_ended>(&a)) {
                say("standby ended: {}", x->why);
                s_.qemu = s_.running = false;
            }
        }
    }

    void carry_out_successor() {
        primary_action a;
        while (successor_->next(a)) {
            if (const auto* x = std::get_if<act_ask>(&a))
                ask(1, x->request, s_);
            else if (const auto* x = std::get_if<act_gate>(&a))
                s_.gate = x->until_ms;
            else if (const auto* x = std::get_if<act_ended>(&a)) {
                say("successor ended: {}", x->why);
                s_.qemu = s_.running = false;
            }
        }
    }

    void ask(int who, const arbiter_request& q, host& h) {
        const bool away = now_ < arbiter_away_until_;
        if (away && chance(0.5)) { // done, and the answer is lost
            decide(record_, who, q, now_);
            say("{} asks {}: done, answer lost", who, to_text(q.what));
        }
        if (away) {
            h.answers.put(now_ + 5 + below(60),
                          {arbiter_answer::verdict::unreachable, q.number, 0, 0, "away"});
            return;
        }
        auto a = decide(record_, who, q, now_);
        if (q.what != arbiter_request::kind::renew)
            say("{} asks {} term {}: {}", who, to_text(q.what), q.term, to_text(a.what));
        h.answers.put(now_ + below(6), a);
    }

    // Output leaves: of a VM that runs, on a host that is awake, through an open gate.
    void speak() {
        const bool p = p_.running && p_.up(now_) && now_ < p_.gate && !p_.dead;
        const bool s = s_.running && s_.up(now_) && now_ < s_.gate && successor_;
        if (s) {
            standby_has_spoken_ = true;
            EXPECT_FALSE(alone_output_)
                << "the standby speaks, and does not have what the primary said alone";
        }
        if (p) {
            EXPECT_FALSE(standby_has_spoken_) << "two speakers at " << now_;
            if (!replicating_ && alone_since_pair_)
                alone_output_ = true;
        }
    }

    std::mt19937_64 random_;
    bool verbose_;
    unsigned faults_ = 0, takeovers_ = 0;
    std::uint64_t now_ = 0;
    host p_, s_;
    std::optional<primary_fsm> primary_, successor_;
    std::optional<standby_fsm> standby_;
    record record_;
    bool connected_ = false;
    std::uint64_t partition_until_ = 0, arbiter_away_until_ = 0;
    std::optional<std::uint64_t> connecting_, standby_qemu_ready_at_, take_over_at_, stream_broken_since_;
    bool replicating_ = false, first_checkpoint_ = false, lost_told_ = false, valid_copy_ = false;
    std::uint64_t replicated_at_ = 0;
    bool was_protected_ = false, faulted_ = false, must_survive_ = false;
    bool copy_lost_ = false, copy_lost_told_ = false, gpu_cut_ = false;
    unsigned takeovers_without_gpu_ = 0;
    bool gpu_failed_ = false, gpu_failure_told_ = false, must_not_tell_ = false;
    bool paired_ = false, alone_since_pair_ = true, alone_output_ = false, standby_has_spoken_ = false;
};

TEST(ha_simulation, never_two_speakers_and_nothing_taken_back) {
    if (const char* one = std::getenv("KAGEMUSHA_HA_SEED")) {
        world w(std::strtoull(one, nullptr, 10), true);
        w.run();
        return;
    }
    unsigned takeovers = 0, without_gpu = 0, protected_ones = 0;
    for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
        world w(seed, false);
        w.run();
        takeovers += w.takeovers();
        without_gpu += w.takeovers_without_gpu();
        protected_ones += w.was_protected();
        ASSERT_FALSE(testing::Test::HasFailure()) << "KAGEMUSHA_HA_SEED=" << seed << " shows the schedule";
    }
    // The schedules reach what they are for.
    EXPECT_GT(protected_ones, 3000u);
    EXPECT_GT(takeovers, 1000u);
    EXPECT_GT(without_gpu, 10u);
}

} // namespace
} // namespace kagemusha::ha
