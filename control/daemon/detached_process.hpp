// SPDX-License-Identifier: GPL-2.0-or-later
//
// A process that outlives the daemon: a session of its own, none of our descriptors but its three streams (not
// those of libraries either, which stay open on exec). While the daemon lives it notices the end.
#pragma once

#include "control/base/process.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::daemon {

class detached_process {
public:
    // Output and errors go into `log`, which is emptied. Nothing and a sentence in `error`.
    static std::optional<detached_process> start(const std::vector<std::string>& command,
                                                 const std::string& log, std::string& error);

    // Exit status, or 128 + signal, once it has ended.
    std::optional<int> ended();

private:
    explicit detached_process(unique_fd pidfd) : pidfd_(std::move(pidfd)) {}
    unique_fd pidfd_;
    std::optional<int> status_;
};

} // namespace kagemusha::control::daemon
