// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/primary/primary_text.hpp"

#include "mirror/protocol/message_text.hpp"

namespace kagemusha::mirror {

namespace {

struct action_text {
    std::string operator()(const act_send& a) const { return to_text(a); }
    std::string operator()(const act_close_link& a) const { return to_text(a); }
    std::string operator()(const act_connect&) const { return "connect"; }
    std::string operator()(const act_send_entries& a) const {
        return "send_entries " + std::to_string(a.first) + ".." + std::to_string(a.last);
    }
    std::string operator()(const act_send_content& a) const {
        return "send_content " + to_text(a.what).substr(8);
    }
    std::string operator()(const act_drop_log& a) const {
        return "drop_log " + (a.up_to == UINT64_MAX ? "all" : std::to_string(a.up_to));
    }
    std::string operator()(const act_drop_content& a) const {
        return "drop_content " + std::to_string(a.sequence);
    }
    std::string operator()(const act_built& a) const {
        return (a.send ? "send " : "drop ") + to_text(message(a.what));
    }
    std::string operator()(const act_lagging& a) const {
        return std::string("lagging ") + (a.on ? "on " : "off ") + std::to_string(a.ms) + "ms";
    }
    std::string operator()(const act_start_sync&) const { return "start_sync"; }
    std::string operator()(const act_stop_mirror&) const { return "stop_mirror"; }
    std::string operator()(const act_epoch_wanted&) const { return "epoch_wanted"; }
    std::string operator()(const act_congestion& a) const {
        return a.on ? "congestion on" : "congestion off";
    }
    std::string operator()(const act_digest_result& a) const { return to_text(message(a.what)); }
    std::string operator()(const act_state& a) const { return state_text(name_of(a.state), a.degraded); }
};

} // namespace

const char* name_of(primary_state s) {
    static constexpr const char* names[] = {"disconnected", "greeting", "syncing", "protecting", "ended"};
    return names[static_cast<std::size_t>(s)];
}

std::string sentence(const act_lagging& a) {
    return a.on ? "the standby's GPU lags by " + std::to_string(a.ms) +
                      " ms, and the guest waits for it (max-behind-ms): a takeover now would take that long"
                : "the standby's GPU keeps up again, after " + std::to_string(a.ms) + " ms";
}

std::string to_text(const primary_action& a) {
    return std::visit(action_text{}, a);
}

} // namespace kagemusha::mirror
