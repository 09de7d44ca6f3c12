// SPDX-License-Identifier: GPL-2.0-or-later
// pending_events: every OpenCL event whose completion somebody waits for.
//
// Why it exists: the standard says that a callback for CL_COMPLETE is also called when a command fails, but
// runtimes do not all do it (PoCL calls none for a command that fails: its issue 1430). So failures are also
// looked for, by a thread that asks every pending event for its status a few times a second, and at once
// after a user event was set to an error.
//
// One per process, never destroyed: native callbacks may come at any time. A callback carries a number, not a
// pointer, so that one which comes late, after the thread has already told of the failure, finds nothing.
//
// Order. Callbacks come from several threads and overtake each other, and a failure is found later than the
// callbacks of what came after it. Programs are told in the order of the queue, and of nothing before what it
// waited for in any queue: an event is over for them when it is over for the runtime and everything that it
// comes after was told (`place`). Who tells of one event goes on with those that had to wait for it.
//
// It also keeps the order that programs see where a read goes through staging memory: such a read is over for
// the runtime before its bytes are in guest memory, and the callback of a later command may come first, or at
// the same time on another thread. So while a staged read is pending, completions are told by the thread
// alone, and before each one it scatters every staged read that the runtime says is done.
//
// And it keeps the events of commands that failed. PoCL 3.1 goes on using them without a reference of its
// own: inside the call that made them fail (one command fails inside the other, and each is locked again at
// the end), and when something else that they waited for ends, however much later. If they are gone by then
// it aborts. Only clSetUserEventStatus makes commands fail there.
//
// Locks: the runtime may hold a lock of its own around a callback and take the same one in clGetEventInfo, so
// the mutex here is never held while the runtime is called, and only the thread asks it anything. An event
// that the thread is looking at is pinned; when its callback comes meanwhile, the thread tells of it in the
// callback's place.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/opencl/opencl_api.hpp"

namespace kagemusha::gpu {

class opencl_event;

class pending_events {
public:
    // Where an event stands in its queue.
    struct place {
        std::uint64_t lane = 0; // the queue's number
        bool in_order = false;  // the queue
        bool for_all = false; // a marker or barrier that names no events: it comes after everything before it
        bool barrier = false; // everything behind it comes after it
    };

    static pending_events& instance();

    // `waits`: numbers of what its command waits for; those that were told, and 0, don't count.
    std::uint64_t add(opencl_event& event, const place& where, std::span<const std::uint64_t> waits);
    // The callback came.
    void called_back(std::uint64_t number, std::int32_t status);
    void remove(std::uint64_t number); // whose callback could not be registered

    // Calls clSetUserEventStatus with an error, and looks at once for what failed of it.
    std::int32_t fail(const opencl_api& api, cl_event user_event, std::int32_t status);
    // The event of a failed command, instead of letting go of it.
    void keep(event_handle failed);

private:
    using lock = std::unique_lock<std::mutex>;

    struct entry {
        opencl_event* event;
        std::uint64_t lane;
        std::uint64_t after; // those of its lane with smaller numbers are told before it
        bool pinned = false; // the thread asks for its status
        bool over = false;   // with `status`
        bool held_by_waits = false;
        std::int32_t status = 0;
        std::vector<std::uint64_t> waits = {}; // told before it, too; in any lane
    };
    struct lane {
        std::set<std::uint64_t> unreported;
        std::set<std::pair<std::uint64_t, std::uint64_t>> held; // over, but not their turn: after, number
        std::size_t held_by_waits = 0;                          // others that are over
        std::uint64_t last_barrier = 0;
    };

    pending_events();
    void run();
    void look_at(lock& held, std::uint64_t number);
    // Of an event that is over, and of those that waited for it; or keeps it until it is its turn. Lets go of
    // the lock in between.
    void tell(lock& held, std::uint64_t number, bool on_thread);
    bool may_be_told(const entry& one);
    void hold(entry& one, std::uint64_t number); // over, and may not be told
    void take_ready(lane& from, std::vector<std::uint64_t>& ready);
    void take_followers(std::uint64_t told, std::vector<std::uint64_t>& ready);
    void settle_reads(const opencl_event* told, std::int32_t status); // on the thread, unlocked

    std::mutex mutex_;
    std::condition_variable wake_;
    std::unordered_map<std::uint64_t, entry> entries_;
    std::unordered_map<std::uint64_t, lane> lanes_;
    std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> followers_; // by what they wait for
    std::deque<std::uint64_t> deferred_; // over, for the thread to tell; in the order of their callbacks
    std::vector<opencl_event*>
        staged_reads_;                // whose bytes are not in guest memory yet; finished by the thread alone
    std::deque<event_handle> failed_; // in the order of keep()
    std::uint64_t next_ = 1;
    bool look_now_ = false;
};

} // namespace kagemusha::gpu
