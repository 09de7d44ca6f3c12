// SPDX-License-Identifier: GPL-2.0-or-later
// peer_messages: messages of a hostile peer out of fuzz input, for the fuzzers of the state machines. They
// are what messages::decode lets through, and mostly near what would be right at this moment, so that the
// fuzzer gets deep; anything else ends the connection before a state machine hears of it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "fuzz_input.hpp"
#include "messages/messages.hpp"

namespace kagemusha::fuzz {

inline void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

class peer_messages {
public:
    explicit peer_messages(reader& in) : in_(in) {}

    // A number near `expected`, or any.
    std::uint64_t near(std::uint64_t expected) {
        const auto how = in_.value<std::uint8_t>();
        if (how == 0xff)
            return in_.value<std::uint64_t>();
        if (how < 0xc0)
            return expected;
        const std::uint64_t by = how & 0x1f;
        return how < 0xe0 ? expected - std::min(by, expected) : expected + by;
    }

    mirror::hello hello(mirror::role role) {
        mirror::hello h;
        h.role = role;
        h.vm = "vm";
        h.hold_bytes = 4096;
        h.hold_entries = 16;
        h.heartbeat_budget_ms = 100;
        const auto change = in_.value<std::uint8_t>();
        switch (change % 16) {
        case 1:
            h.version = h.oldest_version = in_.value<std::uint32_t>();
            break;
        case 2:
            h.vm = "other";
            break;
        case 3:
            h.role = role == mirror::role::primary ? mirror::role::standby : mirror::role::primary;
            break;
        case 4:
            h.abi_version = in_.value<std::uint32_t>();
            break;
        case 5:
            h.hold_bytes = in_.value<std::uint64_t>();
            h.hold_entries = in_.value<std::uint64_t>();
            break;
        case 6:
            h.heartbeat_budget_ms = in_.value<std::uint32_t>();
            break;
        case 7:
            h.capabilities = {"zstd"};
            break;
        default:
            break;
        }
        return h;
    }

    mirror::entries entries(std::uint64_t next) {
        mirror::entries m;
        std::uint64_t sequence = near(next);
        for (unsigned left = 1 + in_.value<std::uint8_t>() % 8; left != 0 && !in_.empty(); --left)
            m.list.push_back(entry(sequence++));
        return m;
    }

    mirror::goodbye goodbye() {
        return {static_cast<mirror::goodbye_reason>(1 + in_.value<std::uint8_t>() % 5), "so long"};
    }

private:
    mirror::entries::entry entry(std::uint64_t sequence) {
        mirror::entries::entry e;
        const auto what = in_.value<std::uint8_t>();
        e.meta.sequence = sequence;
        // Mostly submits.
        e.meta.kind = static_cast<mirror::entry_kind>(what % 16 < 5 ? 1 + what % 16 : 3);
        e.meta.file = e.meta.kind == mirror::entry_kind::reset ? 0 : what / 16 % 4;
        if (e.meta.kind != mirror::entry_kind::submit)
            return e;
        e.meta.flags = in_.value<std::uint8_t>() & mirror::entry_all_flags;
        e.meta.op_count = 1;
        e.meta.stream_bytes = 8 * (1 + in_.value<std::uint8_t>() % 64);
        for (unsigned left = in_.value<std::uint8_t>() % 4; left != 0; --left) {
            const auto p = in_.value<std::uint16_t>();
            const bool writable = (e.meta.flags & mirror::entry_compare) != 0 && p % 2 != 0;
            e.payloads.push_back({std::uint64_t{p} / 16, writable});
            e.meta.content_bytes += writable ? 0 : mirror::rounded_up(e.payloads.back().bytes);
        }
        return e;
    }

    reader& in_;
};

// What a state machine wants to send has to be what the other side accepts.
inline void require_sendable(const mirror::message& m) {
    const std::string rule = messages::check(m);
    if (!rule.empty())
        std::fprintf(stderr, "%s\n", rule.c_str());
    require(rule.empty(), "only valid messages are sent");
}

} // namespace kagemusha::fuzz
