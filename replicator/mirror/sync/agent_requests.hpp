// SPDX-License-Identifier: GPL-2.0-or-later
// agent_requests: what the agent has in flight on the GPU: requests that it injected and events of its
// commands, and who waits for them. Ids, tokens, counting; it knows nothing of what they are for.
//
// An agent_step is one step of the agent's work that goes on when a number of answers and completions have
// come. What a worker says is not trusted: unknown tokens and events are ignored, and each counts once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "codec/encode.hpp"
#include "core/mirror_tap.hpp"
#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

struct agent_step {
    std::uint32_t left = 1;           // arm() ends the first one
    std::int32_t call_error = 0;      // the first failed answer: OpenCL's number
    std::int32_t event_error = 0;     // the first failed command
    std::uint64_t first_event_ns = 0; // when the first of its events completed
    std::function<void(agent_step&)> then;
    std::vector<std::shared_ptr<const void>> keep; // memory that the GPU may still write
    std::int32_t error() const { return call_error ? call_error : event_error; }
};
using step_ptr = std::shared_ptr<agent_step>;

class agent_requests {
public:
    agent_requests(std::uint32_t file, core::mirror_port& device, std::function<std::uint64_t()> now_ns,
                   std::uint64_t first_id);

    codec::guest_id new_id() { return agent_id_bit | ++last_id_; }

    // Setting up: make it, give it requests and events, arm it. `then` is called once, perhaps inside arm().
    step_ptr wait(std::function<void(agent_step&)> then = {});
    codec::guest_id event(const step_ptr& by); // a new id of an event; its completion will be waited for
    void inject(codec::stream_builder& stream, const step_ptr& by); // and empties the stream
    void arm(const step_ptr& by) { one_came(*by); }

    void on_done(std::uint64_t token, const vgpu_response& response);
    void on_completion(codec::guest_id event, std::int32_t status);

    bool worker_gone() const { return worker_gone_; } // an inject was refused
    bool idle() const { return tokens_.empty() && events_.empty(); }
    std::uint64_t now_ns() const { return now_ns_ ? now_ns_() : 0; }

    // Nobody is told any more. What the GPU may still write is kept until it can't.
    void forget();
    // The file has ended, and nothing more comes. The device keeps what its worker may still write.
    void clear();

private:
    void one_came(agent_step& w);

    const std::uint32_t file_;
    core::mirror_port& device_;
    std::function<std::uint64_t()> now_ns_;
    std::uint64_t last_id_ = 0, last_token_ = 0;
    std::unordered_map<std::uint64_t, step_ptr> tokens_;
    std::unordered_map<codec::guest_id, step_ptr> events_;
    bool worker_gone_ = false;
};

} // namespace kagemusha::mirror
