// SPDX-License-Identifier: GPL-2.0-or-later
//
// What etcd's record of a VM allows. Pure: a request and the record give an answer, or what is to be written.
#pragma once

#include "control/ha/arbiter_request.hpp"

#include <string>
#include <variant>

namespace kagemusha::control {

struct etcd_record {
    std::uint64_t term = 0;
    bool paired = false;
    std::string owner;
    std::string revision = "0"; // of the key; "0": it is not there
    std::string holder;         // "": nobody has a lease
};

struct etcd_put { // one transaction: the record has still that revision
    std::uint64_t term = 0;
    bool paired = false;
    bool nobody_holds = false; // and still nobody has a lease
};

// `owner` asks. Times are milliseconds of CLOCK_BOOTTIME.
std::variant<etcd_put, ha::arbiter_answer> decide_on(const etcd_record& record,
                                                     const ha::arbiter_request& request,
                                                     const std::string& owner, std::uint64_t now);

} // namespace kagemusha::control
