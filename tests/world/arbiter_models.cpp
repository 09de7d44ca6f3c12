// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/arbiter_models.hpp"

#include <optional>

#include "control/arbiter/fence_fsm.hpp"
#include "world/world.hpp"

namespace kagemusha::world {

using ha::arbiter_answer;
using ha::arbiter_request;
using kind = arbiter_request::kind;
using verdict = arbiter_answer::verdict;

namespace {

arbiter_answer make(verdict what, const arbiter_request& q, std::uint64_t term, std::uint64_t until_ms,
                    const char* why) {
    return {what, q.number, term, until_ms, why};
}

// ---- lock

class lock_model final : public arbiter_model {
public:
    using arbiter_model::arbiter_model;

    void ask(std::uint8_t host, const arbiter_request& q) override {
        auto& h = *w_.hosts[host];
        const auto a = decide(q, h.clock_ms(), h.process.identity());
        if (q.what != kind::renew || a.what != verdict::granted)
            w_.say(host, "asks {} term {}: {}", ha::to_text(q.what), q.term, ha::to_text(a.what));
        answer(host, h.process.generation(), w_.now() + w_.below(1000), a);
    }
    void rebooted() override {
        term_ = until_ms_ = owner_ = 0;
        paired_ = false;
    }

private:
    arbiter_answer decide(const arbiter_request& q, std::uint64_t now, std::uint64_t asker) {
        if (term_ == 0 && q.what != kind::open && q.what != kind::restore)
            return make(verdict::gone, q, 0, 0, "there is no record");
        const bool free = now >= until_ms_;
        const auto other_term = [&] { return make(verdict::refused, q, 0, 0, "that term is over"); };
        const auto held = [&] {
            return make(verdict::held, q, 0, until_ms_, "the primary's lease is valid");
        };
        auto term = term_, until = now + w_.o.lease_ms;
        auto paired = paired_;
        switch (q.what) {
        case kind::open:
            if (!free)
                return held();
            if (paired_ && !q.anew)
                return make(verdict::refused, q, 0, 0, "a standby may take it over");
            term = term_ + 1;
            paired = false;
            break;
        case kind::claim:
            if (term_ != q.term && !w_.broken(mutation::grants_old_terms))
                return other_term();
            if (!paired_ && !(q.proven_dead && q.unreleased) && !w_.broken(mutation::grants_old_terms))
                return make(verdict::refused, q, 0, 0, "the primary goes on alone");
            if (!free && !q.proven_dead && !w_.broken(mutation::ignores_lease))
                return held();
            term = term_ + 1;
            paired = false;
            break;
        case kind::pair:
            if (term_ != q.term && (term_ != q.new_term || !paired_))
                return other_term();
            term = q.new_term;
            paired = true;
            break;
        case kind::look: {
            auto a = make(verdict::granted, q, term_, 0, "");
            a.paired = paired_;
            a.ours = owner_ == asker;
            return a;
        }
        case kind::restore:
            if (term_ > q.term || (term_ == q.term && (owner_ != asker || paired_ != q.paired)))
                return other_term();
            if (term_ < q.term && !free)
                return held();
            term = q.term;
            paired = q.paired;
            break;
        case kind::renew:
        case kind::alone:
        case kind::release:
            if (term_ != q.term)
                return other_term();
            if (q.what == kind::alone && !w_.broken(mutation::forgets_alone))
                paired = false;
            if (q.what == kind::release)
                until = std::min(until_ms_, now);
            break;
        }
        if (term_ != term)
            owner_ = asker;
        term_ = term;
        until_ms_ = until;
        paired_ = paired;
        return make(verdict::granted, q, term, until, "");
    }

    std::uint64_t term_ = 0, until_ms_ = 0, owner_ = 0;
    bool paired_ = false;
};

// ---- etcd

class etcd_model final : public arbiter_model {
public:
    using arbiter_model::arbiter_model;

    void ask(std::uint8_t host, const arbiter_request& q) override {
        auto& c = clients_[host];
        auto& p = w_.hosts[host]->process;
        if (c.identity != p.identity()) { // another process
            c = {};
            c.identity = p.identity();
            c.epoch = ++epochs_;
        }
        c.generation = p.generation();
        c.requests.push_back(q);
        if (c.requests.size() == 1)
            begin(host);
    }

    void client_ended(std::uint8_t host) override { clients_[host] = {}; }

    void happen(const event& e) override {
        auto& c = clients_[e.host];
        if (e.generation != c.epoch || c.requests.empty())
            return;
        if (w_.now() < w_.hosts[e.host]->frozen_until) {
            auto later = e;
            later.at = w_.hosts[e.host]->frozen_until;
            return w_.put(later);
        }
        switch (static_cast<part>(e.arg)) {
        case part::at_server:
            if (cut(e.host))
                return fails(e.host);
            at_server(e.host, c);
            if (cut(e.host) || w_.now() < forgets_until)
                return fails(e.host); // it was done all the same
            return next(e.host, part::back, delay());
        case part::back:
            return back(e.host, c);
        case part::failed:
            c.lease = c.trip == trip::put ? 0 : c.lease;
            return done(e.host,
                        make(verdict::unreachable, c.requests.front(), 0, 0, "etcd can't be reached"));
        }
    }

private:
    enum class part : std::uint64_t { at_server, back, failed };
    enum class trip : std::uint8_t { keepalive, read, grant, put, revoke };
    struct record {
        std::uint64_t revision = 0, term = 0, owner = 0;
        bool paired = false;
    };
    struct lease {
        std::uint64_t id;
        time_us until;
    };
    struct client {
        std::uint64_t identity = 0;
        std::uint32_t epoch = 0, generation = 0;
        std::deque<arbiter_request> requests;
        etcd_model::trip trip = etcd_model::trip::read;
        int attempt = 0;
        std::uint64_t sent_ms = 0;
        std::uint64_t lease = 0, lease_until_ms = 0;
        // of this request
        record seen;
        std::uint64_t holder = 0;
        std::uint64_t term = 0;
        bool paired = false, nobody_holds = false, succeeded = false;
    };

    bool cut(std::uint8_t host) const {
        return w_.now() < std::max(away_until, parted_until[host]) || w_.net.cut_off(host);
    }
    time_us delay() {
        auto d =
            w_.o.latency_us + w_.below(w_.o.jitter_us) + (w_.now() < slow_until ? w_.below(400) * ms : 0);
        return d;
    }
    void next(std::uint8_t host, part p, time_us in) {
        w_.put(w_.now() + in, event_kind::etcd_step, host, clients_[host].epoch,
               static_cast<std::uint64_t>(p));
    }
    void fails(std::uint8_t host) { next(host, part::failed, w_.o.lease_ms * ms / 3); }
    void send(std::uint8_t host, trip t) {
        auto& c = clients_[host];
        c.trip = t;
        c.sent_ms = w_.hosts[host]->clock_ms();
        // A member that does not answer: the others are asked a moment later.
        const auto dead = w_.now() < member_dead_until ? 100 * ms : 0;
        next(host, part::at_server, dead + delay());
    }
    std::uint64_t holder() const {
        for (const auto& l : leases_)
            if (l.id == holder_lease_ && w_.now() < l.until)
                return holder_;
        return 0;
    }

    void begin(std::uint8_t host) {
        auto& c = clients_[host];
        c.attempt = 0;
        switch (c.requests.front().what) {
        case kind::renew:
            return send(host, c.lease != 0 ? trip::keepalive : trip::read);
        case kind::release:
            if (c.lease == 0)
                return done(host, make(verdict::granted, c.requests.front(), c.requests.front().term, 0, ""));
            return send(host, trip::revoke);
        default:
            return send(host, trip::read);
        }
    }

    void at_server(std::uint8_t, client& c) {
        const auto until = w_.now() + w_.o.lease_ms * ms;
        c.succeeded = false;
        switch (c.trip) {
        case trip::keepalive:
            for (auto& l : leases_)
                if (l.id == c.lease && w_.now() < l.until) {
                    l.until = until;
                    c.succeeded = true;
                }
            // The record is looked at in the same moment.
            c.lease = c.succeeded ? c.lease : 0;
            c.succeeded =
                c.succeeded && record_.owner == c.identity && record_.term == c.requests.front().term;
            return;
        case trip::read:
            c.seen = record_;
            c.holder = holder();
            return;
        case trip::grant:
            leases_.push_back({++lease_ids_, until});
            c.lease = lease_ids_;
            if (leases_.size() > 64)
                leases_.erase(leases_.begin());
            return;
        case trip::put: {
            bool alive = false;
            for (const auto& l : leases_)
                alive = alive || (l.id == c.lease && w_.now() < l.until);
            if (!alive) {
                c.lease = 0; // the transaction fails as a whole
                return;
            }
            if (record_.revision != c.seen.revision || (c.nobody_holds && holder() != 0))
                return;
            record_ = {record_.revision + 1, c.term, c.identity, c.paired};
            holder_ = c.identity;
            holder_lease_ = c.lease;
            c.succeeded = true;
            return;
        }
        case trip::revoke:
            std::erase_if(leases_, [&](const auto& l) { return l.id == c.lease; });
            return;
        }
    }

    void back(std::uint8_t host, client& c) {
        const auto& q = c.requests.front();
        switch (c.trip) {
        case trip::keepalive:
            if (!c.succeeded)
                return send(host, trip::read);
            c.lease_until_ms = c.sent_ms + w_.o.lease_ms;
            return done(host, make(verdict::granted, q, q.term, c.lease_until_ms, ""));
        case trip::read:
            return look_at_record(host, c);
        case trip::grant:
            c.lease_until_ms = c.sent_ms + w_.o.lease_ms;
            return send(host, trip::put);
        case trip::put:
            if (c.lease == 0)
                return done(host, make(verdict::unreachable, q, 0, 0, "the lease ran out"));
            if (c.succeeded)
                return done(host, make(verdict::granted, q, c.term, c.lease_until_ms, ""));
            if (++c.attempt < 3)
                return send(host, trip::read);
            return done(host, held(host, q));
        case trip::revoke:
            c.lease = 0;
            return done(host, make(verdict::granted, q, q.term, 0, ""));
        }
    }

    arbiter_answer held(std::uint8_t host, const arbiter_request& q) {
        return make(verdict::held, q, 0, w_.hosts[host]->clock_ms() + 100, "another has a lease");
    }

    void look_at_record(std::uint8_t host, client& c) {
        const auto& q = c.requests.front();
        const auto& r = c.seen;
        const bool ours = r.owner == c.identity && r.revision != 0;
        const bool others = c.holder != 0 && c.holder != c.identity;
        const auto refused = [&](const char* why) { done(host, make(verdict::refused, q, 0, 0, why)); };
        c.term = r.term;
        c.paired = r.paired;
        c.nobody_holds = false;
        if (q.what != kind::open && q.what != kind::restore &&
            (r.revision == 0 || (r.term < q.term && c.holder == 0)))
            return done(host, make(verdict::gone, q, 0, 0, "etcd has no record"));
        switch (q.what) {
        case kind::open:
            if (others)
                return done(host, held(host, q));
            if (r.paired && !q.anew)
                return refused("a standby may take it over");
            c.term = r.term + 1;
            c.paired = false;
            c.nobody_holds = c.holder == 0;
            break;
        case kind::claim:
            if (ours && r.term == q.term + 1)
                break; // done before
            if (!w_.broken(mutation::grants_old_terms)) {
                if (r.term != q.term)
                    return refused("that term is over");
                if (!r.paired && !(q.proven_dead && q.unreleased))
                    return refused("the primary goes on alone");
            }
            if (others && !q.proven_dead && !w_.broken(mutation::ignores_lease))
                return done(host, held(host, q));
            c.term = r.term + 1;
            c.paired = false;
            c.nobody_holds = !q.proven_dead && !w_.broken(mutation::ignores_lease);
            break;
        case kind::pair:
            if (!ours || (r.term != q.term && r.term != q.new_term))
                return refused("that term is over");
            c.term = q.new_term;
            c.paired = true;
            break;
        case kind::alone:
        case kind::renew:
            if (!ours || r.term != q.term)
                return refused("that term is over");
            if (q.what == kind::alone && !w_.broken(mutation::forgets_alone))
                c.paired = false;
            break;
        case kind::look: {
            auto a = make(verdict::granted, q, r.term, 0, "");
            a.paired = r.paired;
            a.ours = ours;
            return done(host, a);
        }
        case kind::restore:
            if (r.term > q.term || (r.term == q.term && (!ours || r.paired != q.paired)))
                return refused("that term is over");
            if (others)
                return done(host, held(host, q));
            c.term = q.term;
            c.paired = q.paired;
            c.nobody_holds = c.holder == 0;
            break;
        case kind::release:
            break;
        }
        const bool has_lease =
            c.lease != 0 && c.lease_until_ms > w_.hosts[host]->clock_ms() + w_.o.lease_ms / 2;
        send(host, has_lease ? trip::put : trip::grant);
    }

    void done(std::uint8_t host, const arbiter_answer& a) {
        auto& c = clients_[host];
        const auto q = c.requests.front();
        c.requests.pop_front();
        if (q.what != kind::renew || a.what != verdict::granted)
            w_.say(host, "asks {} term {}: {} {}", ha::to_text(q.what), q.term, ha::to_text(a.what), a.why);
        answer(host, c.generation, w_.now(), a);
        if (!c.requests.empty())
            begin(host);
    }

    record record_;
    std::uint64_t holder_ = 0, holder_lease_ = 0, lease_ids_ = 0;
    std::uint32_t epochs_ = 0;
    std::vector<lease> leases_;
    client clients_[most_hosts];
};

// ---- fence

// The real state machine (control/arbiter/fence_fsm.hpp) of each host, its record on the host's disk, and a
// command that switches the other host off.
class fence_model final : public arbiter_model {
public:
    explicit fence_model(world& w) : arbiter_model(w) {
        keepers_[0].record.is = control::fence_record::role::primary; // where the VM was installed
    }

    void ask(std::uint8_t host, const arbiter_request& q) override {
        auto& k = keepers_[host];
        auto& p = w_.hosts[host]->process;
        if (k.identity != p.identity() || !k.fsm) { // another process
            k.fsm.emplace(rules(), k.record);
            k.identity = p.identity();
            k.requests.clear();
            ++k.number;
        }
        k.generation = p.generation();
        k.requests.push_back(q);
        if (k.requests.size() == 1)
            begin(host);
    }

    void happen(const event& e) override {
        auto& k = keepers_[e.host];
        if (e.generation != k.number || !k.fsm || k.requests.empty())
            return;
        if (w_.now() < w_.hosts[e.host]->frozen_until) {
            auto later = e;
            later.at = w_.hosts[e.host]->frozen_until;
            return w_.put(later);
        }
        const bool fails = w_.now() < std::max(away_until, parted_until[e.host]);
        // Who goes on alone knows its standby; a standby makes sure of everybody else.
        const auto standby =
            k.requests.front().what == kind::alone ? w_.hosts[e.host]->process.standby_host() : -1;
        for (const auto& h : w_.hosts)
            if (!fails && h->index != e.host && (standby < 0 || h->index == standby)) {
                w_.say(e.host, "FENCES {}", h->name());
                h->power_off(w_.o.boot_ms * ms);
            }
        go_on(e.host, k.fsm->ended(fails ? "the switch does not answer" : "", w_.hosts[e.host]->clock_ms()));
    }
    // The record stays.
    void client_ended(std::uint8_t host) override {
        auto& k = keepers_[host];
        k.fsm.reset();
        k.requests.clear();
        ++k.number;
    }

private:
    struct keeper {
        control::fence_record record; // on the disk
        std::optional<control::fence_fsm> fsm;
        std::deque<arbiter_request> requests;
        std::uint64_t identity = 0;
        std::uint32_t number = 0, generation = 0; // of the command; of the process
    };
    control::fence_rules rules() const { return {3 * w_.o.heartbeat_budget_ms, 20000, false}; }
    void begin(std::uint8_t host) {
        auto& k = keepers_[host];
        go_on(host, k.fsm->asked(k.requests.front(), false, w_.hosts[host]->clock_ms()));
    }
    void go_on(std::uint8_t host, control::fence_step step) {
        auto& k = keepers_[host];
        while (const auto* write = std::get_if<control::fence_write>(&step)) {
            const bool fails = w_.now() < w_.hosts[host]->image.fails_until;
            if (!fails)
                k.record = write->record;
            step = k.fsm->written(fails ? "the disk fails" : "");
        }
        if (std::holds_alternative<control::fence_run>(step)) {
            const auto lasts = (50 + w_.below(400)) * ms;
            return w_.put(w_.now() + lasts, event_kind::fence_done, host, ++k.number);
        }
        auto a = std::get<control::fence_answer>(step).what;
        const auto q = k.requests.front();
        k.requests.pop_front();
        a.number = q.number;
        if ((q.what != kind::renew && q.what != kind::look) || a.what != verdict::granted)
            w_.say(host, "asks {} term {}: {} {}", ha::to_text(q.what), q.term, ha::to_text(a.what), a.why);
        answer(host, k.generation, w_.now() + w_.below(1000), a);
        if (!k.requests.empty())
            begin(host);
    }
    keeper keepers_[most_hosts];
};

} // namespace

void arbiter_model::heal() {
    away_until = forgets_until = slow_until = member_dead_until = 0;
    for (auto& until : parted_until)
        until = 0;
}

void arbiter_model::answer(std::uint8_t host, std::uint32_t generation, time_us at, arbiter_answer a) {
    std::size_t i = 0;
    while (i < pending_.size() && pending_[i].used)
        ++i;
    if (i == pending_.size())
        pending_.emplace_back();
    pending_[i] = {std::move(a), true};
    w_.put(at, event_kind::answer, host, generation, i);
}

void arbiter_model::deliver(const event& e) {
    auto& process = w_.hosts[e.host]->process;
    if (process.alive() && process.generation() == e.generation && process.frozen()) {
        auto later = e;
        later.at = process.thaws();
        return w_.put(later);
    }
    pending_[e.arg].used = false;
    if (process.alive() && process.generation() == e.generation)
        process.answered(pending_[e.arg].what);
}

std::unique_ptr<arbiter_model> make_arbiter(world& w) {
    switch (w.o.arbiter) {
    case arbiter_kind::lock:
        return std::make_unique<lock_model>(w);
    case arbiter_kind::etcd:
        return std::make_unique<etcd_model>(w);
    case arbiter_kind::fence:
        return std::make_unique<fence_model>(w);
    }
    return nullptr;
}

} // namespace kagemusha::world
