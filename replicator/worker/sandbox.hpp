// SPDX-License-Identifier: GPL-2.0-or-later
// sandbox: takes from a worker what a GPU runtime does not need, before any code of the guest runs in it.
// README.md says which layer denies what.
//
// The steps are called by the only thread of the process; every later thread inherits them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/gpu_nodes.hpp"
#include "worker/process_port.hpp"

namespace kagemusha::worker {

struct private_directory {
    std::string path;
    bool vanishes = false; // a file system of its own, which ends with the last process of the worker
};

class sandbox {
public:
    // `nodes`: what it may open below /dev for its GPU.
    sandbox(sandbox_mode mode, gpu_nodes nodes);

    // First step: namespaces, and in them a private, empty, writable directory that vanishes by itself. On a
    // host that does not give one the directory is without a path. Needs no descriptor of the device.
    void isolate(std::uint64_t max_private_bytes);
    // Its two halves, for a process that enters a PID namespace between them, and has mounted a /proc of it:
    // after show_own_processes() all of that is in the sandbox.
    void show_own_processes() { own_processes_ = true; }
    void enter_namespaces();
    void make_private_directory(std::uint64_t max_bytes);
    const private_directory& directory() const { return directory_; }

    // Second step: HOME, TMPDIR and the caches of GPU runtimes point to the directory. "" or why the worker
    // must not go on.
    std::string move_into(private_directory directory);

    // Third step, last: limits, capabilities, files, system calls. "" or why the worker must not go on.
    std::string enter(std::uint64_t max_worker_bytes);

    // Layers that this host does not give, each in a few words, for the log.
    const std::vector<std::string>& missing() const { return missing_; }
    // What is taken from the environment that QEMU was started with, each a sentence.
    const std::vector<std::string>& notes() const { return notes_; }

private:
    void leave_folders_out();
    void limit_resources(std::uint64_t max_worker_bytes);

    sandbox_mode mode_;
    gpu_nodes nodes_;
    bool own_users_ = false, own_mounts_ = false, own_processes_ = false;
    private_directory directory_;
    std::vector<std::string> missing_;
    std::vector<std::string> notes_;
};

// Read access that programs of the system need: libraries, the linker, data of the compiler.
class landlock_rules;
void allow_system_files(landlock_rules& rules);

// Gives up every capability, also those of a user namespace of its own.
std::string drop_capabilities();

} // namespace kagemusha::worker
