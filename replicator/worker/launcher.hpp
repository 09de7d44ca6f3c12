// SPDX-License-Identifier: GPL-2.0-or-later
// launcher: a small process that starts the workers of one QEMU, so that QEMU itself can be forbidden to
// start any (seccomp's spawn=deny), and no worker inherits what is forbidden to QEMU.
//
// Whoever starts QEMU starts the launcher just before, as a child of the process that becomes QEMU, and
// leaves QEMU one end of a socket pair, whose number is in $KAGEMUSHA_LAUNCHER. All that can be asked for is
// "another worker": the launcher starts its own program and nothing else. The workers are QEMU's children,
// not the launcher's, so QEMU awaits them as if it had started them, and they end with it (PR_SET_PDEATHSIG).
// The launcher ends when QEMU's end of the socket is closed.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/unique_fd.hpp"
#include "worker/spawn.hpp"

namespace kagemusha::worker {

inline constexpr char launcher_variable[] = "KAGEMUSHA_LAUNCHER";
inline constexpr char launcher_word[] = "--launcher"; // kagemusha-worker --launcher FD
inline constexpr std::uint32_t launcher_version = 1;

// With two descriptors: the worker's setup connection and its standard error. Packets of a SOCK_SEQPACKET.
struct launch_request {
    std::uint32_t version;
    char title[124]; // ends with a 0; for who lists processes
};

// With the worker's pidfd when `error` is 0.
struct launch_answer {
    std::int32_t error; // an errno
    std::int32_t pid;
};

// QEMU's end. Any thread.
class launcher_client {
public:
    explicit launcher_client(unique_fd socket);

    // As spawn_worker() does. Waits for seconds at most; a launcher that does not answer is given up.
    spawned_process start(const std::string& title, int setup, int error_output, std::string& error);

    // The one that this process was started with; nullptr: there is none.
    static launcher_client* inherited();

private:
    std::mutex mutex_;
    unique_fd socket_;
};

// The launcher's end: serves until QEMU is gone, and returns the program's exit status. `program` is what it
// starts, with `title` as only argument.
int run_launcher(int socket, const char* program);

} // namespace kagemusha::worker
