// SPDX-License-Identifier: GPL-2.0-or-later
// What happens next: a heap of small events. One that became pointless stays in it, and is known by its
// generation; nothing is ever searched for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kagemusha::world {

using time_us = std::uint64_t;
constexpr time_us never = UINT64_MAX;
constexpr time_us ms = 1000;

enum class event_kind : std::uint8_t {
    // of a host
    boot,
    unit_start,
    // of a supervisor process; its generation must be the present one
    tick,
    order,      // its main thread has something to do
    answer,     // the arbiter's
    etcd_step,  // a round trip of its arbiter's thread is through
    fence_done, // the command has ended
    look,       // the pilot looks at QEMU
    qemu_ended, // the kernel tells it
    // of a connection (arg: which one)
    connected,
    connect_failed,
    deliver,
    // of QEMU; its generation must be the present one
    guest_ready,
    guest_speaks,
    gpu_done,
    gpu_answered,
    flushed,
    epoch,
    gpu_copied,
    state_sent,
    checkpoint_arrived,
    received,
    loaded,
    load_done,
    stream_broken,
    take_over_done,
    qemu_listens,
    gpu_log_arrived,
    gpu_log_acknowledged,
    copy_lost_there,
    // of the world
    fault_begins,
    fault_ends,
    heal,
    client_asks,
    person_looks,
    check,
};

struct event {
    time_us at = 0;
    std::uint64_t order = 0; // of those at the same time, the first that was put
    event_kind kind = event_kind::check;
    std::uint8_t host = 0;
    std::uint32_t generation = 0;
    std::uint64_t arg = 0;
};

class event_queue {
public:
    event_queue() { heap_.reserve(256); }
    void put(event e) {
        e.order = ++count_;
        heap_.push_back(e);
        std::push_heap(heap_.begin(), heap_.end(), later);
    }
    bool take(event& out) {
        if (heap_.empty())
            return false;
        std::pop_heap(heap_.begin(), heap_.end(), later);
        out = heap_.back();
        heap_.pop_back();
        return true;
    }

private:
    static bool later(const event& a, const event& b) {
        return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
    std::vector<event> heap_;
    std::uint64_t count_ = 0;
};

} // namespace kagemusha::world
