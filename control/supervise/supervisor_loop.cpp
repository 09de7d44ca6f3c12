// SPDX-License-Identifier: GPL-2.0-or-later
//
// See supervisor_loop.hpp.
#include "control/supervise/supervisor_loop.hpp"

#include "control/supervise/urgent_thread.hpp"
#include "control/vm/takeover_queue.hpp"
#include "net/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

namespace kagemusha::control {

using namespace ha;

// Lives on the thread, apart from post(). One of the two state machines is there at a time.
struct supervisor_loop::work {
    explicit work(supervisor_loop& owner) : owner_(owner) {}

    // ---- the connection

    // One connection. Only the present one is listened to; one that was given up still says its last words.
    struct line final : net::link_sink {
        explicit line(work& w) : work_(w) {}
        bool is_present() const { return work_.line_ == this; }
        void on_connected(const std::string& peer) override {
            if (is_present())
                work_.connected(peer);
        }
        net::receive_buffers on_payload(const mirror::message&, std::uint64_t) override {
            return {};
        } // none has any
        void on_message(const mirror::message& m) override {
            if (is_present())
                work_.arrived(m);
        }
        void on_sent(std::uint64_t) override {}
        void on_closed(const std::string& why) override {
            closed = true;
            if (is_present())
                work_.closed(why);
            work_.loop_.post([&w = work_] { w.forget_closed(); });
        }
        work& work_;
        std::unique_ptr<net::link> link;
        bool closed = false;
    };

    void connected(const std::string& peer) {
        set_peer(peer);
        if (primary_)
            primary_->on_link_up(boot_ms());
        settle();
    }
    void arrived(const mirror::message& m) {
        if (standby_)
            standby_->on_message(m, boot_ms());
        else if (primary_)
            primary_->on_message(m, boot_ms());
        settle();
    }
    void closed(const std::string& why) {
        line_ = nullptr;
        set_peer({});
        if (standby_)
            standby_->on_link_closed(why, boot_ms());
        else if (primary_)
            primary_->on_link_closed(why, boot_ms());
        settle();
    }
    void forget_closed() {
        std::erase_if(lines_, [](const auto& l) { return l->closed; });
    }
    // What was sent still goes out (for a bounded time); nobody waits for it.
    void close_link() {
        if (line_)
            std::exchange(line_, nullptr)->link->finish();
        if (lines_.size() > most_lines)
            lines_.erase(lines_.begin());
        set_peer({});
    }
    void send(const mirror::message& m) {
        if (line_)
            line_->link->send(m);
    }

    net::link_options link_options(const std::string& address) const {
        net::link_options options;
        options.address = address;
        if (!owner_.options_.tls.empty())
            options.tls = {net::keys_directory(owner_.options_.tls, owner_.options_.primary.vm,
                                               net::link_part::supervisor),
                           owner_.options_.primary.vm, net::link_part::supervisor};
        options.connect_timeout_ms = 1000;
        return options;
    }

    void connect(const std::string& address) {
        lines_.push_back(std::make_unique<line>(*this));
        line_ = lines_.back().get();
        line_->link = net::connect(loop_, link_options(address), *line_);
    }

    std::string listen() {
        std::string error;
        listener_ = net::listen(
            loop_, link_options(owner_.options_.standby_address),
            [this](std::unique_ptr<net::link> link, const std::string& peer) -> net::link_sink* {
                if (!standby_ || line_)
                    return nullptr; // one at a time
                lines_.push_back(std::make_unique<line>(*this));
                line_ = lines_.back().get();
                line_->link = std::move(link);
                set_peer(peer);
                standby_->on_link_up(boot_ms());
                return line_;
            },
            [this](const std::string& text) { owner_.orders_.event("link", text); }, error);
        return error;
    }

    // ---- the state machines

    // Carries out what was decided, then sets the timer.
    void settle() {
        if (settling_)
            return; // the outer one goes on
        settling_ = true;
        bool more = true;
        while (more) {
            more = false;
            standby_action s;
            while (standby_ && standby_->next(s)) {
                std::visit([this](auto& action) { carry_out(action); }, s);
                more = true;
            }
            if (successor_) {
                primary_ = std::move(successor_);
                successor_.reset();
                standby_.reset();
                listener_.reset();
            }
            primary_action p;
            while (primary_ && primary_->next(p)) {
                std::visit([this](auto& action) { carry_out(action); }, p);
                more = true;
            }
        }
        settling_ = false;
        publish();
        show_phase();
        const auto at = standby_ ? standby_->deadline() : primary_ ? primary_->deadline() : UINT64_MAX;
        if (at == UINT64_MAX)
            return;
        const auto now = boot_ms();
        // Most events move the deadline on. A tick that comes before it costs less than a timer for each.
        if (at >= tick_ms_ && at > now)
            return;
        tick_ms_ = at;
        // The loop's clock is another one (it stands still while the machine sleeps).
        loop_.call_at(net::event_loop::now_ms() + (at > now ? at - now : 0), [this] {
            tick_ms_ = UINT64_MAX;
            tick();
        });
    }

    void tick() {
        const auto now = boot_ms();
        if (standby_)
            standby_->on_tick(now);
        else if (primary_)
            primary_->on_tick(now);
        settle();
    }

    void carry_out(act_state& a) { say(to_text(a.state), a.why); }
    void carry_out(act_ask& a) { arbiter_->ask(a.request); }
    void carry_out(act_gate& a) {
        owner_.gate_.set_until_ms(a.until_ms);
        const std::lock_guard lock(owner_.mutex_);
        owner_.gate_until_ = a.until_ms;
        auto& s = owner_.status_;
        if (const auto now = boot_ns();
            s.decided_ns != 0 && s.gate_opened_ns == 0 && a.until_ms > now / 1'000'000)
            s.gate_opened_ns = now;
    }
    void carry_out(act_connect& a) { connect(a.address); }
    void carry_out(act_close_link&) { close_link(); }
    void carry_out(act_send& a) { send(a.what); }
    void carry_out(act_start_qemu&) { owner_.orders_.start_primary(); }
    void carry_out(act_replicate& a) { owner_.orders_.replicate(a.replication, a.replica, a.page_changes); }
    void carry_out(act_mark& a) { owner_.orders_.mark(a.mark, a.flush); }
    void carry_out(act_go_on_alone&) { owner_.orders_.go_on_alone(); }
    void carry_out(act_report_gpu_failure& a) {
        if (!a.why.empty())
            say("gpu-failure-told", a.why);
        owner_.orders_.report_gpu_failure();
    }
    void carry_out(act_kill_qemu& a) { owner_.orders_.kill(a.why); }
    void carry_out(act_ended& a) { owner_.orders_.ended(a.in_order, a.why); }

    void carry_out(act_standby_state& a) { say(to_text(a.state), a.why); }
    void carry_out(act_standby_ask& a) { arbiter_->ask(a.request); }
    void carry_out(act_standby_send& a) { send(a.what); }
    void carry_out(act_standby_close_link&) { close_link(); }
    void carry_out(act_take_over& a) {
        {
            const std::lock_guard lock(owner_.mutex_);
            owner_.status_.last_takeover = a.why;
            owner_.status_.decided_ns = boot_ns();
            owner_.status_.gate_opened_ns = 0;
        }
        owner_.orders_.event("takeover", a.why);
        if (queue_)
            queue_->enter(takeover_phase::taking_over);
        waited_for_.clear();
        begin_takeover(boot_ns());
    }
    // In its turn among this host's takeovers (control/ha/takeover_order.hpp).
    void begin_takeover(std::uint64_t decided_ns) {
        if (!standby_ || standby_->state() != standby_state::taking_over)
            return; // it was taken back meanwhile
        const auto now = boot_ns();
        const auto turn = queue_ ? queue_->turn(decided_ns, now) : takeover_turn{};
        if (!turn.begins) {
            waited_for_ = turn.for_whom;
            loop_.call_at(net::event_loop::now_ms() + 1, [this, decided_ns] { begin_takeover(decided_ns); });
            return;
        }
        if (turn.gave_up)
            say("takeover-order",
                fmt::format("waits no longer for takeovers of a higher priority ({})", turn.for_whom));
        else if (!waited_for_.empty())
            say("takeover-order",
                fmt::format("began {:.1f} ms later, after takeovers of a higher priority ({})",
                            static_cast<double>(now - decided_ns) / 1e6, waited_for_));
        owner_.orders_.take_over();
    }
    // What the other standbys of this host see of this one.
    void show_phase() {
        if (!queue_)
            return;
        if (!standby_)
            return queue_->enter(takeover_phase::runs);
        queue_->heard(standby_->last_heard() * 1'000'000);
        switch (standby_->state()) {
        case standby_state::synced:
        case standby_state::claiming:
            return queue_->enter(takeover_phase::standing_by);
        case standby_state::taking_over:
            return; // entered when it was decided; `runs` when QEMU does
        default:
            return queue_->enter(takeover_phase::none);
        }
    }
    void carry_out(act_standby_mark& a) { owner_.orders_.mark(a.mark, a.flush); }
    void carry_out(act_restart_qemu& a) { owner_.orders_.restart_standby(a.why, a.qemu); }
    void carry_out(act_standby_use_files& a) { owner_.orders_.use_files(std::move(a.parts)); }
    void carry_out(act_running& a) {
        {
            const std::lock_guard lock(owner_.mutex_);
            ++owner_.status_.takeovers;
        }
        auto config = owner_.options_.primary;
        config.mark = a.mark;
        config.description = a.description;
        config.parts = a.parts;
        config.has_standby = false; // its address was our own; `kage protect` gives another
        config.standby_address.clear();
        successor_.emplace(std::move(config));
        successor_->start_after_takeover(a.term, a.lease_until, boot_ms(), a.gpu_failed);
    }
    void carry_out(act_standby_ended& a) { owner_.orders_.ended(a.in_order, a.why); }

    void say(const char* state, const std::string& why) { owner_.orders_.event(state, why); }
    void set_peer(const std::string& peer) {
        const std::lock_guard lock(owner_.mutex_);
        owner_.status_.peer = peer;
    }
    bool is_unprotected() const {
        if (!primary_ || owner_.options_.arbiter.what == described_arbiter::kind::none)
            return false;
        switch (primary_->state()) {
        case primary_state::protecting:
        case primary_state::handing_over: // it has the VM, or gives it back
        case primary_state::leaving:
        case primary_state::ended:
            return false;
        default:
            return true;
        }
    }
    void publish() {
        const auto* const peer = standby_ ? &standby_->peer() : primary_ ? &primary_->peer() : nullptr;
        if (peer && !peer->differences().empty() && peer->differences() != reported_differences_)
            owner_.orders_.event("peer-differs", reported_differences_ = peer->differences());
        const std::lock_guard lock(owner_.mutex_);
        auto& s = owner_.status_;
        s.peer_differences = peer ? peer->differences() : "";
        s.protocol_version = peer ? peer->version() : 0;
        s.role = standby_ ? "standby" : "primary";
        s.state = standby_ ? to_text(standby_->state()) : primary_ ? to_text(primary_->state()) : "";
        s.term = standby_ ? standby_->term() : primary_ ? primary_->term() : 0;
        s.waiting_for = standby_ ? standby_->waiting_for() : primary_ ? primary_->waiting_for(boot_ms()) : "";
        s.degraded = primary_ ? primary_->degraded() : "";
        s.standby_problem = primary_ ? primary_->standby_problem() : "";
        if (!is_unprotected())
            owner_.unprotected_since_ms_ = 0;
        else if (owner_.unprotected_since_ms_ == 0)
            owner_.unprotected_since_ms_ = boot_ms();
    }

    supervisor_loop& owner_;
    net::event_loop loop_;
    std::unique_ptr<arbiter> arbiter_;
    static constexpr std::size_t most_lines = 4; // with those that say their last words
    std::vector<std::unique_ptr<line>> lines_;
    line* line_ = nullptr; // the present one
    std::unique_ptr<net::listener> listener_;
    std::optional<primary_fsm> primary_, successor_;
    std::optional<standby_fsm> standby_;
    std::optional<takeover_queue> queue_; // of a standby, and of what became of it
    std::string waited_for_;              // by the takeover that is under way
    std::string reported_differences_;
    bool settling_ = false;
    std::uint64_t tick_ms_ = UINT64_MAX; // when the timer ends
};

supervisor_loop::supervisor_loop(supervisor_loop_options options, supervisor_loop_orders orders, gate& output)
    : options_(std::move(options)), orders_(std::move(orders)), gate_(output) {}

std::string supervisor_loop::start(bool as_standby) {
    work_ = std::make_unique<work>(*this);
    std::string error;
    work_->arbiter_ = make_arbiter(
        options_.arbiter, options_.identity,
        [w = work_.get()](arbiter_answer answer) {
            w->loop_.post([w, answer = std::move(answer)] {
                const auto now = boot_ms();
                if (w->standby_)
                    w->standby_->on_arbiter(answer, now);
                else if (w->primary_)
                    w->primary_->on_arbiter(answer, now);
                w->settle();
            });
        },
        error);
    if (!work_->arbiter_)
        return error;
    if (as_standby) {
        work_->standby_.emplace(options_.standby);
        if (error = work_->listen(); !error.empty())
            return error;
        std::string alone;
        work_->queue_.emplace(options_.runtime_directory, options_.name, options_.takeover_priority,
                              options_.primary.heartbeat_ms, alone);
        if (!alone.empty())
            orders_.event("takeover-order",
                          alone + ": takeovers here do not wait for others, nor others for it");
    } else {
        work_->primary_.emplace(options_.primary);
    }
    // Signals are the main thread's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([this] {
        if (const std::string missing = become_urgent().complaint(); !missing.empty())
            orders_.event("priority", missing);
        work_->loop_.run();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return {};
}

std::string supervisor_loop::start_primary() {
    auto error = start(false);
    if (error.empty())
        work_->loop_.post([w = work_.get()] {
            w->primary_->start(boot_ms());
            w->settle();
        });
    return error;
}

std::string supervisor_loop::start_standby() {
    auto error = start(true);
    if (error.empty())
        work_->loop_.post([w = work_.get()] {
            w->owner_.orders_.start_standby();
            w->settle();
        });
    return error;
}

supervisor_loop::~supervisor_loop() {
    if (!thread_.joinable())
        return;
    // What the last decision asked of the arbiter is still done.
    work_->loop_.post([w = work_.get()] {
        w->arbiter_.reset();
        w->primary_.reset();
        w->standby_.reset();
        w->loop_.stop();
    });
    thread_.join();
    work_->line_ = nullptr;
    work_->lines_.clear();
    work_->listener_.reset();
}

void supervisor_loop::qemu_ready(std::uint64_t qemu, const std::string& replica) {
    work_->loop_.post([w = work_.get(), qemu, replica] {
        if (w->standby_)
            w->standby_->on_qemu_ready(qemu, boot_ms(), replica);
        w->settle();
    });
}

void supervisor_loop::files_ready(const std::string& problem) {
    work_->loop_.post([w = work_.get(), problem] {
        if (w->standby_)
            w->standby_->on_files_ready(problem);
        w->settle();
    });
}

void supervisor_loop::qemu_running() {
    work_->loop_.post([w = work_.get()] {
        if (w->standby_) {
            if (w->queue_)
                w->queue_->enter(takeover_phase::runs);
            w->standby_->on_qemu_running(boot_ms());
        }
        w->settle();
    });
}

void supervisor_loop::takeover_failed(const std::string& why) {
    work_->loop_.post([w = work_.get(), why] {
        if (w->standby_)
            w->standby_->on_takeover_failed(why, boot_ms());
        w->settle();
    });
}

void supervisor_loop::qemu_protecting(std::uint64_t replication) {
    work_->loop_.post([w = work_.get(), replication] {
        if (w->primary_)
            w->primary_->on_qemu_protecting(replication, boot_ms());
        w->settle();
    });
}

void supervisor_loop::marked(const std::string& problem) {
    work_->loop_.post([w = work_.get(), problem] {
        if (w->standby_)
            w->standby_->on_marked(problem, boot_ms());
        else if (w->primary_)
            w->primary_->on_marked(problem, boot_ms());
        w->settle();
    });
}

void supervisor_loop::cancel_switchover() {
    work_->loop_.post([w = work_.get()] {
        if (w->primary_)
            w->primary_->on_cancel_switchover(boot_ms());
        w->settle();
    });
}

void supervisor_loop::qemu_handed_over(std::uint64_t replication) {
    work_->loop_.post([w = work_.get(), replication] {
        if (w->primary_)
            w->primary_->on_qemu_handed_over(replication, boot_ms());
        w->settle();
    });
}

void supervisor_loop::replication_lost(std::uint64_t replication, const std::string& why) {
    work_->loop_.post([w = work_.get(), replication, why] {
        if (w->primary_)
            w->primary_->on_qemu_replication_lost(replication, why, boot_ms());
        w->settle();
    });
}

void supervisor_loop::qemu_stuck(const std::string& why) {
    work_->loop_.post([w = work_.get(), why] {
        if (w->standby_)
            w->standby_->on_qemu_stuck(why, boot_ms());
        else if (w->primary_)
            w->primary_->on_qemu_stuck(why, boot_ms());
        w->settle();
    });
}

void supervisor_loop::gpu_failed(const std::string& why) {
    work_->loop_.post([w = work_.get(), why] {
        if (w->primary_)
            w->primary_->on_gpu_failed(why, boot_ms());
        w->settle();
    });
}

void supervisor_loop::gpu_lost(const std::string& why) {
    work_->loop_.post([w = work_.get(), why] {
        if (w->standby_)
            w->standby_->on_gpu_lost(why, boot_ms());
        w->settle();
    });
}

void supervisor_loop::qemu_died(const std::string& how, bool in_order, std::uint64_t qemu) {
    work_->loop_.post([w = work_.get(), how, in_order, qemu] {
        if (w->standby_)
            w->standby_->on_qemu_died(how, qemu, boot_ms());
        else if (w->primary_)
            w->primary_->on_qemu_died(how, in_order, boot_ms());
        w->settle();
    });
}

// As one that stands still: the state machine knows whether it may be.
void supervisor_loop::drill() {
    qemu_stuck("somebody wanted a drill");
}

void supervisor_loop::stop() {
    work_->loop_.post([w = work_.get()] {
        if (w->standby_)
            w->standby_->on_stop(boot_ms());
        else if (w->primary_)
            w->primary_->on_stop(boot_ms());
        w->settle();
    });
}

void supervisor_loop::protect(const std::string& standby_address) {
    work_->loop_.post([w = work_.get(), standby_address] {
        if (w->primary_)
            w->primary_->on_protect(standby_address, boot_ms());
        w->settle();
    });
}

supervisor_loop_status supervisor_loop::status() const {
    const std::lock_guard lock(mutex_);
    auto status = status_;
    const auto now = boot_ms();
    status.unprotected_ms = unprotected_since_ms_ != 0 ? now - unprotected_since_ms_ : 0;
    const auto most = static_cast<std::uint64_t>(INT64_MAX);
    status.gate_open_ms = gate_until_ >= now ? static_cast<std::int64_t>(std::min(gate_until_ - now, most))
                                             : -static_cast<std::int64_t>(now - gate_until_);
    return status;
}

} // namespace kagemusha::control
