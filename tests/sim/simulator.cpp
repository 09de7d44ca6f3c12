// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/simulator.hpp"

#include <algorithm>
#include <cstdio>

#include "sim/primary_host.hpp"
#include "sim/standby_host.hpp"

namespace kagemusha::sim {

void statistics::add(const statistics& s) {
    const auto* from = reinterpret_cast<const std::uint64_t*>(&s);
    auto* to = reinterpret_cast<std::uint64_t*>(this);
    static_assert(sizeof(statistics) % sizeof(std::uint64_t) == 0);
    for (std::size_t i = 0; i < sizeof(statistics) / sizeof(std::uint64_t); ++i)
        to[i] += from[i];
}

std::string statistics::text() const {
    char line[600];
    std::snprintf(
        line, sizeof(line),
        "%llu schedules, %llu steps: %llu entries, %llu run, %llu skipped; %llu connections, %llu state "
        "transfers, %llu cuts, %llu takeovers, %llu restarts, %llu duplicates, %llu faults; %llu "
        "comparisons, "
        "%llu differences; %llu times congested; %llu in-flight requests, %llu resumed",
        static_cast<unsigned long long>(schedules), static_cast<unsigned long long>(steps),
        static_cast<unsigned long long>(entries), static_cast<unsigned long long>(runs),
        static_cast<unsigned long long>(skips), static_cast<unsigned long long>(connections),
        static_cast<unsigned long long>(syncs), static_cast<unsigned long long>(cuts),
        static_cast<unsigned long long>(takeovers), static_cast<unsigned long long>(restarts),
        static_cast<unsigned long long>(duplicates), static_cast<unsigned long long>(faults),
        static_cast<unsigned long long>(comparisons), static_cast<unsigned long long>(differences),
        static_cast<unsigned long long>(congestions), static_cast<unsigned long long>(requests),
        static_cast<unsigned long long>(resumed));
    return line;
}

namespace {

constexpr std::uint64_t start_ms = 1000;
// Enough for the longest way back: every delay between attempts, then everything again.
constexpr std::uint64_t most_rounds = 20000;

} // namespace

struct simulator::impl {
    const options o;
    rng random;
    world w;
    statistics* st = nullptr;
    std::unique_ptr<primary_host> p;
    std::unique_ptr<standby_host> s;
    std::uint64_t processes = 0;

    impl(const options& options, bool trace)
        : o(options), random(mixed(options.seed, 2)), w{.o = o, .random = random} {
        w.trace = trace;
        w.now = start_ms;
        start_primary();
        start_standby();
    }

    void start_primary() { p = std::make_unique<primary_host>(w, mixed(o.seed, 100 + ++processes)); }
    void start_standby() { s = std::make_unique<standby_host>(w, mixed(o.seed, 100 + ++processes)); }

    // ---- steps; each says whether it did anything

    bool connect_step() {
        if (!p || !p->connecting)
            return false;
        if (w.link.to_standby.open || (w.faults && random.chance(o.late_connect))) {
            p->on_closed("nobody listens");
            return true;
        }
        w.say("network", "connected");
        w.link.connect();
        ++w.st.connections;
        p->on_connected();
        s->on_connected();
        return true;
    }

    enum class delivery : std::uint8_t { none, ended, whole };

    // The next frame of a direction to its end; a broken network may bring it twice.
    template <class Host>
    delivery deliver(direction& d, Host* to) {
        if (!d.open || d.frames.empty() || !to)
            return delivery::none;
        if (d.stalled != 0 && w.faults) {
            --d.stalled;
            return delivery::none;
        }
        frame f = d.pop(o.lanes && d.second_may_overtake() && random.chance(3000) ? 1 : 0);
        if (w.faults && random.chance(o.duplicate) && !f.end) {
            ++w.st.duplicates;
            to->on_frame(f);
            if (!d.open)
                return delivery::ended;
        }
        to->on_frame(f);
        return delivery::whole;
    }

    bool to_standby_step() {
        direction& d = w.link.to_standby;
        const delivery was = deliver(d, s.get());
        if (was == delivery::whole && p && w.link.whole)
            p->on_sent(d.bytes);
        return was != delivery::none;
    }

    bool to_primary_step() { return deliver(w.link.to_primary, p.get()) != delivery::none; }

    void advance(std::uint64_t ms) {
        w.now += ms;
        if (p)
            p->on_time();
        s->on_time();
    }

    void cut(bool silent) {
        if (w.link.whole) {
            w.say("network", silent ? "cut, and nobody is told" : "cut");
            ++w.st.cuts;
            w.link.cut(random, silent);
        }
    }

    // A process dies: its socket is closed by its kernel, unless the host died with it.
    void restart_primary() {
        w.say("primary", "dies, and another one starts");
        ++w.st.restarts;
        cut(random.chance(5000));
        w.link.to_primary.open = false;
        start_primary();
    }

    void restart_standby() {
        w.say("standby", "dies, and another one starts");
        ++w.st.restarts;
        cut(random.chance(5000));
        w.link.to_standby.open = false;
        start_standby();
    }

    void fault_step() {
        if (random.chance(o.cut))
            cut(false);
        if (random.chance(o.silent_cut))
            cut(true);
        if (random.chance(o.stall))
            (random.chance(5000) ? w.link.to_standby : w.link.to_primary).stalled = random.between(1, 40);
        if (p && random.chance(o.switch_epochs))
            p->switch_epochs();
        if (random.chance(o.restart_standby))
            restart_standby();
        if (random.chance(o.restart_primary))
            restart_primary();
        if (random.chance(o.standby_fault) && s->lose_worker())
            ++w.st.faults;
    }

    // ---- first part: anything happens

    void random_part() {
        w.faults = true;
        const std::uint32_t weights[] = {o.weight_guest,
                                         o.weight_device,
                                         o.weight_device,
                                         o.weight_network,
                                         o.weight_network,
                                         o.weight_network,
                                         o.weight_gpu,
                                         o.weight_gpu,
                                         o.weight_gpu,
                                         o.weight_time,
                                         1};
        std::uint32_t sum = 0;
        for (const std::uint32_t weight : weights)
            sum += weight;
        std::uint32_t guest_steps = 0;
        const std::uint64_t most_steps = 200 + std::uint64_t{o.guest_steps} * 60;
        for (std::uint64_t step = 1; step <= most_steps && guest_steps < o.guest_steps && w.ok(); ++step) {
            ++w.st.steps;
            if (o.kill_at != 0 && step == o.kill_at)
                return;
            std::uint32_t drawn = random.below(sum);
            std::uint32_t which = 0;
            while (drawn >= weights[which])
                drawn -= weights[which++];
            switch (which) {
            case 0:
                guest_steps += p->guest_step();
                break;
            case 1:
                p->device_step();
                break;
            case 2:
                p->reported_step();
                break;
            case 3:
                connect_step();
                to_standby_step();
                break;
            case 4:
                to_standby_step();
                break;
            case 5:
                to_primary_step();
                break;
            case 6:
                s->device_step();
                break;
            case 7:
                s->completion_step();
                break;
            case 8:
                s->reported_step();
                break;
            case 9:
                advance(random.below(o.time_step_ms + 1));
                break;
            default:
                checkpoint_step(random.chance(5000));
                break;
            }
            fault_step();
        }
    }

    // Where checkpoints commit epochs: one is taken, or applied.
    bool checkpoint_step(bool take) {
        if (o.epoch_ms != 0 && o.switch_epochs == 0)
            return false;
        return take ? p && p->take_checkpoint(s->has_open_requests()) : s->apply_checkpoint();
    }

    // ---- second part: everybody is served, and it must come to rest

    bool round() {
        bool any = connect_step();
        if (p) {
            any |= p->command_step();
            p->settle();
            for (int i = 0; i < 8; ++i)
                any |= p->work();
            while (p->reported_step())
                any = true;
        }
        while (w.ok() && to_standby_step())
            any = true;
        while (s->device_step())
            any = true;
        while (s->completion_step())
            any = true;
        while (s->reported_step())
            any = true;
        while (w.ok() && to_primary_step())
            any = true;
        any |= checkpoint_step(false);
        return any;
    }

    void come_to_rest() {
        w.faults = w.guest_waits = false;
        if (!w.link.whole) // a cable that is plugged in again does not bring back what was cut
            w.link.to_standby.stalled = w.link.to_primary.stalled = 0;
        std::uint64_t compared = UINT64_MAX;
        for (std::uint64_t i = 0; i < most_rounds && w.ok(); ++i) {
            ++w.st.steps;
            if (round()) {
                advance(1);
                continue;
            }
            if (at_rest()) {
                // Compared once more, until nothing differs.
                if (o.digests && compared != 0) {
                    if (compared == UINT64_MAX || p->device.take_differences() != 0) {
                        compared = 1;
                        p->device.take_digests();
                    } else {
                        compared = 0;
                    }
                    continue;
                }
                final_checks();
                return;
            }
            if (checkpoint_step(true)) {
                advance(1);
                continue;
            }
            const std::uint64_t next = std::min(p->next_tick(), s->next_tick());
            advance(next == UINT64_MAX || next <= w.now ? 1 : next - w.now);
        }
        if (w.ok()) {
            w.fail("no progress: nothing is broken, and it does not come to rest. " + p->text() + "; " +
                   s->text());
        }
    }

    bool at_rest() const {
        // A connection that is dead without anybody knowing is no rest.
        return w.link.whole && p->at_rest() && s->at_rest() && s->executed() == p->appended() &&
               w.link.to_standby.frames.empty() && w.link.to_primary.frames.empty();
    }

    void final_checks() {
        w.check("run", w.runs.all_done());
        w.check("state", difference(p->device.gpu(), s->gpu));
        w.check("baseline", p->leftover());
        w.check("baseline", s->leftover());
    }

    // ---- or: the primary dies

    void takeover() {
        ++w.st.takeovers;
        w.faults = false;
        cut(false);
        p.reset();
        w.say("primary", "dies");
        const std::uint32_t more = random.below(20);
        for (std::uint32_t i = 0; i < more; ++i) {
            to_standby_step();
            s->device_step();
            s->completion_step();
            s->reported_step();
            checkpoint_step(false);
        }
        const bool must_work = w.runs.complete_copy() && !s->faulty;
        s->takeover();
        if (s->state() == mirror::standby_state::taken_over) {
            for (std::uint64_t i = 0; i < most_rounds && w.ok(); ++i)
                if (!s->device_step() && !s->completion_step() && !s->reported_step())
                    break;
            if (w.ok() && !s->faulty)
                w.check("run", w.runs.all_resumed());
            if (w.ok() && !s->faulty && !s->live)
                w.fail("run: after a takeover the guest is never served again");
            if (w.ok() && !o.nondeterminism && !s->faulty)
                w.check("state", after_takeover(w.runs, s->gpu));
            w.check("baseline", s->leftover_after_takeover());
        } else if (must_work) {
            w.fail("the standby has a complete copy and does not take over");
        }
    }

    void run(statistics& total) {
        random_part();
        if (w.ok() && (o.ends_with_takeover || o.kill_at != 0))
            takeover();
        else if (w.ok())
            come_to_rest();
        ++w.st.schedules;
        total.add(w.st);
    }
};

simulator::simulator(const options& o, bool trace) : impl_(std::make_unique<impl>(o, trace)) {}
simulator::~simulator() = default;

outcome_of_schedule simulator::run(statistics& s) {
    impl_->run(s);
    return {impl_->w.failure, impl_->w.st.steps};
}

} // namespace kagemusha::sim
