// SPDX-License-Identifier: GPL-2.0-or-later
// record: what the simulator saw, for the checkers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "share/options.hpp"

namespace kagemusha::share::sim {

struct vm_record {
    std::uint64_t used_ns = 0;         // of the GPU, in the measured second
    std::uint64_t longest_wait_ns = 0; // from its wish until its task could begin
    std::uint64_t longest_unit_ns = 0; // of what it had in flight at once
    bool hung = false;
};

struct record {
    std::vector<vm_record> vms;
    std::uint64_t measured_ns = 0;
    std::uint64_t used_ns = 0;         // by all, in the measured second
    std::uint64_t longest_idle_ns = 0; // of the GPU, while somebody who may have it waited
    std::uint64_t switches = 0;
    std::string broken_rule; // found while it ran: two at a time
};

// "" or the rule that the run broke.
std::string check_starvation(const options& o, const record& r);
std::string check_shares(const options& o, const record& r);
std::string check_conservation(const options& o, const record& r);
std::string check_priorities(const options& o, const record& r);

} // namespace kagemusha::share::sim
