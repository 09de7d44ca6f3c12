// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/shrink.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

std::string checker_of(const std::string& failure) {
    return failure.substr(0, failure.find(':'));
}

options shrunk(options o, const std::string& failure) {
    const auto wanted = checker_of(failure);
    const auto still_fails = [&](const options& smaller) {
        world w(smaller, false);
        w.run();
        return !w.ok() && checker_of(w.failure()) == wanted;
    };
    bool smaller = true;
    while (smaller) {
        smaller = false;
        for (std::size_t i = 0; i < o.faults.size();) {
            auto without = o;
            without.faults.erase(without.faults.begin() + static_cast<std::ptrdiff_t>(i));
            if (still_fails(without)) {
                o = std::move(without);
                smaller = true;
            } else {
                ++i;
            }
        }
    }
    const auto attempt = [&](auto change) {
        auto simpler = o;
        change(simpler);
        if (still_fails(simpler))
            o = std::move(simpler);
    };
    attempt([](options& s) { s.hosts = 2; });
    attempt([](options& s) { s.jitter_us = 1; });
    attempt([](options& s) { std::fill(std::begin(s.drift_ppm), std::end(s.drift_ppm), 0); });
    attempt([](options& s) { std::fill(std::begin(s.old_release), std::end(s.old_release), false); });
    attempt([](options& s) { s.units_restart = false; });
    for (std::size_t i = 0; i < o.faults.size(); ++i) {
        attempt([i](options& s) { s.faults[i].which_ports = 7; });
        attempt([i](options& s) { s.faults[i].directions = 3; });
    }
    return o;
}

} // namespace kagemusha::world
