// SPDX-License-Identifier: GPL-2.0-or-later
//
// progress_watch: whether a QEMU gets on with its work. Heartbeats between the supervisors do not see a
// standby whose storage hangs, a port that swallows packets or a main loop that stands still; meanwhile the
// output of a protected VM is held, without an end. So each of these has a bound. Pure: what is seen goes in,
// verdicts come out of look(); time is an argument (milliseconds of any clock that does not go back).
//
//   seen                                         bound           beyond it
//   out-of-band answers (QEMU's process lives)   answer_ms       stuck
//   in-band answers (its main loop runs)         main_loop_ms    of a primary with a stream: free_stream, and
//                                                                if that frees it replication_lost, else
//                                                                stuck; without one: stuck
//   progress of the first copy                   transfer_ms     replication_lost; of the GPU's: a warning
//   checkpoints of a protected VM                checkpoint_ms   replication_lost
//
// `stuck` only says what is the case; the state machines of control/ha know whether somebody else would go on
// with the VM, and QEMU is killed only then. It is said again with each look() until it is over.
//
// Who is at fault. A primary whose main loop stands still takes no checkpoints either. That is not the
// standby's fault: to give the standby up then would throw the good copy away. So missing checkpoints are
// only held against the standby while the main loop answers. The other way round a main loop may only wait
// for the standby, in a send that holds QEMU's lock: so the stream is cut first, and what happens then says
// which of both it was.
//
// Time that this supervisor did not run itself (frozen, swapped out, blocked in a file) does not count:
// between two calls of look() at most longest_step_ms pass. Call it at least that often, and give it what was
// read first.
//
// Not thread-safe. Nothing fails.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace kagemusha::control {

// Milliseconds; 0: no bound.
struct progress_bounds {
    std::uint32_t answer_ms = 5000;
    std::uint32_t main_loop_ms = 20000;
    std::uint32_t transfer_ms = 60000;
    std::uint32_t checkpoint_ms = 10300;
};

// How often QEMU is asked, and looked at: several times within each bound, from once to twice a second. Each
// question wakes this process and QEMU several times, for as long as the VM lives.
std::uint32_t asking_period_ms(const progress_bounds& bounds);

enum class question { out_of_band, in_band };

enum class watched_phase {
    none,      // nothing is sent to a standby
    gpu_copy,  // the first copy of the GPU's state; nothing of the VM waits for it, and its link has bounds
    transfer,  // the first copy of the VM's, until it is protected
    protected_ // checkpoints, and output waits for them
};

struct progress_event {
    enum class kind {
        warn,             // what a person should know; empty: it is over
        free_stream,      // cut the stream to the standby, out of band
        replication_lost, // once for each transfer
        stuck
    };
    kind what;
    std::string why;

    bool operator==(const progress_event&) const = default;
};

class progress_watch {
public:
    static constexpr std::uint64_t longest_step_ms = 1000;

    explicit progress_watch(const progress_bounds& bounds) : bounds_(bounds) {}

    void started(std::uint64_t now); // another QEMU; nothing was asked yet
    void asked(question what);
    void answered(question what);
    void enter(watched_phase phase); // what was there before is over
    // Any numbers that change while something gets on: bytes that were sent, checkpoints.
    void progress(std::uint64_t number);
    // QEMU gave the stream up by itself. True: say so at once. False: its main loop is under suspicion, and
    // look() says it, or that QEMU is stuck.
    bool may_report_loss(const std::string& why);

    // What follows from all that, in order, each once but for `stuck`.
    bool look(std::uint64_t now, progress_event& out);

    // How long ago the standby got its last checkpoint, or the copy got on. 0 without a standby.
    std::uint64_t progress_age_ms() const { return phase_ == watched_phase::none ? 0 : time_ - moved_; }

private:
    struct open_question {
        bool open = false;
        std::uint64_t since = 0; // of time_
    };
    void judge();
    void lose(const std::string& why);
    void warn(const std::string& why);
    std::uint64_t waited(question what) const;

    progress_bounds bounds_;
    bool begun_ = false;
    std::uint64_t seen_ = 0; // the clock's time at the last look()
    std::uint64_t time_ = 0; // of ours, in which only observed time passes
    open_question questions_[2];
    watched_phase phase_ = watched_phase::none;
    bool lost_ = false; // of this phase
    std::uint64_t number_ = 0, moved_ = 0;
    bool freed_ = false; // free_stream was said
    std::uint64_t freed_at_ = 0;
    std::string suspicion_; // why the stream was cut
    std::string warning_;
    std::deque<progress_event> events_; // at most a few: drained by each look()
};

} // namespace kagemusha::control
