// SPDX-License-Identifier: GPL-2.0-or-later
#include "world/client.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

namespace {

constexpr time_us repeat = 150 * ms;

} // namespace

// Whichever host has the VM: a network shows a frame to all of them.
void client::ask() {
    for (const auto& h : w_.hosts)
        if (h->up() && h->vm.takes_requests() && !w_.net.cut_off(h->index))
            h->vm.request(wants_);
    w_.put(w_.now() + repeat, event_kind::client_asks, 0, wants_);
}

void client::hear(const packet& p) {
    if (p.request != wants_)
        return;
    ++w_.stats.replies;
    answered_asked_at_ = asked_at_;
    ++wants_;
    asked_at_ = w_.now() + (5 + w_.below(100)) * ms;
    w_.put(asked_at_, event_kind::client_asks, 0, wants_);
}

void client::happen(const event& e) {
    if (e.generation == wants_)
        ask();
}

} // namespace kagemusha::world
