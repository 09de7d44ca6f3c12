// SPDX-License-Identifier: GPL-2.0-or-later
// event_poller: learns of completions by asking, on GPUs whose event callbacks come late or cost much.
//
// Why it exists: NVIDIA's runtime calls event callbacks from a thread that sleeps longer the longer it has
// waited (up to 20 ms after a kernel's end, measured), spins a whole processor while it does not, and makes
// the launch itself dearer (11 µs instead of 3.4). Asking an event for its state costs 0.1 µs. So a thread
// asks, and sleeps in between for a small part of the time that it has already waited: what it adds to a
// command of 50 ms or more is at most a fifth of a percent.
// Without anything to ask for it sleeps, and is not quick to wake, on purpose: behind many short commands, as
// a flush of mapped memory gives, it then finds many at once. When it looked for the next one as the thread of
// the requests does (worker_process.cpp), such a flush took up to 1.7 times as long (docs/results/price-h200.md):
// presumably it asked while that one enqueued, and both wanted the runtime's lock.
//
// Order. The commands of an in-order queue are told in their order, and only the first one that is not over
// is asked. No command is told before what it waited for, in whatever queue that is. Before anything is told,
// every staged read that is over has its bytes in guest memory (see pending_events, which does the same for
// callbacks).
//
// One per process, never destroyed, as runtimes may outlive everything. Locks: the mutex guards what add()
// leaves for the thread, nothing else; the runtime and the callbacks are called without it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kagemusha::gpu {

class opencl_event;

class event_poller {
public:
    static event_poller& instance();

    // `lane`: the queue's number. The event may be over, and destroyed, before this returns.
    void add(opencl_event& event, std::uint64_t lane, bool in_order);

private:
    struct arrival {
        opencl_event* event;
        std::uint64_t lane;
        bool in_order;
    };
    struct entry {
        opencl_event* event;
        std::uint64_t number; // in the order of add()
    };
    struct found {
        entry event;
        std::int32_t status;
    };
    struct lane {
        bool in_order;
        std::deque<entry> events;
    };

    event_poller();
    void run();
    // The rest is the thread's own.
    bool look(); // whether something was over, or a part of it
    void look_at(lane& one);
    void conclude(opencl_event* event, std::int32_t status);

    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<arrival> arrived_;

    std::unordered_map<std::uint64_t, lane> lanes_;
    std::vector<found> over_;
    std::uint64_t next_number_ = 1;
    std::vector<opencl_event*> staged_reads_; // whose bytes are not in guest memory yet
    std::vector<std::int32_t> states_;        // of these
};

} // namespace kagemusha::gpu
