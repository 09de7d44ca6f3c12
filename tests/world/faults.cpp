// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/faults.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

void fault_injector::plan() {
    for (std::uint32_t i = 0; i < w_.o.faults.size(); ++i)
        w_.put(w_.o.faults[i].at_ms * ms, event_kind::fault_begins, 0, 0, i);
    w_.put(w_.o.heal_ms * ms, event_kind::heal);
}

host& fault_injector::who(std::uint8_t role) {
    const auto count = w_.hosts.size();
    std::size_t primary = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (w_.hosts[i]->vm.runs())
            primary = i;
    if (role == 0)
        return *w_.hosts[primary];
    const auto to = w_.hosts[primary]->process.standby_host();
    const auto second = to >= 0 ? static_cast<std::size_t>(to) : (primary + 1) % count;
    if (role == 1 || count == 2)
        return *w_.hosts[second];
    return *w_.hosts[3 - primary - second];
}

void fault_injector::on_links(const fault& f, host& a, host& b) {
    const auto until = w_.now() + f.lasts_ms * ms;
    for (std::size_t i = 0; i < ports; ++i) {
        if ((f.which_ports >> i & 1) == 0)
            continue;
        const auto p = static_cast<port>(i);
        if (f.kind == fault_kind::reset) {
            w_.net.reset(a.index, b.index, p);
            continue;
        }
        for (int d = 0; d < 2; ++d) {
            if ((f.directions >> d & 1) == 0)
                continue;
            const auto from = d == 0 ? a.index : b.index, to = d == 0 ? b.index : a.index;
            if (f.kind == fault_kind::cut)
                w_.net.block(from, to, p, until);
            else
                w_.net.slow(from, to, p, until, f.extra * ms);
        }
    }
}

void fault_injector::begin(std::uint32_t i) {
    const auto& f = w_.o.faults[i];
    auto& a = who(f.host);
    auto& b = who(f.other);
    const auto until = w_.now() + f.lasts_ms * ms;
    const auto freeze = [&](time_us& what) { what = std::max(what, until); };
    ++w_.stats.faults[static_cast<std::size_t>(f.kind)];
    w_.say("FAULT", "{} ({}{}{})", to_text(f), a.name(), &a == &b ? "" : " ", &a == &b ? "" : b.name());
    // One machine: there is one power, and no cable.
    const bool one_machine = w_.o.arbiter == arbiter_kind::lock;
    switch (f.kind) {
    case fault_kind::kill_qemu:
        return a.vm.kill("by a fault");
    case fault_kind::kill_supervisor:
        return a.process.kill("by a fault");
    case fault_kind::power_off:
        if (!one_machine)
            return a.power_off(f.lasts_ms * ms + w_.o.boot_ms * ms);
        [[fallthrough]];
    case fault_kind::power_off_all:
        for (auto& h : w_.hosts)
            h->power_off(f.lasts_ms * ms + (w_.o.boot_ms + (one_machine ? 0 : w_.below(3000))) * ms);
        return;
    case fault_kind::freeze_host:
        return freeze(a.frozen_until);
    case fault_kind::freeze_supervisor:
        return freeze(a.process.frozen_until);
    case fault_kind::freeze_qemu:
        if (a.vm.alive()) {
            freeze(a.vm.frozen_until);
            a.process.watch_frozen_qemu();
        }
        return;
    case fault_kind::cut:
    case fault_kind::reset:
    case fault_kind::slow:
        return &a != &b && !(one_machine && f.kind == fault_kind::cut) ? on_links(f, a, b) : void();
    case fault_kind::unplug:
        return one_machine ? void() : w_.net.unplug(a.index, until);
    case fault_kind::arbiter_away:
        return freeze(w_.arbiter->away_until);
    case fault_kind::arbiter_parted:
        return freeze(w_.arbiter->parted_until[a.index]);
    case fault_kind::arbiter_forgets:
        return freeze(w_.arbiter->forgets_until);
    case fault_kind::arbiter_slow:
        return freeze(w_.arbiter->slow_until);
    case fault_kind::member_dies:
        return freeze(w_.arbiter->member_dead_until);
    case fault_kind::arbiter_goes_back:
        return w_.arbiter->go_back(f.extra);
    case fault_kind::primary_gpu:
        return who(0).vm.fail_gpu();
    case fault_kind::standby_gpu:
        return who(1).vm.lose_copy();
    case fault_kind::disk_slow:
        return freeze(a.image.slow_until);
    case fault_kind::disk_hangs:
        return freeze(a.image.hangs_until);
    case fault_kind::disk_fails:
        return freeze(a.image.fails_until);
    case fault_kind::load_fails:
        who(1).vm.fail_next_load = true;
        return;
    case fault_kind::stop:
        return w_.operating.stop(f.lasts_ms * ms);
    case fault_kind::switchover:
        w_.stats.switchovers += who(0).process.switch_over();
        return;
    case fault_kind::protect:
        // By the present standby, or by the third host.
        if (const auto to = who(0).process.standby_host(); to >= 0) {
            auto& third = who(2);
            const bool elsewhere = w_.hosts.size() == 3 && f.extra % 2 == 0 && third.process.standby();
            who(0).process.protect(elsewhere ? third.index : static_cast<std::uint8_t>(to));
        }
        return;
    case fault_kind::upgrade:
        w_.stats.switchovers += who(0).process.switch_over();
        return w_.operating.upgrade(who(0));
    case fault_kind::reboot:
        return one_machine ? void() : w_.operating.reboot(a, f.lasts_ms * ms);
    }
}

void fault_injector::heal() {
    w_.say("HEAL", "nothing is broken any more");
    w_.net.heal();
    w_.arbiter->heal();
    for (auto& h : w_.hosts) {
        h->frozen_until = std::min(h->frozen_until, w_.now());
        h->process.frozen_until = std::min(h->process.frozen_until, w_.now());
        h->vm.frozen_until = std::min(h->vm.frozen_until, w_.now());
        h->vm.fail_next_load = false;
        h->image.hangs_until = h->image.slow_until = h->image.fails_until = 0;
        h->boot();
    }
    w_.put(w_.now(), event_kind::check);
}

} // namespace kagemusha::world
