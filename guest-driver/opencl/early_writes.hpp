// SPDX-License-Identifier: GPL-2.0-or-later
//
// Early writes: blocking writes that returned when their bytes were taken, before the GPU had them. That is
// what the standard asks of a blocking write, and behind one in its own in-order queue nobody sees the
// difference. Programs also take one for done in every other queue of the context, where other
// implementations make it so. So commands of other queues wait for it.
//
// The device tells of no such write, because most programs have one queue. The first command of another queue
// that has to wait puts a marker behind it, and so does who releases the queue: then only the marker's event
// is left of it.
//
// Of each queue only the last one counts: it is over after those before it.
#pragma once

#include "object.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace kagemusha::opencl {

class queue;

// Any thread. Calls nothing with its lock.
class early_writes {
public:
    struct write {
        std::uint64_t queue_id = 0;
        std::uint64_t number = 0; // which of the connection's commands
        std::uint64_t marker = 0; // the event of one behind it; 0: there is none
        ref<queue> where;         // where there is no marker
    };

    void add(queue& where, std::uint64_t number);

    // Of all queues but this one.
    std::vector<write> elsewhere(const queue& here) const;
    // Of this queue, if it has no marker.
    bool unmarked(const queue& where) const;

    // A marker is behind all of the queue's writes up to this number.
    void mark(std::uint64_t queue_id, std::uint64_t number, std::uint64_t marker);
    // They are over.
    void forget(std::uint64_t queue_id, std::uint64_t number);

private:
    struct last_write {
        queue* where = nullptr; // alive while there is no marker: whoever releases it makes one
        std::uint64_t number = 0;
        std::uint64_t marker = 0;
    };

    mutable std::mutex mutex_;
    std::map<std::uint64_t, last_write> last_; // by the queue's id
    std::atomic<bool> any_{false};
};

} // namespace kagemusha::opencl
