// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keeps the ResourceSlices of this node at the API server as the inventory is: looks at what is there, and makes,
// replaces or deletes what differs. No step depends on an earlier one.
#pragma once

#include "kubernetes/core/slices.hpp"
#include "kubernetes/dra/api_server.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace kagemusha::kubernetes {

class slice_publisher {
public:
    // `place`: without the node's uid, which the server tells.
    slice_publisher(api_server& server, slice_place place) : server_(server), place_(std::move(place)) {}

    // "" : the server has them. Else why not; call again.
    std::string step(const inventory& gpus);

private:
    std::string find_node();
    std::string write(const std::vector<nlohmann::json>& there, std::vector<nlohmann::json> wanted);

    api_server& server_;
    slice_place place_;
    // What was sent last, and what the server kept of it: less, if it lacks a feature.
    std::vector<nlohmann::json> sent_, kept_;
};

} // namespace kagemusha::kubernetes
