// SPDX-License-Identifier: GPL-2.0-or-later
// executor_factory: how a port or a worker gets the thing that executes requests, without knowing GPU
// backends. Tests put their own in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/port.hpp"
#include "gpu/executor.hpp"
#include "gpu/task_gate.hpp"

namespace kagemusha::worker {

// See gpu::executor, whose methods these are.
class request_executor {
public:
    virtual ~request_executor() = default;
    virtual void execute(const request_view& request) = 0;
    virtual std::uint64_t progress() const = 0;
    virtual void set_gate(gpu::task_gate&) {}
};

struct opened_executor {
    std::unique_ptr<request_executor> executor; // null: error says why
    std::string gpu_name;
    std::string error;             // a sentence for a person: what to install or which GPUs there are
    std::string own_selector = {}; // gpu::gpu_description::own_selector
};

// Called once, by the thread that will call execute(). `regions` and `sink` outlive the executor.
using executor_factory =
    std::function<opened_executor(std::span<const gpu::region_view> regions, gpu::executor_sink& sink)>;

} // namespace kagemusha::worker
