// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_executor: see gpu_executor.hpp.
#include "worker/gpu_executor.hpp"

#include <utility>

#include "gpu/backend.hpp"

namespace kagemusha::worker {

namespace {

class gpu_request_executor final : public request_executor {
public:
    gpu_request_executor(std::shared_ptr<gpu::backend_device> device,
                         std::span<const gpu::region_view> regions, gpu::executor_sink& sink)
        : executor_(std::move(device), regions, sink) {}
    void execute(const request_view& request) override { executor_.execute(request); }
    std::uint64_t progress() const override { return executor_.progress(); }
    void set_gate(gpu::task_gate& gate) override { executor_.set_gate(gate); }

private:
    gpu::executor executor_;
};

} // namespace

executor_factory gpu_executor_factory(std::string backend, std::string gpu, std::string options) {
    return [backend = std::move(backend), gpu = std::move(gpu), options = std::move(options)](
               std::span<const gpu::region_view> regions, gpu::executor_sink& sink) -> opened_executor {
        auto opened = gpu::open_gpu(backend, gpu, options);
        if (!opened.device)
            return {nullptr, "", std::move(opened.error)};
        const gpu::gpu_description described = gpu::describe(*opened.device);
        return {std::make_unique<gpu_request_executor>(std::move(opened.device), regions, sink),
                described.name, "", described.own_selector};
    };
}

} // namespace kagemusha::worker
