// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/options.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "sim/rng.hpp"

namespace kagemusha::world {

namespace {

constexpr const char* arbiter_names[] = {"lock", "etcd", "fence"};
constexpr const char* mutation_names[] = {"none",
                                          "gate_stays_open",
                                          "held_output_leaves",
                                          "goes_on_unasked",
                                          "survives_refusal",
                                          "ignores_lease",
                                          "forgets_alone",
                                          "grants_old_terms",
                                          "loads_half_a_checkpoint",
                                          "forgets_received",
                                          "forgets_dirty_disk",
                                          "forgets_flush",
                                          "forgets_reads_in_flight",
                                          "reads_again",
                                          "runs_gpu_tail",
                                          "commits_without_gpu",
                                          "forgets_lost_copy",
                                          "no_mark_protected",
                                          "no_mark_copy",
                                          "no_mark_taken_over",
                                          "forgets_marks",
                                          "marks_unflushed",
                                          "loses_unpaired",
                                          "never_reconnects",
                                          "counts_former_ends",
                                          "cuts_off_the_wanted"};
static_assert(std::size(mutation_names) == static_cast<std::size_t>(mutation::last) + 1);
constexpr const char* fault_names[] = {"kill_qemu",
                                       "kill_supervisor",
                                       "power_off",
                                       "freeze_host",
                                       "freeze_supervisor",
                                       "freeze_qemu",
                                       "cut",
                                       "reset",
                                       "slow",
                                       "unplug",
                                       "arbiter_away",
                                       "arbiter_parted",
                                       "arbiter_forgets",
                                       "arbiter_slow",
                                       "member_dies",
                                       "primary_gpu",
                                       "standby_gpu",
                                       "disk_slow",
                                       "disk_hangs",
                                       "disk_fails",
                                       "load_fails",
                                       "stop",
                                       "switchover",
                                       "protect",
                                       "upgrade",
                                       "reboot",
                                       "power_off_all",
                                       "arbiter_goes_back"};
static_assert(std::size(fault_names) == fault_kinds);
constexpr const char* port_names[] = {"supervision", "state", "gpu"};

template <class E, std::size_t N>
bool find(const char* const (&names)[N], const std::string& name, E& out) {
    const auto* const found = std::find(names, names + N, name);
    if (found == names + N)
        return false;
    out = static_cast<E>(found - names);
    return true;
}

// Short ones as often as long ones.
std::uint32_t some_time(sim::rng& r, std::uint32_t most_ms) {
    std::uint32_t most = most_ms;
    while (most > 20 && r.chance(5000))
        most /= 3;
    return 1 + r.below(most);
}

// A chance of its own: what is drawn of the other kinds is what it was without this one.
void draw_backups(options& o) {
    sim::rng r(sim::mixed(o.seed, 3));
    if (o.arbiter == arbiter_kind::fence || !r.chance(1500))
        return;
    for (auto count = r.between(1, 2); count != 0; --count) {
        fault f;
        f.kind = fault_kind::arbiter_goes_back;
        f.at_ms = r.between(900, o.heal_ms - 1);
        f.extra = r.below(1000); // which record
        o.faults.push_back(f);
    }
}

} // namespace

const char* name_of(arbiter_kind kind) {
    return arbiter_names[static_cast<std::size_t>(kind)];
}
bool parse(const std::string& name, arbiter_kind& out) {
    return find(arbiter_names, name, out);
}
const char* name_of(mutation m) {
    return mutation_names[static_cast<std::size_t>(m)];
}
bool parse(const std::string& name, mutation& out) {
    return find(mutation_names, name, out);
}
const char* name_of(fault_kind kind) {
    return fault_names[static_cast<std::size_t>(kind)];
}
const char* name_of(port p) {
    return port_names[static_cast<std::size_t>(p)];
}

std::string to_text(const fault& f) {
    std::string text = fmt::format("{} at {} ms for {} ms, hosts {} {}", name_of(f.kind), f.at_ms, f.lasts_ms,
                                   f.host, f.other);
    if (f.kind == fault_kind::cut || f.kind == fault_kind::reset || f.kind == fault_kind::slow) {
        text += f.directions == 3 ? ", both directions" : f.directions == 1 ? ", there" : ", back";
        for (std::size_t i = 0; i < ports; ++i)
            if ((f.which_ports >> i & 1) != 0)
                text += fmt::format(" {}", port_names[i]);
    }
    if (f.kind == fault_kind::slow)
        text += fmt::format(", {} ms more", f.extra);
    return text;
}

options drawn(std::uint64_t seed, bool any_arbiter, arbiter_kind arbiter, std::uint8_t hosts) {
    sim::rng r(sim::mixed(seed, 1));
    options o;
    o.seed = seed;
    const auto one_of = r.below(10);
    o.arbiter = !any_arbiter ? arbiter : one_of < 4 ? arbiter_kind::lock : arbiter_kind::etcd;
    const bool three = r.chance(2500);
    o.hosts = hosts != 0 ? hosts : three ? 3 : 2;
    o.heartbeat_budget_ms = 100 * r.between(2, 12);
    o.heartbeat_ms = std::max(o.heartbeat_budget_ms / r.between(4, 10), 20u);
    o.lease_ms = o.arbiter == arbiter_kind::etcd ? 1000 * r.between(2, 4) : 50 * r.between(2, 20);
    o.qemu_budget_ms = 500 * r.between(1, 6);
    o.stop_without_standby = r.chance(1000);
    o.epoch_ms = r.between(10, 120);
    o.units_restart = r.chance(7000);
    o.latency_us = r.between(20, 2000);
    o.jitter_us = r.between(1, 4000);
    o.state_ms = r.between(20, 600);
    o.load_ms = r.between(1, 12);
    o.flush_ms = r.between(1, 10);
    o.restart_ms = r.between(100, 1000);
    o.boot_ms = r.between(300, 3000);
    for (int i = 0; i < 3; ++i) {
        o.drift_ppm[i] = static_cast<std::int32_t>(r.below(401)) - 200;
        o.boot_clock_ms[i] = 1000 + r.below(1'000'000);
    }
    for (auto& old : o.old_release)
        old = false;
    if (r.chance(2000))
        o.old_release[r.below(o.hosts)] = true;

    // The mix: some kinds, and some of each.
    bool on[fault_kinds] = {};
    const std::uint32_t density = r.between(500, 4000);
    std::vector<fault_kind> kinds;
    for (std::size_t i = 0; i <= static_cast<std::size_t>(fault_kind::power_off_all); ++i)
        if ((on[i] = r.chance(density)))
            kinds.push_back(static_cast<fault_kind>(i));
    o.heal_ms = 2000 + 500 * r.below(14);
    const auto count = kinds.empty() ? 0 : r.chance(3000) ? r.between(1, 2) : r.between(2, 9);
    std::uint32_t together = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        fault f;
        f.kind = kinds[r.below(static_cast<std::uint32_t>(kinds.size()))];
        // Faults often come together: one event in a data centre, or one while another is handled.
        f.at_ms = i != 0 && r.chance(4000) ? together + some_time(r, 600) : some_time(r, o.heal_ms);
        if (r.chance(7000))
            f.at_ms = std::max(f.at_ms, 900 + r.below(600)); // when the VM is protected
        together = f.at_ms;
        f.lasts_ms = some_time(r, 4000);
        f.host = static_cast<std::uint8_t>(r.chance(1000) ? 2 : r.below(2));
        f.other = static_cast<std::uint8_t>(r.chance(1000) ? 2 : 1 - std::min<std::uint8_t>(f.host, 1));
        f.directions = static_cast<std::uint8_t>(r.chance(5000) ? 3 : r.between(1, 2));
        f.which_ports = static_cast<std::uint8_t>(r.chance(5000) ? 7 : r.between(1, 6));
        f.extra = some_time(r, 1500);
        o.faults.push_back(f);
    }
    draw_backups(o);
    std::sort(o.faults.begin(), o.faults.end(),
              [](const fault& a, const fault& b) { return a.at_ms < b.at_ms; });
    return o;
}

} // namespace kagemusha::world
