// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiters: who keeps the record of which host may run a VM (control/ha/arbiter_request.hpp has the
// contract).
//
//   lock    both supervisors on one machine: a word in a shared file
//   etcd    a cluster of etcd servers: a lease, and transactions
//   fence   a record of each host's own: who wants to be sure cuts the other host off with a command
//
// Requests are answered in their order. One thread asks; `answer` is called on whatever thread has it.
#pragma once

#include "control/ha/arbiter_request.hpp"
#include "control/vm/description.hpp"

#include <functional>
#include <memory>
#include <string>

namespace kagemusha::control {

class arbiter {
public:
    virtual ~arbiter() = default; // waits until nothing is under way
    virtual void ask(const ha::arbiter_request& request) = 0;
};

using arbiter_answers = std::function<void(ha::arbiter_answer)>;

struct arbiter_identity {
    std::string vm;
    std::string owner; // of this supervisor's run: unique, printable
    bool standby = false;
};

// Null and a sentence in `error`.
std::unique_ptr<arbiter> make_arbiter(const described_arbiter& described, const arbiter_identity& identity,
                                      arbiter_answers answer, std::string& error);

// Milliseconds and nanoseconds of CLOCK_BOOTTIME: it goes on while the machine sleeps.
std::uint64_t boot_ms();
std::uint64_t boot_ns();

} // namespace kagemusha::control
