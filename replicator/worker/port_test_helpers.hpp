// SPDX-License-Identifier: GPL-2.0-or-later
// Helpers of the tests that drive a port: a sink that writes everything down, and waiting without a clock in
// the expectation (the limit only ends a test that is lost anyway).
#pragma once

#include <poll.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/port.hpp"

namespace kagemusha::worker {

struct recording_sink final : port_sink {
    struct done_call {
        std::uint64_t token;
        vgpu_response response;
    };
    void on_done(std::uint64_t token, const vgpu_response& response) override {
        done.push_back({token, response});
        if (when_done)
            when_done();
    }
    void on_written(std::uint64_t token, std::uint32_t payload) override {
        written.emplace_back(token, payload);
    }
    void on_record(std::span<const std::byte> record) override {
        vgpu_record head;
        std::memcpy(&head, record.data(), sizeof head);
        if (head.type == VGPU_RECORD_TEXT) {
            vgpu_record_text text_head;
            std::memcpy(&text_head, record.data(), sizeof text_head);
            text.append(reinterpret_cast<const char*>(record.data()) + sizeof text_head,
                        text_head.text_bytes);
        } else {
            text_at_record.push_back(text.size());
            records.emplace_back(record.begin(), record.end());
        }
    }
    void on_lost(vgpu_lost_reason reason, std::uint32_t detail) override { lost.push_back({reason, detail}); }

    std::vector<done_call> done;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> written;
    std::vector<std::vector<std::byte>> records; // all but text
    std::vector<std::size_t> text_at_record;     // length of `text` when each of them came
    std::string text;
    std::vector<std::pair<vgpu_lost_reason, std::uint32_t>> lost;
    std::function<void()> when_done;
};

// Drains until `condition` holds; false if nothing happens for a minute.
template <class Condition>
bool drain_until(port& p, recording_sink& sink, Condition condition) {
    while (!condition()) {
        pollfd fd{p.event_fd(), POLLIN, 0};
        if (poll(&fd, 1, 60000) != 1)
            return false;
        p.drain(sink);
    }
    return true;
}

// Kills it and waits until nothing is left of it; false if that takes a minute.
inline bool end_port(port& p) {
    p.kill();
    while (!p.gone()) {
        pollfd fd{p.event_fd(), POLLIN, 0};
        if (poll(&fd, 1, 60000) != 1)
            return false;
    }
    return true;
}

inline bool submit_words(port& p, std::uint64_t token, std::span<const std::uint64_t> words) {
    const bool accepted = p.submit({token, std::as_bytes(words), {}, {}}) == submit_result::accepted;
    p.kick();
    return accepted;
}

} // namespace kagemusha::worker
