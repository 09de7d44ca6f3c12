// SPDX-License-Identifier: GPL-2.0-or-later
//
// What another program prints about this node: in a process of its own, because drivers hang and crash.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::kubernetes {

struct program_output {
    int status = 0; // as of wait()
    std::string said;
};

// Waits for `timeout_ms` at most, and reads at most 1 MiB. Nothing and a sentence: it took longer, said more, or can't be
// started. `errors`: what it prints as an error is a part of what it said.
std::optional<program_output> output_of(const std::vector<std::string>& command, bool errors, int timeout_ms,
                                        std::string& error);

} // namespace kagemusha::kubernetes
