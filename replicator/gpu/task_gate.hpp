// SPDX-License-Identifier: GPL-2.0-or-later
// task_gate: who is asked before a task is handed to the GPU, where several share it. A task is what one
// request enqueues. Which gate there is, and why, is not the executor's business.
#pragma once

namespace kagemusha::gpu {

class task_gate {
public:
    virtual ~task_gate() = default;

    // Before the first command of a request is enqueued, on the executor's thread; returns when it may be.
    // `may_need_guest`: commands in flight may wait for a user event, which only a later request sets.
    virtual void begin(bool may_need_guest) = 0;
    // Every command of a task has ended. On any thread; never before its begin() has returned.
    virtual void end() = 0;
};

// Ends when the last who holds it is gone: the executor, and each command that was enqueued.
class gated_task {
public:
    explicit gated_task(task_gate& gate) : gate_(gate) {}
    ~gated_task() { gate_.end(); }
    gated_task(const gated_task&) = delete;
    gated_task& operator=(const gated_task&) = delete;

private:
    task_gate& gate_;
};

} // namespace kagemusha::gpu
