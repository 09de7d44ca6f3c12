// SPDX-License-Identifier: GPL-2.0-or-later
// requests: what the loopback knows of a request until it is answered, and of the order of its commands.
#pragma once

#include "guest-driver/opencl/transport.hpp"

#include <kagemusha/device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace kagemusha::opencl {

struct pending_request {
    std::uint64_t sequence = 0;
    bool waitable = false;
    std::uint32_t completion_count = 0;
    std::vector<std::uint64_t> stream; // 8-byte aligned
    std::vector<payload> payloads;
    std::vector<kagemusha_payload> table;
    std::vector<kagemusha_segment> segments;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> shared; // per payload: its bytes that need no copy
    std::vector<bool> filled;                                    // per payload: a read writes all of it
    std::vector<bool> copied; // per payload: the program has its data already
};

struct queued_read {
    std::uint64_t position; // in its queue
    std::uint64_t sequence; // of its request
    std::uint32_t payload;
};

struct queue_order {
    bool in_order = true;
    std::uint64_t position = 0; // of the last command
    std::vector<queued_read> reads;
};

// What the completion of an event tells: its own command, or every command of the queue up to it.
struct told {
    std::uint64_t queue;
    std::uint64_t position;
    bool all_before;
};

} // namespace kagemusha::opencl
