// SPDX-License-Identifier: GPL-2.0-or-later
// process_port: the device's end of a worker process. Starts it, hands it the rings and the guest's memory,
// brings requests to it and answers back, notices its death, kills it.
//
// One worker serves one open file of the guest: kernels on a CPU device are native code, so two guest
// processes in one worker could read each other, and what kernels print could not be told apart; a crash or
// hang hits one guest process; killing the worker releases everything of the file.
#pragma once

#include <kagemusha/device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/port.hpp"

namespace kagemusha::worker {

enum class sandbox_mode : std::uint32_t {
    required = 0,    // refuse to start without Landlock, system-call filter and loss of the network
    best_effort = 1, // apply what this host can, name what it can't
    off = 2,         // for debugging
};

// Memory that segments refer to; the index in `regions` is the region number.
struct shared_region {
    int fd = -1; // stays the caller's; needed only while start_worker() runs; -1: no such region
    std::uint64_t file_offset = 0;
    std::uint64_t bytes = 0;
};

struct worker_options {
    std::string name;    // of the VM, for log lines and the process's name
    std::string backend; // as in kagemusha_device_config, like the next four
    std::string gpu;
    std::string options;
    std::string worker_path; // "": see find_worker()
    sandbox_mode sandbox = sandbox_mode::required;
    std::uint64_t max_worker_bytes = 0; // private memory of the worker; 0: no limit
    std::vector<shared_region> regions;
    // "": the GPU is not shared. Else what share_join.hpp parses; without an arbiter the worker goes on alone.
    std::string share;
    // A line for the host's log, printable; rate-limited. Called from drain() and probe_gpu().
    std::function<void(kagemusha_log_level, const std::string&)> log;
};

// The worker's executable: `configured`, else $KAGEMUSHA_WORKER, else the installed one, else the one beside
// this library or program. Empty with a sentence in `error` if there is none.
std::string find_worker(const std::string& configured, std::string& error);

// Returns as soon as the process was started: requests can be submitted at once and wait in the ring while
// the worker opens its GPU. If that fails, the log tells why and drain() gives on_lost(VGPU_LOST_START). Null
// with a sentence in `error` if no process could be started.
std::unique_ptr<port> start_worker(const worker_options& options, std::string& error);

struct probed_gpu {
    std::string name; // "": see `error`
    std::string
        own_selector; // for worker_options::gpu of later workers, who then get no other GPU's nodes; or ""
};

// Starts a worker only to open the GPU, in its sandbox, and tells which one that is. Without a name, with a
// sentence in `error`, if that is not possible; waits at most `timeout_ms`.
probed_gpu probe_gpu(const worker_options& options, std::uint32_t timeout_ms, std::string& error);

} // namespace kagemusha::worker
