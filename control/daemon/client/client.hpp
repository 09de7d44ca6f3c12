// SPDX-License-Identifier: GPL-2.0-or-later
//
// The other end of the API: one request to the daemon of this user, and commands in nodes.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::daemon {

struct daemon_answer {
    unsigned status = 0;
    nlohmann::json body;
    std::string revision;
};

// Nothing and a sentence: nobody answers. An answer with an error is an answer.
std::optional<daemon_answer> ask_daemon(const std::string& method, const std::string& target,
                                        const std::string& body, const std::string& if_match,
                                        std::string& error);

// Where a command's input comes from, and where its output goes to: ours by default. False: nobody wants it any
// more, and the command is ended.
struct exec_ends {
    int input = 0;
    std::function<bool(std::string_view)> output = {}, errors = {};
    std::function<bool()> idle = {}; // called each second or so while nothing comes
    bool quiet = false;              // nothing on stderr
};

// Runs a command in a node, with our input, output and errors, to its end. Its exit status; 125 and a sentence
// on stderr when it could not be run, 126 when the connection was lost meanwhile. `wait`: until the node is up.
int exec_in_node(const std::string& socket, const std::string& secret, const std::vector<std::string>& words,
                 bool wait, const exec_ends& ends = {});

} // namespace kagemusha::control::daemon
