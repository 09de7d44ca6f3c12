// SPDX-License-Identifier: GPL-2.0-or-later
//
// JSON as text, whatever bytes its strings have: those that are not UTF-8 (a line of QEMU's log, an answer of
// etcd's, a file's name) are replaced. nlohmann's dump() throws there, and nobody catches it: a supervisor
// that ends takes its VM with it.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace kagemusha::control {

// `indent` as of dump(): -1 is one line.
inline std::string as_json_text(const nlohmann::json& value, int indent = -1) {
    return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace kagemusha::control
