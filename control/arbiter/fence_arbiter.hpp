// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiter without a record: who goes on alone first makes sure that the other host does not, with the
// owner's command (power switch, hypervisor, network switch). It gets in its environment
//
//   KAGE_FENCE  which of the two is to be cut off: primary or standby
//   KAGE_VM     the VM's name
//
// and ends with 0 when that host certainly neither runs the VM nor reaches its network any more. If both do
// it at the same time, one of them is faster; that is what the command is for.
#pragma once

#include "control/arbiter/worker_arbiter.hpp"

namespace kagemusha::control {

class fence_arbiter final : public worker_arbiter {
public:
    fence_arbiter(std::vector<std::string> command, const arbiter_identity& identity, arbiter_answers answer);
    ~fence_arbiter() override { stop(); }

private:
    ha::arbiter_answer decide(const ha::arbiter_request& request) override;
    ha::arbiter_answer fence(const ha::arbiter_request& request, const char* whom, std::uint64_t term);

    std::vector<std::string> command_;
    arbiter_identity identity_;
};

} // namespace kagemusha::control
