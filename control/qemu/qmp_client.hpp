// SPDX-License-Identifier: GPL-2.0-or-later
//
// One question at a time to a QEMU that runs already, over its QMP socket; each with a time limit, so that a
// QEMU that hangs is told as that.
#pragma once

#include "control/base/process.hpp"
#include "control/qemu/qmp_session.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <deque>
#include <optional>
#include <string>

namespace kagemusha::control {

class qmp_client {
public:
    // Connects and gets ready for commands. Nothing and a sentence in `error`.
    static std::optional<qmp_client> connect(const std::string& socket_path, std::string& error,
                                             std::chrono::milliseconds limit = std::chrono::seconds(2));

    // What the command returned. Nothing and a sentence in `error`; after one that is not QEMU's own answer
    // the connection is of no use.
    std::optional<nlohmann::json> ask(const std::string& command, const nlohmann::json& arguments,
                                      std::string& error);
    std::optional<nlohmann::json> get(const std::string& object, const std::string& property,
                                      std::string& error);

private:
    qmp_client(unique_fd fd, std::string path, std::chrono::milliseconds limit)
        : fd_(std::move(fd)), path_(std::move(path)), limit_(limit) {}
    std::optional<qmp_message> next(std::chrono::steady_clock::time_point until, std::string& error);

    unique_fd fd_;
    std::string path_;
    std::chrono::milliseconds limit_;
    qmp_session session_;
    std::deque<qmp_message> arrived_;
};

} // namespace kagemusha::control
