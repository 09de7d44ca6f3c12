// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fence_arbiter.hpp.
#include "control/arbiter/fence_arbiter.hpp"

#include "control/process.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

using ha::arbiter_answer;
using ha::arbiter_request;

// A command that hangs must not stop the supervisor for ever; power switches take seconds.
constexpr auto longest_run = std::chrono::seconds(60);

arbiter_answer granted(std::uint64_t term) {
    // No lease: the other one runs the command before it takes anything.
    return {arbiter_answer::verdict::granted, 0, term, UINT64_MAX, {}};
}

} // namespace

fence_arbiter::fence_arbiter(std::vector<std::string> command, const arbiter_identity& identity,
                             arbiter_answers answer)
    : worker_arbiter(std::move(answer)), command_(std::move(command)), identity_(identity) {
    start();
}

arbiter_answer fence_arbiter::decide(const arbiter_request& request) {
    switch (request.what) {
    case arbiter_request::kind::open:
        return granted(boot_ms()); // terms only go up, and need not be the next number
    case arbiter_request::kind::renew:
    case arbiter_request::kind::release:
        return granted(request.term);
    case arbiter_request::kind::pair:
        return granted(request.new_term);
    case arbiter_request::kind::look:
    case arbiter_request::kind::restore:
        return granted(request.term); // nobody keeps anything
    case arbiter_request::kind::alone:
        if (request.confirmed)
            return granted(request.term);
        return fence(request, "standby", request.term);
    case arbiter_request::kind::claim:
        return request.proven_dead ? granted(request.term + 1) : fence(request, "primary", request.term + 1);
    }
    return {};
}

arbiter_answer fence_arbiter::fence(const arbiter_request&, const char* whom, std::uint64_t term) {
    std::string why;
    auto child = child_process::start(
        {command_, {{"KAGE_FENCE", whom}, {"KAGE_VM", identity_.vm}}, -1, -1, -1, {}, false}, why);
    if (child) {
        const auto status = child->wait_for(longest_run);
        if (status == 0)
            return granted(term);
        why = status ? fmt::format("it ended with status {}", *status)
                     : fmt::format("it did not end within {} s", longest_run.count());
    }
    return {arbiter_answer::verdict::unreachable, 0, 0, 0,
            fmt::format("the fencing command ({}) did not cut the {} off: {}", command_.front(), whom, why)};
}

} // namespace kagemusha::control
