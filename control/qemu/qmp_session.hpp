// SPDX-License-Identifier: GPL-2.0-or-later
//
// QEMU's machine protocol (QMP: JSON, one object per line) without the socket: bytes in, messages out;
// commands out as bytes. Pure. See docs/interop/qmp-spec.rst in QEMU's sources.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct qmp_message {
    enum class kind {
        greeting,
        event,   // name, body = its data
        success, // id, body = what was returned
        failure, // id, body = {"class", "desc"}
        broken   // not QMP: the connection is of no use any more
    };
    kind what = kind::broken;
    std::string name;
    std::uint64_t id = 0;
    nlohmann::json body;
};

class qmp_session {
public:
    std::vector<qmp_message> feed(std::string_view bytes);

    // The bytes of a command; `id` comes back with its answer.
    // Out of band: carried out at once, by a thread that waits for nothing (the capability `oob` is needed).
    std::string command(std::string_view name, const nlohmann::json& arguments, std::uint64_t& id,
                        bool out_of_band = false);

private:
    std::string line_;
    std::uint64_t last_id_ = 0;
};

} // namespace kagemusha::control
