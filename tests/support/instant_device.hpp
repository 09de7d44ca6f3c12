// SPDX-License-Identifier: GPL-2.0-or-later
// instant_device: a test_device whose workers execute on the null backend with memory, at once and in the
// caller's thread, so nothing waits or depends on time; and whose buffers can be looked into.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/backend.hpp"
#include "gpu/executor.hpp"
#include "tests/support/test_device.hpp"

namespace kagemusha::mirror::testing {

// Executes at once; what comes of it waits for drain().
class instant_port final : public worker::port, public gpu::executor_sink {
public:
    explicit instant_port(std::span<const gpu::region_view> regions);
    ~instant_port() override;

    std::function<bool()> is_full = [] { return false; };
    std::vector<std::uint64_t> tokens; // in the order of arrival

    // Runs a request of the test's own; its answer is returned and nobody else hears of it.
    vgpu_response peek(const stream_builder& b);
    void lose();

    worker::submit_result submit(const worker::request_view& request) override;
    void kick() override {}
    int event_fd() const override { return event_; }
    void drain(worker::port_sink& sink) override;
    void kill() override {}
    bool gone() override { return true; }
    std::uint64_t progress() const override { return executor_->progress(); }

private:
    void on_done(std::uint64_t token, const vgpu_response& response) override;
    void on_written(std::uint64_t token, std::uint32_t payload) override;
    void on_record(std::span<const std::byte> record) override;
    void on_gpu_lost(std::uint32_t) override {}
    void say(std::function<void(worker::port_sink&)> f);

    int event_;
    std::optional<vgpu_response> quiet_;
    std::vector<std::function<void(worker::port_sink&)>> said_;
    std::unique_ptr<gpu::executor> executor_;
};

// The memory that device and workers share; it outlives both.
struct instant_memory {
    explicit instant_memory(std::uint64_t bytes);
    std::vector<std::byte> memory, peeked;
    std::vector<gpu::region_view> views;
    std::function<bool()> is_full = [] { return false; }; // asked by each port
    std::map<std::uint32_t, instant_port*> ports;         // by file; dangling after the port's end
};

class instant_device final : public instant_memory, public test_device {
public:
    static constexpr std::uint64_t guest_bytes = 1u << 20;

    explicit instant_device(role r, std::uint64_t memory_bytes = guest_bytes);

    // What lies in a buffer, as its GPU has it now.
    std::vector<std::byte> content(std::uint32_t file, guest_id context, guest_id buffer,
                                   std::uint64_t bytes);
};

} // namespace kagemusha::mirror::testing
