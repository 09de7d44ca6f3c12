// SPDX-License-Identifier: GPL-2.0-or-later
//
// One run of a virtual machine, from QEMU's start to its end: relays the console, follows the job, reads the
// device's statistics through QMP, and makes sure that nothing is left when it returns.
#pragma once

#include "control/qemu/vm_config.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kagemusha::control {

struct machine_run {
    vm_config config; // without qmp_fd: that one is ours
    std::vector<std::pair<std::string, std::string>> environment;
    std::string directory; // for console.log and qemu.log; exists
    std::chrono::seconds time_limit{600};
    bool verbose = false;     // show the console from the first byte on, not only the job's part
    bool interactive = false; // our terminal is the guest's; `show` is not used
    bool probe = false;       // only until the kernel says that it came up
    std::function<bool(std::string_view)>
        show; // the job's output as it comes; false: nobody reads it any more
};

struct machine_result {
    enum class end {
        job_ended, // job_status is valid
        probe_answered,
        timed_out,
        interrupted, // a signal, or nobody reads our output any more
        failed       // QEMU or the guest; `problem` says what
    };
    end how = end::failed;
    int job_status = -1;
    std::string problem;
    double boot_seconds = 0, job_seconds = 0;
    // The device's statistics when the job started and when it ended; null without a GPU.
    nlohmann::json stats_before, stats_after;
    std::string gpu_name;
};

machine_result run_machine(const machine_run& run);

} // namespace kagemusha::control
