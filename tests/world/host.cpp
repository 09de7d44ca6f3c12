// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/host.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

time_us host::world_now() const {
    return w_.now();
}

// One machine has one clock.
std::uint64_t host::clock_ms(time_us at) const {
    const std::size_t i = w_.o.arbiter == arbiter_kind::lock ? 0 : index;
    const auto passed = static_cast<std::int64_t>(at);
    return w_.o.boot_clock_ms[i] +
           static_cast<std::uint64_t>(passed + passed * w_.o.drift_ppm[i] / 1'000'000) / ms;
}

time_us host::when(std::uint64_t clock) const {
    const std::size_t i = w_.o.arbiter == arbiter_kind::lock ? 0 : index;
    if (clock <= clock_ms())
        return w_.now();
    const auto passed = static_cast<std::int64_t>((clock - w_.o.boot_clock_ms[i]) * ms);
    auto at = std::max(static_cast<time_us>(passed - passed * w_.o.drift_ppm[i] / 1'000'000), w_.now());
    while (clock_ms(at) < clock)
        at += 100;
    return at;
}

// Memory, the cache of the disk, and every process are gone; nobody is told.
void host::power_off(time_us boots_in) {
    if (!up_)
        return;
    w_.say(index, "POWER OFF");
    up_ = false;
    ++boots_;
    ++starts_;
    service.anew = service.overwrite = false; // said once, and not on the disk
    sim::rng torn(sim::mixed(w_.o.seed, w_.now()));
    image.lose_power(torn);
    process.end_with_host();
    w_.net.process_ended(index, true);
    if (boots_in != never)
        w_.put(w_.now() + boots_in, event_kind::boot, index, boots_);
}

// In order: what was written is on the disk.
void host::shut_down(time_us boots_in) {
    w_.say(index, "shuts down");
    image.flush();
    power_off(boots_in);
}

void host::boot() {
    if (up_)
        return;
    w_.say(index, "boots");
    up_ = true;
    frozen_until = 0;
    ++boots_;
    if (w_.o.arbiter == arbiter_kind::lock && index == 0)
        w_.arbiter->rebooted(); // its file was of the other boot
    start_unit();
}

void host::start_unit() {
    if (service.what == unit::kind::none || !up_)
        return;
    ++starts_;
    w_.put(w_.now() + w_.below(100) * ms, event_kind::unit_start, index, starts_);
}

void host::stop_unit() {
    service = {};
    ++starts_;
}

void host::supervisor_ended(bool in_order) {
    ++starts_;
    w_.operating.supervisor_ended(*this, in_order);
    if (!in_order && w_.o.units_restart && up_ && service.what != unit::kind::none)
        w_.put(w_.now() + w_.o.restart_ms * ms, event_kind::unit_start, index, starts_);
}

void host::happen(const event& e) {
    if (e.kind == event_kind::boot && e.generation == boots_)
        return boot();
    if (e.kind != event_kind::unit_start || e.generation != starts_ || !up_ || process.alive())
        return;
    process.start(service);
    service.anew = service.overwrite = false;
}

} // namespace kagemusha::world
