// SPDX-License-Identifier: GPL-2.0-or-later
//
// A VM's place among those that share its GPU: a connection to the GPU's share arbiter (kagemusha-gpu) for as
// long as the VM's supervisor lives. The arbiter is started if there is none, and again when it has died; it
// belongs to no VM and ends by itself after the last one.
#pragma once

#include "control/base/process.hpp"
#include "proto/share/share_protocol.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace kagemusha::control {

class share_lease {
public:
    using says = std::function<void(const std::string&)>; // on a thread of the lease

    // nullptr with a sentence: the VM does not fit, or there can be no arbiter.
    static std::unique_ptr<share_lease> take(const std::string& socket, const share_hello& hello, says report,
                                             std::string& error);
    ~share_lease();

private:
    share_lease(std::string socket, const share_hello& hello, says report);
    bool join(std::string& error);
    void keep();

    const std::string socket_;
    const share_hello hello_;
    const says report_;
    unique_fd connection_, stop_;
    std::thread keeper_;
};

} // namespace kagemusha::control
