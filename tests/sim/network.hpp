// SPDX-License-Identifier: GPL-2.0-or-later
// The simulator's network: one connection at a time as TCP gives it (each direction in order, nothing twice; with
// lanes, content may come late),
// and what goes wrong with one: it ends, with or without anybody being told, and what was under way is lost
// in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "mirror/protocol/message.hpp"
#include "sim/model_gpu.hpp"
#include "sim/rng.hpp"

namespace kagemusha::sim {

struct frame {
    mirror::message what;
    std::vector<body> bodies;                     // of entries
    std::array<std::uint64_t, max_words> words{}; // of content
    bool end = false;                             // no message: the connection has ended
    std::uint64_t bytes() const {
        std::uint64_t n = 8;
        for (const body& b : bodies)
            n += b.meta.stream_bytes + b.words_here * 8;
        return n;
    }
};

struct direction {
    std::deque<frame> frames;
    std::uint64_t bytes = 0;
    std::uint32_t stalled = 0; // steps in which nothing is delivered
    bool open = false;         // the receiver still listens

    void push(frame f) {
        bytes += f.bytes();
        frames.push_back(std::move(f));
    }
    frame pop(std::size_t at = 0) {
        frame f = std::move(frames[at]);
        frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(at));
        bytes -= f.bytes();
        return f;
    }
    // The first frame is content that a lane brings, and the second does not wait for it (net/laned_link.hpp).
    bool second_may_overtake() const {
        if (frames.size() < 2 || !std::holds_alternative<mirror::content>(frames[0].what) || frames[1].end)
            return false;
        const auto* o = std::get_if<mirror::outcome>(&frames[1].what);
        return !(o && o->canceled) && !std::holds_alternative<mirror::goodbye>(frames[1].what);
    }
    void clear() {
        frames.clear();
        bytes = 0;
        stalled = 0;
    }
};

struct connection {
    direction to_standby, to_primary;
    bool whole = false; // what is sent can arrive

    void connect() {
        to_standby.clear();
        to_primary.clear();
        to_standby.open = to_primary.open = whole = true;
    }
    // What is still under way arrives up to a random message, the rest is lost.
    void cut(rng& random, bool silent) {
        whole = false;
        for (direction* d : {&to_standby, &to_primary}) {
            const std::size_t kept = random.below(static_cast<std::uint32_t>(d->frames.size() + 1));
            while (d->frames.size() > kept) {
                d->bytes -= d->frames.back().bytes();
                d->frames.pop_back();
            }
            if (!silent) {
                frame f;
                f.end = true;
                d->push(std::move(f));
            }
        }
    }
};

} // namespace kagemusha::sim
