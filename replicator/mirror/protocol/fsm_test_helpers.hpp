// SPDX-License-Identifier: GPL-2.0-or-later
// Scripts for the state machines' tests: an event, then what it caused as text, one action after another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mirror/protocol/message_text.hpp"

namespace kagemusha::mirror::testing {

inline entry_meta meta(log_sequence s, entry_kind kind, std::uint32_t file = 0) {
    entry_meta m;
    m.sequence = s;
    m.kind = kind;
    m.file = file;
    return m;
}

inline entry_meta submit(log_sequence s, std::uint32_t file, std::uint64_t stream_bytes = 64,
                         std::uint32_t flags = 0, std::uint64_t content_bytes = 0) {
    entry_meta m = meta(s, entry_kind::submit, file);
    m.flags = flags;
    m.op_count = 1;
    m.stream_bytes = stream_bytes;
    m.content_bytes = content_bytes;
    return m;
}

inline hello standby_hello(std::uint64_t hold_bytes = 1000, std::uint64_t hold_entries = 100) {
    hello h;
    h.role = role::standby;
    h.vm = "vm";
    h.gpu = "its gpu";
    h.heartbeat_budget_ms = 500;
    h.hold_bytes = hold_bytes;
    h.hold_entries = hold_entries;
    return h;
}

inline hello primary_hello() {
    hello h;
    h.role = role::primary;
    h.vm = "vm";
    h.heartbeat_budget_ms = 500;
    return h;
}

// Everything next() gives, as "a; b; c".
template <class Fsm, class Action>
std::string drain(Fsm& fsm) {
    std::string out;
    Action a;
    while (fsm.next(a))
        out += (out.empty() ? "" : "; ") + to_text(a);
    return out;
}

} // namespace kagemusha::mirror::testing
