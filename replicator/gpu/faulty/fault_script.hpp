// SPDX-License-Identifier: GPL-2.0-or-later
// fault_script: what goes wrong when. Pure: counts operations, says what to do with each.
//
// A script is a list of rules in the backend's options, each "on=WHAT:WHEN,do=ACTION:NUMBER"; README.md has
// the grammar.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/backend.hpp"

namespace kagemusha::gpu {

enum class fault_point : std::uint8_t { create, build, info, write, read, copy, fill, launch, sync };
constexpr std::size_t fault_point_count = 9;

enum class fault_action : std::uint8_t {
    error, // refuse with the error code `number`
    fail,  // accept, do nothing, complete with the error code `number`
    delay, // begin `number` ms later
    hang,  // accept, never begin
    stall, // never return
    lost,  // this and everything after it: CL_DEVICE_NOT_AVAILABLE
    crash, // end the process with the signal `number`
    exit,  // end the process with the exit code `number`
};

struct fault {
    fault_action action;
    std::int64_t number;
};

class fault_script {
public:
    // Takes its own options out of `options` ("on", "do"). False with a sentence.
    bool parse(backend_options& options, std::string& error);

    // Counts the operation; what to do with it, if anything. The first rule that fits wins.
    std::optional<fault> next(fault_point point);

private:
    struct rule {
        std::array<bool, fault_point_count> points{};
        std::uint64_t first = 1, step = 0; // step 0: only the first
        std::uint64_t seen = 0;
        fault what{};
    };
    bool parse_on(const std::string& text, rule& out, std::string& error) const;
    bool parse_do(const std::string& text, rule& out, std::string& error) const;

    std::vector<rule> rules_;
};

} // namespace kagemusha::gpu
