// SPDX-License-Identifier: GPL-2.0-or-later
#include "scenario/ha_text.hpp"

#include <fmt/format.h>

#include "mirror/protocol/message_text.hpp"

namespace kagemusha::scenario {

using namespace ha;
using kind = arbiter_request::kind;
using verdict = arbiter_answer::verdict;

std::string quoted(const std::string& text) {
    return text.empty() ? std::string() : " \"" + text + "\"";
}

namespace {

std::string time_text(std::uint64_t ms) {
    return ms == UINT64_MAX ? "for good" : fmt::format("until {}", ms);
}

std::string mark_text(const char* verb, const disk_mark& mark, bool flush) {
    return fmt::format("{} the disks {}", flush ? std::string("flush and ") + verb : verb, to_text(mark));
}

struct words {
    // ---- both
    std::string operator()(const act_ask& a) const { return "ask " + to_text(a.request); }
    std::string operator()(const act_standby_ask& a) const { return "ask " + to_text(a.request); }
    std::string operator()(const act_send& a) const { return "send " + mirror::to_text(a.what); }
    std::string operator()(const act_standby_send& a) const { return "send " + mirror::to_text(a.what); }
    std::string operator()(const act_close_link&) const { return "close the connection"; }
    std::string operator()(const act_standby_close_link&) const { return "close the connection"; }
    std::string operator()(const act_mark& a) const { return mark_text("mark", a.mark, a.flush); }
    std::string operator()(const act_standby_mark& a) const { return mark_text("mark", a.mark, a.flush); }

    // ---- a primary
    std::string operator()(const act_state& a) const {
        return fmt::format("state {}{}", ha::to_text(a.state), quoted(a.why));
    }
    std::string operator()(const act_gate& a) const {
        return a.until_ms == 0 ? "close the gate" : "open the gate " + time_text(a.until_ms);
    }
    std::string operator()(const act_connect& a) const {
        return a.address.empty() ? "connect" : "connect to " + a.address;
    }
    std::string operator()(const act_start_qemu&) const { return "start QEMU"; }
    std::string operator()(const act_replicate& a) const {
        return fmt::format("replicate {}", a.replication);
    }
    std::string operator()(const act_go_on_alone&) const { return "go on alone"; }
    std::string operator()(const act_report_gpu_failure&) const { return "tell the guest of its GPU"; }
    std::string operator()(const act_kill_qemu& a) const { return "kill QEMU" + quoted(a.why); }
    std::string operator()(const act_ended& a) const {
        return fmt::format("end{}{}{}", a.in_order ? " in order" : " with an error",
                           a.alone ? ", its disks are the newest" : "", quoted(a.why));
    }

    // ---- a standby
    std::string operator()(const act_standby_state& a) const {
        return fmt::format("state {}{}", ha::to_text(a.state), quoted(a.why));
    }
    std::string operator()(const act_take_over& a) const { return "take over" + quoted(a.why); }
    std::string operator()(const act_restart_qemu& a) const {
        return fmt::format("start QEMU {}{}", a.qemu, quoted(a.why));
    }
    std::string operator()(const act_standby_use_files&) const { return "use the primary's files"; }
    std::string operator()(const act_running& a) const {
        return fmt::format("the VM runs here with term {}, lease {}", a.term, time_text(a.lease_until));
    }
    std::string operator()(const act_standby_ended& a) const {
        return fmt::format("end{}{}", a.in_order ? " in order" : " with an error", quoted(a.why));
    }
};

} // namespace

std::string to_text(const arbiter_request& q) {
    std::string out = fmt::format("{} {}", ha::to_text(q.what), q.term);
    if (q.what == kind::pair)
        out += fmt::format(" -> {}", q.new_term);
    if (q.proven_dead)
        out += ", proven dead";
    if (q.unreleased)
        out += ", unreleased";
    if (q.anew)
        out += ", anew";
    if (q.confirmed)
        out += ", confirmed";
    if (!q.whom.empty())
        out += ", of " + q.whom;
    if (q.paired)
        out += q.what == kind::restore ? ", paired" : ", a standby is told next";
    return out;
}

std::string answer_text(const arbiter_request& q, const arbiter_answer& a) {
    if (a.what != verdict::granted)
        return std::string(ha::to_text(a.what)) + quoted(a.why);
    if (q.what == kind::release)
        return "granted";
    if (q.what == kind::look)
        return fmt::format("the record has term {}, {}{}", a.term, a.paired ? "paired" : "alone",
                           a.ours ? ", its own" : "");
    return fmt::format("granted, term {} {}", a.term, time_text(a.until_ms));
}

std::string to_text(const primary_action& a) {
    return std::visit(words{}, a);
}

std::string to_text(const standby_action& a) {
    return std::visit(words{}, a);
}

} // namespace kagemusha::scenario
