// SPDX-License-Identifier: GPL-2.0-or-later
//
// Work: what a program asked a stream to do, apart from when it is done. Nearly always that is at once. It is
// later when a function of the program's has its place before it in the stream (cuLaunchHostFunc): the host's
// GPU knows nothing of that, so what is behind it waits here, in the stream's backlog. And it is never, or many
// times, when the stream captures: then it becomes a node of a graph.
#pragma once

#include "proto/cuda/cuda.h"

#include "guest-driver/opencl/event.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace kagemusha::cuda {

// So many commands of a queue.
struct queue_place {
    std::uint64_t queue = 0, place = 0;
};

struct context;
struct event;
struct function;
struct stream;

// One record of an event: the marker that tells when it is reached, as soon as that was sent.
class recording {
public:
    void set(CUresult error, opencl::ref<opencl::event> marker, queue_place behind);
    bool is_sent() const;
    // Waits until it was sent; null with the error of sending.
    opencl::ref<opencl::event> marker(CUresult& error) const;
    // The commands that it is behind; only once it was sent.
    queue_place behind() const;
    // Whether nobody has looked before.
    bool is_first_look() const { return !looked_.exchange(true, std::memory_order_relaxed); }

private:
    mutable std::mutex mutex_;
    mutable std::condition_variable sent_;
    bool is_sent_ = false;
    CUresult error_ = CUDA_SUCCESS;
    opencl::ref<opencl::event> marker_;
    queue_place behind_;
    mutable std::atomic<bool> looked_{false};
};

class work {
public:
    virtual ~work() = default;
    virtual CUgraphNodeType kind() const = 0;
    // The program has just asked for it, whenever it is done.
    virtual CUresult asked(stream&) { return CUDA_SUCCESS; }
    // False if it would make the caller wait for another stream's backlog.
    virtual bool can_run() const { return true; }
    // Sends it. In the stream's order; only waits for what CUDA lets a program's thread wait for.
    virtual CUresult run(stream& where) = 0;
    // For a graph that is instantiated, and for a stream whose turn is later.
    virtual std::unique_ptr<work> copy() const = 0;
};

// Work that waits for its turn, and the thread that does it. One for a stream, from the first function of the
// program's on. Shared: other streams wait for places in it.
class backlog {
public:
    using item = std::function<CUresult()>;

    explicit backlog(context& owner) : owner_(owner) {}
    ~backlog();
    backlog(const backlog&) = delete;
    backlog& operator=(const backlog&) = delete;

    // Returns its place. Bounded: waits while there are too many.
    std::uint64_t add(item next);
    bool is_busy() const;
    // The place of what was added last.
    std::uint64_t last() const;
    // Until everything up to this place was done.
    void wait_for(std::uint64_t place) const;

private:
    void run();

    context& owner_;
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::deque<item> items_;
    std::uint64_t added_ = 0, done_ = 0;
    bool ending_ = false;
    std::thread thread_; // begins with the first item
};

// Takes work that cannot simply be run: the context has a backlog, or a capture.
CUresult submit_by_detour(stream& where, std::unique_ptr<work> what);

// Takes a function of the program's.
CUresult submit_host_function(stream& where, std::unique_ptr<work> what);

// Before a call that waits, or that is no work: everything before it was sent. An error if the stream
// captures.
CUresult settle(stream& where);

// The same for all streams of a context.
CUresult settle_all(context& where);

} // namespace kagemusha::cuda
