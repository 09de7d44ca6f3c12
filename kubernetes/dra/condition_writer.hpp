// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keeps the conditions of this node's claims at the API server as core/standby.hpp decides: asks for all claims, and
// writes those that differ. No step depends on an earlier one.
#pragma once

#include "kubernetes/core/standby.hpp"
#include "kubernetes/dra/api_server.hpp"

#include <string>
#include <vector>

namespace kagemusha::kubernetes {

class condition_writer {
public:
    explicit condition_writer(api_server& server) : server_(server) {}

    // "": the server has them. Else why not; call again.
    std::string step(const own_node& node);

private:
    std::string list(std::vector<nlohmann::json>& claims);

    api_server& server_;
};

} // namespace kagemusha::kubernetes
