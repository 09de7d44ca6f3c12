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
        static constexpr const char* names[] = {"at_protection", "guest_waits", "over"};
        return std::string("lagging ") + names[static_cast<std::size_t>(a.what)] + " " +
               std::to_string(a.ms) + "ms";
    }
    std::string operator()(const act_start_sync& a) const {
        return a.built ? "start_sync with built programs" : "start_sync";
    }
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
    const std::string ms = std::to_string(a.ms) + " ms";
    switch (a.what) {
    case lag::at_protection:
        return "the standby's GPU does not keep up: it lags by " + ms +
               ", and a takeover has this to do before the guest's next command";
    case lag::guest_waits:
        return "the standby's GPU lags by " + ms + ", and the guest's requests wait for it (max-behind-ms)";
    case lag::over:
        break;
    }
    return "the standby's GPU keeps up again, after " + ms;
}

std::string to_text(const primary_action& a) {
    return std::visit(action_text{}, a);
}

} // namespace kagemusha::mirror
