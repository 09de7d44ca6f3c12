// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keeps the ResourceSlices of this node at the API server as the inventory is: looks at what is there, and makes,
// replaces or deletes what differs. No step depends on an earlier one.
#pragma once

#include "kubernetes/core/slices.hpp"
#include "kubernetes/dra/api_server.hpp"

#include <string>

namespace kagemusha::kubernetes {

class slice_publisher {
public:
    slice_publisher(api_server& server, std::string node, slicing how)
        : server_(server), place_{std::move(node), {}, how} {}

    // "" : the server has them. Else why not; call again.
    std::string step(const inventory& gpus);

private:
    std::string find_node();

    api_server& server_;
    slice_place place_;
};

} // namespace kagemusha::kubernetes
