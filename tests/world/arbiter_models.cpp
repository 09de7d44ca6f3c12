// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/arbiter_models.hpp"

#include <optional>

#include "control/arbiter/etcd_record.hpp"
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
        record_ = {};
        history_.forget();
    }
    void go_back(std::uint32_t choice) override {
        const auto* const old = history_.older(record_, choice);
        if (old)
            record_ = *old;
        say_went_back(old);
    }

private:
    arbiter_answer decide(const arbiter_request& q, std::uint64_t now, std::uint64_t asker) {
        auto& r = record_;
        if ((r.term == 0 || (r.term < q.term && q.what != kind::look)) && q.what != kind::open &&
            q.what != kind::restore)
            return make(verdict::gone, q, 0, 0, "there is no record, or an older one");
        const bool free = now >= r.lease;
        const auto other_term = [&] { return make(verdict::refused, q, 0, 0, "that term is over"); };
        const auto held = [&] { return make(verdict::held, q, 0, r.lease, "the primary's lease is valid"); };
        auto term = r.term, until = now + w_.o.lease_ms;
        auto paired = r.paired;
        switch (q.what) {
        case kind::open:
            if (!free)
                return held();
            if (r.paired && !q.anew)
                return make(verdict::refused, q, 0, 0, "a standby may take it over");
            term = r.term + 1;
            paired = false;
            break;
        case kind::claim:
            if (r.term != q.term && !w_.broken(mutation::grants_old_terms))
                return other_term();
            if (!r.paired && !(q.proven_dead && q.unreleased) && !w_.broken(mutation::grants_old_terms))
                return make(verdict::refused, q, 0, 0, "the primary goes on alone");
            if (!free && !q.proven_dead && !w_.broken(mutation::ignores_lease))
                return held();
            term = r.term + 1;
            paired = false;
            break;
        case kind::pair:
            if (r.term != q.term && (r.term != q.new_term || !r.paired))
                return other_term();
            term = q.new_term;
            paired = true;
            break;
        case kind::look: {
            auto a = make(verdict::granted, q, r.term, 0, "");
            a.paired = r.paired;
            a.ours = r.owner == asker;
            return a;
        }
        case kind::restore:
            if (r.term > q.term || (r.term == q.term && (r.owner != asker || r.paired != q.paired)))
                return other_term();
            if (r.term < q.term && !free)
                return held();
            term = q.term;
            paired = q.paired;
            break;
        case kind::renew:
        case kind::alone:
        case kind::release:
            if (r.term != q.term)
                return other_term();
            if ((q.what == kind::alone || q.alone) && !w_.broken(mutation::forgets_alone))
                paired = false;
            if (q.what == kind::release)
                until = std::min(r.lease, now);
            break;
        }
        if (q.what == kind::claim && history_.was_put_back())
            claimed_too_early();
        const bool another = r.term != term || r.paired != paired || history_.was_put_back();
        if (r.term != term)
            r.owner = asker;
        r.term = term;
        r.lease = until;
        r.paired = paired;
        if (another) {
            ++r.revision;
            history_.put(record_);
        }
        return make(verdict::granted, q, term, until, "");
    }

    kept_record record_;
    record_history history_;
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

    // Leases come back with their whole length, and the later ones are gone.
    void go_back(std::uint32_t choice) override {
        const auto* const old = history_.older(record_, choice);
        if (old) {
            record_ = *old;
            leases_.assign(1, {record_.lease, w_.now() + w_.o.lease_ms * ms});
        }
        say_went_back(old);
    }

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
        kept_record seen;         // as it was read or written last
        std::uint64_t holder = 0; // at that moment; 0: nobody's lease lived
        control::etcd_put wanted;
        bool succeeded = false;
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
            if (l.id == record_.lease && w_.now() < l.until)
                return record_.holder;
        return 0;
    }

    void begin(std::uint8_t host) {
        auto& c = clients_[host];
        c.attempt = 0;
        switch (c.requests.front().what) {
        case kind::renew:
            return send(host, c.lease != 0 ? trip::keepalive : trip::read);
        case kind::release:
            return c.requests.front().alone ? send(host, trip::read) : release(host, c);
        default:
            return send(host, trip::read);
        }
    }

    void release(std::uint8_t host, client& c) {
        if (c.lease == 0)
            return done(host, make(verdict::granted, c.requests.front(), c.requests.front().term, 0, ""));
        send(host, trip::revoke);
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
            c.succeeded = c.succeeded && record_.revision == c.seen.revision && record_.lease == c.lease &&
                          record_.owner == c.identity && record_.term == c.requests.front().term &&
                          !(c.requests.front().alone && record_.paired);
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
            if (record_.revision != c.seen.revision || (c.wanted.nobody_holds && holder() != 0))
                return;
            if (c.requests.front().what == kind::claim && history_.was_put_back())
                claimed_too_early();
            record_ = {++revisions_, c.wanted.term, c.identity, c.wanted.paired, c.identity, c.lease};
            history_.put(record_);
            c.seen = record_;
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
            if (q.what == kind::release && (c.lease == 0 || c.succeeded || c.attempt == 2))
                return release(host, c);
            if (c.lease == 0)
                return done(host, make(verdict::unreachable, q, 0, 0, "the lease ran out"));
            if (c.succeeded)
                return done(host, make(verdict::granted, q, c.wanted.term, c.lease_until_ms, ""));
            if (++c.attempt < 3)
                return send(host, trip::read);
            return done(host, make(verdict::held, q, 0, w_.hosts[host]->clock_ms() + 100,
                                   "the record changes too fast"));
        case trip::revoke:
            c.lease = 0;
            return done(host, make(verdict::granted, q, q.term, 0, ""));
        }
    }

    static std::string name(std::uint64_t identity) {
        return identity == 0 ? std::string() : std::to_string(identity);
    }

    void look_at_record(std::uint8_t host, client& c) {
        const auto& q = c.requests.front();
        const auto& r = c.seen;
        const bool no_lease_needed = q.what == kind::claim && w_.broken(mutation::ignores_lease);
        control::etcd_record record{r.term, r.paired, name(r.owner), std::to_string(r.revision),
                                    no_lease_needed ? std::string() : name(c.holder)};
        if (q.what == kind::claim && r.revision != 0 && w_.broken(mutation::grants_old_terms)) {
            record.term = q.term;
            record.paired = true;
        }
        auto decided = control::decide_on(record, q, name(c.identity), w_.hosts[host]->clock_ms());
        if (auto* const a = std::get_if<arbiter_answer>(&decided)) {
            if (q.what == kind::release)
                return release(host, c);
            a->number = q.number;
            return done(host, *a);
        }
        c.wanted = std::get<control::etcd_put>(decided);
        if (w_.broken(mutation::forgets_alone) && (q.what == kind::alone || q.alone))
            c.wanted.paired = r.paired;
        c.wanted.nobody_holds = c.wanted.nobody_holds && !no_lease_needed;
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

    kept_record record_;
    record_history history_;
    std::uint64_t revisions_ = 0, lease_ids_ = 0;
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
        // Who goes on alone knows its standby, whose address is its host's number; a standby makes sure of
        // everybody else.
        const auto wanted = w_.hosts[e.host]->process.standby_host();
        auto whom = k.requests.front().whom;
        if (!whom.empty() && wanted >= 0 && w_.broken(mutation::cuts_off_the_wanted))
            whom = std::to_string(wanted);
        for (const auto& h : w_.hosts)
            if (!fails && h->index != e.host && (whom.empty() || std::to_string(h->index) == whom)) {
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

void record_history::put(const kept_record& r) {
    records_[count_++ % most] = r;
    put_back_ = false;
}

const kept_record* record_history::older(const kept_record& present, std::uint32_t choice) {
    const kept_record* found[most];
    std::uint32_t n = 0;
    for (const auto& r : records_)
        if (r.revision != 0 && r.owner == present.owner &&
            (r.term != present.term || r.paired != present.paired))
            found[n++] = &r;
    if (n == 0)
        return nullptr;
    put_back_ = true;
    return found[choice % n];
}

void arbiter_model::say_went_back(const kept_record* to) {
    went_back = went_back || to;
    if (to)
        w_.say("arbiter", "is put back to term {} {}", to->term, to->paired ? "paired" : "alone");
}

void arbiter_model::claimed_too_early() {
    w_.say("arbiter", "a record that was put back is claimed, and nobody can know it");
    ++w_.stats.void_schedules;
    w_.succeed();
}

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
