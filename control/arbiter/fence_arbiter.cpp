// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fence_arbiter.hpp.
#include "control/arbiter/fence_arbiter.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_around{50}; // for a request that can't wait for a check

fence_rules with_check(fence_rules rules, bool has_check) {
    rules.has_check = has_check;
    return rules;
}

} // namespace

fence_arbiter::fence_arbiter(fence_commands commands, const fence_rules& rules, fence_file file,
                             const arbiter_identity& identity, arbiter_answers answer)
    : worker_arbiter(std::move(answer))
    , commands_(std::move(commands))
    , file_(std::move(file))
    , fsm_(with_check(rules, !commands_.check.empty()), file_.record())
    , identity_(identity) {
    start();
}

ha::arbiter_answer fence_arbiter::decide(const ha::arbiter_request& request) {
    using kind = ha::arbiter_request::kind;
    const bool cuts = request.what == kind::alone || request.what == kind::claim;
    auto step = fsm_.asked(request, cuts && file_.take_confirmation(request.term), boot_ms());
    for (;;) {
        if (const auto* answer = std::get_if<fence_answer>(&step))
            return answer->what;
        if (const auto* write = std::get_if<fence_write>(&step))
            step = fsm_.written(file_.write(write->record));
        else if (const auto* command = std::get_if<fence_run>(&step)) {
            const auto problem = run(*command);
            step = fsm_.ended(problem, boot_ms());
        }
    }
}

std::string fence_arbiter::run(const fence_run& what) {
    const auto& command = what.check ? commands_.check : commands_.cut_off;
    const char* const whom = what.primary ? "primary" : "standby";
    std::string why;
    auto child =
        child_process::start({command,
                              {{"KAGE_FENCE", whom}, {"KAGE_ADDRESS", what.whom}, {"KAGE_VM", identity_.vm}},
                              -1,
                              -1,
                              -1,
                              {},
                              false},
                             why);
    if (child) {
        std::optional<int> status;
        const auto until = boot_ms() + what.limit_ms;
        for (auto now = boot_ms(); !status && now < until; now = boot_ms()) {
            if (what.check && is_wanted())
                return "the check of the fencing command was interrupted: something else was asked";
            status = child->wait_for(std::min(look_around, milliseconds(until - now)));
        }
        if (status == 0)
            return {};
        why = status ? fmt::format("it ended with status {}", *status)
                     : fmt::format("it did not end within {} ms", what.limit_ms);
    }
    return what.check ? fmt::format("the check of the fencing command ({}) failed: {}", command.front(), why)
                      : fmt::format("the fencing command ({}) did not cut the {} off: {}", command.front(),
                                    whom, why);
}

} // namespace kagemusha::control
