// SPDX-License-Identifier: GPL-2.0-or-later
// happens_before: what a guest's host code has put in an order that no command says. A program that waits for a
// command of one queue (clFinish, clWaitForEvents, a callback) and then enqueues on another relies on the
// first having run; between the queues' commands there is nothing that a standby could see. So the log says
// it: before a request's commands, the events that had completed when it was made and that may matter to it
// (VGPU_CMD_AWAIT). The standby holds the request until they have completed there too.
//
// It can't wait for ever: what completed here before a request was made depended on nothing that came after.
// A command that failed did not run, and a failure is told at once, whatever else the command had to wait
// for; so the standby never waits for one, where it may still be waiting.
//
// Whether the guest looked at a completion nobody can know; that it could have is enough. An in-order queue
// keeps its own order, so its commands never wait for its own events, and of its events the newest stands for
// all. A file with one in-order queue, which is nearly every one, costs a store per completion.
//
// Pure. Bounded by the events that a file may have in flight.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "codec/op.hpp"
#include "mirror/shadow/id_hash.hpp"

namespace kagemusha::mirror {

using codec::guest_id;

class happens_before {
public:
    explicit happens_before(std::uint64_t hash_seed) : queue_of_(0, id_hash{hash_seed}) {}

    // Commands cross from here on, to a standby that has the content as it is now; nothing is known of what
    // was enqueued before, and need not be.
    void start();
    void stop();
    bool running() const { return running_; }

    // While running; the queues that there are, right after start().
    void queue_made(guest_id queue, bool out_of_order);
    void queue_gone(guest_id queue);
    // Whether enqueued() is wanted.
    bool tracks() const { return tracks_; }
    void enqueued(guest_id queue, guest_id event) {
        if (event != 0)
            queue_of_.insert_or_assign(event, queue);
    }
    void completed(guest_id event, bool failed);

    // Whether a request that only enqueues on this queue (0: more than that) must wait for something.
    bool holds(guest_id only_queue) const;
    // What it must wait for; requests after it need not wait for that again.
    void take(guest_id only_queue, std::vector<guest_id>& out);

private:
    struct queue_state {
        guest_id id;
        bool out_of_order;
        std::vector<guest_id> known; // completed, not taken; in an in-order queue only the newest
    };
    queue_state* find(guest_id queue);
    bool keeps_order(const queue_state& q, guest_id only_queue) const {
        return q.id == only_queue && !q.out_of_order;
    }

    bool running_ = false, tracks_ = false;
    guest_id newest_ = 0;             // completed while there was one in-order queue
    std::vector<queue_state> queues_; // few
    std::vector<guest_id> of_nobody_; // known, of queues that are gone or commands that were not tracked
    std::uint64_t known_ = 0;         // all together
    std::unordered_map<guest_id, guest_id, id_hash> queue_of_; // by event in flight
};

} // namespace kagemusha::mirror
