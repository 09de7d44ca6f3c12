// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/protocol/message_text.hpp"

namespace kagemusha::mirror {

namespace {

std::string n(std::uint64_t v) {
    return v == UINT64_MAX ? "all" : std::to_string(v);
}

std::string list(const std::vector<std::uint64_t>& values) {
    std::string out;
    for (const std::uint64_t v : values)
        out += (out.empty() ? "" : " ") + std::to_string(v);
    return out;
}

std::string quoted(const std::string& s) {
    return "\"" + s + "\"";
}

std::string flags_text(std::uint32_t flags) {
    static constexpr std::pair<std::uint32_t, const char*> names[] = {
        {entry_awaits_outcome, "awaits"}, {entry_late_content, "late"}, {entry_agent, "agent"},
        {entry_compare, "compare"},       {entry_hash_content, "hash"}, {entry_may_fail, "may_fail"}};
    std::string out;
    for (const auto& [bit, name] : names)
        if ((flags & bit) != 0)
            out += std::string(" ") + name;
    return out;
}

struct message_text {
    std::string operator()(const hello& h) const {
        std::string out = h.role == role::primary ? "hello primary" : "hello standby";
        out += " vm=" + quoted(h.vm) + " version=" + n(h.oldest_version) + ".." + n(h.version) +
               " abi=" + n(h.abi_version) + " budget=" + n(h.heartbeat_budget_ms) + "ms";
        if (h.role == role::standby)
            out += " hold=" + n(h.hold_bytes) + "B/" + n(h.hold_entries);
        for (const std::string& c : h.capabilities)
            out += " +" + c;
        return out;
    }
    std::string operator()(const entries& m) const {
        std::string out = "entries";
        for (const auto& e : m.list) {
            out += " [" + n(e.meta.sequence) + " " + name_of(e.meta.kind);
            if (e.meta.kind != entry_kind::reset)
                out += " file=" + n(e.meta.file);
            if (e.meta.kind == entry_kind::submit)
                out += " " + n(e.meta.stream_bytes) + "+" + n(e.meta.content_bytes) + "B";
            out += flags_text(e.meta.flags) + "]";
        }
        return out;
    }
    std::string operator()(const content& m) const {
        return "content " + n(m.sequence) + "/" + n(m.payload) + " at " + n(m.offset) + " " + n(m.bytes) +
               "B";
    }
    std::string operator()(const built& m) const {
        return "built file=" + n(m.file) + " " + n(m.bytes) + "B";
    }
    std::string operator()(const outcome& m) const {
        return "outcome " + n(m.sequence) + (m.canceled ? " canceled" : " " + std::to_string(m.result));
    }
    std::string operator()(const marker& m) const {
        return "marker epoch=" + n(m.epoch) + " up to " + n(m.sequence) + (m.checkpoint ? " checkpoint" : "");
    }
    std::string operator()(const synced& m) const { return "synced " + n(m.sequence); }
    std::string operator()(const ack& m) const {
        return "ack received=" + n(m.received) + " executed=" + n(m.executed) +
               " committed=" + n(m.committed_epoch) + " freed=" + n(m.freed_bytes) + "B/" +
               n(m.freed_entries) +
               (m.complete_checkpoint == 0 ? "" : " checkpoint=" + n(m.complete_checkpoint));
    }
    std::string operator()(const heartbeat& m) const {
        return "heartbeat at " + n(m.time_ms) + (m.answer_to_ms == 0 ? "" : " answers " + n(m.answer_to_ms));
    }
    std::string operator()(const digests& m) const {
        return "digests " + n(m.sequence) + ": " + list(m.hashes);
    }
    std::string operator()(const digest_result& m) const {
        return "digest_result " + n(m.sequence) + ": " +
               (m.different.empty() ? "equal" : "different " + list(m.different));
    }
    std::string operator()(const close_epoch&) const { return "close_epoch"; }
    std::string operator()(const fault& m) const { return "fault " + n(m.sequence) + " " + quoted(m.why); }
    std::string operator()(const goodbye& m) const {
        static constexpr const char* names[] = {"?",          "shutdown", "refused", "protocol_error",
                                                "overloaded", "other"};
        const auto reason = static_cast<std::uint32_t>(m.reason);
        return std::string("goodbye ") + names[reason < std::size(names) ? reason : 0] + " " + quoted(m.why);
    }
    // In the words of docs/spec/takeover.md.
    std::string operator()(const supervision& m) const {
        std::string out = name_of(m.kind);
        if (m.kind != supervision_kind::description && m.kind != supervision_kind::ready)
            out += " " + n(m.term);
        if (m.recorded != 0)
            out += " (the record has " + n(m.recorded) + ")";
        if (m.unreleased)
            out += " unreleased";
        if (m.gpu_failed)
            out += " (its GPU failed)";
        for (const auto& p : m.parts)
            out += " " + p.name + "=" + quoted(p.value);
        return m.text.empty() ? out : out + " " + quoted(m.text);
    }
    std::string operator()(const unknown_message&) const { return "unknown_message"; }
};

} // namespace

const char* name_of(entry_kind k) {
    switch (k) {
    case entry_kind::open_file:
        return "open";
    case entry_kind::close_file:
        return "close";
    case entry_kind::submit:
        return "submit";
    case entry_kind::lose_session:
        return "lose";
    case entry_kind::reset:
        return "reset";
    }
    return "?";
}

const char* name_of(supervision_kind k) {
    static constexpr const char* names[] = {
        "?",           "DESCRIPTION", "READY",  "PAIR",    "PAIRED",          "UNPAIRED", "DIED",
        "HANDED_OVER", "LOST",        "BELIEF", "RUNNING", "TAKEOVER_FAILED", "LINEAGE"};
    const auto kind = static_cast<std::uint32_t>(k);
    return names[kind < std::size(names) ? kind : 0];
}

std::string to_text(const message& m) {
    return std::visit(message_text{}, m);
}

std::string to_text(const act_send& a) {
    return "send " + to_text(a.what);
}

std::string to_text(const act_close_link& a) {
    return "close_link " + quoted(a.why);
}

std::string state_text(const char* name, const std::string& why) {
    return std::string("state ") + name + (why.empty() ? "" : " " + quoted(why));
}

} // namespace kagemusha::mirror
