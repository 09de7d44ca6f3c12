// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/standby_text.hpp"

#include "mirror/protocol/message_text.hpp"

namespace kagemusha::mirror {

namespace {

struct action_text {
    std::string operator()(const act_send& a) const { return to_text(a); }
    std::string operator()(const act_close_link& a) const { return to_text(a); }
    std::string operator()(const act_run& a) const { return "run " + std::to_string(a.sequence); }
    std::string operator()(const act_skip& a) const { return "skip " + std::to_string(a.sequence); }
    std::string operator()(const act_resume& a) const { return "resume " + std::to_string(a.request.token); }
    std::string operator()(const act_live&) const { return "live"; }
    std::string operator()(const act_forget_all&) const { return "forget_all"; }
    std::string operator()(const act_store_built& a) const { return "store " + to_text(message(a.what)); }
    std::string operator()(const act_standby_state& a) const { return state_text(name_of(a.state), a.why); }
};

} // namespace

const char* name_of(standby_state s) {
    static constexpr const char* names[] = {"listening", "greeting",   "following",
                                            "ready",     "taken_over", "ended"};
    return names[static_cast<std::size_t>(s)];
}

std::string to_text(const standby_action& a) {
    return std::visit(action_text{}, a);
}

} // namespace kagemusha::mirror
