// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter of two hosts and a power switch: who goes on without the other host first has it cut off, with
// the owner's command (power switch, hypervisor, network switch). The command gets in its environment
//
//   KAGE_FENCE    which of the two is to be cut off: primary or standby
//   KAGE_ADDRESS  of a standby: where its supervisor listens. Another one after `kage protect VM ADDRESS`
//   KAGE_VM       the VM's name
//
// and ends with 0 when that host certainly neither runs the VM nor reaches its network any more. The owner's
// check of it gets the same, cuts nobody off, and ends with 0 when the command would work.
//
// fence_fsm decides, fence_file keeps the record; here the commands are run.
#pragma once

#include "control/arbiter/fence_fsm.hpp"
#include "control/arbiter/worker_arbiter.hpp"

namespace kagemusha::control {

struct fence_commands {
    std::vector<std::string> cut_off, check; // check may be empty
};

class fence_arbiter final : public worker_arbiter {
public:
    fence_arbiter(fence_commands commands, const fence_rules& rules, fence_file file,
                  const arbiter_identity& identity, arbiter_answers answer);
    ~fence_arbiter() override { stop(); }

private:
    ha::arbiter_answer decide(const ha::arbiter_request& request) override;
    std::string run(const fence_run& what); // a sentence when it failed

    fence_commands commands_;
    fence_file file_;
    fence_fsm fsm_;
    arbiter_identity identity_;
};

} // namespace kagemusha::control
