// SPDX-License-Identifier: GPL-2.0-or-later
// syscall_filter: the system calls that a worker, its linker broker and the linker may still make (seccomp).
//
// What a GPU runtime needs is allowed by name. What someone hostile would try first is denied with EPERM, so
// that runtimes degrade as they would for an unprivileged user. Everything else, also what later kernels add,
// does not exist (ENOSYS): programs know how to live with an older kernel. Calls of a foreign architecture
// (32 bit) end the process.
#pragma once

#include <string>

namespace kagemusha::worker {

enum class filter_for {
    worker, // threads, files, memory, devices; no process, no socket
    broker, // as a worker, and may start and await processes
    linker, // on top of the broker's, which it inherits: can't start processes any more
};

// For this thread and what it starts from now on, for good. "" or why not. `nvidia`: a worker may do what
// NVIDIA's runtime can't do without: make shared anonymous memory, which no limit of the process counts, and a
// Unix socket that listens (CUDA's, for other processes that want its memory). No call takes a connection of
// that socket or makes one, so nothing comes through it.
std::string enter_syscall_filter(filter_for role, bool nvidia = false);

} // namespace kagemusha::worker
