// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/checkers/liveness.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

namespace {

constexpr time_us look_period = 50 * ms, well_for = 300 * ms;

} // namespace

bool liveness_checker::is_protected() const {
    std::size_t running = 0;
    bool good = false;
    for (const auto& h : w_.hosts) {
        running += h->vm.runs();
        const auto to = h->process.standby_host();
        if (!h->process.is_protecting() || to < 0)
            continue;
        const auto* const s = w_.hosts[static_cast<std::size_t>(to)]->process.standby();
        good = s != nullptr && s->state() == ha::standby_state::synced;
    }
    return good && running == 1 && w_.outside.answered_since(time_us{w_.o.heal_ms} * ms);
}

std::string liveness_checker::state() const {
    std::string text;
    for (const auto& h : w_.hosts) {
        const auto& p = h->process;
        text += fmt::format("; {}: {}{}", h->name(),
                            !h->up()      ? "off"
                            : !p.alive()  ? "no supervisor (" + p.why_it_ended() + ")"
                            : p.primary() ? std::string("primary ") + ha::to_text(p.primary()->state()) +
                                                " (" + p.primary()->degraded() + ")"
                            : p.standby() ? std::string("standby ") + ha::to_text(p.standby()->state())
                                          : "?",
                            h->vm.runs()    ? ", VM runs"
                            : h->vm.alive() ? ", QEMU waits"
                                            : "");
    }
    return text;
}

void liveness_checker::look() {
    const auto healed = time_us{w_.o.heal_ms} * ms;
    if (is_protected()) {
        well_since_ = std::min(well_since_, w_.now());
        if (w_.now() >= well_since_ + well_for) {
            w_.stats.slowest_heal_ms = (well_since_ - healed) / ms;
            return w_.succeed();
        }
    } else {
        well_since_ = never;
    }
    if (w_.now() > healed + protected_again_ms * ms)
        return w_.fail("liveness: " + std::to_string(protected_again_ms / 1000) +
                       " s after everything was mended the VM is not protected" +
                       (w_.outside.answered_since(healed) ? "" : " and has not answered") + state());
    w_.put(w_.now() + look_period, event_kind::check);
}

void liveness_checker::vm_starts(std::uint8_t host) {
    if (is_stopped_)
        w_.fail(
            fmt::format("stays stopped: the VM that a person stopped starts on {}", w_.hosts[host]->name()));
}

} // namespace kagemusha::world
