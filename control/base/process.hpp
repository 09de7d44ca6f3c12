// SPDX-License-Identifier: GPL-2.0-or-later
//
// Child processes: started without fork's pitfalls (posix_spawn), watched through a pidfd, and never left
// behind. The signals that ask us to stop arrive as bytes on a descriptor, so that every wait is one poll().
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"

namespace kagemusha::control {

struct spawn_request {
    std::vector<std::string> command;
    std::vector<std::pair<std::string, std::string>> environment; // added to ours
    int in = -1, out = -1, err = -1;                              // -1: ours
    std::vector<int> inherit; // stay open in the child under their numbers
    bool guarded = false;     // killed by the kernel when we die, and out of reach of the terminal's Ctrl-C
    // With a launcher of GPU workers beside it (replicator/worker/launcher.hpp), if its environment names the
    // worker: for a QEMU that may not start programs. Only with `guarded`.
    bool launcher = false;
    // What it has of this host (confine/confinement.hpp, to_text()); empty: what we have. Only with
    // `guarded`.
    std::string confinement = {};
    // Outlives us and its child_process: a session of its own, of our descriptors only its streams and `inherit`
    // (libraries have some that stay open on exec). Not with `guarded`.
    bool detached = false;
};

class child_process {
public:
    // std::nullopt and a sentence in `error` when it cannot be started.
    static std::optional<child_process> start(const spawn_request& request, std::string& error);

    child_process(child_process&&) = default;
    child_process& operator=(child_process&&) = default;
    ~child_process(); // kills and reaps a child that still runs, if it is not detached

    int pidfd() const { return pidfd_.get(); } // readable once it has ended
    int pid() const { return pid_; }
    void kill();
    // Nobody waits for its end any more, in the destructor neither: it was killed, and the kernel holds it.
    void abandon() { pidfd_.reset(); }
    // Exit status, or 128 + signal. std::nullopt: still runs after the time.
    std::optional<int> wait_for(std::chrono::milliseconds time);

private:
    child_process(int pid, unique_fd pidfd, bool detached)
        : pid_(pid), pidfd_(std::move(pidfd)), detached_(detached) {}
    int pid_ = -1;
    unique_fd pidfd_;
    bool detached_ = false;
    std::optional<int> status_;
};

// "status 1" or "signal 9 (Killed)", of what wait_for() returned.
std::string how_it_ended(int status);

// Of a process that was killed: no thread of it will run its own code again, but the kernel still holds at
// least one in a wait that a signal does not end. The states are the letters of /proc/PID/task/TID/stat.
bool only_held_threads(int pid);
bool only_held(std::string_view states);

// Blocks SIGINT, SIGTERM and SIGHUP in this process and returns a descriptor that becomes readable when one
// of them arrives (always the same). SIGPIPE is ignored.
int interrupt_fd();
// The signal that arrived, if any (stays set).
int interrupted_by();

// Runs a program to its end: stdout is captured, stderr is ours. Status as child_process says; 127 when it
// could not be started, 128 + signal when we were interrupted meanwhile (the child is killed then).
// With a confinement (spawn_request) stderr is captured, too.
struct captured {
    int status = 127;
    std::string out;
};
captured run_captured(const std::vector<std::string>& command,
                      const std::vector<std::pair<std::string, std::string>>& environment = {},
                      const std::optional<std::string>& confinement = {});

// The first words of a guarded child's command: the little program between us and it (confine/guard.hpp).
inline constexpr char guard_word[] = "--guarded-by";
inline constexpr char guard_with_launcher[] = "launcher", guard_without_launcher[] = "plain";

} // namespace kagemusha::control
