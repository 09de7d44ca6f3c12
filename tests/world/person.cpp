// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/person.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

namespace {

constexpr time_us look_period = 500 * ms;
// How long nobody may run the VM before a start is tried, and before the newest disk is looked for by hand.
constexpr time_us patience = 2000 * ms;
constexpr time_us most_claiming = 10000 * ms, most_standing_still = 8000 * ms;
constexpr std::uint32_t most_refusals = 2;

} // namespace

void person::begin() {
    w_.hosts[0]->service = {unit::kind::run, 1, false};
    for (std::size_t i = 1; i < w_.hosts.size(); ++i)
        w_.hosts[i]->service = {unit::kind::standby, -1, false};
    for (const auto& h : w_.hosts)
        h->start_unit();
    w_.put(look_period, event_kind::person_looks);
}

void person::look() {
    w_.put(w_.now() + look_period, event_kind::person_looks);
    if (!w_.healed() && !w_.chance(3000))
        return;
    if (ends_what_stands_still())
        return;
    host *primary = nullptr, *compares = nullptr;
    bool somebody_decides = false, somebody_claims = false;
    for (const auto& h : w_.hosts) {
        if (!h->up() || !h->process.alive())
            continue;
        if (const auto* const p = h->process.primary()) {
            if (p->state() == ha::primary_state::comparing) {
                compares = h.get();
                continue;
            }
            if (p->state() == ha::primary_state::leaving || p->state() == ha::primary_state::ended ||
                p->state() == ha::primary_state::opening)
                somebody_decides = true;
            else
                primary = h.get();
        } else if (const auto* const s = h->process.standby()) {
            // One that claims in vain (no record, or none that it may claim from) waits for a person.
            const bool claims =
                s->state() == ha::standby_state::synced || s->state() == ha::standby_state::claiming;
            if (claims)
                claims_since_ = std::min(claims_since_, w_.now());
            somebody_claims = somebody_claims || claims;
            somebody_decides = somebody_decides || (claims && w_.now() < claims_since_ + most_claiming) ||
                               s->state() == ha::standby_state::taking_over;
        }
    }
    if (!somebody_claims)
        claims_since_ = never;
    compares_since_ = compares ? std::min(compares_since_, w_.now()) : never;
    if (compares && (primary || w_.now() >= compares_since_ + patience)) {
        // It says that the other host has to be asked. A person who sees that it lasts does so.
        w_.say("person", "kage stop on {}: {}", compares->name(), compares->process.primary()->degraded());
        refusals_ = most_refusals;
        compares->stop_unit();
        compares->process.stop();
    } else if (compares) {
        somebody_decides = true;
    }
    if (stopping_ && primary)
        return primary->process.stop();
    if (w_.now() < start_again_at_ && stopped_)
        return;
    if (stopped_) {
        stopped_ = false;
        w_.say("person", "starts the VM again");
        w_.liveness.started();
        nobody_since_ = 0;
    }
    if (primary) {
        nobody_since_ = claims_since_ = never;
        refusals_ = 0;
        return upgrades_for_fence(*primary) ? void() : give_standby(*primary);
    }
    if (somebody_decides)
        return;
    nobody_since_ = std::min(nobody_since_, w_.now());
    if (w_.now() >= nobody_since_ + patience)
        start_vm();
}

// With `fence` this release forms no pair with an older one, so it is installed where that is missing. On the
// VM's own host that stops the VM.
bool person::upgrades_for_fence(host& primary) {
    if (w_.o.arbiter != arbiter_kind::fence)
        return false;
    for (const auto& h : w_.hosts) {
        if (!w_.o.old_release[h->index] || !h->up() || !h->process.alive() || h->process.frozen() ||
            (h.get() != &primary && !h->process.standby()))
            continue;
        w_.say("person", "upgrades {}", h->name());
        upgrades_[h->index] = true;
        if (h.get() == &primary) {
            stop(look_period);
        } else {
            h->stop_unit();
            h->process.stop();
        }
        return true;
    }
    return false;
}

// The arbiter's record was put back, and nobody can know whether the other host took over: both stand still
// and say so (docs/operations.md, "Its record is older"). The VM is started anew, where its disk is the
// newest.
bool person::ends_what_stands_still() {
    bool stands_still = false;
    for (const auto& h : w_.hosts) {
        if (!w_.arbiter->went_back || !w_.healed() || !h->up() || !h->process.alive())
            continue;
        const auto* const p = h->process.primary();
        const auto* const s = h->process.standby();
        stands_still =
            stands_still || (s && s->state() == ha::standby_state::taking_over) ||
            (p && (p->state() == ha::primary_state::leaving ||
                   p->waiting_for(h->clock_ms()).find("may have taken over") != std::string::npos));
    }
    stands_still_since_ = stands_still ? std::min(stands_still_since_, w_.now()) : never;
    if (!stands_still || w_.now() < stands_still_since_ + most_standing_still)
        return false;
    w_.say("person", "ends what stands still");
    for (const auto& h : w_.hosts) {
        h->stop_unit();
        h->process.kill("nobody knows whether another host has the VM");
    }
    refusals_ = most_refusals;
    return true;
}

// A host that has no supervisor, or one that can't start the VM because it runs elsewhere.
void person::give_standby(host& primary) {
    const auto present = primary.process.standby_host();
    if (present >= 0) {
        auto& h = *w_.hosts[static_cast<std::size_t>(present)];
        if (const auto* const s = h.process.standby()) {
            // They find each other, unless its disks are not to be overwritten. The VM runs where a person
            // has found the newest ones.
            if (s->waiting_for().find("--discard-replica") != std::string::npos) {
                h.stop_unit();
                h.process.stop();
                overwrites_[h.index] = true; // when it is started the next time
            }
            return;
        }
    }
    for (const auto& h : w_.hosts) {
        if (h.get() == &primary || !h->up())
            continue;
        if (h->process.standby()) {
            w_.say("person", "kage protect {} {}", primary.name(), h->name());
            return primary.process.protect(h->index);
        }
        if (h->process.alive())
            continue;
        const bool overwrite = std::exchange(overwrites_[h->index], false);
        w_.say("person", "kage standby{} on {}", overwrite ? " --discard-replica" : "", h->name());
        h->service = {unit::kind::standby, -1, false, overwrite};
        return h->start_unit();
    }
}

// Nobody runs it. First as usual, somewhere; if that is refused, where the newest disk is.
void person::start_vm() {
    const auto count = static_cast<std::uint8_t>(w_.hosts.size());
    const auto start = [&](std::uint8_t i, bool anew) {
        auto& h = *w_.hosts[i];
        auto other = static_cast<std::uint8_t>((i + 1) % count);
        w_.say("person", "kage run{} on {}", anew ? " --force-new" : "", h.name());
        for (const auto& each : w_.hosts) // one that is off starts nothing when it comes back
            if (each->service.what == unit::kind::run)
                each->service = {unit::kind::standby, -1, false};
        h.service = {unit::kind::run, static_cast<std::int8_t>(other), anew};
        h.start_unit();
        if (!w_.hosts[other]->process.alive()) {
            w_.hosts[other]->service = {unit::kind::standby, -1, false};
            w_.hosts[other]->start_unit();
        }
    };
    const auto stop_standby = [&](host& h) {
        if (!h.process.standby())
            return false;
        h.stop_unit();
        h.process.stop();
        return true;
    };
    ++refusals_;
    const auto first = static_cast<std::uint8_t>(w_.below(count));
    if (refusals_ <= most_refusals) {
        for (std::uint8_t k = 0; k < count; ++k) {
            const auto i = static_cast<std::uint8_t>((first + k) % count);
            if (w_.hosts[i]->up() && !w_.hosts[i]->process.alive() && w_.hosts[i]->image.exists &&
                (!said_anew_ || w_.disks.is_newest(i)))
                return start(i, false);
        }
    }
    for (std::uint8_t k = 0; k < count; ++k) {
        const auto i = static_cast<std::uint8_t>((first + k) % count);
        auto& h = *w_.hosts[i];
        if (!h.up() || !w_.disks.is_newest(i))
            continue;
        if (stop_standby(h))
            return; // the next time
        if (h.process.alive())
            continue;
        // There is no record for both hosts that would refuse the second one, and a standby may not have
        // heard yet what the VM's last supervisor told it.
        if (w_.o.arbiter == arbiter_kind::fence) {
            for (const auto& other : w_.hosts)
                if (other->service.what == unit::kind::run)
                    other->stop_unit();
            bool one_stands_by = false;
            for (const auto& other : w_.hosts) {
                if (other->up() && other->process.primary()) // one that stands still, or only compares
                    other->power_off(w_.o.boot_ms * ms);
                one_stands_by = (other->up() && stop_standby(*other)) || one_stands_by;
            }
            if (one_stands_by)
                return; // the next time
        }
        said_anew_ = true;
        return start(i, true);
    }
}

void person::stop(time_us for_how_long) {
    if (stopped_ || stopping_)
        return;
    // Nor does another start wait for its turn.
    for (const auto& h : w_.hosts) {
        const auto* const p = h->up() ? h->process.primary() : nullptr;
        if (p && p->state() == ha::primary_state::opening) {
            h->stop_unit();
            h->process.kill("a person does not want this start any more");
        }
    }
    for (const auto& h : w_.hosts)
        if (const auto* const p = h->process.primary();
            h->up() && p && p->state() != ha::primary_state::comparing) {
            w_.say("person", "kage stop on {}", h->name());
            stopping_ = true;
            start_again_at_ = w_.now() + for_how_long;
            return h->process.stop();
        }
}

void person::upgrade(host& h) {
    upgrades_[h.index] = true;
}

// The system stops its services with SIGTERM, and does not wait for ever.
void person::reboot(host& h, time_us lasts) {
    if (!h.up() || off_for_[h.index] != 0)
        return;
    off_for_[h.index] = lasts + w_.o.boot_ms * ms;
    if (h.process.alive() && !h.process.frozen())
        h.process.stop();
    else
        supervisor_ended(h, false);
}

void person::supervisor_ended(host& h, bool in_order) {
    if (const auto off = std::exchange(off_for_[h.index], 0); off != 0)
        h.shut_down(off);
    if (std::exchange(upgrades_[h.index], false))
        w_.o.old_release[h.index] = !w_.o.old_release[h.index];
    if (!stopping_ || !h.process.had_vm())
        return; // one that only compared disks, or stood by, is not the VM
    stopping_ = false;
    if (!in_order || !h.process.why_it_ended().starts_with("stopped"))
        return; // it ended in another way
    w_.say("person", "the VM is stopped");
    for (const auto& each : w_.hosts)
        if (each.get() == &h || each->service.what == unit::kind::run)
            each->stop_unit();
    stopped_ = true;
    w_.liveness.stopped();
}

} // namespace kagemusha::world
