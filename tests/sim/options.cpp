// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/options.hpp"

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

#include "sim/rng.hpp"

namespace kagemusha::sim {

namespace {

constexpr const char* mutation_names[] = {
    "none",          "runs_before_commit", "drops_entry",           "runs_twice",       "runs_out_of_order",
    "frees_early",   "never_frees",        "ignores_hold",          "corrupts_content", "loses_outcome",
    "loses_content", "lies_in_acks",       "runs_tail_at_takeover", "forgets_running"};
static_assert(std::size(mutation_names) == static_cast<std::size_t>(mutation::last) + 1);

} // namespace

const char* name_of(mutation m) {
    return mutation_names[static_cast<std::size_t>(m)];
}

bool parse(const std::string& name, mutation& out) {
    for (std::size_t i = 0; i < std::size(mutation_names); ++i) {
        if (name == mutation_names[i]) {
            out = static_cast<mutation>(i);
            return true;
        }
    }
    return false;
}

options drawn(std::uint64_t seed) {
    rng r(mixed(seed, 1));
    options o;
    o.seed = seed;
    // Short ones find most; a long one now and then finds what builds up.
    o.guest_steps = r.chance(50) ? r.between(300, 1500) : r.between(5, 60);
    o.files = r.between(1, 3);
    o.epoch_ms = r.chance(2500) ? 0 : r.between(1, 20);
    // An epoch must fit into the standby: where only checkpoints close one, that takes some room.
    o.switch_epochs = o.epoch_ms != 0 && r.chance(4000) ? r.between(10, 300) : 0;
    const bool checkpoints = o.epoch_ms == 0 || o.switch_epochs != 0;
    o.hold_bytes = checkpoints ? r.between(16384, 32768) : r.between(160, 3000);
    o.hold_entries = checkpoints ? 1024 : r.between(4, 64);
    o.log_bytes = r.between(300, 6000);
    o.log_entries = r.between(8, 200);
    o.window_bytes = r.between(1, 2000);
    o.running_per_file = r.between(8, 16);
    o.device_queue = r.between(1, 16);
    o.weight_guest = r.between(1, 12);
    o.weight_device = r.between(1, 12);
    o.weight_network = r.between(1, 16);
    o.weight_gpu = r.between(1, 12);
    o.weight_time = r.between(1, 4);
    o.time_step_ms = r.chance(5000) ? r.between(1, 4) : r.between(5, 40); // the latter reconnects in between
    o.late_content = r.chance(8000);
    o.events = r.chance(6000);
    o.digests = r.chance(7000);
    o.losses = r.chance(5000);
    o.resets = r.chance(5000);
    o.nondeterminism = o.digests && r.chance(2000);
    if (r.chance(8000)) {
        o.cut = r.chance(5000) ? r.below(60) : 0;
        o.silent_cut = r.chance(3000) ? r.below(30) : 0;
        o.stall = r.chance(3000) ? r.below(100) : 0;
        o.duplicate = r.chance(2000) ? r.below(100) : 0;
        o.restart_standby = r.chance(3000) ? r.below(30) : 0;
        o.restart_primary = r.chance(2000) ? r.below(30) : 0;
        o.standby_fault = r.chance(2000) ? r.below(30) : 0;
        o.late_connect = r.chance(3000) ? r.below(8000) : 0;
    }
    o.ends_with_takeover = r.chance(3000);
    o.lanes = r.chance(5000);
    return o;
}

bool read_file(const std::string& path, options& o, std::string& error) {
    std::ifstream in(path);
    if (!in) {
        error = "can't read " + path;
        return false;
    }
    std::string line;
    while (std::getline(in, line)) {
        line = line.substr(0, line.find('#'));
        std::istringstream words(line);
        std::string name, equals, value;
        if (!(words >> name))
            continue;
        words >> equals >> value;
        if (name == "broken") {
            if (!parse(value, o.broken)) {
                error = "no such rule to break: " + value;
                return false;
            }
            continue;
        }
        std::uint64_t number = 0;
        const auto end = std::from_chars(value.data(), value.data() + value.size(), number);
        if (equals != "=" || end.ec != std::errc() || end.ptr != value.data() + value.size()) {
            error = path + ": not \"name = number\": " + line;
            return false;
        }
        bool known = false;
        const auto set = [&](const char* field, auto& member) {
            if (name == field) {
                member = static_cast<std::remove_reference_t<decltype(member)>>(number);
                known = true;
            }
        };
#define FIELD(f) set(#f, o.f)
        FIELD(seed), FIELD(guest_steps), FIELD(files), FIELD(hold_bytes), FIELD(hold_entries),
            FIELD(log_bytes);
        FIELD(log_entries), FIELD(window_bytes), FIELD(running_per_file), FIELD(device_queue),
            FIELD(epoch_ms);
        FIELD(switch_epochs);
        FIELD(weight_guest), FIELD(weight_device), FIELD(weight_network), FIELD(weight_gpu),
            FIELD(weight_time);
        FIELD(time_step_ms), FIELD(late_content), FIELD(events), FIELD(digests), FIELD(losses), FIELD(resets);
        FIELD(nondeterminism), FIELD(cut), FIELD(silent_cut), FIELD(stall), FIELD(duplicate);
        FIELD(restart_standby), FIELD(restart_primary), FIELD(standby_fault), FIELD(late_connect);
        FIELD(ends_with_takeover), FIELD(kill_at), FIELD(lanes);
#undef FIELD
        if (!known) {
            error = path + ": no such option: " + name;
            return false;
        }
    }
    return true;
}

} // namespace kagemusha::sim
