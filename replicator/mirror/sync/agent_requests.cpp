// SPDX-License-Identifier: GPL-2.0-or-later
// agent_requests: see agent_requests.hpp.
#include "mirror/sync/agent_requests.hpp"

#include <utility>

#include "codec/cl_numbers.hpp"

namespace kagemusha::mirror {

agent_requests::agent_requests(std::uint32_t file, core::mirror_port& device,
                               std::function<std::uint64_t()> now_ns, std::uint64_t first_id)
    : file_(file), device_(device), now_ns_(std::move(now_ns)), last_id_(first_id) {}

step_ptr agent_requests::wait(std::function<void(agent_step&)> then) {
    auto w = std::make_shared<agent_step>();
    w->then = std::move(then);
    return w;
}

codec::guest_id agent_requests::event(const step_ptr& by) {
    const codec::guest_id id = new_id();
    ++by->left;
    events_.emplace(id, by);
    return id;
}

void agent_requests::inject(codec::stream_builder& stream, const step_ptr& by) {
    if (stream.stream().empty())
        return;
    const std::uint64_t token = ++last_token_;
    ++by->left;
    tokens_.emplace(token, by);
    if (!device_.inject(file_, {token, stream.stream(), stream.payloads(), stream.segments()}))
        worker_gone_ = true;
    stream.clear();
}

void agent_requests::one_came(agent_step& w) {
    if (--w.left == 0 && w.then)
        std::exchange(w.then, {})(w);
}

void agent_requests::on_done(std::uint64_t token, const vgpu_response& response) {
    const auto at = tokens_.find(token);
    if (at == tokens_.end())
        return;
    const step_ptr w = std::move(at->second);
    tokens_.erase(at);
    const std::int32_t error =
        response.status != VGPU_STATUS_OK ? codec::cl_out_of_resources : response.result;
    if (w->call_error == 0)
        w->call_error = error;
    one_came(*w);
}

void agent_requests::on_completion(codec::guest_id event, std::int32_t status) {
    const auto at = events_.find(event);
    if (at == events_.end())
        return;
    const step_ptr w = std::move(at->second);
    events_.erase(at);
    if (w->event_error == 0 && status < 0)
        w->event_error = status;
    if (w->first_event_ns == 0)
        w->first_event_ns = now_ns();
    one_came(*w);
}

void agent_requests::forget() {
    for (auto& [token, w] : tokens_)
        w->then = {};
    for (auto& [event, w] : events_)
        w->then = {};
}

void agent_requests::clear() {
    forget();
    const auto keep_memory = [this](const agent_step& w) {
        for (const auto& memory : w.keep)
            device_.keep_until_gone(file_, memory);
    };
    for (const auto& [token, w] : tokens_)
        keep_memory(*w);
    for (const auto& [event, w] : events_)
        keep_memory(*w);
    tokens_.clear();
    events_.clear();
}

} // namespace kagemusha::mirror
